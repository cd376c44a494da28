"""Imitations of released code: formulas against independent ones, and cells whose settings ask for an imitation."""

import pytest
import torch
from torch.testing import assert_close

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.logistic_softmax import make_labels, mean_field, mean_field_elbo
from mirrorshot.methods import METHODS, make_method, method_options
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.paper.cells import Cell, different_settings, read_results
from mirrorshot.paper.released import released_descent, released_scores
from mirrorshot.paper.released_cdkt import OPTIONS, ReleasedLogisticSoftmaxGP, imitation, released_elbo
from mirrorshot.paper.runner import run_cells
from mirrorshot.softmax.logistic import logistic_softmax_prob
from mirrorshot.softmax.moments import softmax_moments
from mirrorshot.types import InvalidInputError

D, F64 = 8, torch.float64


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 1, D, generator=generator, dtype=F64)
    x = centres + 0.7 * torch.randn(10, 20, D, generator=generator, dtype=F64)
    source = ClassSource.from_arrays(x.reshape(-1, D), torch.arange(10).repeat_interleave(20))
    return EpisodeSampler(source, 5, 2, 3, seed=0).draw(3)


def make(cls, **options):
    return cls(make_backbone("identity", in_features=D), **options).double()


def cosine_tasks(n_tasks, n_way, n_shot, scale):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n_tasks, n_way, 1, 64, generator=g, dtype=F64)
    x = x + torch.randn(n_tasks, n_way, n_shot, 64, generator=g, dtype=F64)
    z = torch.nn.functional.normalize(x.flatten(1, 2), dim=-1)
    return scale * (z @ z.mT)[:, None], torch.arange(n_way).repeat_interleave(n_shot).expand(n_tasks, -1)


def test_the_released_formula_converges_to_a_lower_bound():
    K, y = cosine_tasks(3, 5, 5, 3.0)
    options = {"n_way": 5, "max_steps": 60, "step_size": 0.5}
    _, paper = mirror_descent(K, y, **options)
    posterior, released = released_descent(K, y, **options)
    assert_close(released.elbo[:, -1], released.elbo[:, -2], rtol=0, atol=1e-6)  # at its fixed point
    assert (released.elbo[:, -1] < paper.elbo[:, -1] - 0.5).all()
    # m = (K^-1 + W)^-1 (1 + W) g_m, that is b = (1 + w) g_m
    moments = softmax_moments(posterior.mean.mT, posterior.var.mT)
    g_m = torch.nn.functional.one_hot(y, 5).mT - moments.prob.mT
    shift, w = posterior.sites
    assert_close(shift, (1 + w) * g_m, rtol=0, atol=1e-5)


def test_the_released_formula_is_the_papers_for_an_identity_kernel():
    K, y = torch.eye(6, dtype=F64)[None, None], torch.tensor([[0, 1, 2, 0, 1, 2]])
    options = {"n_way": 3, "max_steps": 60, "step_size": 0.5}
    assert_close(released_descent(K, y, **options)[0].mean, mirror_descent(K, y, **options)[0].mean)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_released_bound_is_above_the_derived_one_by_a_share_of_the_rates(n_classes):
    K, y = cosine_tasks(1, n_classes, 2, 3.0)
    labels = make_labels(y, torch.ones(y.shape), torch.ones(1, n_classes, dtype=torch.bool), F64)
    q = mean_field(K, labels, n_steps=20, prior_mean=-1.0)
    bound = mean_field_elbo(q, labels, prior_mean=-1.0)
    surplus = (1 - 1 / n_classes) * q.alpha.sum()
    assert_close(released_elbo(q, labels, prior_mean=-1.0), bound + surplus)


def test_released_scores_have_the_spread_of_squared_variances():
    g = torch.Generator().manual_seed(0)
    mean, root = torch.randn(1, 3, 1, generator=g, dtype=F64), torch.randn(3, 3, generator=g, dtype=F64)
    scores = released_scores(mean, (root @ root.mT)[None, None], torch.ones(1, 3).bool())
    f = mean[0, :, 0] + torch.randn(400_000, 3, generator=g, dtype=F64) @ root.mT
    psi = f[:, :, None] - f[:, None, :]
    psi = psi.mean(0) + (psi - psi.mean(0)) * psi.std(0)
    log_sigmoid = torch.nn.functional.logsigmoid(psi).mean(0)
    assert_close(scores[0, 0], log_sigmoid.sum(-1) - log_sigmoid.diagonal(), rtol=0, atol=0.02)


def test_cdkt_trains_on_the_released_bound(drawn):
    tasks, query_y = drawn
    method = make(ReleasedLogisticSoftmaxGP, prior_mean=-1.0, released_bound=True, likelihood_temperature=0.5)
    K = method.kernel(torch.cat([tasks.support_x, tasks.query_x], 1)) / 0.25
    y = torch.cat([tasks.support_y, query_y], 1)
    labels = make_labels(y, torch.ones(y.shape), tasks.class_mask, F64)
    q = mean_field(K, labels, n_steps=2, prior_mean=-2.0)
    assert_close(method.loss(tasks, query_y), -released_elbo(q, labels, prior_mean=-2.0) / 25)


def latents(method, tasks, prior_mean):
    labels = make_labels(tasks.support_y, torch.ones(tasks.support_y.shape), tasks.class_mask, F64)
    q = mean_field(method.kernel(tasks.support_x), labels, n_steps=30, prior_mean=prior_mean)
    prior_var = method.kernel.diagonal(tasks.query_x)
    mean, var = predict_latent(q.posterior, method.kernel(tasks.support_x, tasks.query_x), prior_var)
    return mean + prior_mean, var


def test_cdkt_has_another_prior_mean_at_test(drawn):
    tasks, query_y = drawn
    options = {"likelihood_temperature": 1.0}
    method = make(ReleasedLogisticSoftmaxGP, test_prior_mean=-5.0, **options)
    prob = logistic_softmax_prob(*latents(method, tasks, -5.0), tasks.class_mask)
    assert_close(method.predict(tasks).exp(), prob.mT, rtol=0, atol=1e-8)
    plain = make_method("logistic_softmax_gp", make_backbone("identity", in_features=D), **options).double()
    assert_close(method.loss(tasks, query_y), plain.loss(tasks, query_y))


def test_with_its_defaults_the_imitation_does_as_the_method(drawn):
    found = []
    for cls in (METHODS["logistic_softmax_gp"], ReleasedLogisticSoftmaxGP):
        method = make(cls)
        method.seed(0)
        found.append((method.loss(*drawn), method.predict(drawn[0])))
    assert_close(found[0], found[1])


def test_the_imitation_adds_its_options_to_those_of_the_method(monkeypatch):
    own = method_options("logistic_softmax_gp")
    monkeypatch.setitem(METHODS, "logistic_softmax_gp", ReleasedLogisticSoftmaxGP)
    assert method_options("logistic_softmax_gp") == own | OPTIONS
    assert not set(own) & set(OPTIONS)


def test_methods_of_users_have_no_option_of_an_imitation():
    with pytest.raises(InvalidInputError, match="but got released_bound"):
        make_method("logistic_softmax_gp", make_backbone("identity", in_features=D), released_bound=True)


def test_only_settings_that_name_an_option_are_imitated():
    cell = Cell("logistic_softmax_gp", "cub", 5)
    with imitation(cell.config()):
        assert METHODS[cell.row] is not ReleasedLogisticSoftmaxGP
    with imitation(cell._replace(changes=("method_options.released_bound=true",)).config()):
        assert METHODS[cell.row] is ReleasedLogisticSoftmaxGP
    assert METHODS[cell.row] is not ReleasedLogisticSoftmaxGP


def test_a_cell_with_an_option_of_an_imitation_is_run_by_the_same_command(data, places):
    changes = ("method_options.released_bound=true", "device=cpu", "save_every=0")
    cell = Cell("logistic_softmax_gp", data, 1, budget="smoke", tag="_released", changes=changes)
    (outcome,) = run_cells([cell], places, say=lambda line: None)
    assert outcome.status == "done", outcome.detail
    (result,) = read_results(places.results)
    assert result.record["config"]["method_options"]["released_bound"] is True
    plain = cell._replace(changes=("device=cpu",))
    assert different_settings(plain.config(), result.record["config"]) == [
        "method_options.released_bound = True (asked for: False)"
    ]


def test_results_that_store_the_defaults_of_an_imitation_are_those_of_the_method():
    config = Cell("logistic_softmax_gp", "cub", 5).config()
    stored = config.replace(method_options=OPTIONS).to_dict()
    assert different_settings(config, stored) == []
