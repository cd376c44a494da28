"""The fixed steps of training: against `mirror_descent`, against differentiation through every operation, and fused."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorshot.gp import amortise, elbo, mirror_descent
from mirrorshot.gp.bound import training_elbo
from mirrorshot.gp.gaussian import GaussianSites, predict_latent
from mirrorshot.gp.objective import make_problem
from mirrorshot.gp.steps import can_fuse, solve
from mirrorshot.types import InvalidInputError


def make_tasks(T=3, C=4, N=12, scale=4.0, seed=0, per_class=False, rank=6):
    """Random tasks with a kernel of low rank, labels in turn."""
    generator = torch.Generator().manual_seed(seed)
    H = C if per_class else 1
    z = torch.randn(T, H, N, rank, dtype=torch.float64, generator=generator)
    z = z + 2 * torch.eye(rank, dtype=torch.float64)[torch.arange(N) % C]
    z = z / z.norm(dim=-1, keepdim=True)
    K = scale * z @ z.mT
    return 0.5 * (K + K.mT), (torch.arange(N) % C).expand(T, N)


def test_the_bound_is_that_of_mirror_descent():
    K, y = make_tasks()
    posterior, info = mirror_descent(K, y, n_way=4, max_steps=3, step_size=0.7)
    assert torch.allclose(training_elbo(K, y, n_way=4, n_steps=3, step_size=0.7), info.elbo[:, -1], atol=1e-10)
    assert torch.allclose(info.elbo[:, -1], elbo(K, y, posterior), atol=1e-10)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("n_steps", [0, 1, 3])
def test_the_gradient_is_that_of_automatic_differentiation_with_the_sites_held_fixed(per_class, n_steps):
    K, y = make_tasks(per_class=per_class)
    weight = torch.ones(3, 12, dtype=torch.float64)
    weight[1, 8:] = 0.0
    mask = torch.ones(3, 4, dtype=torch.bool)
    K.requires_grad_()
    options = {"n_way": 4, "weight": weight, "class_mask": mask}
    ours = torch.autograd.grad(training_elbo(K, y, n_steps=n_steps, step_size=0.8, **options).sum(), K)[0]
    if n_steps:
        posterior, _ = mirror_descent(K, y, max_steps=n_steps, step_size=0.8, **options)
    else:
        from mirrorshot.gp.gaussian import condition

        posterior = condition(K, GaussianSites.zeros_like(K.detach(), 4))
    theirs = torch.autograd.grad(elbo(K, y, posterior, weight=weight, class_mask=mask).sum(), K)[0]
    assert torch.allclose(ours, 0.5 * (theirs + theirs.mT), atol=1e-9)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("n_steps", "step_size"), [(1, 1.0), (3, 1.0), (4, 0.6)])
def test_the_unrolled_gradient_is_that_of_automatic_differentiation_through_the_steps(per_class, n_steps, step_size):
    K, y = make_tasks(per_class=per_class, scale=6.0)
    weight = torch.ones(3, 12, dtype=torch.float64)
    weight[1, 8:] = 0.0
    weight[2, 3] = 2.0
    mask = torch.ones(3, 4, dtype=torch.bool)
    options = {"n_way": 4, "weight": weight, "class_mask": mask, "step_size": step_size}
    K.requires_grad_()
    bound = training_elbo(K, y, n_steps=n_steps, gradient="unroll", **options)
    ours = torch.autograd.grad(bound.sum(), K)[0]
    posterior, _ = mirror_descent(K, y, max_steps=n_steps, gradient="unroll", **options)
    theirs = torch.autograd.grad(elbo(K, y, posterior, weight=weight, class_mask=mask).sum(), K)[0]
    assert torch.allclose(ours, 0.5 * (theirs + theirs.mT), atol=1e-8)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("gradient", ["unroll", "envelope"])
def test_points_and_classes_that_are_alike_at_the_prior_have_the_gradients_of_any_others(per_class, absent, gradient):
    K, y = make_tasks(per_class=per_class)
    K.diagonal(dim1=-2, dim2=-1).fill_(5.0)  # exactly one variance, as for a stationary kernel
    if per_class:
        K[:, 1] *= 1.5
    weight = torch.ones(3, 12, dtype=torch.float64)
    weight[1, 8:] = 0.0
    weight[2, 3] = 2.0
    mask = torch.ones(3, 4, dtype=torch.bool)
    if absent:
        mask[0, 3], weight[0] = False, (y[0] != 3).double()
    options = {"n_way": 4, "weight": weight, "class_mask": mask, "gradient": gradient, "step_size": 0.8}
    K.requires_grad_()
    bound = training_elbo(K, y, n_steps=3, **options)
    ours = torch.autograd.grad(bound.sum(), K)[0]
    posterior, info = mirror_descent(K, y, max_steps=3, **options)
    theirs = torch.autograd.grad(elbo(K, y, posterior, weight=weight, class_mask=mask).sum(), K)[0]
    assert torch.allclose(bound, info.elbo[:, -1], atol=1e-9)
    assert torch.allclose(ours, 0.5 * (theirs + theirs.mT), atol=1e-8)


def test_the_unrolled_gradient_is_that_of_finite_differences():
    K, y = make_tasks(T=1, scale=8.0)
    direction = make_tasks(T=1, seed=5)[0]
    moved = K.clone().requires_grad_()
    bound = training_elbo(moved, y, n_way=4, n_steps=3, gradient="unroll")
    gradient = torch.autograd.grad(bound.sum(), moved)[0]
    ahead, behind = (training_elbo(K + t * direction, y, n_way=4, n_steps=3).item() for t in (1e-5, -1e-5))
    assert (gradient * direction).sum().item() == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


def test_at_the_optimum_the_gradient_is_the_whole_derivative():
    K, y = make_tasks(T=1, scale=2.0)
    direction = make_tasks(T=1, seed=5)[0]

    def optimum(t):
        return training_elbo(K + t * direction, y, n_way=4, n_steps=60, step_size=0.6)

    moved = K.clone().requires_grad_()
    gradient = torch.autograd.grad(training_elbo(moved, y, n_way=4, n_steps=60, step_size=0.6).sum(), moved)[0]
    step = 1e-4
    difference = (optimum(step) - optimum(-step)) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(float(difference), rel=1e-5)


def test_amortised_sites_are_a_better_start_than_the_prior():
    K, y = make_tasks(T=8, seed=1)
    posterior, _ = mirror_descent(K, y, n_way=4)
    start = amortise(K, y, posterior)
    new, labels = make_tasks(T=8, seed=2)
    best = mirror_descent(new, labels, n_way=4)[1].elbo[:, -1]
    prior = best - training_elbo(new, labels, n_way=4, n_steps=1, step_size=0.7)
    amortised = best - training_elbo(new, labels, n_way=4, n_steps=1, step_size=0.7, start=start)
    assert float(amortised.mean()) < 0.2 * float(prior.mean())


def test_predictions_from_a_solution_are_those_of_the_posterior():
    K, y = make_tasks(N=16)
    support, cross = K[..., :12, :12], K[..., :12, 12:]
    variance = K.diagonal(dim1=-2, dim2=-1)[..., 12:]
    posterior, _ = mirror_descent(support, y[:, :12], n_way=4, max_steps=5, step_size=0.7)
    problem = make_problem(support, y[:, :12], 4, None, None, None, validate=False)
    solution = solve(problem, GaussianSites.zeros_like(support, 4), 5, 0.7)
    for ours, theirs in zip(
        predict_latent(solution, cross, variance), predict_latent(posterior, cross, variance), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-10)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), order=st.permutations(range(4)))
def test_the_bound_ignores_how_classes_are_numbered(seed, order):
    K, y = make_tasks(seed=seed)
    renamed = torch.tensor(order)[y]
    assert torch.allclose(training_elbo(K, y, n_way=4), training_elbo(K, renamed, n_way=4), atol=1e-9)


def test_padding_changes_nothing():
    K, y = make_tasks()
    wide = torch.zeros(3, 1, 15, 15, dtype=torch.float64)
    wide[..., :12, :12] = K
    weight = torch.cat([torch.ones(3, 12), torch.zeros(3, 3)], 1).double()
    labels = torch.cat([y, torch.zeros(3, 3, dtype=torch.long)], 1)
    mask = torch.tensor([[True] * 4 + [False]] * 3)
    padded = training_elbo(wide, labels, n_way=5, weight=weight, class_mask=mask)
    assert torch.allclose(padded, training_elbo(K, y, n_way=4), atol=1e-9)


def test_a_step_size_beyond_one_is_refused(as_for_users):
    K, y = make_tasks()
    with pytest.raises(InvalidInputError, match=r"step_size in \(0, 1\]"):
        training_elbo(K, y, n_way=4, step_size=1.5)


def test_tasks_on_the_cpu_are_not_fused():
    assert not can_fuse(torch.eye(3)[None, None], 2)


FUSED = """
import json, sys, torch
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.steps import Solution, solve
from mirrorshot.gp.fused import moments_pull_back_fused, prob_fused, solve_fused
from mirrorshot.gp.objective import make_problem
from mirrorshot.softmax.moments import softmax_moments

def compare(T, C, N, scale, H, from_prior=False):
    generator = torch.Generator().manual_seed(N)
    z = torch.randn(T, H, N, 5, generator=generator, dtype=torch.float64)
    z = z / z.norm(dim=-1, keepdim=True)
    K = scale * z @ z.mT
    y = (torch.arange(N) % (C - 1)).expand(T, N).clone()
    weight = torch.ones(T, N, dtype=torch.float64)
    weight[0, N - 2:] = 0.0
    mask = torch.ones(T, C, dtype=torch.bool)
    mask[-1, C - 1] = False
    exact = make_problem(K, y, C, weight, mask, None, False)
    rough = make_problem(K.float(), y, C, weight, mask, None, False)
    start = GaussianSites(0.1 * exact.Y * weight[:, None], 0.05 * weight[:, None] * mask[..., None])
    a = solve(exact, start, 3, 0.7)
    if from_prior:
        a, b = solve(exact, None, 3, 0.7), Solution(*solve_fused(rough, None, 3, 0.7)[0])
    else:
        b = Solution(*solve_fused(rough, GaussianSites(*(s.float() for s in start)), 3, 0.7)[0])
    for name in ("mean", "cov", "grad_mean", "curvature"):
        error = (getattr(a, name) - getattr(b, name)).abs().flatten(2) * mask[..., None]
        assert error.max() < 2e-5 * max(1.0, scale), (name, error.max())  # rounding differs between processors
    assert ((a.elbo - b.elbo).abs() / N).max() < 1e-6 * max(10.0, scale), (a.elbo, b.elbo)
    assert ((a.sites.shift - b.sites.shift).abs() * mask[..., None]).max() < 1e-5 * max(2.0, scale)

for case in json.loads(sys.argv[1]):
    compare(*case)

generator = torch.Generator().manual_seed(0)
mean = 3 * torch.randn(2, 4, 6, generator=generator)
var = 5 * torch.rand(2, 4, 6, generator=generator)
mask = torch.tensor([[True] * 4, [True, True, False, True]])
ours = prob_fused(mean, var, mask)
theirs = softmax_moments(mean.mT.double(), var.mT.double(), mask[:, None]).prob.mT
assert (ours - theirs).abs().max() < 1e-5

generator = torch.Generator().manual_seed(3)
mean, var = 2 * torch.randn(2, 4, 6, generator=generator), 4 * torch.rand(2, 4, 6, generator=generator)
bars = [torch.randn(2, 4, 6, generator=generator) * mask[..., None] for _ in range(2)]
ours = moments_pull_back_fused(mean, var, mask, *bars)
m, v = mean.double().requires_grad_(), var.double().requires_grad_()
moments = softmax_moments(m.mT, v.mT, mask[:, None])
theirs = torch.autograd.grad((moments.prob, moments.curvature), (m, v), tuple(b.double().mT for b in bars))
for a, b in zip(ours, theirs):
    assert (a - b).abs().max() < 2e-5, (a - b).abs().max()

from mirrorshot.gp import bound, steps
bound.can_fuse = steps.can_fuse = lambda K, n_way: K.dtype == torch.float32
z = torch.randn(2, 1, 9, 5, generator=generator, dtype=torch.float64)
K = 2 * z @ z.mT / z.square().sum(-1).amax()
gradients = []
for start in (K, K.float()):
    leaf = start.clone().requires_grad_()
    y = (torch.arange(9) % 3).expand(2, 9)
    loss = bound.training_elbo(leaf, y, n_way=3, n_steps=2, step_size=0.8, gradient="unroll")
    gradients.append(torch.autograd.grad(loss.sum(), leaf)[0])
assert (gradients[0] - gradients[1]).abs().max() < 2e-5
print("same")
"""


@pytest.mark.parametrize(
    "cases",  # tasks, classes, points, scale, kernels, whether the start is the prior
    [
        [(2, 3, 9, 1.0, 1), (1, 3, 17, 6.0, 1, True), (1, 3, 5, 100.0, 3)],
        pytest.param([(2, 5, 20, 6.0, 1, True), (1, 4, 17, 100.0, 4)], marks=pytest.mark.long),
    ],
    ids=["small", "larger"],
)
def test_fused_kernels_agree_with_float64_in_tritons_interpreter(in_tritons_interpreter, cases):
    assert in_tritons_interpreter(FUSED, json.dumps(cases)).strip() == "same"
