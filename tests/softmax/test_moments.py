import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mirrorshot.softmax import integrals as softmax_integrals
from mirrorshot.softmax import native, quadrature
from mirrorshot.softmax.moments import log_predictive, softmax_hessian, softmax_moments
from mirrorshot.types import InvalidInputError

# What the module promises, by (dtype, largest variance).
PROMISE = {
    (torch.float64, 4.0): 1e-6,
    (torch.float64, 100.0): 1e-4,
    (torch.float32, 4.0): 1e-5,
}
OUTPUTS = ("prob", "prob_sq", "logsumexp")


@pytest.fixture
def on_reference(monkeypatch):
    """Compute without the native core."""
    monkeypatch.setattr(native, "library", lambda: None)


def latents(n, n_classes, max_var, dtype=torch.float64, seed=0):
    """Means and variances; the latter equal, uniform, spread over orders of magnitude, and zero or large."""
    rng = np.random.default_rng(seed)
    size = n, n_classes
    kinds = [
        np.full(size, max_var),
        rng.uniform(0, max_var, size),
        max_var * 10.0 ** rng.uniform(-6, 0, size),
        max_var * rng.integers(0, 2, size),
    ]
    var = np.choose(np.arange(n)[:, None] % 4, kinds)
    mean = rng.normal(size=size) * np.resize([0.1, 1.0, 3.0, 6.0, 1.0], n)[:, None]
    return torch.tensor(mean, dtype=dtype), torch.tensor(var, dtype=dtype)


def flat(moments):
    """All moments of each point in one row, in float64."""
    return torch.cat([moments.prob, moments.prob_sq, moments.logsumexp[..., None]], -1).double().numpy()


def of_softmax(f):
    """The random variables whose expectations are wanted, in one row per draw of `f`."""
    log_sum = special.logsumexp(f, axis=-1, keepdims=True)
    p = np.exp(f - log_sum)
    return np.concatenate([p, p * p, log_sum], -1)


def by_adaptive_quadrature(mean, var):
    """Adaptive cubature over the differences of the latents, one dimension fewer than classes."""
    mean, var = np.asarray(mean, float), np.asarray(var, float)
    n = len(mean) - 1
    values, vectors = np.linalg.eigh(np.diag(var[:-1]) + var[-1])  # possibly singular
    root = vectors * np.sqrt(np.clip(values, 0, None))

    def integrand(z):
        differences = mean[:-1] - mean[-1] + z @ root.T
        density = np.exp(-0.5 * (z * z).sum(1)) / (2 * math.pi) ** (n / 2)
        return of_softmax(np.pad(differences, ((0, 0), (0, 1)))) * density[:, None]

    result = integrate.cubature(integrand, [-9.0] * n, [9.0] * n, rtol=0, atol=1e-9)
    assert result.status == "converged"
    result.estimate[-1] += mean[-1]
    return result.estimate


def by_sobol(mean, var, n_scrambles, log2_points):
    """Expectation from independent scrambles of a Sobol sequence, and the largest error of each kind."""
    estimates = []
    for seed in range(n_scrambles):
        sampler = stats.qmc.Sobol(len(mean), rng=np.random.default_rng(seed))
        total = 0.0
        for _ in range(2 ** max(log2_points - 12, 0)):
            z = special.ndtri(np.clip(sampler.random(2 ** min(log2_points, 12)), 1e-12, 1 - 1e-12))
            total = total + of_softmax(np.asarray(mean) + np.sqrt(var) * z).sum(0)
        estimates.append(total / 2**log2_points)
    error = np.std(estimates, 0, ddof=1) / math.sqrt(n_scrambles)
    n = len(mean)
    return np.mean(estimates, 0), np.repeat([error[:n].max(), error[n:-1].max(), error[-1]], [n, n, 1])


def by_brute_force(mean, var):
    """The same one-dimensional integrals on grids far finer than any the package uses."""
    mean, std = np.asarray(mean, float), np.sqrt(np.asarray(var, float))
    h = 0.3
    u = np.arange((mean - 8 * std).max() - 4, (mean + 8 * std).max() + 30 + math.log(len(mean)), h)
    log_product, first, second = np.zeros_like(u), [], []
    for m, s in zip(mean, std, strict=True):
        spacing = min(0.2, 0.35 / max(s, 1e-3))
        z = np.arange(-9, 9, spacing)
        weight = np.exp(-z * z / 2)
        weight /= weight.sum()
        e = np.exp(np.clip(m + s * z - u[:, None], -700, 700))
        survive = np.exp(-e)
        cdf, cdf_1, cdf_2 = survive @ weight, (e * survive) @ weight, (e * (e * survive)) @ weight
        with np.errstate(divide="ignore"):
            log_product += np.log(cdf)
        cdf = np.where(cdf > 0, cdf, 1.0)
        first.append(cdf_1 / cdf)
        second.append(cdf_2 / cdf)
    product = np.exp(log_product)
    step = np.exp(-np.exp(np.clip(mean.max() - u, -700, 700)))
    log_sum = mean.max() + h * (step - product).sum()
    return np.array([*(h * (product * r).sum() for r in (*first, *second)), log_sum])


@pytest.mark.parametrize(("dtype", "max_var"), PROMISE)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_moments_of_two_and_three_classes_match_adaptive_quadrature(n_classes, dtype, max_var):
    mean, var = latents(8, n_classes, max_var, dtype)
    got = flat(softmax_moments(mean, var))
    expected = [by_adaptive_quadrature(m, v) for m, v in zip(mean.tolist(), var.tolist(), strict=True)]
    assert np.abs(got - expected).max() < PROMISE[dtype, max_var]


@pytest.mark.parametrize(("dtype", "max_var"), PROMISE)
@pytest.mark.parametrize("n_classes", [5, 20, 100])
def test_moments_of_many_classes_match_sobol_points(n_classes, dtype, max_var):
    mean, var = latents(3, n_classes, max_var, dtype)
    got = flat(softmax_moments(mean, var))
    for row, m, v in zip(got, mean.tolist(), var.tolist(), strict=True):
        expected, error = by_sobol(m, v, n_scrambles=16, log2_points=10)
        assert (np.abs(row - expected) <= PROMISE[dtype, max_var] + 4 * error).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("dtype", "max_var"), PROMISE)
@pytest.mark.parametrize("n_classes", [5, 20, 100])
def test_moments_of_many_classes_match_a_million_sobol_points(n_classes, dtype, max_var):
    mean, var = latents(5, n_classes, max_var, dtype, seed=1)
    got = flat(softmax_moments(mean, var))
    for row, m, v in zip(got, mean.tolist(), var.tolist(), strict=True):
        expected, error = by_sobol(m, v, n_scrambles=16, log2_points=16)
        assert (np.abs(row - expected) <= PROMISE[dtype, max_var] + 4 * error).all()


@pytest.mark.parametrize(("dtype", "max_var"), PROMISE)
@pytest.mark.parametrize("n_classes", [2, 5, 20, 100])
def test_moments_match_brute_force_integration_of_the_same_identities(n_classes, dtype, max_var):
    mean, var = latents(4, n_classes, max_var, dtype, seed=2)
    got = flat(softmax_moments(mean, var))
    expected = [by_brute_force(m, v) for m, v in zip(mean.tolist(), var.tolist(), strict=True)]
    assert np.abs(got - expected).max() < PROMISE[dtype, max_var]


def test_brute_force_and_adaptive_quadrature_agree():
    """They share no formula, so this vouches for both references."""
    mean, var = latents(4, 3, 100.0, seed=3)
    for m, v in zip(mean.tolist(), var.tolist(), strict=True):
        np.testing.assert_allclose(by_brute_force(m, v), by_adaptive_quadrature(m, v), atol=2e-9)


def by_logistic_normal_integral(mean, var, n_nodes):
    """E[p_0], E[p_0^2] and E[log sum exp] of two classes from their difference, by a trapezoid rule."""
    z = np.linspace(-10, 10, n_nodes)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    x = (mean[:, :1] - mean[:, 1:]).numpy() + var.sum(1, keepdim=True).sqrt().numpy() * z
    p = special.expit(x)
    return p @ weights, p**2 @ weights, mean[:, 1].numpy() + np.logaddexp(0, x) @ weights


@pytest.mark.parametrize("max_var", [4.0, 100.0])
def test_two_classes_are_the_logistic_normal_integral(max_var):
    mean, var = latents(12, 2, max_var, seed=4)
    prob, prob_sq, logsumexp = by_logistic_normal_integral(mean, var, 4001)
    got = softmax_moments(mean, var)
    np.testing.assert_allclose(got.prob[:, 0], prob, atol=1e-7)
    np.testing.assert_allclose(got.prob_sq[:, 0], prob_sq, atol=1e-7)
    np.testing.assert_allclose(got.logsumexp, logsumexp, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [300.0, 1e4, 1e6])
def test_moments_stay_close_beyond_the_variances_of_the_promise(scale, dtype):
    mean, var = latents(12, 2, 1.0, seed=6)
    mean, var = mean * math.sqrt(scale), scale * (0.3 + var)
    prob, prob_sq, logsumexp = by_logistic_normal_integral(mean, var, 400_001)
    got = softmax_moments(mean.to(dtype), var.to(dtype))
    np.testing.assert_allclose(got.prob[:, 0], prob, atol=2e-4)
    np.testing.assert_allclose(got.prob_sq[:, 0], prob_sq, atol=3e-3)
    np.testing.assert_allclose(got.logsumexp, logsumexp, atol=1e-5 * math.sqrt(scale))


@pytest.mark.parametrize(("dtype", "max_var"), PROMISE)
@pytest.mark.parametrize("n_classes", [2, 100])
def test_a_class_without_rivals_has_all_probability(n_classes, dtype, max_var):
    """Then the log-sum is its latent, and every part of its distribution that the nodes miss is an error."""
    mean = torch.full((4, n_classes), -500.0, dtype=dtype)
    var = torch.full((4, n_classes), max_var, dtype=dtype)
    mean[:, 0] = torch.tensor([-3.0, 0.0, 1.0, 2.0])
    var[:, 0] *= torch.tensor([0.0, 0.01, 0.3, 1.0])
    got = softmax_moments(mean, var)
    assert (got.prob[:, 0] - 1).abs().max() < PROMISE[dtype, max_var]
    assert (got.prob_sq[:, 0] - 1).abs().max() < PROMISE[dtype, max_var]
    assert (got.logsumexp - mean[:, 0]).abs().max() < PROMISE[dtype, max_var]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("var", [0.0, 0.3, 4.0, 100.0, 1e6])
@pytest.mark.parametrize("n_classes", [2, 7, 300])
def test_exchangeable_classes_are_equally_likely(n_classes, var, dtype):
    moments = softmax_moments(
        torch.full((1, n_classes), -2.5, dtype=dtype), torch.full((1, n_classes), var, dtype=dtype)
    )
    torch.testing.assert_close(moments.prob, torch.full_like(moments.prob, 1 / n_classes), rtol=1e-5, atol=0)


@pytest.mark.parametrize("n_classes", [2, 5, 100])
def test_without_variance_the_moments_are_those_of_one_softmax(n_classes):
    mean, _ = latents(10, n_classes, 1.0)
    got = softmax_moments(mean, torch.zeros_like(mean))
    prob = torch.softmax(mean, -1)
    torch.testing.assert_close(got.prob, prob, rtol=0, atol=1e-7)
    torch.testing.assert_close(got.prob_sq, prob**2, rtol=0, atol=1e-7)
    torch.testing.assert_close(got.logsumexp, mean.logsumexp(-1), rtol=0, atol=1e-7)


def test_a_constant_added_to_all_means_moves_only_the_log_sum():
    mean, var = latents(10, 6, 100.0)
    got, moved = softmax_moments(mean, var), softmax_moments(mean + 37.0, var)
    torch.testing.assert_close(moved.prob, got.prob, rtol=0, atol=1e-12)
    torch.testing.assert_close(moved.prob_sq, got.prob_sq, rtol=0, atol=1e-12)
    torch.testing.assert_close(moved.logsumexp, got.logsumexp + 37.0, rtol=0, atol=1e-10)


def test_permuting_the_classes_permutes_the_moments():
    mean, var = latents(10, 6, 100.0)
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    got, permuted = softmax_moments(mean, var), softmax_moments(mean[:, order], var[:, order])
    torch.testing.assert_close(permuted.prob, got.prob[:, order], rtol=0, atol=1e-13)
    torch.testing.assert_close(permuted.prob_sq, got.prob_sq[:, order], rtol=0, atol=1e-13)
    torch.testing.assert_close(permuted.logsumexp, got.logsumexp, rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_var", [4.0, 1e3])
def test_masked_classes_do_not_exist(max_var):
    mean, var = latents(8, 6, max_var)
    mask = torch.tensor([True, False, True, True, False, True])
    mean[:, ~mask] = 50.0  # would take all probability
    mean.requires_grad_()
    var.requires_grad_()
    got = softmax_moments(mean, var, mask.expand(8, 6))
    smaller = softmax_moments(mean[:, mask], var[:, mask], max_std=math.sqrt(var.max().item()))
    assert (got.prob[:, ~mask] == 0).all()
    assert (got.prob_sq[:, ~mask] == 0).all()
    torch.testing.assert_close(got.prob[:, mask], smaller.prob, rtol=0, atol=1e-8)
    torch.testing.assert_close(got.prob_sq[:, mask], smaller.prob_sq, rtol=0, atol=1e-8)
    torch.testing.assert_close(got.logsumexp, smaller.logsumexp, rtol=0, atol=1e-7)
    got_grads = torch.autograd.grad(got.logsumexp.sum() + got.prob[:, 2].sum(), (mean, var))
    grads = torch.autograd.grad(smaller.logsumexp.sum() + smaller.prob[:, 1].sum(), (mean, var))
    for a, b in zip(got_grads, grads, strict=True):
        assert (a[:, ~mask] == 0).all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)


def test_leading_dimensions_are_kept_and_a_mask_broadcasts_over_them():
    mean, var = latents(6, 4, 4.0)
    mask = torch.tensor([[[True, True, True, False]], [[True, True, True, True]]])
    got = softmax_moments(mean.reshape(2, 3, 4), var.reshape(2, 3, 4), mask)
    expected = softmax_moments(mean, var, mask.expand(2, 3, 4).reshape(6, 4))
    assert got.logsumexp.shape == (2, 3)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=0, atol=0)


def test_no_points_give_no_moments():
    moments = softmax_moments(torch.zeros(0, 3), torch.zeros(0, 3))
    assert moments.prob.shape == (0, 3)
    assert moments.logsumexp.shape == (0,)


@pytest.mark.parametrize("max_var", [4.0, 90.0])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_gradients_match_finite_differences(n_classes, max_var):
    mean, var = latents(4, n_classes, max_var, seed=5)
    var = var + 0.02  # finite differences need room on both sides
    assert torch.autograd.gradcheck(
        lambda m, v: tuple(softmax_moments(m, v)),
        (mean.requires_grad_(), var.requires_grad_()),
        eps=1e-4,
        atol=2e-6,
        rtol=1e-4,
    )


@pytest.mark.parametrize("scale", [300.0, 1e4])
def test_gradients_match_finite_differences_for_very_large_variances(scale):
    generator = torch.Generator().manual_seed(0)
    mean = math.sqrt(scale) * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    var = scale * (1 + torch.rand(3, 4, generator=generator, dtype=torch.float64))
    # in units of the standard deviation, so that all derivatives are of order one
    unit = math.sqrt(scale)
    assert torch.autograd.gradcheck(
        lambda m, v: tuple(softmax_moments(m * unit, v * scale)),
        ((mean / unit).requires_grad_(), (var / scale).requires_grad_()),
        eps=1e-4,
        atol=2e-4,
        rtol=1e-3,
    )


def test_gradients_of_the_log_sum_are_the_probabilities_and_half_the_curvature():
    mean, var = latents(12, 5, 16.0)
    moments = softmax_moments(mean.requires_grad_(), var.requires_grad_())
    grad_mean, grad_var = torch.autograd.grad(moments.logsumexp.sum(), (mean, var))
    torch.testing.assert_close(grad_mean, moments.prob.detach(), rtol=0, atol=1e-8)
    torch.testing.assert_close(grad_var, moments.curvature.detach() / 2, rtol=0, atol=1e-8)


@pytest.mark.parametrize("max_var", [4.0, 1e4])
def test_chunks_do_not_change_moments_or_gradients(monkeypatch, on_reference, max_var):
    mean, var = latents(24, 4, max_var)
    mean.requires_grad_()
    var.requires_grad_()

    def run():
        moments = softmax_moments(mean, var)
        loss = (moments.prob[:, 0] - moments.prob_sq[:, 1] + moments.logsumexp).sum()
        return [*moments, *torch.autograd.grad(loss, (mean, var))]

    whole = run()
    calls = []
    for name in ("_fine_grid", "_wide_grid"):
        inner = getattr(softmax_integrals, name)
        monkeypatch.setattr(
            softmax_integrals, name, lambda m, *rest, inner=inner: (calls.append(len(m)), inner(m, *rest))[1]
        )
    monkeypatch.setattr(softmax_integrals, "CHUNK_ELEMENTS", 5000)
    pieces = run()
    assert len(calls) > 3
    assert sum(calls) == 2 * 24  # forward and backward
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class LargestArray(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation makes."""

    n_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.n_elements = max(self.n_elements, *sizes, 0)
        return out


@pytest.mark.parametrize(("n_classes", "max_var"), [(5, 1.0), (5, 1e3), (20, 4.0)])
def test_no_working_array_is_larger_than_a_chunk(monkeypatch, on_reference, n_classes, max_var):
    limit = 2**16
    monkeypatch.setattr(softmax_integrals, "CHUNK_ELEMENTS", limit)
    mean, var = latents(128, n_classes, max_var)
    with LargestArray() as largest:
        moments = softmax_moments(mean.requires_grad_(), var.requires_grad_())
        (moments.prob[..., 0].sum() + moments.logsumexp.sum()).backward()
    # the matrix of Gumbel weights is shared by all points and cached
    assert largest.n_elements <= max(limit, mean.numel())


@pytest.mark.parametrize("max_var", [1.0, 16.0])
def test_the_error_estimate_follows_the_error_of_a_coarse_rule(monkeypatch, on_reference, max_var):
    mean, var = latents(24, 5, max_var)
    exact = flat(softmax_moments(mean, var))
    fine_rule = softmax_integrals.choose_rule

    def coarse_rule(*args):
        rule = fine_rule(*args)
        halves = {name: -(-getattr(rule, name) // 2) for name in ("n_nodes", "n_hermite")}
        return rule._replace(spacing=2 * rule.spacing, **halves)

    monkeypatch.setattr(softmax_integrals, "choose_rule", coarse_rule)
    coarse = softmax_moments(mean, var)
    error = np.abs(flat(coarse) - exact).max(-1)
    assert error.max() > 1e-4  # the rule is coarse indeed
    assert (coarse.error.numpy() <= 5 * error + 1e-12).all()  # the sum has five terms
    assert coarse.error.max() > 0.1 * error.max()


@pytest.mark.parametrize(("dtype", "max_var"), PROMISE)
def test_error_estimate_is_below_the_promise(dtype, max_var):
    mean, var = latents(24, 5, max_var, dtype)
    assert softmax_moments(mean, var).error.max() < PROMISE[dtype, max_var]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("var", [0.0, 1e-12, 1.0, 1e3, 1e6, 1e12])
@pytest.mark.parametrize("n_classes", [2, 5, 50])
def test_extreme_values_give_finite_normalised_probabilities(n_classes, var, offset, dtype):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(9, n_classes, generator=generator, dtype=dtype)
    mean[:3] += offset * torch.randint(-1, 2, (3, n_classes), generator=generator)
    mean[3:6] *= offset
    variances = torch.full_like(mean, var)
    variances[::2, 0] = 0.0
    variances[1::2, -1] = 1e-6
    mean.requires_grad_()
    variances.requires_grad_()
    prob, prob_sq, logsumexp = moments = softmax_moments(mean, variances)
    assert all(t.isfinite().all() for t in moments)
    assert moments.error.max() < 1e-5
    tolerance = 1e-5 if dtype == torch.float32 else 1e-7
    assert (prob >= 0).all()
    assert (prob_sq <= prob).all()
    assert (prob_sq >= prob**2 - tolerance).all()
    # Jensen: E log sum exp f is at least log sum exp E f
    slack = 1e-5 if dtype == torch.float32 else 1e-7
    low = mean.logsumexp(-1)
    assert (logsumexp >= low - slack * (1 + low.abs() + variances.amax(-1).sqrt())).all()
    grads = torch.autograd.grad(prob[:, 0].sum() + prob_sq[:, 1].sum() + logsumexp.sum(), (mean, variances))
    assert all(g.isfinite().all() for g in grads)


@given(
    rows=st.lists(
        st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(0, 1e8, width=32)), min_size=4, max_size=4),
        min_size=1,
        max_size=4,
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_probabilities_are_normalised_for_any_latents(rows, dtype):
    mean, var = torch.tensor(rows, dtype=dtype).unbind(-1)
    moments = softmax_moments(mean, var)
    assert all(t.isfinite().all() for t in moments)
    assert moments.error.max() < 1e-5
    assert (moments.prob >= 0).all()
    assert (moments.curvature >= 0).all()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_log_predictive_is_the_tempered_and_normalised_mean_of_the_softmax(temperature):
    mean, var = latents(6, 3, 4.0)
    expected = np.array([by_adaptive_quadrature(m, v)[:3] for m, v in zip(mean, var, strict=True)])
    expected = expected ** (1 / temperature)
    expected /= expected.sum(-1, keepdims=True)
    got = log_predictive(mean, var, temperature=temperature).exp()
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_log_predictive_takes_one_temperature_per_point():
    mean, var = latents(4, 3, 4.0)
    temperature = torch.tensor([0.2, 0.5, 1.0, 4.0], dtype=torch.float64)
    got = log_predictive(mean, var, temperature=temperature)
    for i, t in enumerate(temperature.tolist()):
        torch.testing.assert_close(got[i], log_predictive(mean, var, temperature=t)[i])


def test_log_predictive_gives_masked_classes_no_probability_and_all_others_some():
    mean = torch.tensor([[0.0, 5000.0, -5000.0, 3.0]])
    mask = torch.tensor([[True, True, True, False]])
    got = log_predictive(mean, torch.ones(1, 4), mask)
    assert got[0, 3] == -math.inf
    assert got[0, :3].isfinite().all()
    assert got[0, 1] == 0.0


def test_moments_are_computed_in_the_type_of_the_input():
    mean, var = latents(4, 3, 1.0, torch.float32)
    assert all(t.dtype == torch.float32 for t in softmax_moments(mean, var))


def test_negative_variance_is_refused():
    with pytest.raises(InvalidInputError, match=r"`var` to be finite and not negative, but its range is \[-1"):
        softmax_moments(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(bad):
    good = torch.ones(2, 3)
    wrong = good.clone()
    wrong[1, 2] = bad
    with pytest.raises(InvalidInputError, match="Expected finite `mean`, but got NaN or infinity"):
        softmax_moments(wrong, good)
    with pytest.raises(InvalidInputError, match="Expected `var` to be finite"):
        softmax_moments(good, wrong)


def test_large_finite_means_are_not_taken_for_infinite():
    """The check sums the means, and the sum may overflow where no mean does."""
    mean = torch.full((3, 2), 3e38)
    assert softmax_moments(mean, torch.zeros(3, 2)).prob.isfinite().all()


def test_means_and_variances_of_different_shapes_are_refused(as_for_users):
    with pytest.raises(InvalidInputError, match=r"of one shape \(\.\.\., C\), but got \(2, 3\) and \(2, 4\)"):
        softmax_moments(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(InvalidInputError, match=r"but got \(\) and \(\)"):
        softmax_moments(torch.tensor(0.0), torch.tensor(1.0))


@pytest.mark.parametrize("n_way", [2, 5, 20])
def test_hessian_matches_differences_of_the_moments(n_way):
    generator = torch.Generator().manual_seed(n_way)
    mean = 2 * torch.randn(6, n_way, generator=generator, dtype=torch.float64)
    var = 8 * torch.rand(6, n_way, generator=generator, dtype=torch.float64) + 0.01
    hessian = softmax_hessian(mean, var, max_std=3.0)
    h = 1e-4
    for j in range(n_way):
        step = h * torch.nn.functional.one_hot(torch.tensor(j), n_way)
        up, down = (softmax_moments(mean + s * step, var, max_std=3.0) for s in (1, -1))
        wide, narrow = (softmax_moments(mean, var + s * step, max_std=3.0) for s in (1, -1))
        pairs = (
            (up.prob - down.prob, hessian.mean_mean[..., j]),
            (wide.prob - narrow.prob, hessian.mean_var[..., j]),
            (up.curvature - down.curvature, 2 * hessian.mean_var[..., j, :]),
            (wide.curvature - narrow.curvature, hessian.var_var[..., j]),
        )
        for difference, derivative in pairs:
            torch.testing.assert_close(difference / (2 * h), derivative, atol=1e-7, rtol=0.0)


@pytest.mark.parametrize("max_var", [4.0, 1e4])
def test_hessian_pulls_back_as_the_gradients_of_the_moments(max_var):
    mean, var = latents(12, 4, max_var)
    mask = torch.tensor([True, True, False, True])
    bars = [torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    hessian = softmax_hessian(mean, var, mask, max_std=math.sqrt(max_var))
    moments = softmax_moments(mean.requires_grad_(), var.requires_grad_(), mask)
    theirs = torch.autograd.grad((moments.prob, moments.curvature), (mean, var), bars)
    torch.testing.assert_close(hessian.prob, moments.prob.detach(), atol=1e-12, rtol=0.0)
    torch.testing.assert_close(hessian.curvature, moments.curvature.detach(), atol=1e-8, rtol=0.0)
    for ours, expected in zip(hessian.pull_back(*bars), theirs, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6 if max_var < 100 else 5e-2, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_latents_evaluated_apart_are_those_evaluated_together(dtype):
    mean, var = latents(40, 5, 4.0, dtype)
    rule = quadrature.choose_rule(2.0, 5, dtype)
    offset = quadrature.grid_start(mean, var.sqrt(), rule)[:, None] - mean
    is_broad = var.sqrt() > rule.narrow_std
    assert is_broad.any()
    assert not is_broad.all()
    apart = quadrature._evaluate_apart(offset, var.sqrt(), rule, 3)
    together = quadrature._evaluate_both(offset, var.sqrt(), rule, 3)
    for a, b in zip(apart, together, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("var", [0.1, 0.5, 2.0])
def test_small_probabilities_of_float32_keep_their_relative_accuracy(var):
    mean = -torch.tensor([[0.0, 5.0, 12.0, 20.0, 30.0, 45.0]])
    prob = softmax_moments(mean, torch.full_like(mean, var)).prob
    exact = softmax_moments(mean.double(), torch.full_like(mean, var).double()).prob
    assert exact.min() < 1e-18
    torch.testing.assert_close(prob.double(), exact, rtol=1e-2, atol=0.0)
