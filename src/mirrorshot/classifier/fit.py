"""Fitting of a `Fitted` value to examples with given settings."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mirrorshot.classifier.examples import Examples, support_of
from mirrorshot.classifier.fitted import Fitted, few_threads
from mirrorshot.classifier.inputs import LARGEST_SCALE, SMALLEST_SCALE, check_not_tiny
from mirrorshot.classifier.memory import check_memory
from mirrorshot.classifier.prior import FeatureMap, Prior, broad_map, broad_outputscale, has_few_features
from mirrorshot.classifier.selection import (
    DEFAULT_OUTPUTSCALE,
    LENGTHSCALES,
    OUTPUTSCALES,
    Candidate,
    Support,
    choose_centre,
    make_candidates,
    select,
)
from mirrorshot.classifier.solve import solve
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.kernels import FAMILIES, Kernel, Linear, as_value, is_own
from mirrorshot.gp.linalg import check_kernel_matrix
from mirrorshot.softmax.arrays import diagonal
from mirrorshot.types import InvalidInputError, NumericalError

_LOG_ODDS = math.log(2.0)  # prior log odds of cosine against rbf


class Settings(NamedTuple):
    """Parameters of `FewShotClassifier`, documented there."""

    kernel: str | Kernel = "auto"
    outputscale: float | str = "auto"
    lengthscale: float | str = "loo"
    centre: str = "auto"
    temperature: float | str = "loo"
    prior: Prior | None = None

    def check(self) -> "Settings":
        """Raise `InvalidInputError` if a parameter has an invalid value; return the settings."""
        _check_kernel(self.kernel)
        for name in ("outputscale", "lengthscale", "temperature"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            words = ("auto", "loo") if name == "outputscale" else ("loo",)
            low, high = (1e-300, 1e300) if name == "lengthscale" else (SMALLEST_SCALE, LARGEST_SCALE)
            valid = low <= value <= high if is_number else isinstance(value, str) and value in words
            if not valid:
                known = " or ".join(map(repr, words))
                raise InvalidInputError(
                    f"Expected `{name}` to be {known} or a positive number between {low:g} and {high:g}, but got "
                    f"{value!r}."
                )
        if self.centre not in ("auto", "mean", "none"):
            raise InvalidInputError(f"Expected `centre` to be 'auto', 'mean' or 'none', but got {self.centre!r}.")
        prior: object = self.prior
        if prior is not None and (not isinstance(prior, Prior) or self.kernel not in ("auto", "cosine")):
            raise InvalidInputError(
                "Expected `prior` to be None, or a `Prior` with the kernel 'auto' or 'cosine', which it was learned "
                f"for, but got {type(prior).__name__} with {self.kernel!r}."
            )
        return self


def learn(settings: Settings, examples: Examples, start: Callable[[], GaussianSites] | None = None) -> Fitted:
    """Fit every candidate and return the best; `start` makes sites near the solution, if any are known."""
    _check_classes(examples)
    check_not_tiny(examples.x[examples.weight > 0])
    with few_threads(examples.x.shape[0] * len(examples.classes())):
        begin = None if start is None else start()
        fits = [_infer(each, examples, begin) for each in _by_kernel(settings, examples.x.shape[1])]
    return max(fits, key=lambda fit: fit.evidence).fitted


class _Fit(NamedTuple):
    fitted: Fitted
    evidence: float


def _by_kernel(settings: Settings, n_features: int) -> list[Settings]:
    """Return the settings with each kernel that "auto" compares: rbf may suit tables, cosine suits embeddings.

    The cosine of a single feature is its sign, which carries no information if all values are positive.
    """
    if settings.kernel != "auto":
        return [settings]
    is_table = settings.prior is None and has_few_features(n_features)
    names = ("rbf",) if is_table and n_features == 1 else ("cosine", "rbf") if is_table else ("cosine",)
    return [settings._replace(kernel=name) for name in names]


def _feature_map(settings: Settings, examples: Examples) -> FeatureMap:
    if settings.prior is not None:
        settings.prior.check_features(examples.x.shape[1])
        return settings.prior.map
    return broad_map(examples.x[examples.weight > 0]) if settings.kernel == "cosine" else FeatureMap()


def _infer(settings: Settings, examples: Examples, start: GaussianSites | None) -> _Fit:
    feature_map = _feature_map(settings, examples)
    support = support_of(examples, feature_map)
    check_memory(len(support.y), support.n_way, _largest_rank(settings, support), _n_candidates(settings))
    candidates = _candidates(settings, support)
    fixed = None if settings.temperature == "loo" else float(settings.temperature)
    belief = None if settings.prior is None else settings.prior.temperature
    _check_covariances(candidates)
    solved = [solve(support, candidate.K, start) for candidate in candidates]
    choice = select(support, candidates, [found.posterior for found in solved], fixed, belief)
    candidate, best = candidates[choice.chosen], solved[choice.chosen]
    if not math.isfinite(best.elbo + best.gap):
        raise NumericalError(
            f"Expected a finite bound, but that of {candidate.kernel!r} is not. Choose a smaller output scale, or "
            "smaller prior scores."
        )
    fitted = Fitted(
        examples=examples,
        classes=examples.classes(),
        map=feature_map,
        support=support,
        kernel=candidate.kernel,
        centre=candidate.centre,
        outputscale=candidate.outputscale,
        link=choice.link,
        posterior=best.posterior,
        loo_log_likelihood=float(choice.log_likelihood[choice.chosen]),
        elbo=best.elbo,
        gap=best.gap,
        start=best.start,
        n_steps=best.n_steps,
    )
    return _Fit(fitted, choice.evidence + (_LOG_ODDS if settings.kernel == "cosine" else 0.0))


def _candidates(settings: Settings, support: Support) -> list[Candidate]:
    centre = choose_centre(support, settings.centre, None if settings.prior is None else settings.prior.centre)
    kernel = as_value(settings.kernel)
    if kernel is not None:
        K = kernel(support.x, centre=centre)
        return [Candidate(kernel, centre, K, max(float(diagonal(K).mean()), 1e-12), 0.0)]
    outputscale = _auto_outputscale(settings, support) if settings.outputscale == "auto" else settings.outputscale
    given = [None if v == "loo" else float(v) for v in (outputscale, settings.lengthscale)]
    return make_candidates(support, str(settings.kernel), centre, *given)


def _auto_outputscale(settings: Settings, support: Support) -> float:
    if settings.kernel != "cosine":
        return DEFAULT_OUTPUTSCALE[str(settings.kernel)]
    return broad_outputscale(support.x.shape[-1]) if settings.prior is None else settings.prior.outputscale


def _n_candidates(settings: Settings) -> int:
    if not isinstance(settings.kernel, str):
        return 1
    scales = len(OUTPUTSCALES) if settings.outputscale == "loo" else 1
    is_open = settings.kernel in ("rbf", "matern") and settings.lengthscale == "loo"
    return scales * (len(LENGTHSCALES) if is_open else 1)


def _largest_rank(settings: Settings, support: Support) -> int:
    """Return the largest possible rank of a covariance of the support."""
    _, N, D = support.x.shape
    is_linear = settings.kernel in ("cosine", "linear") or isinstance(as_value(settings.kernel), Linear)
    return min(N, D) if is_linear else N


def _check_covariances(candidates: list[Candidate]) -> None:
    """Refuse covariances that overflow, and matrices of other packages' kernels that are no covariances."""
    for candidate in candidates:
        if not is_own(candidate.kernel):
            check_kernel_matrix(candidate.K, "kernel(X)")
        if not np.isfinite(candidate.K).all():
            raise InvalidInputError(
                f"Expected finite covariances, but those of {candidate.kernel!r} overflow. Rescale the embeddings."
            )


def _check_kernel(kernel: object) -> None:
    if isinstance(kernel, str) and kernel not in ("auto", *FAMILIES):
        known = ", ".join(("auto", *FAMILIES))
        raise InvalidInputError(f"Expected `kernel` to be one of {known}, or a Kernel, but got {kernel!r}.")
    if not isinstance(kernel, str) and as_value(kernel) is None:
        raise InvalidInputError(
            f"Expected `kernel` to be a name or a mirrorshot Kernel, but got {type(kernel).__name__}. "
            "Wrap a GPyTorch kernel in mirrorshot.gp.kernels.GPyTorchKernel."
        )


def _check_classes(examples: Examples) -> None:
    present = np.unique(examples.targets[examples.weight > 0])
    if len(present) >= 2 or (examples.declared is not None and len(examples.classes()) >= 2 and len(present)):
        return
    only = f"one class, {present.tolist()[0]!r}" if len(present) else "no class"
    raise InvalidInputError(
        f"Expected examples of at least two classes with positive weight, but got {only}. "
        "Add an example of another class."
    )
