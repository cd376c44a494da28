"""Prior scores are the prior mean of the latents: checked against brute force, and by what must not change."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from mirrorshot import FewShotClassifier
from mirrorshot.gp import mirror_descent, newton_solve
from mirrorshot.types import InvalidInputError

X, Y = load_digits(return_X_y=True)
X, Y = X[Y < 3], Y[Y < 3]


def brute_force_bound(K, Y, prior, mean, covariance, z):
    """Evidence lower bound with a prior mean, from samples of the latents of each point and the textbook KL."""
    C, N = Y.shape
    kl = 0.0
    for c in range(C):
        gap = mean[c] - prior[c]
        solved = torch.linalg.solve(K, covariance[c])
        kl += 0.5 * (torch.trace(solved) - N + gap @ torch.linalg.solve(K, gap) - torch.logdet(solved))
    f = mean[:, :, None] + covariance.diagonal(dim1=-2, dim2=-1).sqrt()[:, :, None] * z
    expected = (torch.log_softmax(f, 0) * Y[:, :, None]).sum(0).mean(-1).sum()
    return float(expected - kl)


def test_the_posterior_with_a_prior_mean_is_optimal_by_brute_force():
    generator = torch.Generator().manual_seed(0)
    C, N = 3, 5
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    K = 4 * torch.exp(-0.5 * torch.cdist(x, x) ** 2) + 0.1 * torch.eye(N, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1])
    prior = 2 * torch.randn(C, N, generator=generator, dtype=torch.float64)
    posterior, info = mirror_descent(K[None, None], y[None], n_way=C, prior_mean=prior[None], tol=1e-10)
    Y1 = torch.nn.functional.one_hot(y, C).T.double()
    z = torch.randn(C, N, 200_000, generator=generator, dtype=torch.float64)
    mean = prior + posterior.mean[0]
    precision = torch.diag_embed(posterior.sites.precision[0])
    covariance = torch.linalg.inv(torch.linalg.inv(K) + precision)
    best = brute_force_bound(K, Y1, prior, mean, covariance, z)
    assert best == pytest.approx(float(info.elbo[0, -1]), abs=0.02)
    for _ in range(5):  # any other mean is worse
        other = mean + 0.3 * torch.randn(C, N, generator=generator, dtype=torch.float64)
        assert brute_force_bound(K, Y1, prior, other, covariance, z) < best
    for factor in (0.7, 1.4):  # and any other width
        assert brute_force_bound(K, Y1, prior, mean, factor * covariance, z) < best


@pytest.mark.parametrize("is_near", [True, False])
def test_newtons_method_finds_the_same_posterior_with_a_prior_mean(is_near):
    generator = torch.Generator().manual_seed(1)
    C, N = 4, 12
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    K = (9 * torch.exp(-0.5 * torch.cdist(x, x) ** 2))[None, None]
    y = (torch.arange(N) % C)[None]
    prior = 2 * torch.randn(1, C, N, generator=generator, dtype=torch.float64)
    known, info = mirror_descent(K, y, n_way=C, prior_mean=prior, tol=1e-13, max_steps=500)
    near, _ = mirror_descent(K, y, n_way=C, prior_mean=prior, tol=1e-6 if is_near else 1e-3)
    weight = torch.ones(1, N, dtype=torch.float64)
    found = newton_solve(K, y, near.sites, n_way=C, weight=weight, is_near=is_near, prior_mean=prior)
    assert found is not None
    posterior, diagnostics = found
    assert diagnostics.elbo == pytest.approx(float(info.elbo[0, -1]), abs=1e-8)
    # at the optimum K^-1 m is the gradient at the mean that the likelihood sees
    z = torch.randn(2_000_000, C, generator=generator, dtype=torch.float64)
    f = (posterior.mean + prior)[0, :, 0] + posterior.var[0, :, 0].sqrt() * z
    gradient = torch.eye(C, dtype=torch.float64)[y[0, 0]] - torch.softmax(f, -1).mean(0)
    torch.testing.assert_close(posterior.alpha[0, :, 0], gradient, rtol=0, atol=2e-3)
    torch.testing.assert_close(posterior.mean, known.mean, rtol=0, atol=1e-4)


def test_scores_of_zero_change_nothing():
    few = FewShotClassifier().fit(X[:12], Y[:12])
    zero = FewShotClassifier().fit(X[:12], Y[:12], prior_scores=np.zeros((12, 3)))
    assert np.allclose(zero.predict_proba(X[12:30], prior_scores=np.zeros((18, 3))), few.predict_proba(X[12:30]))


@pytest.mark.parametrize("shift", [-3.0, 2.0])
def test_what_is_the_same_for_all_classes_changes_no_probability(shift):
    rng = np.random.default_rng(0)
    scores, queries = rng.normal(size=(12, 3)), rng.normal(size=(18, 3))
    few = FewShotClassifier(temperature=0.5).fit(X[:12], Y[:12], prior_scores=scores)
    moved = FewShotClassifier(temperature=0.5).fit(X[:12], Y[:12], prior_scores=scores + shift)
    # the latents can take up a common shift themselves, which costs them; so it is only the same at the queries
    assert np.allclose(few.predict_proba(X[12:30], queries), few.predict_proba(X[12:30], queries + shift))
    assert np.allclose(few.predict_proba(X[12:30], queries), moved.predict_proba(X[12:30], queries), atol=1e-6)


def test_far_from_all_examples_the_scores_decide():
    few = FewShotClassifier(kernel="rbf", lengthscale=5.0).fit(X[:12], Y[:12], prior_scores=np.zeros((12, 3)))
    scores = 8 * np.eye(3)[[2, 0, 1]]
    assert few.predict(1000 + X[:3], prior_scores=scores).tolist() == [2, 0, 1]


def test_good_scores_help_and_examples_correct_bad_ones():
    rng = np.random.default_rng(0)
    good = 2.0 * np.eye(3)[Y] + rng.normal(size=(len(Y), 3))
    bad = 2.0 * np.eye(3)[(Y + 1) % 3]
    rows = np.concatenate([np.flatnonzero(c == Y)[:2] for c in range(3)])
    rest = np.setdiff1d(np.arange(len(Y)), rows)

    def nll(scores):
        few = FewShotClassifier().fit(X[rows], Y[rows], prior_scores=None if scores is None else scores[rows])
        prob = few.predict_proba(X[rest], prior_scores=None if scores is None else scores[rest])
        return -np.log(prob[np.arange(len(rest)), Y[rest]]).mean()

    assert nll(good) < nll(None)
    few = FewShotClassifier().fit(X[:60], Y[:60], prior_scores=bad[:60])
    assert (bad.argmax(1) == Y).mean() == 0.0
    assert (few.predict(X[60:], prior_scores=bad[60:]) == Y[60:]).mean() > 0.7


def test_every_answer_takes_the_scores_into_account(tmp_path):
    rng = np.random.default_rng(0)
    scores, queries = rng.normal(size=(20, 3)), rng.normal(size=(10, 3))
    few = FewShotClassifier().fit(X[:20], Y[:20], prior_scores=scores)
    few.save(tmp_path / "head")
    again = FewShotClassifier.load(tmp_path / "head")
    for ask in ("predict_proba", "novelty"):
        assert np.array_equal(getattr(again, ask)(X[20:30], prior_scores=queries), getattr(few, ask)(X[20:30], queries))
    mean, _ = few.predict_latent(X[20:30], queries)
    assert np.allclose(few.explain(X[20:30]).sum(-1) + queries, mean)
    assert few.uncertainty(X[20:30], queries).total.shape == (10,)
    for guarantee in (False, True):
        in_set = few.predict_set(X[20:30], 0.8, guarantee=guarantee, prior_scores=queries)
        sure = few.predict_set(X[20:30], 0.8, guarantee=guarantee, prior_scores=queries + 50 * np.eye(3)[[0] * 10])
        assert in_set.shape == (10, 3)
        assert np.array_equal(sure, np.eye(3, dtype=bool)[[0] * 10])
    assert few.reject(X[20:30], 0.3, prior_scores=queries).rejected.shape == (10,)
    assert few.evidence(X[20:30], 2, prior_scores=queries).row.shape == (10, 2)
    assert 0 < few.novelty_threshold() < 1
    assert len(few.suspects().row) == 20
    with pytest.raises(InvalidInputError, match="prior scores"):
        few.suggest(X[20:30])


@pytest.mark.parametrize("scores", [np.zeros((12, 2)), np.zeros((11, 3)), np.zeros(12), np.full((12, 3), np.nan)])
def test_scores_of_another_shape_are_refused(scores):
    with pytest.raises(InvalidInputError, match="prior_scores"):
        FewShotClassifier().fit(X[:12], Y[:12], prior_scores=scores)


def test_queries_need_scores_if_and_only_if_the_examples_had_them():
    with pytest.raises(InvalidInputError, match="had them, but got none"):
        FewShotClassifier().fit(X[:12], Y[:12], prior_scores=np.zeros((12, 3))).predict(X[12:])
    with pytest.raises(InvalidInputError, match="had none, but got some"):
        FewShotClassifier().fit(X[:12], Y[:12]).predict(X[12:14], prior_scores=np.zeros((2, 3)))


def test_influence_with_scores_is_near_what_fits_without_each_example_give():
    rng = np.random.default_rng(0)
    scores, queries = rng.normal(size=(20, 3)), rng.normal(size=(10, 3))
    few = FewShotClassifier(centre="none", temperature=0.4).fit(X[:20], Y[:20], prior_scores=scores)
    found = few.influence(X[20:30], queries)
    without = []
    for i in range(20):
        kept = np.delete(np.arange(20), i)
        left = FewShotClassifier(centre="none", temperature=0.4).fit(X[kept], Y[kept], prior_scores=scores[kept])
        without.append(left.predict_proba(X[20:30], queries))
    change = few.predict_proba(X[20:30], queries)[..., None] - np.stack(without, -1)
    assert np.corrcoef(found.ravel(), change.ravel())[0, 1] > 0.97


def test_examples_with_scores_come_and_go_as_if_fitted_at_once(tmp_path):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 3)) + 2 * np.eye(3)[Y[:40]]
    few = FewShotClassifier().fit(X[:20], Y[:20], prior_scores=scores[:20])
    few.save(tmp_path / "head")
    few = FewShotClassifier.load(tmp_path / "head").add(X[20:24], Y[20:24], prior_scores=scores[20:24])
    few.add(X[24], Y[24], prior_scores=scores[24]).remove([3, 21])
    few.partial_fit(X[25:28], Y[25:28], prior_scores=scores[25:28])
    rows = np.delete(np.arange(28), [3, 21])
    fresh = FewShotClassifier().fit(X[rows], Y[rows], prior_scores=scores[rows])
    np.testing.assert_allclose(
        few.predict_proba(X[30:40], scores[30:]), fresh.predict_proba(X[30:40], scores[30:]), atol=1e-6
    )
    two = np.flatnonzero(Y[rows] != 1)
    few.remove(np.flatnonzero(Y[rows] == 1), drop_class=True)
    fresh.fit(X[rows[two]], Y[rows[two]], prior_scores=scores[rows[two]][:, [0, 2]])
    queries = scores[30:, [0, 2]]
    np.testing.assert_allclose(few.predict_proba(X[30:40], queries), fresh.predict_proba(X[30:40], queries), atol=1e-6)


@pytest.mark.parametrize(
    ("label", "scores", "message"),
    [
        (0, None, "had them, but got none"),
        (0, np.zeros((1, 2)), "prior_scores. to be finite, of shape"),
        (0, np.full(3, np.inf), "infinity"),
        (7, np.zeros(3), "scores for these alone, but got .*7.*Fit all examples again"),
        (7, np.zeros(4), "Fit all examples again"),
    ],
)
def test_an_example_whose_scores_are_missing_is_refused(label, scores, message):
    few = FewShotClassifier().fit(X[:12], Y[:12], prior_scores=np.zeros((12, 3)))
    before = few.predict_proba(X[12:20], np.zeros((8, 3)))
    with pytest.raises(InvalidInputError, match=message):
        few.add(X[12], label, prior_scores=scores)
    assert np.array_equal(few.predict_proba(X[12:20], np.zeros((8, 3))), before)
    with pytest.raises(InvalidInputError, match="had none, but got some"):
        FewShotClassifier().fit(X[:12], Y[:12]).add(X[12], 0, prior_scores=np.zeros(3))
