import pytest
import torch

from mirrorshot.gaussian import GaussianSites
from mirrorshot.inference import elbo, mirror_descent, newton_solve
from mirrorshot.inference.objective import evaluate, make_problem, mirror_target
from mirrorshot.kernels import Cosine


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 24, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (1, 24), generator=generator)
    weight = torch.rand(1, 24, generator=generator, dtype=torch.float64) + 0.5
    with torch.no_grad():
        return Cosine(outputscale=10.0).double()(x), y, weight


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_the_solution_is_a_fixed_point_of_the_mirror_step_whatever_the_start(task, tol):
    K, y, weight = task
    start, _ = mirror_descent(K, y, n_way=4, weight=weight, tol=tol)
    posterior, info = newton_solve(K, y, start.sites, n_way=4, weight=weight, is_near=False)
    state = evaluate(make_problem(K, y, 4, weight, None, None, validate=True), posterior.sites)
    for site, target in zip(posterior.sites, mirror_target(state), strict=True):
        torch.testing.assert_close(site, target, atol=1e-6, rtol=0.0)
    assert info.elbo == pytest.approx(float(elbo(K, y, posterior, weight=weight)), abs=1e-8)
    assert info.n_steps <= 4


def test_it_agrees_with_mirror_descent_to_the_digits_that_has(task):
    K, y, weight = task
    slow, _ = mirror_descent(K, y, n_way=4, weight=weight, tol=1e-15, max_steps=200)
    near, _ = mirror_descent(K, y, n_way=4, weight=weight, tol=1e-7)
    fast, info = newton_solve(K, y, near.sites, n_way=4, weight=weight, is_near=True)
    torch.testing.assert_close(fast.mean, slow.mean, atol=2e-6, rtol=0.0)
    assert info.n_steps <= 2


def test_a_start_from_which_it_diverges_gives_none_and_not_a_wrong_answer(task):
    K, y, weight = task
    start = GaussianSites(torch.full((1, 4, 24), 500.0, dtype=torch.float64), torch.zeros(1, 4, 24).double())
    found = newton_solve(100 * K, y, start, n_way=4, weight=weight, is_near=False)
    if found is not None:
        slow, _ = mirror_descent(100 * K, y, n_way=4, weight=weight, tol=1e-12, max_steps=200)
        torch.testing.assert_close(found[0].mean, slow.mean, atol=1e-3, rtol=0.0)


def test_standard_deviations_beyond_the_derivatives_give_none(task):
    K, y, weight = task
    start, _ = mirror_descent(100 * K, y, n_way=4, weight=weight)
    assert newton_solve(100 * K, y, start.sites, n_way=4, weight=weight, is_near=True) is None
