"""CDKT as released: with all departures undone it is coordinate ascent on the bound."""

import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp.logistic_softmax import make_labels, mean_field, mean_field_elbo
from mirrorshot.methods.gp import Points
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.paper.cells import Cell
from mirrorshot.paper.released_cdkt import (
    Departures,
    Moments,
    ReleasedLogisticSoftmaxGP,
    imitation,
    released_objective,
    released_steps,
)
from mirrorshot.types import InvalidInputError

F64 = torch.float64
NONE = Departures(*[False] * len(Departures._fields))


@pytest.fixture
def task():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat_interleave(4)[None]
    x = torch.randn(3, 8, generator=g, dtype=F64)[y[0]] + torch.randn(12, 8, generator=g, dtype=F64)
    z = torch.nn.functional.normalize(x, dim=-1)
    labels = make_labels(y, torch.ones(y.shape), torch.ones(1, 3, dtype=torch.bool), F64)
    return 3.0 * (z @ z.mT)[None, None], labels


def run(K, labels, departures, n_steps, seed=0):
    start = Moments(torch.zeros_like(labels.Y), torch.ones_like(labels.Y))
    g = torch.Generator().manual_seed(seed)
    q = released_steps(K, labels, start, n_steps=n_steps, generator=g, departures=departures)
    return q, released_objective(q, labels, departures)


def test_without_departures_many_steps_reach_the_optimum_of_the_bound(task):
    K, labels = task
    q, value = run(K, labels, NONE, 200)
    ours = mean_field(K, labels, n_steps=200)
    assert_close(q.posterior.mean, ours.posterior.mean, rtol=0, atol=1e-8)
    assert_close(value, mean_field_elbo(ours, labels), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["random_rates", "lagging_omega", "held_tilt", "dropped_quadratic"])
def test_a_departure_leaves_the_value_of_the_optimum_as_it_is(task, name):
    K, labels = task
    departures = NONE._replace(**{name: True}, **({"held_tilt": True} if name == "dropped_quadratic" else {}))
    assert_close(run(K, labels, departures, 200)[1], run(K, labels, NONE, 200)[1], rtol=0, atol=1e-8)


def test_the_held_tilt_without_its_quadratic_term_changes_the_gradient(task):
    K, labels = task
    gradients = []
    for departures in (NONE, NONE._replace(held_tilt=True), NONE._replace(held_tilt=True, dropped_quadratic=True)):
        scale = torch.ones((), dtype=F64, requires_grad=True)
        _, value = run(scale * K, labels, departures, 200)
        gradients.append(torch.autograd.grad(value.sum(), scale)[0])
    # at the optimum only the explicit dependence on K is left, unless a term is missing
    assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)
    assert abs(gradients[2] - gradients[0]) > 0.1


def test_large_rates_add_their_surplus(task):
    K, labels = task
    q, value = run(K, labels, NONE, 5)
    surplus = (q.alpha * (1 - 1 / 3)).sum()
    assert_close(released_objective(q, labels, NONE._replace(large_rates=True)), value + surplus)


def test_random_rates_follow_the_seed(task):
    first, again, other = (run(*task, Departures(), 2, seed)[1] for seed in (1, 1, 2))
    assert_close(first, again, rtol=0, atol=0)
    assert (first != other).all()


def test_the_row_as_released_builds_the_imitation_with_the_papers_optimiser():
    config = Cell("logistic_softmax_gp_released", "cub", 1).config()
    assert (config.optimizer, config.lr, config.kernel_lr, config.tasks_per_step) == ("adam", 1e-3, 1e-4, 1)
    with imitation(config):
        from mirrorshot.methods import make_method

        method = make_method("logistic_softmax_gp", make_backbone("identity", in_features=4), **config.method_options)
    assert isinstance(method, ReleasedLogisticSoftmaxGP)
    assert method.departures == Departures()
    assert not method.is_recordable(85, 5)
    assert method.kernel.log_outputscale.shape == (5,)


def test_training_goes_on_from_the_task_before():
    g = torch.Generator().manual_seed(0)
    method = ReleasedLogisticSoftmaxGP(make_backbone("identity", in_features=4), released_training=True)
    y, mask = torch.arange(5).repeat_interleave(2)[None], torch.ones(1, 5, dtype=torch.bool)
    K = method.kernel(torch.randn(1, 10, 4, generator=g))
    method._bound(K, Points(y, torch.ones(1, 10), mask))
    carried = method._carried
    assert carried is not None
    assert not carried.mean.requires_grad
    method._bound(K, Points(y, torch.ones(1, 10), mask))
    assert (method._carried.mean != carried.mean).any()


def test_released_training_refuses_other_objectives():
    backbone = make_backbone("identity", in_features=4)
    with pytest.raises(InvalidInputError, match="released_training"):
        ReleasedLogisticSoftmaxGP(backbone, released_training=True, objective="pl")
