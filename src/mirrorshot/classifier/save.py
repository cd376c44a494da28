"""Conversion of a fitted classifier to and from plain arrays and JSON; loading executes nothing."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier import checks
from mirrorshot.classifier.examples import Examples, support_of
from mirrorshot.classifier.fit import Settings
from mirrorshot.classifier.fitted import Fitted, few_threads
from mirrorshot.classifier.learned import Learned
from mirrorshot.classifier.link import Link
from mirrorshot.classifier.predict import log_proba, queries
from mirrorshot.classifier.prior import Prior, prior_state, restore_prior
from mirrorshot.classifier.selection import Support
from mirrorshot.files.checkpoint import CheckpointError
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.kernels import Kernel, build_kernel, describe_kernel, kernel_state
from mirrorshot.gp.weight_space import Posterior, posterior_of
from mirrorshot.types import InvalidInputError

HEAD_VERSION = 3
_NUMBERS = {  # name in the file, field of `Fitted`
    "outputscale_": "outputscale",
    "loo_log_likelihood_": "loo_log_likelihood",
    "elbo_": "elbo",
    "n_iter_": "n_steps",
    "gap_": "gap",
    "start_": "start",
}
_LINK = {"temperature_": "temperature", "temperature_std_": "temperature_std", "moderation_": "moderation"}
_LABEL_KINDS = {"U": "text", "i": "integer", "u": "integer", "f": "number", "b": "boolean"}
_PROBED = 4  # a classifier from a file must classify this many of its examples
_REFUSALS = (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError, ArithmeticError)


class HeadState(NamedTuple):
    """The state of a fitted classifier: arrays by name, and JSON."""

    tensors: dict[str, NDArray[Any]]
    info: dict[str, Any]


def head_state(learned: Learned) -> HeadState:
    """Return the state of a fitted classifier; raise `InvalidInputError` if it could not be read again."""
    fitted, settings, feature_names = learned
    examples = fitted.examples
    classes, kind = _plain_classes(fitted.classes)
    given = settings.kernel
    own = {name: value for name, value in settings._asdict().items() if name not in ("kernel", "prior")}
    declared = examples.declared
    prior_arrays, prior_info = ({}, None) if settings.prior is None else prior_state(settings.prior)
    info: dict[str, Any] = {
        "parameters": {name: value if isinstance(value, str) else float(value) for name, value in own.items()},
        "kernel": describe_kernel(fitted.kernel),
        "given_kernel": given if isinstance(given, str) else None,
        "map": {"root": fitted.map.root, "unit": fitted.map.unit},
        "prior": prior_info,
        "classes": classes,
        "class_kind": kind,
        "declared": None if declared is None else np.searchsorted(fitted.classes, declared).tolist(),
        "feature_names": feature_names,
        "numbers": {
            "n_features_in_": examples.x.shape[1],
            **{name: getattr(fitted, field) for name, field in _NUMBERS.items()},
            **{name: getattr(fitted.link, field) for name, field in _LINK.items()},
        },
    }
    tensors = {
        "rows.x": examples.x,
        "rows.y": examples.labels().astype(np.int64),
        "rows.weight": examples.weight,
        **({} if examples.prior is None else {"rows.prior": examples.prior}),
        "centre": fitted.centre,
        "sites.shift": fitted.posterior.sites.shift,
        "sites.precision": fitted.posterior.sites.precision,
        **{f"prior.{name}": array for name, array in prior_arrays.items()},
        **{f"kernel.{name}": array for name, array in kernel_state(fitted.kernel).items()},
    }
    state = HeadState({name: np.ascontiguousarray(array) for name, array in tensors.items()}, info)
    try:
        _checked(*state)
    except _REFUSALS as error:
        raise InvalidInputError(f"Expected a classifier that a file can hold, but {error}.") from error
    return state


def restore_head(state: HeadState, where: str) -> Learned:
    """Return the classifier of a state after checking each part and their agreement; `where` names it in messages.

    Raises:
        CheckpointError: the state is not that of a classifier.
    """
    try:
        return _restored(*state)
    except _REFUSALS as error:
        reason = f"a part of it is missing: {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"Expected {where} to hold a classifier, but {reason}. Make the file again.") from error


def _restored(tensors: Mapping[str, NDArray[Any]], info: Mapping[str, Any]) -> Learned:
    fields, settings, names = _checked(tensors, info)
    fitted = Fitted(**fields, posterior=_posterior(tensors, fields["kernel"], fields["support"]))
    _check_answers(fitted)
    return Learned(fitted, settings, names)


def _checked(
    tensors: Mapping[str, NDArray[Any]], info: Mapping[str, Any]
) -> tuple[dict[str, Any], Settings, list[str] | None]:
    """Return the fields of `Fitted` except the posterior, the settings, and the names of the features."""
    classes = checks.checked_classes(info["classes"], info["class_kind"])
    checks.check_examples(tensors, classes)
    n_features = tensors["rows.x"].shape[-1]
    numbers = checks.checked_numbers(info["numbers"], n_features)
    names = checks.checked_feature_names(info.get("feature_names"), n_features)
    parameters = checks.checked_parameters(info["parameters"], info["given_kernel"])
    kernel_state = {n[len("kernel.") :]: t for n, t in tensors.items() if n.startswith("kernel.")}
    kernel = build_kernel(info["kernel"], kernel_state, n_way=len(classes))
    prior = _prior(tensors, info.get("prior"))
    settings = Settings(**parameters, kernel=info["given_kernel"] or kernel, prior=prior).check()
    examples = _examples(tensors, classes, checks.checked_declared(info["declared"], len(classes)))
    feature_map = checks.checked_map(info.get("map")) if prior is None else prior.map
    fields = {
        "examples": examples,
        "classes": classes,
        "map": feature_map,
        "support": support_of(examples, feature_map),
        "kernel": kernel,
        "centre": tensors["centre"],
        "link": Link(**{field: numbers[name] for name, field in _LINK.items()}),
        **{field: numbers[name] for name, field in _NUMBERS.items()},
    }
    return fields, settings, names


def _prior(tensors: Mapping[str, NDArray[Any]], info: Any) -> Prior | None:
    if info is None:
        return None
    arrays = {name[len("prior.") :]: array for name, array in tensors.items() if name.startswith("prior.")}
    prior = restore_prior(arrays, info)
    prior.check_features(tensors["rows.x"].shape[-1])
    return prior


def _examples(tensors: Mapping[str, NDArray[Any]], classes: NDArray[Any], declared: list[int] | None) -> Examples:
    prior = tensors.get("rows.prior")
    examples = Examples(
        tensors["rows.x"],
        classes[tensors["rows.y"]],
        tensors["rows.weight"],
        None if declared is None else classes[np.array(declared, dtype=np.intp)],
        prior,
    )
    if not np.array_equal(examples.classes(), classes):
        raise ValueError("its classes are not those of its examples")
    return examples


def _posterior(tensors: Mapping[str, NDArray[Any]], kernel: Kernel, support: Support) -> Posterior:
    with few_threads(len(tensors["rows.y"]) * support.n_way):
        K = kernel(support.x, centre=tensors["centre"])
        if not np.isfinite(K).all():
            raise ValueError("its kernel does not fit its examples")
        return posterior_of(K, GaussianSites(tensors["sites.shift"], tensors["sites.precision"]))


def _check_answers(fitted: Fitted) -> None:
    """Refuse a state whose valid parts together give probabilities that are not finite."""
    x, prior = fitted.examples.x[:_PROBED], fitted.examples.prior
    scores = None if prior is None else prior[:_PROBED]
    if not np.isfinite(np.exp(log_proba(*queries(fitted, x[None], scores)))).all():
        raise ValueError("it gives probabilities that are not finite")


def _plain_classes(classes: NDArray[Any]) -> tuple[list[Any], str]:
    if classes.dtype == object and all(isinstance(label, str) for label in classes):
        classes = classes.astype(np.str_)
    kind = _LABEL_KINDS.get(classes.dtype.kind)
    if kind is None:
        raise InvalidInputError(
            f"Expected labels that are text, numbers or booleans, but got {classes.dtype}, which cannot be written."
        )
    return classes.tolist(), kind
