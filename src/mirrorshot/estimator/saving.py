"""`FewShotClassifier` to and from a file: plain tensors and JSON, never pickled, the same predictions bit by bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mirrorshot.checkpoint import CheckpointError, load_sealed, save_sealed
from mirrorshot.gaussian import GaussianPosterior, GaussianSites, root_of
from mirrorshot.kernels import Kernel, build_kernel, describe_kernel
from mirrorshot.selection import Support
from mirrorshot.types import InvalidInputError

HEAD_VERSION = 1
_NUMBERS = ("outputscale_", "temperature_", "loo_log_likelihood_", "elbo_", "n_iter_", "n_features_in_")
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
    support, posterior, kernel = head._support, head._posterior, head.kernel_
    classes, kind = _plain_classes(head.classes_)
    own = head.get_params(deep=False)
    given = own.pop("kernel")
    info: dict[str, Any] = {
        "parameters": {name: value if isinstance(value, str) else float(value) for name, value in own.items()},
        "kernel": describe_kernel(kernel),
        "given_kernel": given if isinstance(given, str) else None,
        "classes": classes,
        "class_kind": kind,
        "feature_names": [str(name) for name in getattr(head, "feature_names_in_", [])] or None,
        "numbers": {name: getattr(head, name) for name in _NUMBERS},
    }
    tensors = {
        "support.x": support.x,
        "support.y": support.y,
        "support.weight": support.weight,
        "used": torch.from_numpy(np.asarray(head._used)),
        "centre": head._centre,
        "sites.shift": posterior.sites.shift,
        "sites.precision": posterior.sites.precision,
        "posterior.chol": posterior.chol,
        **({} if support.prior_mean is None else {"support.prior_mean": support.prior_mean}),
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
        learned = _learned(tensors, kernel, len(classes))
        numbers = {name: info["numbers"][name] for name in _NUMBERS}
        if numbers["n_features_in_"] != tensors["support.x"].shape[-1]:
            raise ValueError("the number of features is not that of the examples")
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        reason = f"a part of it is missing: {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"Expected {where} to hold a classifier, but {reason}. Make the file again.") from error
    for name, value in {**learned, **numbers, "classes_": classes}.items():
        setattr(head, name, value)
    if info.get("feature_names"):
        head.feature_names_in_ = np.array(info["feature_names"], dtype=object)
    return head


def _learned(tensors: Mapping[str, Tensor], kernel: Kernel, n_way: int) -> dict[str, Any]:
    prior_mean = tensors.get("support.prior_mean")
    support = Support(tensors["support.x"], tensors["support.y"], tensors["support.weight"], n_way, prior_mean)
    sites = GaussianSites(tensors["sites.shift"], tensors["sites.precision"])
    chol, centre = tensors["posterior.chol"], tensors["centre"]
    # V = L^-1 S K, which predictions do not need, is as large as L and made again
    K = kernel(support.x, centre=centre)
    gain = torch.linalg.solve_triangular(chol, root_of(sites.precision)[..., None] * K, upper=False)
    mean, var, alpha, slack = (tensors[f"posterior.{name}"] for name in _POSTERIOR)
    status = torch.zeros(1, n_way, dtype=torch.int32)
    return {
        "kernel_": kernel,
        "_support": support,
        "_centre": centre,
        "_used": tensors["used"].numpy(),
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
    x, y, used = tensors["support.x"], tensors["support.y"], tensors["used"]
    if x.ndim != 3 or len(x) != 1 or x.shape[1] < 1 or n_way < 2:
        raise ValueError(f"it has {n_way} classes and examples of shape {tuple(x.shape)}")
    N, D = x.shape[1:]
    latent, double = (1, n_way, N), torch.float64
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "support.x": ((1, N, D), double),
        "support.y": ((N,), torch.int64),
        "support.weight": ((N,), double),
        "centre": ((1, 1, D), double),
        "posterior.chol": ((1, n_way, N, N), double),
        "used": (tuple(used.shape), torch.bool),
        **({"support.prior_mean": (latent, double)} if "support.prior_mean" in tensors else {}),
        **{f"sites.{name}": (latent, double) for name in ("shift", "precision")},
        **{f"posterior.{name}": (latent, double) for name in _POSTERIOR},
    }
    for name, (shape, dtype) in wanted.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, not {shape} of {dtype}")
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has numbers that are not finite")
    if used.ndim != 1 or int(used.sum()) != N or not 0 <= int(y.min()) <= int(y.max()) < n_way:
        raise ValueError("labels and examples do not match")
