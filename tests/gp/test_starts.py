import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp import AmortisedSites, mirror_descent, starts
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.objective import evaluate, make_problem
from mirrorshot.gp.starts import amortise, exchangeable_sites

PRECISE = {"max_steps": 200, "tol": 1e-12}


def symmetric_task(n_way, n_shot, variance, within, between):
    """A kernel with one value on the diagonal, one inside the classes and one between them."""
    same = torch.eye(n_way, dtype=torch.float64).repeat_interleave(n_shot, 0).repeat_interleave(n_shot, 1)
    K = between + (within - between) * same + (variance - within) * torch.eye(n_way * n_shot).double()
    return K[None, None], torch.arange(n_way).repeat_interleave(n_shot)[None]


def as_problem(K, y, n_way, weight=None, class_mask=None):
    return make_problem(K, y, n_way, weight, class_mask, None, True)


def gap_per_point(K, y, n_way, sites):
    """How far the sites are from the optimal bound without any further step, in nats per point, per task."""
    _, info = mirror_descent(K, y, n_way=n_way, **PRECISE)
    return (info.elbo[:, -1] - evaluate(as_problem(K, y, n_way), sites).elbo) / y.shape[1]


@pytest.mark.parametrize("n_way", [2, 5, 12])
@pytest.mark.parametrize("n_shot", [1, 4])
@pytest.mark.parametrize("alike", [(0.6, 0.1), (1.0, 0.0), (0.9, 0.5)])
@pytest.mark.parametrize(("scale", "tolerance"), [(0.7, 1e-6), (4.0, 1e-5), (30.0, 5e-3)])
def test_exchangeable_sites_solve_a_symmetric_task_before_any_step(n_way, n_shot, alike, scale, tolerance):
    K, y = symmetric_task(n_way, n_shot, scale, alike[0] * scale, alike[1] * scale)
    gap = gap_per_point(K, y, n_way, exchangeable_sites(as_problem(K, y, n_way)))
    assert gap.item() < tolerance


@pytest.mark.parametrize(("n_way", "n_shot"), [(2, 17), (5, 10)])
def test_exchangeable_sites_do_not_overshoot_where_many_points_pull_together(n_way, n_shot):
    """Points of a class all alike and a large scale: full mirror steps would end nats per point away."""
    K, y = symmetric_task(n_way, n_shot, 100.0, 100.0, 0.0)
    gap = gap_per_point(K, y, n_way, exchangeable_sites(as_problem(K, y, n_way)))
    assert gap.item() < 3e-3


@pytest.mark.parametrize("n_way", [2, 5])
@pytest.mark.parametrize("alike", [(0.6, 0.1), (1.0, 0.0), (0.3, 0.3), (0.9, 0.5)])
def test_more_iterations_make_exchangeable_sites_exact(monkeypatch, n_way, alike):
    """The reduction to two numbers per site parameter loses nothing; only the iterations for them are few."""
    monkeypatch.setattr(starts, "_ITERATIONS", 60)
    for n_shot, scale in ((1, 30.0), (4, 10.0), (6, 2.0)):
        K, y = symmetric_task(n_way, n_shot, scale, alike[0] * scale, alike[1] * scale)
        problem = as_problem(K, y, n_way)
        got = exchangeable_sites(problem)
        posterior, _ = mirror_descent(K, y, n_way=n_way, **PRECISE)
        assert_close(got.shift, posterior.sites.shift, rtol=0, atol=2e-5)
        assert_close(got.precision, posterior.sites.precision, rtol=0, atol=2e-5)


def test_exchangeable_sites_treat_all_points_of_a_class_alike(few_shot_tasks):
    K, y = few_shot_tasks(2, 4, 3, 10.0)
    sites = exchangeable_sites(as_problem(K, y, 4))
    own = torch.nn.functional.one_hot(y, 4).mT.bool()
    for values in sites:
        for task in range(2):
            assert len(values[task][own[task]].unique()) == 1
            assert len(values[task][~own[task]].unique()) == 1
    assert (sites.shift[own] > 0).all()
    assert (sites.shift[~own] < 0).all()
    assert (sites.precision > 0).all()


def test_exchangeable_sites_of_padded_tasks_are_those_of_the_smaller_ones(few_shot_tasks):
    K, y = few_shot_tasks(2, 3, 3, 6.0)
    weight = torch.ones(2, 9).double()
    weight[1, 6:] = 0.0  # a 2-way task
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    padded = exchangeable_sites(as_problem(K, y, 4, weight, mask))
    first = exchangeable_sites(as_problem(K[:1], y[:1], 3))
    second = exchangeable_sites(as_problem(K[1:, :, :6, :6], y[1:, :6], 2))
    for got, a, b in zip(padded, first, second, strict=True):
        assert_close(got[0, :3], a[0], rtol=0, atol=1e-8)
        assert_close(got[1, :2, :6], b[0], rtol=0, atol=1e-8)
        assert (got[0, 3:] == 0).all()
        assert (got[1, 2:] == 0).all()
        assert (got[1, :, 6:] == 0).all()


def test_exchangeable_sites_take_a_weight_for_a_repeated_point(few_shot_tasks):
    K, y = few_shot_tasks(1, 3, 2, 6.0)
    index = torch.arange(6).repeat_interleave(2)
    doubled = exchangeable_sites(as_problem(K, y, 3, torch.full((1, 6), 2.0).double()))
    repeated = exchangeable_sites(as_problem(K[..., index, :][..., index], y[:, index], 3))
    assert_close(doubled.shift[..., index], 2 * repeated.shift, rtol=0, atol=1e-8)
    assert_close(doubled.precision[..., index], 2 * repeated.precision, rtol=0, atol=1e-8)


@pytest.fixture
def solved(few_shot_tasks):
    """Tasks solved before, and what was learned from them."""
    K, y = few_shot_tasks(16, 5, 4, 6.0, seed=1)
    posterior, _ = mirror_descent(K, y, n_way=5, **PRECISE)
    return amortise(K, y, posterior)


def test_amortised_sites_of_new_tasks_are_closer_than_exchangeable_ones(few_shot_tasks, solved):
    K, y = few_shot_tasks(6, 5, 4, 6.0, seed=2)
    amortised = gap_per_point(K, y, 5, solved.sites(as_problem(K, y, 5)))
    exchangeable = gap_per_point(K, y, 5, exchangeable_sites(as_problem(K, y, 5)))
    assert (amortised < exchangeable / 3).all()
    assert amortised.max() < 1e-3


def test_inference_from_amortised_sites_takes_fewer_steps(few_shot_tasks, solved):
    K, y = few_shot_tasks(6, 5, 4, 6.0, seed=2)
    _, from_prior = mirror_descent(K, y, n_way=5)
    _, from_amortised = mirror_descent(K, y, n_way=5, start=solved)
    assert (from_amortised.n_steps < from_prior.n_steps).all()
    assert_close(from_amortised.elbo[:, -1], from_prior.elbo[:, -1], rtol=0, atol=1e-4)


def test_amortised_sites_are_feasible_for_tasks_unlike_those_seen(few_shot_tasks, solved):
    """Another scale, another number of classes: precisions stay valid, padding stays without a site."""
    K, y = few_shot_tasks(3, 3, 2, 50.0, seed=3)
    weight = torch.ones(3, 6).double()
    weight[0, 4:] = 0.0
    mask = torch.tensor([[True, True, True, False]] * 3)
    sites = solved.sites(as_problem(K, y, 4, weight, mask))
    assert all(s.isfinite().all() for s in sites)
    assert (sites.precision >= 0).all()
    assert all((s[0, :, 4:] == 0).all() and (s[:, 3] == 0).all() for s in sites)
    _, info = mirror_descent(K, y, n_way=4, weight=weight, class_mask=mask, start=solved)
    assert info.converged.all()


def test_amortised_sites_reproduce_the_tasks_they_were_learned_from():
    """All points of symmetric tasks are alike, so that the linear map can be exact."""
    K, y = symmetric_task(3, 2, 4.0, 2.0, 0.5)
    posterior, _ = mirror_descent(K, y, n_way=3, **PRECISE)
    learned = amortise(K, y, posterior)
    assert isinstance(learned, AmortisedSites)
    sites = learned.sites(as_problem(K, y, 3))
    assert_close(sites.shift, posterior.sites.shift, rtol=0, atol=1e-5)
    assert_close(sites.precision, posterior.sites.precision, rtol=0, atol=1e-5)


def test_single_precision_keeps_the_digits_of_what_is_learned(few_shot_tasks):
    K, y = few_shot_tasks(4, 3, 3, 6.0, seed=1)
    posterior, _ = mirror_descent(K, y, n_way=3, **PRECISE)
    sites = GaussianSites(*(part.float() for part in posterior.sites))
    solved = posterior._replace(sites=sites, alpha=posterior.alpha.float(), mean=posterior.mean.float())
    exact, single = amortise(K, y, posterior), amortise(K.float(), y, solved)
    for one, other in zip(single, exact, strict=True):
        assert one.dtype == torch.float32
        assert_close(one.double(), other, rtol=0, atol=1e-3 * float(other.abs().max()))
