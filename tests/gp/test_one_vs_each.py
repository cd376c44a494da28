"""One-vs-each: explicit matrices, exact integration, long runs."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from mirrorshot.gp.one_vs_each import (
    condition_pairs,
    gibbs_pairs,
    make_pairs,
    one_vs_each_scores,
    pairs_evidence,
    predict_pairs,
)

F64 = torch.float64


def pairs_of(K, y, n_way):
    ones = torch.ones(len(y), n_way, dtype=torch.bool)
    return make_pairs(K, y, torch.ones(y.shape), ones)


def difference_matrix(y, n_way):
    """One row per (n, i != y_n), latents class by class."""
    rows = []
    for n, label in enumerate(y.tolist()):
        for j in range(1, n_way):
            row = torch.zeros(n_way, len(y), dtype=F64)
            row[label, n], row[(label + j) % n_way, n] = 1.0, -1.0
            rows.append(row.flatten())
    return torch.stack(rows)


@pytest.fixture(params=["shared", "per_class"])
def dense(small_task, request):
    """A task of 4 points and 3 classes as the module has it, and as explicit matrices; omega at random."""
    K, y = small_task(n_way=3, n=4)
    if request.param == "per_class":
        K = K * torch.tensor([1.0, 2.0, 0.5], dtype=F64)[None, :, None, None]
    prior = torch.block_diag(*K[0].expand(3, 4, 4))
    omega = 0.05 + torch.rand(1, 8, generator=torch.Generator().manual_seed(1), dtype=F64)
    return pairs_of(K, y, 3), prior, difference_matrix(y[0], 3), omega


def test_differences_and_their_covariance_are_those_of_the_explicit_matrix(dense):
    pairs, prior, A, omega = dense
    f = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert_close(pairs.differences(f)[0], A @ f[0].flatten())
    assert_close(pairs.spread(omega)[0].flatten(), A.mT @ omega[0])
    assert_close(pairs.G[0], A @ prior @ A.mT)


def test_the_evidence_is_the_formula_of_the_paper(dense):
    pairs, prior, A, omega = dense
    w = omega[0]
    covariance = A @ prior @ A.mT + torch.diag(1 / w)
    z = 0.5 / w
    expected = MultivariateNormal(torch.zeros(8, dtype=F64), covariance).log_prob(z)
    expected += 4 * math.log(2 * math.pi) - 0.5 * w.log().sum() + 0.5 * (0.25 / w).sum() - 8 * math.log(2)
    assert_close(pairs_evidence(pairs, omega[:, None])[0, 0], expected)


def test_the_posterior_is_that_of_the_precision_form(dense):
    pairs, prior, A, omega = dense
    S = torch.linalg.inv(torch.linalg.inv(prior) + A.mT @ torch.diag(omega[0]) @ A)
    mean = S @ A.mT @ torch.full((8,), 0.5, dtype=F64)
    posterior = condition_pairs(pairs, omega)
    K = pairs.K.expand(1, 3, 4, 4)
    assert_close((K @ posterior.alpha[..., None])[0, ..., 0].flatten(), mean)
    # at the points themselves the prediction is the posterior
    got_mean, covariance = predict_pairs(pairs, posterior, pairs.K, pairs.K.diagonal(dim1=-2, dim2=-1))
    assert_close(got_mean[0].flatten(), mean)
    assert_close(covariance[0, 2], S.reshape(3, 4, 3, 4)[:, 2, :, 2])


def exact_pair_moments(G):
    """Log-evidence and posterior mean of four differences, by tensor Gauss-Hermite quadrature."""
    z, w = (torch.as_tensor(a) for a in np.polynomial.hermite_e.hermegauss(18))
    psi = torch.cartesian_prod(z, z, z, z) @ torch.linalg.cholesky(G).mT
    joint = (torch.cartesian_prod(w, w, w, w) / w.sum()).prod(-1) * torch.sigmoid(psi).prod(-1)
    return joint.sum().log().item(), (joint[:, None] * psi).sum(0) / joint.sum()


PAIR = torch.tensor([[3.0, 1.2], [1.2, 2.0]], dtype=F64)[None, None]


@pytest.mark.parametrize("labels", [[0, 1], [2, 2]])
def test_gibbs_draws_have_the_exact_posterior_of_two_points(labels):
    pairs = pairs_of(PAIR, torch.tensor([labels]), 3)
    _, exact = exact_pair_moments(pairs.G[0])
    chains = pairs.repeat(4000)
    omega = gibbs_pairs(pairs, n_steps=25, generator=torch.Generator().manual_seed(0), n_chains=4000)[0]
    means = chains.differences((chains.K @ condition_pairs(chains, omega).alpha[..., None])[..., 0])
    assert_close(means.mean(0), exact, rtol=0, atol=4.5 * means.std(0).max().item() / 4000**0.5)


def test_the_mean_gradient_given_draws_is_that_of_the_exact_evidence():
    y, step = torch.tensor([[0, 1]]), 1e-4
    values = [exact_pair_moments(math.exp(s) * pairs_of(PAIR, y, 3).G[0])[0] for s in (step, -step)]
    pairs, generator = pairs_of(PAIR, y, 3), torch.Generator().manual_seed(0)
    omega = gibbs_pairs(pairs, n_steps=25, generator=generator, n_chains=4000)
    scale = torch.zeros(4000, dtype=F64, requires_grad=True)
    K = scale.exp()[:, None, None, None] * PAIR
    pairs_evidence(pairs_of(K, y.expand(4000, 2), 3), omega.transpose(0, 1)).sum().backward()
    tolerance = 4.5 * scale.grad.std().item() / 4000**0.5
    assert tolerance < 0.03
    assert scale.grad.mean().item() == pytest.approx((values[0] - values[1]) / (2 * step), abs=tolerance)


def test_short_chains_agree_with_a_long_one(few_shot_tasks):
    K, y = few_shot_tasks(1, 3, 3, 4.0)
    pairs = pairs_of(K, y, 3)
    alphas = []
    for n_chains, n_steps, seed in ((2000, 15, 0), (500, 80, 1)):
        omega = gibbs_pairs(pairs, n_steps=n_steps, generator=torch.Generator().manual_seed(seed), n_chains=n_chains)
        alphas.append(condition_pairs(pairs.repeat(n_chains), omega[0]).alpha)
    spread = max(a.std(0).max().item() for a in alphas)
    assert_close(alphas[0].mean(0), alphas[1].mean(0), rtol=0, atol=5 * spread * (1 / 2000 + 1 / 500) ** 0.5)


def test_a_singular_kernel_is_no_problem_in_single_precision(few_shot_tasks):
    K, y = few_shot_tasks(2, 5, 17, 10.0, n_features=8)
    pairs = pairs_of(K.float(), y, 5)
    omega = gibbs_pairs(pairs, n_steps=3, generator=torch.Generator().manual_seed(0))
    single, double = pairs_evidence(pairs, omega), pairs_evidence(pairs_of(K, y, 5), omega.double())
    assert_close(single.double(), double, rtol=0, atol=0.01)


def test_points_and_classes_that_do_not_exist_have_no_influence(small_task):
    K, y = small_task(n_way=2, n=4)
    weight = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    padded = make_pairs(K, y, weight, torch.tensor([[True, True, False]]))
    smaller = pairs_of(K[..., :3, :3], y[:, :3], 2)
    exists = padded.kappa[0] > 0
    omega = torch.zeros(1, 8, dtype=F64)
    omega[0, exists] = torch.tensor([0.1, 0.2, 0.3], dtype=F64)
    large, small = condition_pairs(padded, omega), condition_pairs(smaller, omega[:, exists])
    assert_close(pairs_evidence(padded, omega[:, None]), pairs_evidence(smaller, omega[:, None, exists]))
    assert_close(large.alpha[:, :2, :3], small.alpha)
    assert (large.alpha[:, 2] == 0).all()
    drawn = gibbs_pairs(padded, n_steps=2, generator=torch.Generator().manual_seed(0))
    assert ((drawn[:, 0] > 0) == exists).all()


def test_scores_are_expected_logarithms_of_sigmoids():
    g = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 3, 1, generator=g, dtype=F64)
    root = torch.randn(3, 3, generator=g, dtype=F64)
    scores = one_vs_each_scores(mean, (root @ root.mT)[None, None], torch.ones(1, 3).bool())
    f = mean[0, :, 0] + torch.randn(400_000, 3, generator=g, dtype=F64) @ root.mT
    psi = f[:, :, None] - f[:, None, :]
    log_sigmoid = torch.nn.functional.logsigmoid(psi).mean(0)
    expected = log_sigmoid.sum(-1) - log_sigmoid.diagonal()
    assert_close(scores[0, 0], expected, rtol=0, atol=0.02)


def test_gradients_of_the_evidence_are_those_of_finite_differences(small_task):
    K, y = small_task(n_way=3, n=3)
    omega = 0.05 + torch.rand(1, 4, 6, generator=torch.Generator().manual_seed(1), dtype=F64)

    def evidence(K):
        return pairs_evidence(pairs_of((K + K.mT) / 2, y, 3), omega)

    assert torch.autograd.gradcheck(evidence, K.requires_grad_())


def test_the_evidence_is_differentiable_once_and_says_so():
    K = (torch.eye(2, dtype=F64) + 0.5)[None, None].requires_grad_()
    evidence = pairs_evidence(pairs_of(K, torch.tensor([[0, 1]]), 2), torch.full((1, 1, 2), 0.2, dtype=F64))
    (slope,) = torch.autograd.grad(evidence.square().sum(), K, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
