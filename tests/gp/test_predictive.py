"""Predictions for training: against unrolled steps, finite differences, loops, and fused."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.objective import make_problem
from mirrorshot.gp.predictive import _step_matrix, training_latents, training_log_prob
from mirrorshot.gp.steps import solve
from mirrorshot.types import InvalidInputError

MANY = {"n_steps": 60, "step_size": 0.5}


def make_tasks(n_shot, scale, *, T=3, C=5, n_query=3, seed=0, per_class=False):
    """Covariances of support, of support with query, and variances of the query; labels of both."""
    g = torch.Generator().manual_seed(seed)
    H = C if per_class else 1
    centres = torch.randn(T, H, C, 1, 32, generator=g, dtype=torch.float64)
    noise = torch.randn(T, H, C, n_shot + n_query, 32, generator=g, dtype=torch.float64)
    z = centres + noise
    z = z / z.norm(dim=-1, keepdim=True)
    support, query = (part.flatten(2, 3) for part in z.split([n_shot, n_query], 3))
    K = scale * support @ support.mT
    labels = torch.arange(C)
    y, query_y = (labels.repeat_interleave(n).expand(T, -1).contiguous() for n in (n_shot, n_query))
    prior_var = torch.full((T, H, C * n_query), float(scale), dtype=torch.float64)
    return ((K + K.mT) / 2, scale * support @ query.mT, prior_var), y, query_y


def nll(latents, query_y, mask=None):
    mean, var = latents
    mask = torch.ones(mean.shape[:2], dtype=torch.bool) if mask is None else mask
    return -training_log_prob(mean, var, mask).gather(-1, query_y[..., None]).sum()


def gradients(covariances, y, query_y, n_way=5, **options):
    leaves = [part.clone().requires_grad_() for part in covariances]
    loss = nll(training_latents(*leaves, y, n_way=n_way, **options), query_y, options.get("class_mask"))
    return torch.autograd.grad(loss, leaves)


def unrolled_gradients(covariances, y, query_y, n_steps=90, step_size=0.5):
    """Differentiate through every operation; after 90 steps further ones change nothing."""
    leaves = [part.clone().requires_grad_() for part in covariances]
    posterior, _ = mirror_descent(leaves[0], y, n_way=5, max_steps=n_steps, step_size=step_size, gradient="unroll")
    grads = list(torch.autograd.grad(nll(predict_latent(posterior, *leaves[1:]), query_y), leaves))
    grads[0] = (grads[0] + grads[0].mT) / 2
    return grads


def relative_error(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("scale", [1.0, 10.0, 50.0])
@pytest.mark.parametrize("n_shot", [1, 5])
def test_the_gradient_is_that_of_the_optimum(n_shot, scale, per_class):
    covariances, y, query_y = make_tasks(n_shot, scale, per_class=per_class)
    theirs = unrolled_gradients(covariances, y, query_y)
    for options, bound in (({}, 1e-2), (MANY, 2e-5)):
        for ours, other in zip(gradients(covariances, y, query_y, **options), theirs, strict=True):
            assert relative_error(ours, other) < bound


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("n_steps", "step_size"), [(1, 1.0), (3, 0.7)])
def test_unrolled_the_gradient_is_that_of_the_steps(n_steps, step_size, per_class):
    covariances, y, query_y = make_tasks(2, 20.0, per_class=per_class)
    steps = {"n_steps": n_steps, "step_size": step_size}
    theirs = unrolled_gradients(covariances, y, query_y, **steps)
    for ours, other in zip(gradients(covariances, y, query_y, gradient="unroll", **steps), theirs, strict=True):
        assert relative_error(ours, other) < 1e-5


@pytest.mark.parametrize("n_shot", [1, 5])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_the_gradient_is_that_of_finite_differences(n_shot, scale):
    covariances, y, query_y = make_tasks(n_shot, scale, T=1)
    other, _, _ = make_tasks(n_shot, scale, T=1, seed=7)

    def loss(t):
        moved = [a + t * b for a, b in zip(covariances, other, strict=True)]
        return nll(training_latents(*moved, y, n_way=5, **MANY), query_y).item()

    slope = sum(float((g * b).sum()) for g, b in zip(gradients(covariances, y, query_y, **MANY), other, strict=True))
    step = 1e-4
    # fourth order
    expected = (loss(-2 * step) - 8 * loss(-step) + 8 * loss(step) - loss(2 * step)) / (12 * step)
    assert slope == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("per_class", [False, True])
def test_with_weights_and_absent_classes_too_the_gradient_is_that_of_finite_differences(per_class):
    covariances, y, query_y = make_tasks(2, 20.0, T=2, per_class=per_class)
    other, _, _ = make_tasks(2, 20.0, T=2, seed=7, per_class=per_class)
    generator = torch.Generator().manual_seed(1)
    weight = 0.3 + 2 * torch.rand(2, 10, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, True, False, True]])
    weight[1, y[1] == 3] = 0.0
    query_y = query_y.masked_fill((torch.arange(2) == 1)[:, None] & (query_y == 3), 0)
    options = {"weight": weight, "class_mask": mask, **MANY}

    def loss(t):
        moved = [a + t * b for a, b in zip(covariances, other, strict=True)]
        return nll(training_latents(*moved, y, n_way=5, **options), query_y, mask).item()

    ours = gradients(covariances, y, query_y, **options)
    slope = sum(float((g * b).sum()) for g, b in zip(ours, other, strict=True))
    step = 1e-4
    expected = (loss(-2 * step) - 8 * loss(-step) + 8 * loss(step) - loss(2 * step)) / (12 * step)
    assert slope == pytest.approx(expected, rel=1e-4)


def test_the_derivative_of_a_step_is_that_of_brute_force_expectations():
    # sites of a full step at a point: b = a (y - E[p]) + w m and w = a E[p (1 - p)]
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3)
    density = np.prod(np.meshgrid(weights, weights, weights, indexing="ij"), 0).ravel() / weights.sum() ** 3

    def sites(x, a, target):
        m, v = x[:3], x[3:]
        f = m + np.sqrt(v) * grid
        p = np.exp(f - np.logaddexp.reduce(f, -1, keepdims=True))
        w = a * (density @ (p * (1 - p)))
        return np.concatenate([a * (target - density @ p) + w * m, w])

    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    K, y, weight = 2 * z @ z.mT / 6, torch.tensor([[0, 1, 2, 0]]), torch.tensor([[1.0, 0.4, 2.0, 1.5]]).double()
    problem = make_problem(K[None, None], y, 3, weight, None, None, validate=False)
    solution = solve(problem, None, 3, 0.7)
    J = _step_matrix(problem, solution)[0].numpy()
    mean, var = solution.mean[0].numpy(), solution.cov[0].diagonal(dim1=-2, dim2=-1).numpy()
    for n in range(4):
        x, target, step = np.concatenate([mean[:, n], var[:, n]]), np.eye(3)[y[0, n]], 1e-5
        for column in range(6):
            change = step * np.eye(6)[column]
            args = float(weight[0, n]), target
            expected = (sites(x + change, *args) - sites(x - change, *args)) / (2 * step)
            np.testing.assert_allclose(J[:, column, n], expected, atol=2e-6)


def test_the_gradient_of_a_batch_is_that_of_each_task():
    covariances, y, query_y = make_tasks(2, 8.0)
    together = gradients(covariances, y, query_y)
    for t in range(3):
        part = slice(t, t + 1)
        alone = gradients([c[part] for c in covariances], y[part], query_y[part])
        for ours, theirs in zip(together, alone, strict=True):
            assert_close(ours[part], theirs, rtol=1e-6, atol=1e-9)


def test_padded_points_and_classes_change_nothing():
    (K, cross, prior_var), y, query_y = make_tasks(2, 8.0)
    wide, tall = torch.zeros(3, 1, 13, 13).double(), torch.ones(3, 1, 13, 15).double()
    wide[..., :10, :10], wide[..., 10:, 10:], tall[..., :10, :] = K, 8 * torch.eye(3), cross
    weight = torch.cat([torch.ones(3, 10), torch.zeros(3, 3)], 1).double()
    labels = torch.cat([y, torch.zeros(3, 3, dtype=torch.long)], 1)
    mask = torch.tensor([[True] * 5 + [False]] * 3)
    padded = gradients((wide, tall, prior_var), labels, query_y, n_way=6, weight=weight, class_mask=mask)
    plain = gradients((K, cross, prior_var), y, query_y)
    assert_close(padded[0][..., :10, :10], plain[0], atol=1e-7, rtol=1e-6)
    assert_close(padded[1][..., :10, :], plain[1], atol=1e-7, rtol=1e-6)
    assert_close(padded[2], plain[2], atol=1e-7, rtol=1e-6)
    assert padded[0][..., 10:].abs().max() < 1e-9


def test_a_point_of_weight_two_is_two_points():
    (K, cross, prior_var), y, _ = make_tasks(1, 6.0)
    weight = torch.ones(3, 5).double()
    weight[:, 2] = 2.0
    twice = torch.tensor([0, 1, 2, 2, 3, 4])
    heavy = training_latents(K, cross, prior_var, y, n_way=5, weight=weight, **MANY)
    K, cross, y = K[..., twice, :][..., twice], cross[..., twice, :], y[:, twice]
    doubled = training_latents(K, cross, prior_var, y, n_way=5, **MANY)
    for ours, theirs in zip(heavy, doubled, strict=True):
        assert_close(ours, theirs, atol=1e-8, rtol=1e-7)


def test_single_precision_is_double_precision_to_four_digits():
    covariances, y, query_y = make_tasks(5, 20.0)
    double = gradients(covariances, y, query_y)
    single = gradients([part.float() for part in covariances], y, query_y)
    for ours, theirs in zip(single, double, strict=True):
        assert relative_error(ours.double(), theirs) < 1e-4


def test_a_step_size_beyond_one_is_refused(as_for_users):
    covariances, y, _ = make_tasks(1, 1.0)
    with pytest.raises(InvalidInputError, match=r"step_size in \(0, 1\] and n_steps >= 1, but got 1.5 and 16"):
        training_latents(*covariances, y, n_way=5, step_size=1.5)


FUSED = """
import itertools

import torch
from mirrorshot.gp import fused, predictive, steps
from mirrorshot.softmax.moments import softmax_hessian

generator = torch.Generator().manual_seed(3)
mean, var = 2 * torch.randn(2, 4, 3, generator=generator), 4 * torch.rand(2, 4, 3, generator=generator)
mask = torch.tensor([[True] * 4, [True, True, False, True]])
theirs = softmax_hessian(mean.mT.double(), var.mT.double(), mask[:, None], max_std=2.0)
for name, ours, other in zip(theirs._fields, fused.hessian_fused(mean, var, mask), theirs, strict=True):
    there = mask[:, None] if name == "prob" else mask[:, None, :, None] & mask[:, None, None, :]
    assert ((ours - other) * there).abs().max() < 2e-5, (name, (ours - other).abs().max())

is_single = lambda K, n_way: K.dtype == torch.float32
predictive.can_fuse = steps.can_fuse = is_single
z = torch.randn(2, 1, 9, 5, generator=generator, dtype=torch.float64)
K = 4 * z @ z.mT / z.square().sum(-1).amax()
y, mask = torch.tensor([[0, 1, 2, 0, 1]] * 2), torch.ones(2, 3, dtype=torch.bool)
query_y = torch.tensor([[0, 1, 2, 2]] * 2)
for (how, n_steps), start in itertools.product((("implicit", 4), ("unroll", 4), ("unroll", 1)), (K, K.float())):
    leaf = start.clone().requires_grad_()
    blocks = leaf[..., :5, :5], leaf[..., :5, 5:], leaf.diagonal(dim1=-2, dim2=-1)[..., 5:]
    latents = predictive.training_latents(*blocks, y, n_way=3, n_steps=n_steps, gradient=how, class_mask=mask)
    if start.dtype == torch.float32:
        log_prob = predictive._FusedProb.apply(*latents, mask).log().mT
    else:
        log_prob = predictive.training_log_prob(*latents, mask)
    gradient = torch.autograd.grad(log_prob.gather(-1, query_y[..., None]).sum(), leaf)[0]
    if start is K:
        expected = gradient
    else:
        assert (gradient - expected).abs().max() < 5e-5, (how, n_steps, (gradient - expected).abs().max())
print("same")
"""


def test_fused_kernels_agree_with_float64_in_tritons_interpreter(in_tritons_interpreter):
    assert in_tritons_interpreter(FUSED).strip() == "same"
