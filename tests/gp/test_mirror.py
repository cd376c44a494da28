import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special
from torch.testing import assert_close

from mirrorshot.gp import elbo, mirror_descent
from mirrorshot.gp.gaussian import GaussianSites, condition, covariance
from mirrorshot.types import InvalidInputError

PRECISE = {"max_steps": 200, "tol": 1e-12}


def gauss_hermite_grid(n_way, n_nodes=30):
    """Nodes (n_way, n_nodes ** n_way) and weights of the full tensor rule for standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    grid = np.array(list(itertools.product(nodes, repeat=n_way))).T
    weight = np.array(list(itertools.product(weights / weights.sum(), repeat=n_way))).prod(1)
    return torch.tensor(grid), torch.tensor(weight)


def expectations(mean, var, n_nodes=30):
    """E[p], E[p^2] (C, N) and E[log sum exp] (N,) at marginals (C, N), by brute force."""
    grid, weight = gauss_hermite_grid(mean.shape[0], n_nodes)
    f = mean[..., None] + var.sqrt()[..., None] * grid[:, None, :]
    p = torch.softmax(f, 0)
    return p @ weight, p.square() @ weight, f.logsumexp(0) @ weight


def one_hot(y, n_way):
    return torch.nn.functional.one_hot(y[0], n_way).T.double()


@pytest.mark.parametrize("rho", [1.0, 0.4])
def test_fixed_steps_are_the_updates_of_the_paper(small_task, rho):
    K, y = small_task()
    posterior, info = mirror_descent(K, y, n_way=3, max_steps=3, step_size=rho)
    # eqs. 9 to 11 in natural parameters, with explicit inverses and expectations on a dense grid
    K_inv, Y = torch.linalg.inv(K[0, 0]), one_hot(y, 3)
    theta_1, w = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    bound = []
    for step in range(4):
        Sigma = torch.linalg.inv(K_inv + torch.diag_embed(w))
        mean = (Sigma @ theta_1[..., None])[..., 0]
        var = Sigma.diagonal(dim1=-2, dim2=-1)
        p, p_sq, log_sum = expectations(mean, var)
        q = torch.distributions.MultivariateNormal(mean, Sigma)
        prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), K[0, 0])
        kl = torch.distributions.kl_divergence(q, prior).sum()
        bound.append(((Y * mean).sum(0) - log_sum).sum() - kl)
        if step < 3:
            g_m, g_v = Y - p, -0.5 * (p - p_sq)
            theta_1 = (1 - rho) * theta_1 + rho * (g_m - 2 * g_v * mean)
            w = (1 - rho) * w + rho * (-2 * g_v)
    assert_close(posterior.sites.shift[0], theta_1, rtol=0, atol=1e-7)
    assert_close(posterior.sites.precision[0], w, rtol=0, atol=1e-7)
    assert_close(posterior.mean[0], mean, rtol=0, atol=1e-7)
    assert_close(posterior.var[0], var, rtol=0, atol=1e-7)
    assert_close(info.elbo[0], torch.stack(bound), rtol=0, atol=1e-6)


def test_one_full_step_from_the_prior_is_regression(few_shot_tasks):
    """At the prior: targets (y - 1/C) / w and noise variance 1/w, with one w for all points and classes."""
    K, y = few_shot_tasks(2, 3, 3, 3.0)
    posterior, _ = mirror_descent(K, y, n_way=3, max_steps=1, step_size=1.0)
    _, p_sq, _ = expectations(torch.zeros(3, 1, dtype=torch.float64), torch.full((3, 1), 3.0).double(), 40)
    w = 1 / 3 - p_sq[0, 0].item()
    targets = (torch.nn.functional.one_hot(y, 3).mT.double() - 1 / 3) / w
    gain = K @ torch.linalg.inv(K + torch.eye(9, dtype=torch.float64) / w)
    assert_close(posterior.mean, (gain @ targets[..., None])[..., 0], rtol=1e-5, atol=1e-6)
    assert_close(covariance(K, posterior), (K - gain @ K).expand(2, 3, 9, 9), rtol=1e-5, atol=1e-6)


def test_the_optimum_is_a_fixed_point_of_the_paper(small_task):
    """m = K g_m and Sigma^-1 = K^-1 + diag E[p (1 - p)], the expectations taken on a dense grid."""
    K, y = small_task(n_way=3, n=6, scale=6.0)
    posterior, _ = mirror_descent(K, y, n_way=3, **PRECISE)
    p, p_sq, _ = expectations(posterior.mean[0], posterior.var[0], n_nodes=50)
    assert_close(posterior.mean[0], (one_hot(y, 3) - p) @ K[0, 0], rtol=0, atol=3e-5)
    precision = torch.linalg.inv(covariance(K, posterior)[0]) - torch.linalg.inv(K[0, 0])
    assert_close(precision, torch.diag_embed(p - p_sq), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("n_way", "n_shot", "scale", "kernel"),
    [(2, 3, 0.7, "cosine"), (3, 3, 10.0, "rbf"), (4, 2, 30.0, "cosine"), (3, 1, 300.0, "rbf")],
)
def test_the_optimum_is_that_of_l_bfgs_on_the_same_bound(few_shot_tasks, n_way, n_shot, scale, kernel):
    K, y = few_shot_tasks(1, n_way, n_shot, scale, kernel=kernel)
    _, info = mirror_descent(K, y, n_way=n_way, **PRECISE)
    size = n_way * y.shape[1]

    def negative_bound(parameters):
        theta = torch.tensor(parameters, requires_grad=True)
        shift, log_w = theta.reshape(2, 1, n_way, -1)
        loss = -elbo(K, y, condition(K, GaussianSites(shift, log_w.exp()))).sum()
        (gradient,) = torch.autograd.grad(loss, theta)
        return loss.item(), gradient.numpy()

    start = np.concatenate([np.zeros(size), np.full(size, -2.0)])
    result = optimize.minimize(
        negative_bound,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-7},
    )
    assert info.elbo[0, -1].item() == pytest.approx(-result.fun, abs=1e-4)


def test_no_gaussian_of_full_covariance_has_a_higher_bound(small_task):
    """The sites lose nothing: optimise (m, chol Sigma) freely, with expectations on a dense grid."""
    K, y = small_task(n_way=3, n=3, scale=3.0)
    _, info = mirror_descent(K, y, n_way=3, **PRECISE)
    Y = one_hot(y, 3)
    prior = torch.distributions.MultivariateNormal(torch.zeros(3, 3, dtype=torch.float64), K[0, 0])
    rows, columns = torch.tril_indices(3, 3)

    def negative_bound(parameters):
        theta = torch.tensor(parameters, requires_grad=True)
        mean = theta[:9].reshape(3, 3)
        L = torch.zeros(3, 3, 3, dtype=torch.float64).index_put(
            (torch.arange(3)[:, None], rows, columns), theta[9:].reshape(3, 6)
        )
        q = torch.distributions.MultivariateNormal(mean, L @ L.mT)
        _, _, log_sum = expectations(mean, (L @ L.mT).diagonal(dim1=-2, dim2=-1), n_nodes=16)
        kl = torch.distributions.kl_divergence(q, prior).sum()
        loss = kl - ((Y * mean).sum(0) - log_sum).sum()
        (gradient,) = torch.autograd.grad(loss, theta)
        return loss.item(), gradient.numpy()

    start = np.concatenate([np.zeros(9), np.tile(np.linalg.cholesky(K[0, 0].numpy())[rows, columns], 3)])
    result = optimize.minimize(negative_bound, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    assert info.elbo[0, -1].item() == pytest.approx(-result.fun, abs=1e-4)


@pytest.mark.parametrize("labels", [(0, 1), (0, 0)])
@pytest.mark.parametrize(("scale", "nearness"), [(0.5, 0.02), (4.0, 0.2), (20.0, 0.6)])
def test_the_bound_is_below_and_near_the_log_evidence(scale, nearness, labels):
    """Two classes, two points: the evidence is an integral over the two differences f_1 - f_2 ~ N(0, 2 K)."""
    K = scale * torch.tensor([[[[1.0, 0.6], [0.6, 1.0]]]], dtype=torch.float64)
    _, info = mirror_descent(K, torch.tensor([labels]), n_way=2, **PRECISE)
    root = np.linalg.cholesky(2 * K[0, 0].numpy())
    sign = np.where(np.array(labels) == 0, 1.0, -1.0)

    def integrand(z):
        density = np.exp(-0.5 * (z * z).sum(1)) / (2 * math.pi)
        return special.expit(sign * (z @ root.T)).prod(1) * density

    evidence = integrate.cubature(integrand, [-9, -9], [9, 9], rtol=1e-9, atol=0).estimate
    gap = math.log(evidence) - info.elbo[0, -1].item()
    assert 0 < gap < nearness


def test_every_start_reaches_the_same_optimum(few_shot_tasks):
    K, y = few_shot_tasks(3, 4, 3, 10.0)
    expected, info = mirror_descent(K, y, n_way=4, **PRECISE)
    g = torch.Generator().manual_seed(0)
    start = GaussianSites(
        torch.randn(3, 4, 12, generator=g, dtype=torch.float64),
        torch.rand(3, 4, 12, generator=g, dtype=torch.float64),
    )
    for options in ({"start": start}, {"start": start, "step_size": 0.4}, {"step_size": 0.5}):
        posterior, other = mirror_descent(K, y, n_way=4, **{**PRECISE, **options})
        assert_close(other.elbo[:, -1], info.elbo[:, -1], rtol=0, atol=1e-7)
        assert_close(posterior.mean, expected.mean, rtol=0, atol=1e-4)


def test_different_kernels_per_class_reach_their_fixed_point(small_task):
    K, y = small_task(n_way=3, n=6)
    K = K * torch.tensor([0.5, 2.0, 5.0], dtype=torch.float64)[None, :, None, None]
    posterior, _ = mirror_descent(K, y, n_way=3, **PRECISE)
    p, _, _ = expectations(posterior.mean[0], posterior.var[0], n_nodes=50)
    expected = (K[0] @ (one_hot(y, 3) - p)[..., None])[..., 0]
    assert_close(posterior.mean[0], expected, rtol=0, atol=3e-5)


def test_float32_reaches_the_optimum_of_float64(few_shot_tasks):
    K, y = few_shot_tasks(4, 5, 5, 10.0)
    exact, info = mirror_descent(K, y, n_way=5, **PRECISE)
    single, info_single = mirror_descent(K.float(), y, n_way=5)
    assert single.mean.dtype == torch.float32
    assert info_single.converged.all()
    assert_close(info_single.elbo[:, -1].double(), info.elbo[:, -1], rtol=0, atol=1e-4)
    assert_close(single.mean.double(), exact.mean, rtol=0, atol=5e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": "fast"}, "`step_size` to be a number or 'safeguarded', but got 'fast'"),
        ({"step_size": 0.0}, r"`step_size` in \(0, 1\], but got 0.0"),
        ({"step_size": 1.5}, r"`step_size` in \(0, 1\], but got 1.5"),
        ({"step_size": float("nan")}, r"`step_size` in \(0, 1\], but got nan"),
        ({"gradient": "exact"}, "`gradient` to be one of envelope, unroll, but got 'exact'"),
        ({"gradient": "unroll"}, "a fixed `step_size` .* but got 'safeguarded'. Use `predictive.training_latents`"),
        (
            {"start": "posterior"},
            "`start` to be 'prior', GaussianSites or AmortisedSites, but got 'posterior'",
        ),
        ({"max_steps": 0}, "`max_steps` to be at least 1, but got 0"),
        ({"n_way": 1}, "`n_way` to be at least 2, but got 1"),
        ({"n_way": 2}, "labels between 0 and n_way - 1 = 1, but got 0 to 2"),
        ({"weight": torch.ones(1, 5)}, r"`weight` of shape \(1, 4\), but got \(1, 5\)"),
        ({"weight": -torch.ones(1, 4)}, "`weight` to be finite and not negative"),
        ({"weight": torch.full((1, 4), float("nan"))}, "`weight` to be finite and not negative"),
        ({"class_mask": torch.ones(1, 4).bool()}, r"`class_mask` of shape \(1, 3\), but got \(1, 4\)"),
        (
            {"class_mask": torch.tensor([[True, True, False]])},
            "`class_mask` to be true for every class that has a label",
        ),
        (
            {"class_mask": torch.zeros(1, 3).bool(), "weight": torch.zeros(1, 4)},
            "every task to have at least one class in `class_mask`",
        ),
    ],
)
def test_wrong_options_are_refused_with_a_reason(small_task, as_for_users, options, message):
    K, y = small_task(n_way=3, n=4)
    with pytest.raises(InvalidInputError, match=f"Expected {message}"):
        mirror_descent(K, y, **{"n_way": 3, **options})


def test_wrong_starting_sites_are_refused_with_a_reason(small_task):
    K, y = small_task(n_way=3, n=4)
    zeros = torch.zeros(1, 3, 4, dtype=torch.float64)
    with pytest.raises(InvalidInputError, match=r"starting sites of shape \(1, 3, 4\), but got \(1, 2, 4\)"):
        mirror_descent(K, y, n_way=3, start=GaussianSites(zeros[:, :2], zeros[:, :2]))
    with pytest.raises(InvalidInputError, match="precision that is not negative, but got 12 sites"):
        mirror_descent(K, y, n_way=3, start=GaussianSites(zeros, zeros - 1))
    with pytest.raises(InvalidInputError, match=r"starting sites to be finite, .* but got 12 sites"):
        mirror_descent(K, y, n_way=3, start=GaussianSites(zeros * float("nan"), zeros))
