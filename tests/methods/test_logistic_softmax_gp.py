"""CDKT and its Gibbs sampling twin: losses and predictions against what they stand for, options, chains."""

import pytest
import torch
from torch.testing import assert_close

from mirrorshot.data import EpisodeSampler
from mirrorshot.gp import logistic_softmax as ls
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.logistic_softmax import make_labels, mean_field, mean_field_elbo
from mirrorshot.methods.logistic_softmax_gp import LogisticSoftmaxGP
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.softmax.logistic import logistic_softmax_prob
from mirrorshot.types import InvalidInputError

D = 8
TAU = 0.5


@pytest.fixture
def drawn(clouds):
    return EpisodeSampler(clouds(D), 5, 2, 3, seed=0).draw(3)


def make(**options):
    options = {"likelihood_temperature": TAU, **options}
    return LogisticSoftmaxGP(make_backbone("identity", in_features=D), **options).double()


def labels_of(tasks, y):
    return make_labels(y, torch.ones(y.shape), tasks.class_mask, torch.float64)


@pytest.mark.parametrize("start", ["prior", "labels"])
def test_ml_is_the_bound_of_support_and_query_per_point(drawn, start):
    tasks, query_y = drawn
    method = make(prior_mean=-1.0, start=start)
    K = method.kernel(torch.cat([tasks.support_x, tasks.query_x], 1)) / TAU**2
    labels = labels_of(tasks, torch.cat([tasks.support_y, query_y], 1))
    q = mean_field(K, labels, n_steps=2, prior_mean=-1.0 / TAU, start=start)
    bound = mean_field_elbo(q, labels, prior_mean=-1.0 / TAU)
    assert_close(method.loss(tasks, query_y), -bound / 25)


def latents(method, tasks, n_steps, prior_mean, start="prior"):
    K, K_cross = (method.kernel(tasks.support_x, z) / TAU**2 for z in (None, tasks.query_x))
    prior_var = method.kernel.diagonal(tasks.query_x) / TAU**2
    labels = labels_of(tasks, tasks.support_y)
    q = mean_field(K, labels, n_steps=n_steps, prior_mean=prior_mean / TAU, start=start)
    mean, var = predict_latent(q.posterior, K_cross, prior_var)
    return mean + prior_mean / TAU, var


def test_predictions_are_expected_likelihoods_after_the_steps_of_the_test(drawn):
    tasks, _ = drawn
    prob = logistic_softmax_prob(*latents(make(), tasks, 30, 0.0), tasks.class_mask)
    assert_close(make().predict(tasks).exp(), prob.mT, rtol=0, atol=1e-8)
    prob = logistic_softmax_prob(*latents(make(), tasks, 1, 0.0, "labels"), tasks.class_mask)
    assert_close(make(start="labels", n_test_steps=1).predict(tasks).exp(), prob.mT, rtol=0, atol=1e-8)


def test_pl_is_the_cross_entropy_of_predictions_after_the_steps_of_training(drawn):
    tasks, query_y = drawn
    method = make(objective="pl", n_steps=30)
    expected = torch.nn.functional.nll_loss(method.predict(tasks).mT, query_y, reduction="none").mean(1)
    assert_close(method.loss(tasks, query_y), expected)


@pytest.mark.parametrize("inference", ["mean_field", "gibbs"])
@pytest.mark.parametrize("objective", ["ml", "pl"])
def test_the_gradient_in_the_kernel_is_that_of_finite_differences(
    drawn, inference, objective, monkeypatch, assert_gradient_in_kernel
):
    tasks, query_y = drawn
    method = make(inference=inference, objective=objective, n_chains=3)
    if inference == "gibbs":  # draws are constants to the gradient
        made, draw = [], ls.gibbs
        monkeypatch.setattr(ls, "gibbs", lambda *a, **k: made[0] if made else made.append(draw(*a, **k)) or made[0])
    assert_gradient_in_kernel(method, tasks, query_y)


def test_temperature_and_scale_of_the_kernel_are_one_thing(drawn):
    sharp = make(likelihood_temperature=0.5, kernel_options={"outputscale": 1.0})
    large = make(likelihood_temperature=1.0, kernel_options={"outputscale": 4.0})
    assert_close(sharp.loss(*drawn), large.loss(*drawn))
    assert_close(sharp.predict(drawn[0]), large.predict(drawn[0]))


def test_many_gibbs_chains_agree_with_each_other_and_nearly_with_mean_field(drawn):
    tasks = drawn[0].select(slice(0, 1))
    method = make(inference="gibbs", n_chains=300, n_test_steps=20, likelihood_temperature=1.0)
    runs = []
    for seed in (0, 1):
        method.seed(seed)
        runs.append(method.predict(tasks).exp())
    mean_field_prob = make(likelihood_temperature=1.0).predict(tasks).exp()
    assert 0 < (runs[0] - runs[1]).abs().max().item() < 0.02
    assert (runs[0] - mean_field_prob).abs().max().item() < 0.05


def test_gibbs_predictions_follow_a_renaming_of_the_classes(drawn):
    tasks = drawn[0].select(slice(0, 1))
    method = make(inference="gibbs", n_chains=300, n_test_steps=20, likelihood_temperature=1.0)
    order = torch.tensor([2, 0, 4, 3, 1])
    renamed = method.predict(tasks._replace(support_y=order[tasks.support_y]))
    assert_close(renamed[..., order].exp(), method.predict(tasks).exp(), rtol=0, atol=0.03)


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inference": "laplace"}, "'mean_field' or 'gibbs', but got 'laplace'"),
        (
            {"inference": "gibbs", "objective": "cml"},
            "'ml' or 'pl' or 'tpl', but got 'cml'.*Use inference='mean_field'",
        ),
        ({"start": "random"}, "`start` to be 'prior' or 'labels', but got 'random'"),
        ({"likelihood_temperature": 0.0}, "`likelihood_temperature` to be positive, but got 0.0"),
        ({"n_steps": 0}, "`n_steps` to be positive, but got 0"),
        ({"inference": "gibbs", "n_chains": 0}, "`n_chains` to be positive, but got 0"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)
