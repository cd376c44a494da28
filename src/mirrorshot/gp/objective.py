"""The evidence lower bound of a batch of tasks, and its gradients.

A `Problem` holds prior covariances, one-hot labels, and two masks for tasks of different sizes: `weight` (zero for
padded points) and `class_mask` (false for padded classes).
"""

import math
from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition, kl_to_prior
from mirrorshot.gp.linalg import check_kernel_matrix, one_hot
from mirrorshot.softmax.arrays import (
    Array,
    as_type,
    detach,
    diagonal,
    full,
    is_floating,
    namespace,
    take_along_last,
    trues,
)  # fmt: skip
from mirrorshot.softmax.moments import SoftmaxHessian, SoftmaxMoments, softmax_moments
from mirrorshot.types import InvalidInputError, check_at_least


class Problem(NamedTuple):
    """A batch of tasks."""

    K: Float[Array, "T _ N N"]  # prior covariances
    Y: Float[Array, "T C N"]  # one-hot labels
    weight: Float[Array, "T N"]  # how often each point counts; zero for padding
    class_mask: Bool[Array, "T C"]  # which classes exist
    max_std: float  # upper bound of all prior standard deviations, which selects the quadrature
    prior_mean: Float[Array, "T C N"] | None = None  # None is zero; only the likelihood adds it, not the posterior

    @property
    def n_way(self) -> int:
        """Number of classes, padded ones included."""
        return self.Y.shape[1]

    def select(self, index: Array | slice) -> "Problem":
        """Return the tasks in `index`."""
        prior_mean = None if self.prior_mean is None else self.prior_mean[index]
        return Problem(
            self.K[index], self.Y[index], self.weight[index], self.class_mask[index], self.max_std, prior_mean
        )


class State(NamedTuple):
    """A posterior with the expectations of the likelihood at its marginals."""

    posterior: GaussianPosterior  # the variational distribution q
    grad_mean: Float[Array, "T C N"]  # `g_m`, the gradient of the expected log-likelihood in the mean
    curvature: Float[Array, "T C N"]  # `-2 g_v = E[p (1 - p)]`, weighted
    elbo: Float[Array, " T"]  # the evidence lower bound


def make_problem(
    K: Float[Array, "T _ N N"],
    y: Int[Array, "T N"],
    n_way: int,
    weight: Float[Array, "T N"] | None,
    class_mask: Bool[Array, "T C"] | None,
    max_std: float | None,
    validate: bool,
    prior_mean: Float[Array, "T C N"] | None = None,
) -> Problem:
    """Build a `Problem` from the arguments of an inference method, checked with `validate`."""
    check_at_least(2, n_way=n_way)
    if validate:
        check_kernel_matrix(K)
        _check_labels(K, y, n_way, weight, class_mask)
    T, N = y.shape
    if weight is None:
        weight = full(K, (T, N), 1.0)
    if class_mask is None:
        class_mask = trues(K, (T, n_way))
    if max_std is None:
        # the posterior variance never exceeds the prior's
        max_std = math.sqrt(float(diagonal(detach(K)).max()))
    Y = one_hot(y, n_way, K.dtype)
    if prior_mean is not None and (prior_mean.shape != Y.shape or not bool(namespace(K).isfinite(prior_mean).all())):
        raise InvalidInputError(
            f"Expected `prior_mean` to be finite, of shape {tuple(Y.shape)}, but got {tuple(prior_mean.shape)}."
        )
    return Problem(K, Y, as_type(weight, K), class_mask, max_std, prior_mean)


def _check_labels(K: Array, y: Array, n_way: int, weight: Array | None, class_mask: Array | None) -> None:
    T, N = K.shape[0], K.shape[-1]
    if y.shape != (T, N):
        raise InvalidInputError(f"Expected labels `y` of shape ({T}, {N}) to match `K`, but got {tuple(y.shape)}.")
    if is_floating(y):
        raise InvalidInputError(f"Expected labels `y` to be integers, but got {y.dtype}.")
    if K.shape[1] not in (1, n_way):
        raise InvalidInputError(f"Expected `K` to hold 1 or n_way = {n_way} matrices per task, but got {K.shape[1]}.")
    for name, array, shape in (("weight", weight, (T, N)), ("class_mask", class_mask, (T, n_way))):
        if array is not None and array.shape != shape:
            raise InvalidInputError(f"Expected `{name}` of shape {shape}, but got {tuple(array.shape)}.")
    xp = namespace(y)
    if weight is not None and not bool(((weight >= 0) & xp.isfinite(weight)).all()):
        raise InvalidInputError("Expected `weight` to be finite and not negative.")
    real = trues(y, (T, N)) if weight is None else weight > 0
    low, high = (int(y[real].min()), int(y[real].max())) if bool(real.any()) else (0, 0)
    if low < 0 or high >= n_way:
        raise InvalidInputError(f"Expected labels between 0 and n_way - 1 = {n_way - 1}, but got {low} to {high}.")
    if class_mask is not None:
        exists = take_along_last(class_mask[:, None, :] & trues(y, (T, N, 1)), xp.where(real, y, 0))
        if not bool((exists | ~real).all()):
            raise InvalidInputError("Expected `class_mask` to be true for every class that has a label.")
        if not bool(class_mask.any(1).all()):
            raise InvalidInputError("Expected every task to have at least one class in `class_mask`.")


def evaluate(problem: Problem, sites: GaussianSites) -> State:
    """Condition on the sites and evaluate the bound: one factorisation and one evaluation of the moments."""
    return evaluate_posterior(problem, condition(problem.K, sites))


def evaluate_posterior(problem: Problem, posterior: GaussianPosterior) -> State:
    """Evaluate the bound `sum_n E log p(y_n | f_n) - sum_c KL_c` (paper eq. 12) and the gradients of its first sum."""
    kl = kl_to_prior(posterior)
    expected, grad_mean, curvature = expected_log_likelihood(problem, posterior.mean, posterior.var, problem.max_std)
    return State(posterior, grad_mean, curvature, expected - kl.sum(-1))


def expected_log_likelihood(
    problem: Problem, mean: Float[Array, "T C N"], var: Float[Array, "T C N"], max_std: float | None
) -> tuple[Float[Array, " T"], Float[Array, "T C N"], Float[Array, "T C N"]]:
    """`sum_n E log p(y_n | f_n)`, its gradient `g_m` in the mean, and `-2 g_v`, from the marginals."""
    if problem.prior_mean is not None:
        mean = mean + problem.prior_mean
    moments = softmax_moments(mean.mT, var.mT, problem.class_mask[:, None, :], max_std=max_std)
    expected = (problem.weight * ((problem.Y * mean).sum(1) - moments.logsumexp)).sum(-1)
    return expected, *likelihood_gradients(problem, moments)


def likelihood_gradients(
    problem: Problem, moments: SoftmaxMoments | SoftmaxHessian
) -> tuple[Float[Array, "T C N"], Float[Array, "T C N"]]:
    """`g_m = y - E[p]` and `-2 g_v = E[p (1 - p)]`, weighted; points may share one entry of the moments."""
    weight = problem.weight[:, None, :]
    return weight * (problem.Y - moments.prob.mT), weight * moments.curvature.mT


def mirror_target(state: State) -> GaussianSites:
    """Sites after a full mirror step (rho = 1)."""
    return site_target(state.posterior.mean, state.grad_mean, state.curvature)


def site_target(mean: Array, grad_mean: Array, curvature: Array) -> GaussianSites:
    """Paper eqs. 10 and 11: shift `g_m - 2 g_v m` and precision `-2 g_v`."""
    return GaussianSites(grad_mean + curvature * mean, curvature)


def elbo(
    K: Float[Array, "T _ N N"],
    y: Int[Array, "T N"],
    posterior: GaussianPosterior,
    *,
    weight: Float[Array, "T N"] | None = None,
    class_mask: Bool[Array, "T C"] | None = None,
) -> Float[Array, " T"]:
    """Evidence lower bound of each task (paper eq. 12) in nats; differentiable once.

    The posterior is the result of `condition` or `mirror_descent` for the same `K`; other arguments as in the latter.
    """
    n_way = posterior.mean.shape[1]
    problem = make_problem(K, y, n_way, weight, class_mask, None, validate=True)
    return evaluate_posterior(problem, posterior).elbo
