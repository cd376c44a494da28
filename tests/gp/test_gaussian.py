import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from mirrorshot.gp.gaussian import (
    GaussianSites,
    condition,
    covariance,
    kl_to_prior,
    loo_latent,
    predict_latent,
    root_of,
)
from mirrorshot.types import NumericalError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_case(n_tasks=3, n_way=4, n=6, n_features=9, shared=True, seed=0, scale=3.0):
    """Prior covariances of full rank (if n_features >= n) and sites with some precisions zero."""
    g = generator(seed)
    x = torch.randn(n_tasks, 1 if shared else n_way, n, n_features, generator=g, dtype=torch.float64)
    K = scale * (x @ x.mT) / n_features
    shift = torch.randn(n_tasks, n_way, n, generator=g, dtype=torch.float64)
    precision = torch.rand(n_tasks, n_way, n, generator=g, dtype=torch.float64)
    return K, GaussianSites(shift, precision * (precision > 0.2))


def by_explicit_inverses(K, sites):
    """Textbook form: Sigma = (K^-1 + diag w)^-1 and m = Sigma b."""
    K_inv = torch.linalg.inv(K).expand(*sites.shift.shape, -1)
    Sigma = torch.linalg.inv(K_inv + torch.diag_embed(sites.precision))
    mean = (Sigma @ sites.shift[..., None])[..., 0]
    return mean, Sigma, (K_inv @ mean[..., None])[..., 0]


def duplicate(K, index):
    """The prior covariance with points repeated: singular."""
    return K[..., index, :][..., :, index]


@pytest.mark.parametrize("shared", [True, False])
def test_condition_matches_explicit_inverses(shared):
    K, sites = random_case(shared=shared)
    posterior = condition(K, sites)
    mean, Sigma, alpha = by_explicit_inverses(K, sites)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.var, Sigma.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.alpha, alpha, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(covariance(K, posterior), Sigma, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.slack, 1 - sites.precision * posterior.var)
    assert (posterior.info == 0).all()


def test_condition_satisfies_the_identity_between_alpha_and_the_mean():
    K, sites = random_case(n_features=2)  # rank 2
    posterior = condition(K, sites)
    torch.testing.assert_close(posterior.alpha, sites.shift - sites.precision * posterior.mean)


def test_sites_of_zero_give_the_prior_exactly():
    K, _ = random_case(n_features=2)
    posterior = condition(K, GaussianSites.zeros_like(K, n_way=4))
    assert posterior.mean.shape == (3, 4, 6)
    assert (posterior.mean == 0).all()
    assert torch.equal(posterior.var, K.diagonal(dim1=-2, dim2=-1).expand(3, 4, 6))
    assert (kl_to_prior(posterior) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_condition_accepts_duplicated_points(dtype):
    """Two copies of a point with sites (b, w) and (b', w') act as one point with (b + b', w + w')."""
    K, sites = random_case(n=5, n_features=8)
    copies = torch.tensor([0, 1, 2, 3, 4, 0, 0, 3])
    g = generator(1)
    extra = GaussianSites(
        torch.randn(3, 4, 8, generator=g, dtype=torch.float64),
        torch.rand(3, 4, 8, generator=g, dtype=torch.float64),
    )
    merged = GaussianSites(*(torch.zeros_like(s).index_add(-1, copies, e) for s, e in zip(sites, extra, strict=True)))
    got = condition(duplicate(K, copies).to(dtype), GaussianSites(*(e.to(dtype) for e in extra)))
    mean, Sigma, _ = by_explicit_inverses(K, merged)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(got.mean.double(), mean[..., copies], rtol=tolerance, atol=tolerance)
    var = Sigma.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(got.var.double(), var[..., copies], rtol=tolerance, atol=tolerance)


def test_condition_of_a_rank_deficient_prior_matches_the_weight_space_posterior():
    """For K = Z Z^T of rank 2 the posterior is that of Bayesian linear regression on Z."""
    z = torch.randn(1, 1, 30, 2, generator=generator(), dtype=torch.float64)
    g = generator(1)
    sites = GaussianSites(
        torch.randn(1, 3, 30, generator=g, dtype=torch.float64),
        torch.rand(1, 3, 30, generator=g, dtype=torch.float64),
    )
    posterior = condition(z @ z.mT, sites)
    weight_cov = torch.linalg.inv(torch.eye(2, dtype=torch.float64) + z.mT @ (sites.precision[..., None] * z))
    weight_mean = weight_cov @ (z.mT @ sites.shift[..., None])
    torch.testing.assert_close(posterior.mean, (z @ weight_mean)[..., 0])
    torch.testing.assert_close(covariance(z @ z.mT, posterior), z @ weight_cov @ z.mT)
    torch.testing.assert_close(posterior.var, (z @ weight_cov * z).sum(-1))


def test_condition_accepts_a_prior_of_zero():
    K = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    _, sites = random_case(n_tasks=1, n=3)
    posterior = condition(K, sites)
    assert (posterior.mean == 0).all()
    assert (posterior.var == 0).all()
    assert (kl_to_prior(posterior) == 0).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_condition_in_float32_is_accurate_for_a_singular_kernel(scale):
    """Rank 64, 105 points: a training task of Omniglot, where explicit inverses lose all but two digits."""
    z = torch.randn(1, 1, 105, 64, generator=generator(), dtype=torch.float64)
    z = z / z.norm(dim=-1, keepdim=True)
    K = scale * z @ z.mT
    g = generator(1)
    sites = GaussianSites(
        torch.randn(1, 5, 105, generator=g, dtype=torch.float64),
        torch.rand(1, 5, 105, generator=g, dtype=torch.float64) / 4,
    )
    exact = condition(K, sites)
    single = condition(K.float(), GaussianSites(*(s.float() for s in sites)))
    for name in ("mean", "var"):
        a, b = getattr(single, name).double(), getattr(exact, name)
        # the condition number of I + S K S is of the order of 1 + scale
        assert (a - b).abs().max() < (20 + scale) * torch.finfo(torch.float32).eps * b.abs().max()
    kl, kl_exact = kl_to_prior(single).double(), kl_to_prior(exact)
    torch.testing.assert_close(kl, kl_exact, rtol=1e-4, atol=1e-5)


def test_variance_is_accurate_where_a_strong_site_determines_it():
    """With w k = 1e10 the difference k - k^2 / (k + 1 / w) would keep no digit in float32."""
    K = torch.full((1, 1, 1, 1), 1e6)
    posterior = condition(K, GaussianSites(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1e4)))
    assert posterior.var.item() == pytest.approx(1e-4, rel=1e-3)


def test_kl_matches_that_of_the_two_normal_distributions():
    K, sites = random_case(shared=False)
    posterior = condition(K, sites)
    expected = kl_divergence(
        MultivariateNormal(posterior.mean, covariance(K, posterior)),
        MultivariateNormal(torch.zeros_like(posterior.mean), K),
    )
    torch.testing.assert_close(kl_to_prior(posterior), expected, rtol=1e-8, atol=1e-9)


def test_kl_of_a_singular_prior_is_the_limit_of_regular_ones():
    K, sites = random_case(n_features=2)
    singular = kl_to_prior(condition(K, sites))
    nearly = kl_to_prior(condition(K + 1e-9 * torch.eye(6, dtype=torch.float64), sites))
    torch.testing.assert_close(singular, nearly, rtol=1e-6, atol=1e-6)
    assert (singular > 0).all()


@pytest.mark.parametrize("shared", [True, False])
def test_predictions_match_the_explicit_formula_of_the_paper(shared):
    """Eq. 15b: k*^T K^-1 m and k** - k*^T K^-1 k* + k*^T K^-1 Sigma K^-1 k*."""
    K_all, _ = random_case(n=11, n_features=15, shared=shared)
    _, sites = random_case(n=6)
    K, K_cross, K_new = K_all[..., :6, :6], K_all[..., :6, 6:], K_all[..., 6:, 6:]
    prior_var = K_new.diagonal(dim1=-2, dim2=-1)
    mean, var = predict_latent(condition(K, sites), K_cross, prior_var)
    m, Sigma, _ = by_explicit_inverses(K, sites)
    A = torch.linalg.solve(K, K_cross)  # K^-1 k*
    expected = K_new - K_cross.mT @ A + A.mT @ Sigma @ A
    torch.testing.assert_close(mean, (A.mT @ m[..., None])[..., 0], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(var, expected.diagonal(dim1=-2, dim2=-1), rtol=1e-8, atol=1e-9)


def test_predictions_at_the_conditioning_points_are_the_posterior():
    K, sites = random_case(n_features=3)
    posterior = condition(K, sites)
    mean, var = predict_latent(posterior, K, K.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(mean, posterior.mean)
    torch.testing.assert_close(var, posterior.var)


def test_predictions_far_from_all_points_are_the_prior():
    K, sites = random_case()
    mean, var = predict_latent(
        condition(K, sites),
        torch.zeros(3, 1, 6, 2, dtype=torch.float64),
        torch.full((3, 1, 2), 7.0, dtype=torch.float64),
    )
    assert (mean == 0).all()
    assert (var == 7).all()


@pytest.mark.parametrize("n_features", [9, 2])
def test_leave_one_out_matches_taking_the_site_away(n_features):
    K, sites = random_case(n_features=n_features)
    mean, var = loo_latent(condition(K, sites))
    for i in range(6):
        keep = torch.arange(6) != i
        without = condition(K, GaussianSites(sites.shift * keep, sites.precision * keep))
        torch.testing.assert_close(mean[..., i], without.mean[..., i], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(var[..., i], without.var[..., i], rtol=1e-9, atol=1e-10)


def test_leave_one_out_matches_predicting_the_point_from_the_others():
    K, sites = random_case()
    mean, var = loo_latent(condition(K, sites))
    i, others = 2, [0, 1, 3, 4, 5]
    rest = condition(duplicate(K, others), GaussianSites(*(s[..., others] for s in sites)))
    m, v = predict_latent(rest, K[..., others, :][..., [i]], K[..., [i], [i]])
    torch.testing.assert_close(mean[..., [i]], m)
    torch.testing.assert_close(var[..., [i]], v)


def test_leaving_out_a_fraction_matches_taking_away_that_part_of_the_site():
    K, sites = random_case(n_features=3)
    fraction = torch.rand(3, 6, generator=generator(2), dtype=torch.float64)
    fraction[:, 0], fraction[:, 1] = 0.0, 1.0
    mean, var = loo_latent(condition(K, sites), fraction)
    for i in range(6):
        keep = 1 - fraction[:, None, :] * (torch.arange(6) == i)
        without = condition(K, GaussianSites(sites.shift * keep, sites.precision * keep))
        torch.testing.assert_close(mean[..., i], without.mean[..., i], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(var[..., i], without.var[..., i], rtol=1e-9, atol=1e-10)


def test_padding_with_zero_sites_changes_nothing():
    K, sites = random_case(n=8, n_features=3)
    smaller = condition(K[..., :5, :5], GaussianSites(*(s[..., :5] for s in sites)))
    padded = condition(K, GaussianSites(*(s * (torch.arange(8) < 5) for s in sites)))
    torch.testing.assert_close(padded.mean[..., :5], smaller.mean)
    torch.testing.assert_close(padded.var[..., :5], smaller.var)
    torch.testing.assert_close(kl_to_prior(padded), kl_to_prior(smaller))
    for a, b in zip(loo_latent(padded), loo_latent(smaller), strict=True):
        torch.testing.assert_close(a[..., :5], b)


def test_a_batch_equals_a_loop_over_tasks_and_classes():
    K, sites = random_case(shared=False)
    batch = condition(K, sites)
    kl = kl_to_prior(batch)
    for t in range(3):
        for c in range(4):
            one = condition(K[t : t + 1, c : c + 1], GaussianSites(*(s[t : t + 1, c : c + 1] for s in sites)))
            torch.testing.assert_close(batch.mean[t, c], one.mean[0, 0])
            torch.testing.assert_close(batch.var[t, c], one.var[0, 0])
            torch.testing.assert_close(kl[t, c], kl_to_prior(one)[0, 0])


def test_a_shared_kernel_equals_one_copy_per_class():
    K, sites = random_case()
    shared, copied = condition(K, sites), condition(K.repeat(1, 4, 1, 1), sites)
    torch.testing.assert_close(shared.mean, copied.mean)
    torch.testing.assert_close(covariance(K, shared), covariance(K.repeat(1, 4, 1, 1), copied))


def test_gradients_through_condition_match_finite_differences():
    K, sites = random_case(n_tasks=1, n_way=2, n=3)
    precision = sites.precision + 0.1
    precision[0, 0, 0], precision[0, 1, 2] = 3.0, 0.01  # both forms of the variance

    def outputs(K, shift, precision):
        K = (K + K.mT) / 2
        posterior = condition(K, GaussianSites(shift, precision))
        return (
            posterior.mean,
            posterior.var,
            kl_to_prior(posterior),
            *loo_latent(posterior),
            *predict_latent(posterior, K[..., :2], K.diagonal(dim1=-2, dim2=-1)[..., :2] + 1.0),
        )

    inputs = [t.clone().requires_grad_() for t in (K, sites.shift, precision)]
    assert torch.autograd.gradcheck(outputs, inputs)


def test_gradients_are_finite_where_a_site_has_no_precision():
    K, sites = random_case()
    inputs = [t.clone().requires_grad_() for t in (K, *sites)]
    posterior = condition(inputs[0], GaussianSites(*inputs[1:]))
    loss = kl_to_prior(posterior).sum() + posterior.var.sum() + posterior.mean.square().sum()
    grads = torch.autograd.grad(loss, inputs)
    assert (sites.precision == 0).any()
    assert all(g.isfinite().all() for g in grads)


def test_root_is_the_square_root_with_a_gradient_of_zero_at_zero():
    precision = torch.tensor([0.0, 4.0], requires_grad=True)
    root = root_of(precision)
    (gradient,) = torch.autograd.grad(root.sum(), precision)
    assert root.tolist() == [0.0, 2.0]
    assert gradient.tolist() == [0.0, 0.25]


def test_an_indefinite_kernel_is_an_error_that_names_task_and_class():
    K = torch.eye(2, dtype=torch.float64).repeat(2, 3, 1, 1)
    K[1, 2] = torch.tensor([[1.0, 4.0], [4.0, 1.0]])
    sites = GaussianSites(torch.zeros(2, 3, 2, dtype=torch.float64), torch.ones(2, 3, 2, dtype=torch.float64))
    posterior = condition(K, sites)
    with pytest.raises(NumericalError, match=r"positive semi-definite.*in task 1, class 2"):
        posterior.check()
    assert issubclass(NumericalError, ArithmeticError)


def test_check_returns_a_sound_posterior():
    K, sites = random_case(n_features=1)
    posterior = condition(K, sites)
    assert posterior.check() is posterior


def test_the_log_evidence_of_the_sites_follows_from_the_posterior():
    """log int N(f; 0, K) exp(b f - w f^2 / 2) df = E[log site] - KL for the exact posterior."""
    K, sites = random_case(n_tasks=1, n_way=1, n=1)
    k, b, w = K.item(), sites.shift.item(), 0.7
    sites = GaussianSites(sites.shift, torch.full_like(sites.precision, w))
    posterior = condition(K, sites)
    expected_log_site = b * posterior.mean - 0.5 * w * (posterior.mean**2 + posterior.var)
    evidence = -0.5 * math.log(1 + k * w) + 0.5 * b * b * k / (1 + k * w)
    assert (expected_log_site.sum() - kl_to_prior(posterior).sum()).item() == pytest.approx(evidence, rel=1e-12)
