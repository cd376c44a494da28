import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp import elbo, mirror_descent
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.starts import amortise

PRECISE = {"max_steps": 200, "tol": 1e-12}


def test_a_full_fixed_step_can_overshoot_where_the_safeguarded_one_does_not(few_shot_tasks):
    K, y = few_shot_tasks(2, 5, 10, 30.0)
    _, fixed = mirror_descent(K, y, n_way=5, max_steps=8, step_size=1.0)
    _, safe = mirror_descent(K, y, n_way=5, max_steps=8, tol=None)
    assert (fixed.elbo.diff(dim=1) < 0).any()
    assert (safe.elbo.diff(dim=1) >= 0).all()
    assert (safe.elbo[:, -1] > fixed.elbo[:, -1]).all()


@pytest.mark.parametrize("scale", [1e-4, 0.7, 30.0, 1e3])
def test_the_safeguarded_bound_never_falls(few_shot_tasks, scale):
    K, y = few_shot_tasks(4, 4, 3, scale, kernel="rbf")
    posterior, info = mirror_descent(K, y, n_way=4, max_steps=40, tol=0.0)
    assert (info.elbo.diff(dim=1) >= 0).all()
    assert_close(elbo(K, y, posterior), info.elbo[:, -1])


@pytest.mark.parametrize(
    ("n_way", "n_shot", "scale", "kernel", "spread"),
    [
        (2, 1, 30.0, "cosine", 1.0),
        (2, 17, 30.0, "cosine", 1.0),
        (2, 17, 30.0, "cosine", 0.3),  # well separated classes: all points of a class pull together
        (5, 1, 0.7, "rbf", 1.0),
        (5, 5, 4.0, "rbf", 1.0),
        (5, 5, 30.0, "cosine", 1.0),
        (5, 5, 30.0, "rbf", 0.05),
        (20, 1, 30.0, "cosine", 1.0),
        pytest.param(5, 17, 30.0, "cosine", 0.05, marks=pytest.mark.slow),
        pytest.param(5, 17, 30.0, "cosine", 1.0, marks=pytest.mark.slow),
        pytest.param(20, 5, 30.0, "cosine", 1.0, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_inference_converges_in_the_promised_number_of_steps(few_shot_tasks, n_way, n_shot, scale, kernel, spread):
    K, y = few_shot_tasks(3, n_way, n_shot, scale, kernel=kernel, spread=spread)
    _, exact = mirror_descent(K, y, n_way=n_way, max_steps=200, tol=1e-10)
    optimum = exact.elbo[:, -1:]
    assert exact.converged.all()

    def gap_per_point(**options):
        _, info = mirror_descent(K, y, n_way=n_way, max_steps=10, tol=1e-9, **options)
        return (optimum - info.elbo).amax(0) / y.shape[1]

    from_prior = gap_per_point()
    assert from_prior[4] < 1e-3
    assert from_prior[10] < 1e-6
    solved_K, solved_y = few_shot_tasks(8, n_way, n_shot, scale, kernel=kernel, spread=spread, seed=1)
    solved, _ = mirror_descent(solved_K, solved_y, n_way=n_way)
    from_amortised = gap_per_point(start=amortise(solved_K, solved_y, solved))
    assert from_amortised[2] < 1e-3
    assert from_amortised[10] < 1e-6


def test_the_solution_is_a_start_that_needs_no_step(few_shot_tasks):
    K, y = few_shot_tasks(2, 3, 3, 4.0)
    posterior, _ = mirror_descent(K, y, n_way=3, max_steps=100, tol=1e-9)
    again, info = mirror_descent(K, y, n_way=3, start=posterior.sites, tol=1e-6)
    assert (info.n_steps == 0).all()
    assert (info.n_evaluations == 1).all()
    assert info.converged.all()
    assert torch.equal(again.sites.shift, posterior.sites.shift)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e3, 1e5, 1e6])
def test_inference_comes_near_the_optimum_also_for_very_large_kernels(few_shot_tasks, scale, dtype):
    """There a mirror step is far too long: the safeguard shortens it by orders of magnitude, no less."""
    K, y = few_shot_tasks(3, 4, 3, scale, spread=0.3)
    _, best = mirror_descent(K, y, n_way=4, max_steps=300)
    K = K.to(dtype)
    _, info = mirror_descent(K, y, n_way=4, start=GaussianSites.zeros_like(K, 4))
    assert (best.elbo[:, -1] - info.elbo[:, -1] < 0.02 * best.elbo[:, -1].abs()).all()


def test_a_converged_task_is_within_the_tolerance(few_shot_tasks):
    K, y = few_shot_tasks(4, 5, 5, 10.0)
    _, exact = mirror_descent(K, y, n_way=5, **PRECISE)
    steps = []
    for tol in (1e-2, 1e-4, 1e-6):
        _, info = mirror_descent(K, y, n_way=5, tol=tol)
        assert info.converged.all()
        # the estimate is no bound, but of the right size
        assert ((exact.elbo[:, -1] - info.elbo[:, -1]) / 25 < 3 * tol).all()
        assert (info.gap <= 25 * tol).all()
        steps.append(info.n_steps)
    assert (steps[0] < steps[1]).all()
    assert (steps[1] < steps[2]).all()


@pytest.mark.parametrize("max_steps", [1, 3])
def test_no_more_steps_are_taken_than_allowed(few_shot_tasks, max_steps):
    K, y = few_shot_tasks(4, 5, 5, 30.0)
    _, info = mirror_descent(K, y, n_way=5, max_steps=max_steps, tol=1e-9)
    assert info.elbo.shape == (4, max_steps + 1)
    assert (info.n_steps == max_steps).all()
    assert not info.converged.any()


def test_without_tolerance_every_proposal_is_made(few_shot_tasks):
    K, y = few_shot_tasks(4, 3, 2, 30.0)
    posterior, info = mirror_descent(K, y, n_way=3, max_steps=6, tol=None)
    assert (info.n_evaluations == 7).all()
    assert (info.n_steps <= 6).all()
    assert (info.elbo.diff(dim=1) >= 0).all()
    _, stopped = mirror_descent(K, y, n_way=3, max_steps=6, tol=1e-12)
    accepted_all = info.n_steps == 6
    assert accepted_all.any()
    assert_close(info.elbo[accepted_all], stopped.elbo[accepted_all], rtol=0, atol=1e-10)
    assert_close(elbo(K, y, posterior), info.elbo[:, -1])


def test_the_bound_of_a_task_repeats_after_its_last_step(few_shot_tasks):
    K, y = few_shot_tasks(3, 3, 2, 4.0)
    _, info = mirror_descent(K, y, n_way=3, max_steps=25)
    for trace, n in zip(info.elbo, info.n_steps.tolist(), strict=True):
        assert n < 25
        assert (trace[n:] == trace[n]).all()
        assert (trace[: n + 1].diff() > 0).all()
    assert (info.n_evaluations >= info.n_steps + 1).all()
