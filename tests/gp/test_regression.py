"""Regression of many targets, against scipy's normal density and scikit-learn's Gaussian process."""

import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch.testing import assert_close

from mirrorshot.gp.regression import regress, regression_mean

NOISE = 0.1


def problem(n_kernels=1, n_tasks=2, n_way=3, n=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n_tasks, n_kernels, n, 2, generator=g, dtype=torch.float64)
    targets = torch.randn(n_tasks, n_way, n, generator=g, dtype=torch.float64)
    mean = torch.randn(n_way, generator=g, dtype=torch.float64)
    return x, torch.exp(-(torch.cdist(x, x) ** 2) / 2), targets, mean, torch.ones(n_tasks, n)


@pytest.mark.parametrize("n_kernels", [1, 3])
def test_the_evidence_is_the_density_of_the_targets(n_kernels):
    _, K, targets, mean, weight = problem(n_kernels)
    got = regress(K, targets, mean, weight, noise=NOISE).log_evidence
    for t in range(2):
        for c in range(3):
            covariance = K[t, c % n_kernels] + NOISE * torch.eye(6, dtype=torch.float64)
            expected = multivariate_normal.logpdf(targets[t, c].numpy(), mean[c].expand(6).numpy(), covariance.numpy())
            assert got[t, c].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("n_kernels", [1, 3])
def test_the_posterior_mean_is_that_of_scikit_learn(n_kernels):
    x, K, targets, mean, weight = problem(n_kernels)
    new = torch.randn(2, n_kernels, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    K_cross = torch.exp(-(torch.cdist(x, new) ** 2) / 2)
    got = regression_mean(regress(K, targets, mean, weight, noise=NOISE), K_cross)
    for t in range(2):
        for c in range(3):
            gp = GaussianProcessRegressor(RBF(1.0, "fixed"), alpha=NOISE)
            gp.fit(x[t, c % n_kernels].numpy(), (targets[t, c] - mean[c]).numpy())
            expected = torch.as_tensor(gp.predict(new[t, c % n_kernels].numpy())) + mean[c]
            assert_close(got[t, c], expected, rtol=0, atol=1e-9)


def test_one_mean_serves_all_classes():
    _, K, targets, mean, weight = problem()
    shared, repeated = (regress(K, targets, m, weight, noise=NOISE) for m in (mean[:1], mean[:1].expand(3)))
    assert_close(shared.log_evidence, repeated.log_evidence)
    assert_close(regression_mean(shared, K), regression_mean(repeated, K))


def test_a_point_of_weight_zero_does_not_exist():
    _, K, targets, mean, weight = problem()
    weight[:, 4:] = 0.0
    padded = regress(K, targets, mean, weight, noise=NOISE)
    smaller = regress(K[..., :4, :4], targets[..., :4], mean, weight[:, :4], noise=NOISE)
    assert_close(padded.log_evidence, smaller.log_evidence)
    assert_close(regression_mean(padded, K), regression_mean(smaller, K[..., :4, :]))


def test_an_integer_weight_is_a_repeated_point():
    _, K, targets, mean, weight = problem()
    weight[:, 1] = 3.0
    index = torch.tensor([0, 1, 1, 1, 2, 3, 4, 5])
    weighted = regress(K, targets, mean, weight, noise=NOISE)
    repeated = regress(K[..., index, :][..., index], targets[..., index], mean, torch.ones(2, 8), noise=NOISE)
    assert_close(weighted.log_evidence, repeated.log_evidence)


def test_a_singular_kernel_needs_no_jitter():
    z = torch.randn(1, 1, 50, 3, generator=torch.Generator().manual_seed(0))
    K = z @ z.mT
    args = torch.ones(1, 2, 50), torch.zeros(1), torch.ones(1, 50)
    single = regress(K, *args, noise=NOISE)
    double = regress(K.double(), *(a.double() for a in args), noise=NOISE)
    assert_close(single.log_evidence.double(), double.log_evidence, rtol=1e-4, atol=0)


def test_gradients_are_those_of_finite_differences():
    _, K, targets, mean, weight = problem(n=3)

    def evidence(K, targets, mean):
        fit = regress((K + K.mT) / 2, targets, mean, weight, noise=NOISE)
        return fit.log_evidence, regression_mean(fit, K)

    assert torch.autograd.gradcheck(evidence, [a.requires_grad_() for a in (K, targets, mean)])
