"""`FewShotClassifier` to and from a file: plain tensors and JSON, never pickled, the same predictions bit by bit."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mirrorshot.checkpoint import CheckpointError, load_sealed, save_sealed
from mirrorshot.estimator import checks
from mirrorshot.estimator.rows import Rows, support_of
from mirrorshot.gaussian import GaussianPosterior, GaussianSites, gain_of
from mirrorshot.kernels import Kernel, build_kernel, describe_kernel
from mirrorshot.types import InvalidInputError

HEAD_VERSION = 1
_NUMBERS = (*checks.POSITIVE, *checks.FINITE, *checks.COUNTS, "n_features_in_")
_LABEL_KINDS = {"U": "text", "i": "integer", "u": "integer", "f": "number", "b": "boolean"}
_PROBED = 4  # examples that a classifier from a file has to classify


class HeadState(NamedTuple):
    """All that a fitted classifier is: tensors by name, and JSON."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]


class SavingMixin:
    """Writes and reads a fitted classifier."""

    def save(self, path: str | Path) -> None:
        """Write the fitted classifier to one file, all or nothing.

        Args:
            path: name of the file, in a folder that exists.

        Raises:
            InvalidInputError: labels or kernel cannot be written: labels are text, numbers or booleans, and the kernel
                is one of this package.

        Example:
            >>> import tempfile
            >>> from mirrorshot import FewShotClassifier
            >>> few = FewShotClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
            >>> path = Path(tempfile.mkdtemp()) / "head"
            >>> few.save(path)
            >>> FewShotClassifier.load(path).predict([[0.1, 0.9]]).tolist()
            ['a']
        """
        tensors, info = head_state(self)
        save_sealed(Path(path), tensors, info, kind="head", version=HEAD_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> Any:
        """Read a classifier that `save` wrote. Nothing in the file is executed.

        Raises:
            CheckpointError: the file is cut off, changed, foreign, or of a newer mirrorshot.
        """
        saved = load_sealed(Path(path), kind="head", version=HEAD_VERSION)
        return restore_head(cls(), HeadState(saved.tensors, saved.info), str(path))


def head_state(head: Any) -> HeadState:
    """The state of a fitted classifier."""
    check_is_fitted(head)
    rows, posterior, kernel = head._rows, head._posterior, head.kernel_
    classes, kind = _plain_classes(head.classes_)
    own = head.get_params(deep=False)
    given = own.pop("kernel")
    info: dict[str, Any] = {
        "parameters": {name: value if isinstance(value, str) else float(value) for name, value in own.items()},
        "kernel": describe_kernel(kernel),
        "given_kernel": given if isinstance(given, str) else None,
        "classes": classes,
        "class_kind": kind,
        "declared": None if rows.declared is None else np.searchsorted(head.classes_, rows.declared).tolist(),
        "feature_names": [str(name) for name in getattr(head, "feature_names_in_", [])] or None,
        "numbers": {name: getattr(head, name) for name in _NUMBERS},
    }
    tensors = {
        "rows.x": torch.from_numpy(np.ascontiguousarray(rows.x)),
        "rows.y": torch.from_numpy(rows.labels().astype(np.int64)),
        "rows.weight": torch.from_numpy(np.ascontiguousarray(rows.weight)),
        **({} if rows.prior is None else {"rows.prior": torch.from_numpy(np.ascontiguousarray(rows.prior))}),
        "centre": head._centre,
        "sites.shift": posterior.sites.shift,
        "sites.precision": posterior.sites.precision,
        "posterior.chol": posterior.chol,
        **{f"posterior.{name}": getattr(posterior, name) for name in checks.POSTERIOR},
        **{f"kernel.{name}": tensor for name, tensor in kernel.state_dict().items()},
    }
    return HeadState(tensors, info)


def restore_head(head: Any, state: HeadState, where: str) -> Any:
    """Make a new classifier the one of a state, after checking that its parts fit each other.

    Args:
        head: a new classifier; it is unchanged if an error is raised.
        state: what `head_state` gave, perhaps by way of a file.
        where: name of that file, for messages.
    """
    try:
        learned = _restored(head, *state)
        _check_answers(head, learned)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError, ArithmeticError) as error:
        reason = f"a part of it is missing: {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"Expected {where} to hold a classifier, but {reason}. Make the file again.") from error
    return _with(head, learned)


def _restored(head: Any, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> dict[str, Any]:
    """What was learned, as attributes, after all parts are checked; the parameters of `head` are set."""
    classes = checks.checked_classes(info["classes"], info["class_kind"])
    checks.check_examples(tensors, classes)
    n_features = tensors["rows.x"].shape[-1]
    numbers = checks.checked_numbers(info["numbers"], n_features)
    names = checks.checked_feature_names(info.get("feature_names"), n_features)
    parameters = checks.checked_parameters(info["parameters"], info["given_kernel"])
    kernel_state = {n[len("kernel.") :]: t for n, t in tensors.items() if n.startswith("kernel.")}
    kernel = build_kernel(info["kernel"], kernel_state, n_way=len(classes))
    head.set_params(**parameters, kernel=info["given_kernel"] or kernel)
    head._check_parameters()
    rows = _rows(tensors, classes, checks.checked_declared(info["declared"], len(classes)))
    learned = {**_learned(tensors, kernel, rows), **numbers, "classes_": classes}
    return learned if not names else {**learned, "feature_names_in_": np.array(names, dtype=object)}


def _with(head: Any, learned: Mapping[str, Any]) -> Any:
    for name, value in learned.items():
        setattr(head, name, value)
    return head


def _check_answers(head: Any, learned: Mapping[str, Any]) -> None:
    """Refuse parts that are fine one by one and together give no probabilities."""
    if not bool(learned["_posterior"].gain.isfinite().all()):
        raise ValueError("its kernel does not fit its examples")
    rows = learned["_rows"]
    scores = None if rows.prior is None else rows.prior[:_PROBED]
    probe = _with(clone(head), learned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # examples without the names of their features
        prob = probe.predict_proba(rows.x[:_PROBED], scores)
    if not np.isfinite(prob).all():
        raise ValueError("it gives probabilities that are not finite")


def _rows(tensors: Mapping[str, Tensor], classes: NDArray[Any], declared: list[int] | None) -> Rows:
    prior = tensors.get("rows.prior")
    rows = Rows(
        tensors["rows.x"].numpy(),
        classes[tensors["rows.y"].numpy()],
        tensors["rows.weight"].numpy(),
        None if declared is None else classes[np.array(declared, dtype=np.intp)],
        None if prior is None else prior.numpy(),
    )
    if not np.array_equal(rows.classes(), classes):
        raise ValueError("its classes are not those of its examples")
    return rows


def _learned(tensors: Mapping[str, Tensor], kernel: Kernel, rows: Rows) -> dict[str, Any]:
    support = support_of(rows)
    n_way = support.n_way
    sites = GaussianSites(tensors["sites.shift"], tensors["sites.precision"])
    chol, centre = tensors["posterior.chol"], tensors["centre"]
    # as large as the factor, and made again
    gain = gain_of(kernel(support.x, centre=centre), sites.precision, chol)
    mean, var, alpha, slack = (tensors[f"posterior.{name}"] for name in checks.POSTERIOR)
    status = torch.zeros(1, n_way, dtype=torch.int32)
    return {
        "kernel_": kernel,
        "_support": support,
        "_centre": centre,
        "_used": rows.weight > 0,
        "_rows": rows,
        "_posterior": GaussianPosterior(sites, mean, var, alpha, chol, gain, slack, status),
    }


def _plain_classes(classes: NDArray[Any]) -> tuple[list[Any], str]:
    """Labels as JSON, and of which kind they are."""
    if classes.dtype == object and all(isinstance(label, str) for label in classes):
        classes = classes.astype(np.str_)
    kind = _LABEL_KINDS.get(classes.dtype.kind)
    if kind is None:
        raise InvalidInputError(
            f"Expected labels that are text, numbers or booleans, but got {classes.dtype}, which cannot be written."
        )
    return classes.tolist(), kind
