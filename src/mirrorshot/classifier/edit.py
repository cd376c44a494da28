"""Edits of a fitted classifier: examples are added or removed, and inference starts from the known sites.

After any sequence of edits, bound and probabilities are those of a fit of the same examples in the same order, with the
same settings, to 1e-6. Centre, kernel and temperature are chosen again. The result is accepted only if the gradient of
the bound proves that it is the optimum (`mirrorshot.gp.certificate`); otherwise inference starts from the prior, as in
a fit. `Fitted.start` records which.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from mirrorshot.classifier.examples import Examples, check_index, join_labels
from mirrorshot.classifier.fit import Settings, learn
from mirrorshot.classifier.fitted import Fitted
from mirrorshot.classifier.inputs import as_written, check_has_scores, check_scores
from mirrorshot.gp.gaussian import GaussianSites, predict_latent
from mirrorshot.gp.linalg import one_hot
from mirrorshot.softmax.arrays import NDArray
from mirrorshot.softmax.moments import softmax_moments
from mirrorshot.types import InvalidInputError

_LOCAL_STEPS = 10


def extend(fitted: Fitted, settings: Settings, more: Examples, prior_scores: ArrayLike | None) -> Fitted:
    """Return the classifier with additional examples, appended to the existing ones.

    The `declared` classes of the new examples replace the earlier ones.
    """
    old = fitted.examples
    check_has_scores(prior_scores, old.prior is not None)
    if more.x.shape[1] != old.x.shape[1]:
        raise InvalidInputError(
            f"X has {more.x.shape[1]} features, but FewShotClassifier is expecting {old.x.shape[1]} features as input."
        )
    examples = Examples(
        np.concatenate([old.x, more.x]),
        join_labels(old.targets, more.targets),
        np.concatenate([old.weight, more.weight]),
        more.declared,
    )
    if prior_scores is not None and old.prior is not None:
        _check_no_new_class(fitted, examples)
        new = check_scores(prior_scores, len(more.x), len(fitted.classes))
        examples = examples._replace(prior=np.concatenate([old.prior, new]))
    origin = np.concatenate([np.arange(len(old.targets)), np.full(len(more.targets), -1)])
    return learn(settings, examples, lambda: _known_sites(fitted, examples, origin))


def reduce(fitted: Fitted, settings: Settings, index: Any, *, drop_class: bool) -> Fitted:
    """Return the classifier without the examples at `index`.

    With `drop_class`, a class that loses its last example is removed; otherwise this is an error.
    """
    old = fitted.examples
    keep = np.ones(len(old.targets), dtype=bool)
    keep[check_index(index, len(keep))] = False
    lost = np.setdiff1d(old.targets[~keep], old.targets[keep])
    if len(lost) and not drop_class:
        raise InvalidInputError(
            f"Expected every class to keep an example, but {as_written(lost[0])} would lose its last one. "
            "Add another one first, or pass drop_class=True to forget the class."
        )
    declared = None if old.declared is None else np.setdiff1d(old.declared, lost)
    kept = Examples(old.x[keep], old.targets[keep], old.weight[keep], declared)
    if old.prior is not None:
        kept = kept._replace(prior=old.prior[keep][:, np.isin(fitted.classes, kept.classes())])
    return learn(settings, kept, lambda: _known_sites(fitted, kept, np.flatnonzero(keep)))


def _check_no_new_class(fitted: Fitted, examples: Examples) -> None:
    unknown = np.setdiff1d(examples.classes(), fitted.classes)
    if len(unknown):
        raise InvalidInputError(
            f"Expected labels among {fitted.classes.tolist()}, because the examples have prior scores for these "
            f"alone, but got {as_written(unknown[0])}. Fit all examples again, with scores for the new class."
        )


def _known_sites(fitted: Fitted, examples: Examples, origin: NDArray[np.intp]) -> GaussianSites:
    """Return sites to start from; `origin` is the index of each example before the edit, or -1 for new examples.

    Points that stay keep their sites. At these points, a new class gets the average site of the other classes, without
    the point's own. New points get the site that would be right if nothing else changed.
    """
    used = examples.weight > 0
    origin, targets = origin[used], examples.targets[used]
    place = np.cumsum(fitted.used) - 1  # index of an example among the sites
    classes = examples.classes()
    before = np.searchsorted(fitted.classes, classes).clip(max=len(fitted.classes) - 1)
    is_old_class = fitted.classes[before] == classes
    stays = origin >= 0
    own = np.searchsorted(classes, targets)
    sites = [np.zeros((len(classes), len(own))) for _ in range(2)]
    for whole, old in zip(sites, fitted.posterior.sites, strict=True):
        part = old[0][before][:, place[origin[stays]]]
        others = is_old_class[:, None] & (np.arange(len(classes))[:, None] != own[stays])
        average = (part * others).sum(0) / np.maximum(others.sum(0), 1)
        whole[:, stays] = np.where(is_old_class[:, None], part, average)
    if not stays.all():
        prior = None if examples.prior is None else examples.prior[used][~stays].T
        x = examples.x[used][~stays][None]
        new = _site_alone(fitted, x, is_old_class, before, own[~stays], prior)
        for whole, site in zip(sites, new, strict=True):
            whole[:, ~stays] = site
    # a new point's site counts as often as its weight says
    factor = np.where(stays, 1.0, examples.weight[used])
    return GaussianSites((sites[0] * factor)[None], (sites[1] * factor)[None])


def _site_alone(
    fitted: Fitted,
    x: Float[NDArray[np.float64], "1 M D"],
    is_old_class: Bool[NDArray[np.bool_], " C"],
    before: Int[NDArray[np.int64], " C"],
    own: Int[NDArray[np.int64], " M"],
    prior_mean: Float[NDArray[np.float64], "C M"] | None,
) -> tuple[Float[NDArray[np.float64], "C M"], Float[NDArray[np.float64], "C M"]]:
    """Return the fixed point of the mirror step at each new point, with the other sites held."""
    cross, prior_var = fitted.cross(x)
    mean, var = (part[0][before] for part in predict_latent(fitted.posterior, cross, prior_var))
    mean = np.where(is_old_class[:, None], mean, 0.0)
    var = np.maximum(np.where(is_old_class[:, None], var, prior_var[0]), 1e-9)
    label = one_hot(own, len(mean), np.float64)
    b = w = np.zeros_like(mean)
    for _ in range(_LOCAL_STEPS):
        v = var / (1 + w * var)
        m = v * (mean / var + b)
        moments = softmax_moments((m if prior_mean is None else m + prior_mean).T, v.T)
        c = moments.curvature.T
        b, w = 0.5 * (b + label - moments.prob.T + c * m), 0.5 * (w + c)
    return b, w
