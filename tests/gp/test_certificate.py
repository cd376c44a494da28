import pytest
import torch

from mirrorshot.gp import mirror_descent
from mirrorshot.gp.certificate import gap_bound, latent_error
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.kernels import RBF
from mirrorshot.gp.objective import evaluate, make_problem


def tasks(scale, seed, has_prior):
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    with torch.no_grad():
        K = RBF(lengthscale=1.5, outputscale=scale)(torch.randn(1, 12, 3, **draw))
    y, weight = torch.randint(3, (1, 12), generator=generator), torch.rand(1, 12, **draw) + 0.5
    prior_mean = torch.randn(1, 3, 12, **draw) if has_prior else None
    problem = make_problem(K, y, 3, weight, None, None, validate=True, prior_mean=prior_mean)
    optimum, info = mirror_descent(K, y, n_way=3, weight=weight, prior_mean=prior_mean, tol=1e-14, max_steps=300)
    return problem, optimum, float(info.elbo[0, -1]), draw


@pytest.mark.parametrize("has_prior", [False, True])
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 100.0])
def test_the_gradient_bounds_the_gap_and_the_error_of_the_means_everywhere(scale, has_prior):
    problem, optimum, best, draw = tasks(scale, 1, has_prior)
    for size in (1e-4, 1e-2, 1.0, 10.0):
        shift, precision = (part + size * torch.randn(1, 3, 12, **draw) for part in optimum.sites)
        state = evaluate(problem, GaussianSites(shift, precision.abs()))
        gap = gap_bound(problem, state)
        assert best - float(state.elbo) <= float(gap) + 1e-9
        error = (state.posterior.mean - optimum.mean).abs().max()
        assert error <= latent_error(problem, gap) + 1e-4  # what descent leaves
        assert (state.posterior.var.sqrt() - optimum.var.sqrt()).abs().max() <= latent_error(problem, gap) + 1e-4


def test_it_is_not_idle_at_the_prior_and_vanishes_at_the_optimum():
    problem, optimum, best, _ = tasks(10.0, 2, False)
    prior = evaluate(problem, GaussianSites.zeros_like(problem.K, 3))
    assert best - float(prior.elbo) <= float(gap_bound(problem, prior)) < 100 * (best - float(prior.elbo))
    assert float(gap_bound(problem, evaluate(problem, optimum.sites))) < 1e-8
