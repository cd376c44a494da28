"""Nearest class mean by cosine: against plain loops and scikit-learn, and its temperature."""

import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from mirrorshot.data import EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.metrics import fit_temperature
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError

D = 8


@pytest.fixture
def drawn(clouds):
    return EpisodeSampler(clouds(D), n_way=5, n_shot=3, n_query=4, seed=0).draw(40)


def make(**options):
    return make_method("ncm_cosine", make_backbone("identity", in_features=D), n_base_classes=10, **options).double()


def cosines(tasks, i):
    """Cosines (M, C) of task `i` between queries and class means."""
    means = [tasks.support_x[i][tasks.support_y[i] == c].mean(0).numpy() for c in range(5)]
    return torch.from_numpy(cosine_similarity(tasks.query_x[i].numpy(), means))


def test_probabilities_are_the_softmax_of_cosines_over_the_temperature(drawn):
    tasks, _ = drawn
    log_prob = make(temperature=0.2).predict(tasks)
    for i in range(3):
        assert torch.allclose(log_prob[i], (cosines(tasks, i) / 0.2).log_softmax(-1), atol=1e-6)


def test_tune_fits_the_temperature_of_the_cosines(drawn):
    tasks, query_y = drawn
    method = make()
    method.tune(tasks, query_y)
    expected = fit_temperature(torch.stack([cosines(tasks, i) for i in range(40)]), query_y)
    assert float(method.log_temperature.exp()) == pytest.approx(expected, rel=1e-6)
    assert method.loss(tasks, query_y).mean() < make().loss(tasks, query_y).mean()


def test_a_temperature_that_is_given_stays(drawn):
    method = make(temperature=0.2)
    method.tune(*drawn)
    assert not method.is_tuned
    assert float(method.log_temperature.exp()) == pytest.approx(0.2)


def test_the_length_of_queries_does_not_matter(drawn):
    tasks, _ = drawn
    method = make()
    assert torch.allclose(method.predict(tasks._replace(query_x=7 * tasks.query_x)), method.predict(tasks))


def test_a_temperature_that_is_not_positive_is_refused():
    with pytest.raises(InvalidInputError, match=r"`temperature` to be positive or None, but got -2\.0"):
        make(temperature=-2.0)
