"""Mirror-descent variational inference for Gaussian-process classification with a softmax likelihood.

T. Ke, H. Cao and F. Zhou, "Accelerating Convergence in Bayesian Few-Shot Classification", ICML 2024. Mirror descent on
the variational distribution is natural-gradient descent. For a Gaussian process it is a damped update of Gaussian sites
(eqs. 9 to 11): each step replaces the likelihood by its best Gaussian at the current marginals.

`mirror_descent` runs it for a batch of tasks, with the paper's fixed step size or, by default, safeguarded
(`quasi_newton`), so that the bound never falls and the loop stops at convergence.
"""

from typing import Literal, get_args

from jaxtyping import Bool, Float, Int

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition
from mirrorshot.gp.objective import Problem, make_problem
from mirrorshot.gp.quasi_newton import MirrorInfo, safeguarded_descent
from mirrorshot.gp.starts import AmortisedSites, exchangeable_sites
from mirrorshot.softmax.arrays import Array, detach, is_tensor, namespace, no_grad
from mirrorshot.types import InvalidInputError, check_at_least

CHUNK_ELEMENTS = 2**22
"""Largest number of covariances (tasks x classes x points^2) in a chunk of the safeguarded loop, which holds about ten
arrays of that size (340 MB in float64). A task is never split."""

Gradient = Literal["envelope", "unroll"]


def mirror_descent(
    K: Float[Array, "T _ N N"],
    y: Int[Array, "T N"],
    *,
    n_way: int,
    max_steps: int = 30,
    step_size: float | Literal["safeguarded"] = "safeguarded",
    start: Literal["prior"] | GaussianSites | AmortisedSites = "prior",
    tol: float | None = 1e-6,
    weight: Float[Array, "T N"] | None = None,
    class_mask: Bool[Array, "T C"] | None = None,
    gradient: Gradient = "envelope",
    max_std: float | None = None,
    prior_mean: Float[Array, "T C N"] | None = None,
    validate: bool = True,
) -> tuple[GaussianPosterior, MirrorInfo]:
    """Infer the posterior of a batch of few-shot tasks.

    Args:
        K: prior covariances, (T, 1, N, N) shared by the classes or (T, C, N, N); positive semi-definite.
        y: labels 0 .. n_way - 1, (T, N); arbitrary where `weight` is zero.
        n_way: number of classes C.
        max_steps: largest number of steps.
        step_size: the paper's fixed rho in (0, 1], or "safeguarded".
        start: "prior" (zero sites), given sites, or sites amortised over earlier tasks.
        tol: stop a task when its estimated gap is below `tol` nats per point. None makes `max_steps` proposals, without
            a synchronisation with a GPU. A fixed step size ignores it.
        weight: weight of each point; zero is padding of smaller tasks.
        class_mask: which classes exist, for tasks with different numbers of classes in one batch.
        gradient: how the posterior depends on `K` for back-propagation. "envelope" holds the sites fixed: exact for the
            bound at its optimum, and cheapest. "unroll" differentiates the steps and needs a fixed step size. For
            predictions with the gradient of the optimum, see `predictive.training_latents`.
        prior_mean: mean of the prior at the points, (T, C, N); None is zero. The posterior does not include it: add the
            prior mean, at the points or at new ones, to the posterior mean.
        max_std: upper bound of all prior standard deviations, if known; saves a synchronisation.
        validate: check the arguments (reads values back from the device).

    Returns:
        The posterior, differentiable in `K` according to `gradient`, and diagnostics.

    Example:
        >>> import numpy as np
        >>> x = np.array([[0.0], [0.1], [2.0], [2.1]])
        >>> K = 9 * np.exp(-0.5 * (x - x.T) ** 2)[None, None]
        >>> posterior, info = mirror_descent(K, np.array([[0, 0, 1, 1]]), n_way=2)
        >>> bool(info.converged), posterior.mean.argmax(1).tolist()
        (True, [[0, 0, 1, 1]])
    """
    _check_options(step_size, start, gradient, max_steps)
    if not is_tensor(K) and not isinstance(step_size, str):
        raise InvalidInputError("Expected torch tensors with a fixed `step_size`, but got arrays.")
    problem = make_problem(K, y, n_way, weight, class_mask, max_std, validate, prior_mean)
    frozen = problem._replace(K=detach(K))
    origin = None if isinstance(start, str) else _given(start, frozen, validate)
    if isinstance(step_size, str):
        with no_grad(K):
            sites, info = _safeguarded_in_chunks(frozen, origin, max_steps, tol)
    else:
        from mirrorshot.gp.steps import fixed_mirror_descent

        sites, info = fixed_mirror_descent(problem, origin, max_steps, step_size, is_unrolled=gradient == "unroll")
    posterior = condition(K, sites)
    return (posterior.check() if validate else posterior), info


def _check_options(step_size: float | str, start: object, gradient: str, max_steps: int) -> None:
    if isinstance(step_size, str):
        if step_size != "safeguarded":
            raise InvalidInputError(f"Expected `step_size` to be a number or 'safeguarded', but got {step_size!r}.")
        if gradient == "unroll":
            raise InvalidInputError(
                "Expected a fixed `step_size` (for example 1.0) with gradient='unroll', but got 'safeguarded'. Use "
                "`predictive.training_latents` for the derivative of the optimum."
            )
    elif not 0.0 < step_size <= 1.0:
        raise InvalidInputError(f"Expected `step_size` in (0, 1], but got {step_size}.")
    if gradient not in get_args(Gradient):
        raise InvalidInputError(
            f"Expected `gradient` to be one of {', '.join(get_args(Gradient))}, but got {gradient!r}."
        )
    if isinstance(start, str) and start != "prior":
        raise InvalidInputError(f"Expected `start` to be 'prior', GaussianSites or AmortisedSites, but got {start!r}.")
    check_at_least(1, max_steps=max_steps)


def _given(start: GaussianSites | AmortisedSites, problem: Problem, validate: bool) -> GaussianSites:
    if isinstance(start, AmortisedSites):
        return start.sites(problem)
    shape = problem.Y.shape
    if start.shift.shape != shape or start.precision.shape != shape:
        raise InvalidInputError(
            f"Expected starting sites of shape {tuple(shape)}, but got {tuple(start.shift.shape)} and "
            f"{tuple(start.precision.shape)}."
        )
    if validate:
        xp = namespace(start.shift)
        n_bad = int((~xp.isfinite(start.shift) | ~xp.isfinite(start.precision) | (start.precision < 0)).sum())
        if n_bad:
            raise InvalidInputError(
                "Expected starting sites to be finite, with a precision that is not negative, but got "
                f"{n_bad} sites that are not."
            )
    keep = problem.weight[:, None, :] > 0
    return GaussianSites(start.shift * keep, start.precision * keep)


def _safeguarded_in_chunks(
    problem: Problem, start: GaussianSites | None, max_steps: int, tol: float | None
) -> tuple[GaussianSites, MirrorInfo]:
    T, C, N = problem.Y.shape
    results, size = [], max(1, CHUNK_ELEMENTS // (C * N * N))
    for first_task in range(0, T, size):
        tasks = slice(first_task, first_task + size)
        part = problem if size >= T else problem.select(tasks)
        if start is None:
            origin, first = GaussianSites.zeros_like(part.K, C), exchangeable_sites(part)
        else:
            origin, first = GaussianSites(start.shift[tasks], start.precision[tasks]), None
        results.append(safeguarded_descent(part, origin, first, max_steps, tol))
    if len(results) == 1:
        return results[0]
    sites, infos = zip(*results, strict=True)
    concatenate = namespace(problem.K).concatenate
    return (
        GaussianSites(*(concatenate(pieces) for pieces in zip(*sites, strict=True))),
        MirrorInfo(*(concatenate(pieces) for pieces in zip(*infos, strict=True))),
    )
