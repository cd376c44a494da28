"""Logistic regression on frozen features: against scikit-learn, its gradient, padding, precision, options."""

import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.methods.logistic_head import Problem, fit_logistic
from mirrorshot.methods.shared import support_one_hot
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError, NumericalError


def draw(n_way=5, n_shot=4, D=30, n_tasks=3, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 1, D, generator=generator, dtype=torch.float64)
    x = 0.5 + centres + spread * torch.randn(10, 20, D, generator=generator, dtype=torch.float64)
    source = ClassSource.from_arrays(x.reshape(-1, D), torch.arange(10).repeat_interleave(20))
    return EpisodeSampler(source, n_way=n_way, n_shot=n_shot, n_query=5, seed=0).draw(n_tasks)


def make(D=30, **options):
    backbone = make_backbone("identity", in_features=D)
    return make_method("logistic_head", backbone, n_base_classes=10, **options).double()


def by_sklearn(x, y, query, C):
    regression = LogisticRegression(C=C, tol=1e-10, max_iter=100_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # its line search ends at rounding
        return torch.from_numpy(regression.fit(x.numpy(), y.numpy()).predict_proba(query.numpy()))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("D", "n_shot"), [(30, 1), (30, 4), (3, 8)], ids=["one-shot", "wide", "more-points"])
def test_probabilities_are_those_of_scikit_learn(D, n_shot, C, normalise):
    tasks, _ = draw(D=D, n_shot=n_shot)
    prob = make(D, C=C, normalise=normalise).predict(tasks).exp()
    support, query = tasks.support_x, tasks.query_x
    if normalise:
        support, query = (x / x.norm(dim=-1, keepdim=True) for x in (support, query))
    for i in range(tasks.n_tasks):
        expected = by_sklearn(support[i], tasks.support_y[i], query[i], C)
        assert torch.allclose(prob[i], expected, atol=1e-4)


@pytest.mark.parametrize("C", [1e-3, 1.0, 1e3])
def test_the_gradient_at_the_head_is_zero(C):
    tasks, _ = draw()
    method = make(C=C, normalise=False)
    weight, bias = (p.requires_grad_() for p in method._fit(tasks.support_x, tasks))
    logits = tasks.support_x @ weight.mT + bias[:, None]
    objective = (
        -C * (support_one_hot(tasks, weight.dtype).mT * logits.log_softmax(-1)).sum() + weight.square().sum() / 2
    )
    for gradient in torch.autograd.grad(objective, (weight, bias)):
        assert gradient.abs().max() < 1e-6 * max(C, 1)


def test_two_classes_are_the_binary_regression_of_scikit_learn_with_twice_the_c():
    tasks, _ = draw(n_way=2)
    prob = make(C=3.0, normalise=False).predict(tasks).exp()
    expected = by_sklearn(tasks.support_x[0], tasks.support_y[0], tasks.query_x[0], 6.0)
    assert torch.allclose(prob[0], expected, atol=1e-4)


def test_the_optimum_is_reached_where_full_newton_steps_are_too_long():
    """Rare classes with a weak penalty: without backtracking one of these tasks does not converge."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        z = torch.randn(200, 20, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0] * 18 + [2, 1])
    target = (y == torch.arange(3)[:, None]).double().expand(200, 3, 20)
    problem = Problem(1e4 * z @ z.mT, target, torch.ones(200, 3, dtype=torch.bool))
    point = fit_logistic(problem)
    residual = target - point.logits(problem.K).softmax(1)
    assert torch.allclose(point.a, residual, atol=1e-6)
    assert torch.allclose(residual.sum(-1), torch.zeros(200, 3, dtype=torch.float64), atol=1e-6)


def test_what_does_not_converge_is_refused():
    tasks, _ = draw()
    z = 10 * tasks.support_x.double()
    problem = Problem(z @ z.mT, support_one_hot(tasks, z.dtype), tasks.class_mask)
    with pytest.raises(NumericalError, match="but 3 of 3 tasks did not"):
        fit_logistic(problem, max_steps=2)


@pytest.mark.parametrize("C", [1.0, 1e4])
def test_single_precision_gives_the_same_probabilities(C):
    tasks, _ = draw()
    method = make(C=C)
    expected = method.predict(tasks).exp()
    single = tasks._replace(support_x=tasks.support_x.float(), query_x=tasks.query_x.float())
    prob = method.float().predict(single).exp()
    assert prob.dtype == torch.float32
    assert torch.allclose(prob.double(), expected, atol=1e-4)


def test_tasks_of_fewer_shots_and_classes_are_as_if_alone():
    """Padding within the support, not only at its end."""
    small, _ = draw(n_way=3, n_shot=1)
    points = torch.tensor([0, 2, 4])
    x = torch.full((3, 10, 30), 9.0, dtype=torch.float64)
    y, weight = torch.zeros(3, 10, dtype=torch.int64), torch.zeros(3, 10)
    x[:, points], y[:, points], weight[:, points] = small.support_x, small.support_y, torch.ones(3, 3)
    mask = torch.tensor([[True, True, True, False, False]] * 3)
    padded = small._replace(support_x=x, support_y=y, support_weight=weight, n_way=5, class_mask=mask)
    method = make(C=5.0)
    assert torch.allclose(method.predict(padded)[..., :3], method.predict(small), atol=1e-8)


def test_a_larger_c_makes_predictions_surer():
    tasks, _ = draw()
    confidence = [make(C=C).predict(tasks).exp().amax(-1).mean() for C in (0.1, 1.0, 10.0)]
    assert confidence[0] < confidence[1] < confidence[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0.0}, "Expected `C` to be positive, but got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)
