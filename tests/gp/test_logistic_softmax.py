"""Logistic-softmax: mean field against plain loops and exact evidence, probabilities against brute force."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp.logistic_softmax import (
    augmented_evidence,
    augmented_posterior,
    gibbs,
    make_labels,
    mean_field,
    mean_field_elbo,
)
from mirrorshot.softmax.logistic import logistic_softmax_prob, mean_log_sigmoid

F64 = torch.float64


def labels_of(y, n_way, weight=None, class_mask=None):
    weight = torch.ones(y.shape) if weight is None else weight
    class_mask = torch.ones(len(y), n_way, dtype=torch.bool) if class_mask is None else class_mask
    return make_labels(y, weight, class_mask, F64)


def plain_loop(K, y, n_way, n_steps, tau, a):
    """The update equations of the paper for one task, with explicit inverses and the temperature in place."""
    n = len(y)
    Y = torch.nn.functional.one_hot(y, n_way).mT.to(F64)
    mu, Sigma = torch.full((n_way, n), a, dtype=F64), K.expand(n_way, n, n)
    alpha = torch.full((n,), float(n_way), dtype=F64)

    def gamma_of(mu, Sigma, alpha):
        ft = (mu**2 + Sigma.diagonal(dim1=1, dim2=2)).sqrt() / tau
        return torch.exp(torch.digamma(alpha) - mu / (2 * tau)) / (2 * n_way * torch.cosh(ft / 2)), ft

    for _ in range(10):
        alpha = 1 + gamma_of(mu, Sigma, alpha)[0].sum(0)
    for _ in range(n_steps):
        gamma, ft = gamma_of(mu, Sigma, alpha)
        alpha = 1 + gamma.sum(0)
        omega = (Y + gamma) * torch.tanh(ft / 2) / (2 * ft)
        Sigma = torch.linalg.inv(torch.linalg.inv(K) + torch.diag_embed(omega / tau**2))
        right = (Y - gamma) / (2 * tau) + torch.linalg.inv(K) @ torch.full((n,), a, dtype=F64)
        mu = (Sigma @ right[..., None])[..., 0]
    return mu, Sigma


@pytest.mark.parametrize(("tau", "a"), [(1.0, 0.0), (0.5, 0.0), (0.5, -2.0)])
def test_mean_field_follows_the_equations_of_the_paper(small_task, tau, a):
    K, y = small_task(n_way=3, n=5)
    q = mean_field(K / tau**2, labels_of(y, 3), n_steps=4, prior_mean=a / tau)
    mu, Sigma = plain_loop(K[0, 0], y[0], 3, 4, tau, a)
    assert_close(tau * q.posterior.mean[0] + a, mu, rtol=0, atol=1e-8)
    assert_close(tau**2 * q.posterior.var[0], Sigma.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-8)


def bound_after(K, labels, n_steps, prior_mean=0.0, start="prior"):
    q = mean_field(K, labels, n_steps=n_steps, prior_mean=prior_mean, start=start)
    return mean_field_elbo(q, labels, prior_mean=prior_mean)


@pytest.mark.parametrize("start", ["prior", "labels"])
@pytest.mark.parametrize("prior_mean", [0.0, -3.0])
def test_the_bound_never_falls(few_shot_tasks, prior_mean, start):
    K, y = few_shot_tasks(4, 5, 3, 6.0)
    bounds = torch.stack([bound_after(K, labels_of(y, 5), n, prior_mean, start) for n in range(1, 16)])
    assert bounds.diff(dim=0).min() > -1e-9
    assert (bounds[-1] - bounds[0]).min() > 0.01


def test_both_starts_lead_to_the_same_optimum(few_shot_tasks):
    K, y = few_shot_tasks(4, 5, 3, 6.0)
    from_prior, from_labels = (bound_after(K, labels_of(y, 5), 400, start=start) for start in ("prior", "labels"))
    assert_close(from_labels, from_prior, rtol=0, atol=1e-6)


def test_a_start_may_be_given_as_means_and_variances(few_shot_tasks):
    K, y = few_shot_tasks(2, 3, 2, 4.0)
    labels = labels_of(y, 3)
    prior = torch.full_like(labels.Y, -0.5), K.diagonal(dim1=-2, dim2=-1).expand_as(labels.Y)
    given, own = (bound_after(K, labels, 3, prior_mean=-0.5, start=start) for start in (prior, "prior"))
    assert_close(given, own)
    ended = mean_field(K, labels, n_steps=400).posterior
    further = bound_after(K, labels, 1, start=(ended.mean, ended.var))
    assert_close(further, bound_after(K, labels, 400), rtol=0, atol=1e-6)


def test_two_steps_from_the_labels_tell_points_that_are_alike_from_points_that_are_not(few_shot_tasks):
    """Training of CDKT needs it: from the prior, the bound at 25 times the covariance is better when all are alike."""
    K, y = few_shot_tasks(4, 5, 17, 25.0)
    labels = labels_of(y, 5)
    same_class = (y[:, None, :, None] == y[:, None, None, :]).to(F64)
    jitter = 1e-3 * torch.eye(y.shape[1], dtype=F64)
    apart, alike = 25 * (same_class + jitter), 25 * (torch.ones_like(K) + jitter)
    for start, least in (("prior", 0.1), ("labels", 0.5)):  # nats per point
        gap = (bound_after(apart, labels, 2, start=start) - bound_after(alike, labels, 2, start=start)) / y.shape[1]
        assert gap.min() > least
    assert (bound_after(K, labels, 2) < bound_after(alike, labels, 2)).all()
    assert (bound_after(K, labels, 2, start="labels") > bound_after(alike, labels, 2, start="labels")).all()


def exact_joint(K, labels, prior_mean):
    """Nodes of one class (400, 2) and `p(y, f)` on all pairs of them (400, 400), for two points and two classes."""
    z, w = (torch.as_tensor(a) for a in np.polynomial.hermite_e.hermegauss(20))
    f = torch.cartesian_prod(z, z) @ torch.linalg.cholesky(K).mT + prior_mean
    weight = torch.cartesian_prod(w, w).prod(-1) / w.sum() ** 2
    both = torch.stack([f[:, None].expand(400, 400, 2), f[None].expand(400, 400, 2)]).sigmoid()
    prob = both / both.sum(0)
    return f, weight[:, None] * weight * prob[labels[0], ..., 0] * prob[labels[1], ..., 1]


def exact_log_evidence(K, labels, prior_mean):
    return exact_joint(K, labels, prior_mean)[1].sum().log().item()


@pytest.mark.parametrize(("labels", "prior_mean"), [([0, 1], 0.0), ([0, 0], 0.0), ([0, 1], -1.0)])
def test_the_bound_is_below_the_exact_evidence_and_near_it(labels, prior_mean):
    K = torch.tensor([[1.5, 0.6], [0.6, 1.0]], dtype=F64)
    y = torch.tensor([labels])
    evidence = exact_log_evidence(K, labels, prior_mean)
    given = labels_of(y, 2)
    q = mean_field(K[None, None], given, n_steps=200, prior_mean=prior_mean)
    bound = mean_field_elbo(q, given, prior_mean=prior_mean).item()
    assert evidence - 1.5 < bound < evidence
    assert bound_after(K[None, None], given, 1, prior_mean, "labels").item() < evidence


@pytest.mark.parametrize("start", ["prior", "labels"])
def test_padding_has_no_influence(few_shot_tasks, start):
    K, y = few_shot_tasks(2, 3, 2, 3.0)
    plain = labels_of(y[:, :4], 3)
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]).expand(2, -1)
    y = y.clone()
    y[:, 4:] = 0
    mask = torch.tensor([True, True, True, False]).expand(2, -1)
    padded = labels_of(y, 4, weight, mask)
    small = mean_field(K[..., :4, :4], plain, n_steps=5, prior_mean=-0.5, start=start)
    large = mean_field(K, padded, n_steps=5, prior_mean=-0.5, start=start)
    assert_close(large.posterior.mean[:, :3, :4], small.posterior.mean)
    assert_close(mean_field_elbo(large, padded, prior_mean=-0.5), mean_field_elbo(small, plain, prior_mean=-0.5))


def test_an_integer_weight_is_a_repeated_point(small_task):
    K, y = small_task(n_way=3, n=4)
    index = torch.tensor([0, 1, 1, 2, 3])
    weighted = labels_of(y, 3, torch.tensor([[1.0, 2.0, 1.0, 1.0]]))
    repeated = labels_of(y[:, index], 3)
    bounds = [
        mean_field_elbo(mean_field(k, given, n_steps=3), given)
        for k, given in ((K, weighted), (K[..., index, :][..., index], repeated))
    ]
    assert_close(*bounds)


def test_gradients_of_the_bound_are_those_of_finite_differences(small_task):
    K, y = small_task(n_way=3, n=3)
    given = labels_of(y, 3)

    def bound(K):
        return mean_field_elbo(mean_field((K + K.mT) / 2, given, n_steps=3), given)

    assert torch.autograd.gradcheck(bound, K.requires_grad_())


def brute_force(mean, var):
    """Mean logistic-softmax of many scrambled Sobol points."""
    u = torch.quasirandom.SobolEngine(mean.shape[1], scramble=True, seed=0).draw(2**15, dtype=F64)
    z = math.sqrt(2) * torch.erfinv(2 * u.clamp(1e-12, 1 - 1e-12) - 1)
    s = torch.sigmoid(mean[..., None] + var.sqrt()[..., None] * z.mT[None, :, None])
    return (s / s.sum(1, keepdim=True)).mean(-1)


@pytest.mark.parametrize(("std", "tolerance"), [(0.1, 1e-6), (1.0, 1e-5), (5.0, 2e-4)])
def test_probabilities_are_those_of_brute_force(std, tolerance):
    g = torch.Generator().manual_seed(0)
    mean = std * torch.randn(2, 5, 6, generator=g, dtype=F64)
    var = std**2 * torch.rand(2, 5, 6, generator=g, dtype=F64)
    mask = torch.ones(2, 5, dtype=torch.bool)
    prob = logistic_softmax_prob(mean, var, mask)
    assert_close(prob, brute_force(mean, var), rtol=0, atol=tolerance)
    assert_close(logistic_softmax_prob(mean.float(), var.float(), mask).double(), prob, rtol=0, atol=1e-6)


def test_latents_without_variance_give_the_likelihood_itself():
    mean = torch.tensor([[[-40.0], [0.0], [3.0]]], dtype=F64)
    prob = logistic_softmax_prob(mean, torch.zeros_like(mean), torch.ones(1, 3, dtype=torch.bool))
    expected = torch.sigmoid(mean) / torch.sigmoid(mean).sum(1, keepdim=True)
    assert_close(prob, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("mean", "var"), [(-25.0, 300.0), (-200.0, 1.0), (200.0, 400.0), (0.0, 1e4)])
def test_extreme_latents_give_finite_probabilities_and_gradients_in_single_precision(mean, var):
    mean = (mean + torch.arange(3.0)).reshape(1, 3, 1).requires_grad_()
    var = torch.full((1, 3, 1), var, requires_grad=True)
    prob = logistic_softmax_prob(mean, var, torch.ones(1, 3, dtype=torch.bool))
    assert_close(prob.sum(), torch.tensor(1.0))
    (prob * torch.arange(3.0)[:, None]).sum().backward()
    assert mean.grad.isfinite().all()
    assert var.grad.isfinite().all()


def test_classes_that_do_not_exist_have_no_probability():
    g = torch.Generator().manual_seed(0)
    mean, var = torch.randn(1, 4, 3, generator=g, dtype=F64), torch.rand(1, 4, 3, generator=g, dtype=F64)
    mask = torch.tensor([[True, True, False, True]])
    prob = logistic_softmax_prob(mean, var, mask)
    there = [0, 1, 3]
    expected = logistic_softmax_prob(mean[:, there], var[:, there], mask[:, there])
    assert (prob[:, 2] == 0).all()
    assert_close(prob[:, there], expected, rtol=0, atol=1e-8)


def test_gradients_of_the_probabilities_are_those_of_finite_differences():
    g = torch.Generator().manual_seed(0)
    mean, var = torch.randn(1, 3, 2, generator=g, dtype=F64), 0.1 + torch.rand(1, 3, 2, generator=g, dtype=F64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    inputs = [mean.requires_grad_(), var.requires_grad_()]
    assert torch.autograd.gradcheck(lambda m, v: logistic_softmax_prob(m, v, mask), inputs, atol=1e-5)


def test_the_mean_logarithm_of_the_sigmoid_is_that_of_draws():
    mean, var = torch.tensor([[[0.5], [-3.0]]], dtype=F64), torch.tensor([[[0.0], [4.0]]], dtype=F64)
    draws = mean + var.sqrt() * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=F64)
    expected = torch.nn.functional.logsigmoid(draws).mean(-1, keepdim=True)
    assert_close(mean_log_sigmoid(mean, var), expected, rtol=0, atol=0.02)


PAIR = torch.tensor([[1.5, 0.6], [0.6, 1.0]], dtype=F64)


def chains(K, labels, n_chains=6000, n_steps=40, prior_mean=0.0, seed=0):
    K = K.expand(n_chains, 1, 2, 2)
    given = labels_of(torch.tensor([labels]).expand(n_chains, 2), 2)
    generator = torch.Generator().manual_seed(seed)
    return K, given, gibbs(K, given, n_steps=n_steps, generator=generator, prior_mean=prior_mean)


@pytest.mark.parametrize(("labels", "prior_mean"), [([0, 1], 0.0), ([0, 0], -1.0)])
def test_gibbs_draws_have_the_exact_posterior_mean(labels, prior_mean):
    f, joint = exact_joint(PAIR, labels, prior_mean)
    exact = torch.stack([(joint.sum(1 - c)[:, None] * f).sum(0) for c in range(2)]) / joint.sum()
    K, given, draw = chains(PAIR, labels, prior_mean=prior_mean)
    means = prior_mean + augmented_posterior(K, given, draw, prior_mean=prior_mean).mean
    assert_close(means.mean(0), exact, rtol=0, atol=5 * means.std(0).max().item() / len(means) ** 0.5)


def test_the_mean_gradient_given_draws_is_that_of_the_exact_evidence():
    labels, prior_mean, step = [0, 1], -0.5, 1e-4
    values = [exact_log_evidence(math.exp(s) * PAIR, labels, prior_mean) for s in (step, -step)]
    K, given, draw = chains(PAIR, labels, prior_mean=prior_mean)
    scale = torch.zeros(len(K), dtype=F64, requires_grad=True)
    evidence = augmented_evidence(scale.exp()[:, None, None, None] * K, given, draw, prior_mean=prior_mean)
    evidence.sum().backward()
    tolerance = 5 * scale.grad.std().item() / len(K) ** 0.5
    assert tolerance < 0.03
    assert scale.grad.mean().item() == pytest.approx((values[0] - values[1]) / (2 * step), abs=tolerance)


def test_gibbs_leaves_padding_alone():
    K = torch.eye(3, dtype=F64).expand(4, 1, 3, 3)
    mask = torch.tensor([True, True, False]).expand(4, -1)
    given = labels_of(torch.tensor([[0, 1, 0]] * 4), 3, torch.tensor([[1.0, 1.0, 0.0]] * 4), mask)
    draw = gibbs(K, given, n_steps=3, generator=torch.Generator().manual_seed(0))
    posterior = augmented_posterior(K, given, draw)
    assert (posterior.mean[:, 2] == 0).all()
    assert (posterior.mean[..., 2] == 0).all()
    assert (posterior.mean[:, :2, :2] != 0).any()
