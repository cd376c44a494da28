import pytest
import torch

from mirrorshot.gp import elbo, mirror_descent, newton_solve
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.kernels import Cosine
from mirrorshot.gp.objective import evaluate, make_problem, mirror_target


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 24, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (1, 24), generator=generator)
    weight = torch.rand(1, 24, generator=generator, dtype=torch.float64) + 0.5
    with torch.no_grad():
        return Cosine(outputscale=10.0)(x), y, weight


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_the_solution_is_a_fixed_point_of_the_mirror_step_whatever_the_start(task, tol):
    K, y, weight = task
    start, _ = mirror_descent(K, y, n_way=4, weight=weight, tol=tol)
    posterior, info = newton_solve(K, y, start.sites, n_way=4, weight=weight, is_near=False)
    state = evaluate(make_problem(K, y, 4, weight, None, None, validate=True), posterior.sites)
    for site, target in zip(posterior.sites, mirror_target(state), strict=True):
        torch.testing.assert_close(site, target, atol=1e-6, rtol=0.0)
    assert info.elbo == pytest.approx(float(elbo(K, y, posterior, weight=weight)), abs=1e-8)
    assert info.n_steps <= 5
    assert info.gap < 1e-15


def test_it_agrees_with_mirror_descent_to_the_digits_that_has(task):
    K, y, weight = task
    slow, _ = mirror_descent(K, y, n_way=4, weight=weight, tol=1e-15, max_steps=200)
    near, _ = mirror_descent(K, y, n_way=4, weight=weight, tol=1e-7)
    fast, info = newton_solve(K, y, near.sites, n_way=4, weight=weight, is_near=True)
    torch.testing.assert_close(fast.mean, slow.mean, atol=2e-6, rtol=0.0)
    assert info.n_steps <= 2


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("scale", [1.0, 25.0])
def test_a_start_far_away_gives_none_and_not_a_wrong_answer(task, scale, is_near):
    K, y, weight = task
    slow, _ = mirror_descent(scale * K, y, n_way=4, weight=weight, tol=1e-13, max_steps=200)
    generator = torch.Generator().manual_seed(0)
    for size in (1.0, 10.0, 500.0):
        shift, precision = size * torch.randn(2, 1, 4, 24, generator=generator, dtype=torch.float64)
        start = GaussianSites(shift, precision.abs())
        found = newton_solve(scale * K, y, start, n_way=4, weight=weight, is_near=is_near)
        if found is not None:
            torch.testing.assert_close(found[0].mean, slow.mean, atol=1e-4, rtol=0.0)
            assert found[1].elbo == pytest.approx(float(elbo(scale * K, y, slow, weight=weight)), abs=1e-6)


def test_standard_deviations_beyond_the_derivatives_give_none(task):
    K, y, weight = task
    start, _ = mirror_descent(100 * K, y, n_way=4, weight=weight)
    assert newton_solve(100 * K, y, start.sites, n_way=4, weight=weight, is_near=True) is None
