"""SimpleShot: its probabilities by plain loops, what `tune` fits, and what it does without."""

import pytest
import torch

from mirrorshot.data import EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.metrics import fit_temperature
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError

D = 8


@pytest.fixture
def source(clouds):
    """Clouds far from the origin, where centring matters."""
    return clouds(D, shift=5.0)


@pytest.fixture
def drawn(source):
    return EpisodeSampler(source, n_way=5, n_shot=2, n_query=4, seed=0).draw(60)


def make(**options):
    return make_method("simpleshot", make_backbone("identity", in_features=D), n_base_classes=10, **options).double()


def by_loops(tasks, i, centre, temperature):
    """Probabilities (M, C) of task `i`, point by point."""

    def change(x):
        return (x - centre) / (x - centre).norm()

    means = [
        torch.stack([change(x) for x, y in zip(tasks.support_x[i], tasks.support_y[i], strict=True) if y == c]).mean(0)
        for c in range(tasks.n_way)
    ]
    distances = [[((change(x) - m) ** 2).sum() for m in means] for x in tasks.query_x[i]]
    return torch.softmax(-torch.tensor(distances, dtype=torch.float64) / temperature, -1)


def test_probabilities_are_those_of_the_nearest_mean_point_by_point(drawn):
    tasks, query_y = drawn
    method = make()
    method.tune(tasks, query_y)
    x = torch.cat([tasks.support_x, tasks.query_x], 1)
    temperature = float(method.log_temperature.exp())
    for i in range(2):
        expected = by_loops(tasks, i, x.mean((0, 1)), temperature)
        assert torch.allclose(method.predict(tasks)[i].exp(), expected, atol=1e-8)


def test_tune_fits_the_temperature_after_the_centre(drawn):
    tasks, query_y = drawn
    method = make()
    method.tune(tasks, query_y)
    fixed = make(temperature=1.0)
    fixed.tune(tasks, query_y)
    assert fixed.log_temperature == 0.0
    assert torch.equal(fixed.centre, method.centre)
    expected = fit_temperature(fixed.predict(tasks), query_y)
    assert float(method.log_temperature.exp()) == pytest.approx(expected, rel=1e-6)
    assert 0.01 < expected < 1.0  # squared distances of unit vectors are small numbers
    assert method.loss(tasks, query_y).mean() < fixed.loss(tasks, query_y).mean()


def test_padding_does_not_move_the_centre(drawn):
    tasks, query_y = drawn
    method, padded = make(), make()
    method.tune(tasks, query_y)
    item, zero = torch.full((60, 1, D), 99.0, dtype=torch.float64), torch.zeros(60, 1)
    label = torch.zeros(60, 1, dtype=torch.int64)
    more = tasks._replace(
        support_x=torch.cat([tasks.support_x, item], 1), support_y=torch.cat([tasks.support_y, label], 1),
        query_x=torch.cat([tasks.query_x, item], 1), support_weight=torch.cat([tasks.support_weight, zero], 1),
        query_weight=torch.cat([tasks.query_weight, zero], 1),
    )  # fmt: skip
    padded.tune(more, torch.cat([query_y, label], 1))
    assert torch.allclose(padded.centre, method.centre)
    assert torch.allclose(padded.log_temperature, method.log_temperature)


def test_centring_helps_where_features_share_an_offset(drawn):
    tasks, query_y = drawn
    method = make()
    before = (method.predict(tasks).argmax(-1) == query_y).double().mean()
    method.tune(tasks, query_y)
    assert (method.predict(tasks).argmax(-1) == query_y).double().mean() > before


def test_a_given_temperature_leaves_the_centre_to_tune():
    assert make(temperature=0.1).is_tuned


def test_it_learns_from_images_as_a_classifier():
    method = make_method(
        "simpleshot", make_backbone("conv4s", generator=torch.Generator().manual_seed(0)), n_base_classes=3
    )
    x = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    loss = method.classification_loss(x, torch.arange(6) % 3)
    loss.sum().backward()
    assert loss.shape == (6,)
    assert all(p.grad is not None for p in method.parameters())
    assert method.centre.shape == (64,)


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "`temperature` to be positive or None, but got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)
