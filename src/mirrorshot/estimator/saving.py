"""`FewShotClassifier` to and from a file: plain tensors and JSON, never pickled.

On the same machine (processor, torch, number of threads) a loaded classifier predicts the same bit by bit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mirrorshot.checkpoint import CheckpointError, load_sealed, save_sealed
from mirrorshot.estimator.rows import Rows, support_of
from mirrorshot.gaussian import GaussianPosterior, GaussianSites, gain_of
from mirrorshot.kernels import Kernel, build_kernel, describe_kernel
from mirrorshot.types import InvalidInputError

HEAD_VERSION = 1
_NUMBERS = ("outputscale_", "temperature_", "loo_log_likelihood_", "elbo_", "n_iter_", "n_features_in_")
_LATER = {"gap_": None, "start_": "prior"}  # not in the first files
_POSTERIOR = ("mean", "var", "alpha", "slack")  # (1, C, N) each
_LABEL_KINDS = {"U": "text", "i": "integer", "u": "integer", "f": "number", "b": "boolean"}
_LABEL_TYPES = {"text": np.str_, "integer": np.int64, "number": np.float64, "boolean": np.bool_}


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
    head = head._snapshot()
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
        "numbers": {name: getattr(head, name) for name in (*_NUMBERS, *_LATER)},
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
        **{f"posterior.{name}": getattr(posterior, name) for name in _POSTERIOR},
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
        tensors, info = state
        classes: NDArray[Any] = np.array(info["classes"], dtype=_LABEL_TYPES[info["class_kind"]])
        _check_shapes(tensors, len(classes))
        kernel_state = {n[len("kernel.") :]: t for n, t in tensors.items() if n.startswith("kernel.")}
        kernel = build_kernel(info["kernel"], kernel_state)
        parameters = {**info["parameters"], "kernel": info["given_kernel"] or kernel}
        head.set_params(**parameters)
        head._check_parameters()
        learned = _learned(tensors, kernel, _rows(tensors, classes, info["declared"]))
        numbers = {**_LATER, **{name: info["numbers"][name] for name in _NUMBERS}}
        numbers |= {name: info["numbers"][name] for name in _LATER if name in info["numbers"]}
        if numbers["n_features_in_"] != tensors["rows.x"].shape[-1]:
            raise ValueError("the number of features is not that of the examples")
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        reason = f"a part of it is missing: {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"Expected {where} to hold a classifier, but {reason}. Make the file again.") from error
    for name, value in {**learned, **numbers, "classes_": classes}.items():
        setattr(head, name, value)
    if info.get("feature_names"):
        head.feature_names_in_ = np.array(info["feature_names"], dtype=object)
    return head


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
    # by columns, as a factorisation leaves it: another layout has other rounding errors
    chol, centre = tensors["posterior.chol"].mT.contiguous().mT, tensors["centre"]
    # as large as the factor, and made again
    gain = gain_of(kernel(support.x, centre=centre), sites.precision, chol)
    mean, var, alpha, slack = (tensors[f"posterior.{name}"] for name in _POSTERIOR)
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


def _check_shapes(tensors: Mapping[str, Tensor], n_way: int) -> None:
    """Refuse parts that do not fit each other or are not finite."""
    x, y, weight = tensors["rows.x"], tensors["rows.y"], tensors["rows.weight"]
    N = int((weight > 0).sum())
    if x.ndim != 2 or N < 1 or n_way < 2:
        raise ValueError(f"it has {n_way} classes and {N} examples that count, of shape {tuple(x.shape)}")
    n, D = x.shape
    latent, double = (1, n_way, N), torch.float64
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "rows.x": ((n, D), double),
        "rows.y": ((n,), torch.int64),
        "rows.weight": ((n,), double),
        "centre": ((1, 1, D), double),
        "posterior.chol": ((1, n_way, N, N), double),
        **({"rows.prior": ((n, n_way), double)} if "rows.prior" in tensors else {}),
        **{f"sites.{name}": (latent, double) for name in ("shift", "precision")},
        **{f"posterior.{name}": (latent, double) for name in _POSTERIOR},
    }
    for name, (shape, dtype) in wanted.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, not {shape} of {dtype}")
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has numbers that are not finite")
    if not 0 <= int(y.min()) <= int(y.max()) < n_way:
        raise ValueError("labels and examples do not match")
