"""Priors: knowledge about the embeddings of an encoder, or of embeddings in general, before any example.

A `Prior` holds a map of the embeddings, the share of the examples' mean to subtract, the scale of the kernel, and the
distribution of the predictive temperature. `FewShotClassifier(prior=...)` uses one that was learned on many classes of
an encoder (`mirrorshot.classifier.prior_learning`). Otherwise it uses the broad rules of this module, learned over
embeddings of images, characters, texts and tables (`docs/research.md`).

A prior is stored as a sealed safetensors file of at most a few hundred kilobytes; reading checks every part of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.files.checkpoint import CheckpointError
from mirrorshot.files.sealed import load_sealed, save_sealed
from mirrorshot.softmax.arrays import NDArray, divided, row_norm
from mirrorshot.types import InvalidInputError

PRIOR_VERSION = 2
MAX_FEATURES, MAX_RANK, MAX_BYTES = 2**16, 2**10, 2**26
_MAX_COEFFICIENT = 20.0  # of the logarithm of a temperature
_MAX_NAME = 200  # characters
_NUMBERS = ("outputscale", "centre")
_SHORT, _LONG = 1e-140, 1e140  # between them the square of a length neither vanishes nor overflows


class FeatureMap(NamedTuple):
    """A map from embeddings to the features that the kernel sees.

    Steps, each optional: square roots (of negative values: zero), unit length, minus a mean, `x + ((x V^T) g) V` along
    orthonormal directions `V` (only with a mean), unit length again.

    Attributes:
        root: take square roots.
        unit: scale to unit length.
        mean: (D,), or None.
        directions: orthonormal rows, (R, D), or None.
        gain: of each direction, (R,), above -1; -0.5 halves the features along it.
    """

    root: bool = False
    unit: bool = False
    mean: Float[NDArray[np.float64], " D"] | None = None
    directions: Float[NDArray[np.float64], "R D"] | None = None
    gain: Float[NDArray[np.float64], " R"] | None = None

    def __call__(self, x: Float[NDArray[np.float64], "*B D"]) -> Float[NDArray[np.float64], "*B D"]:
        """Return the features of embeddings.

        Example:
            >>> FeatureMap(root=True, unit=True)(np.array([[9.0, 16.0]])).round(2).tolist()
            [[0.6, 0.8]]
        """
        if self.root:
            x = np.maximum(x, 0.0)
            x = np.sqrt(x, out=x)
        x = unit_length(x) if self.unit else x
        if self.mean is None:
            return x
        x = x - self.mean
        if self.directions is not None and self.gain is not None:
            x = x + ((x @ self.directions.T) * self.gain) @ self.directions
        return unit_length(x) if self.unit else x


def unit_length(x: Float[NDArray[np.float64], "*B D"]) -> Float[NDArray[np.float64], "*B D"]:
    """Return rows of length one; rows of zeros stay. Squared lengths neither overflow nor vanish.

    Example:
        >>> unit_length(np.array([[3e200, 4e200], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    length = row_norm(x)
    if ((length > _SHORT) & (length < _LONG)).all():
        return np.asarray(x / length)
    largest = np.maximum(x.max(-1, keepdims=True, initial=0.0), -x.min(-1, keepdims=True, initial=0.0))
    x = x / np.where(largest > 0, largest, 1.0)
    length = row_norm(x)
    return np.asarray(divided(x, np.where(length > 0, length, 1.0)))


class TemperaturePrior(NamedTuple):
    """Normal distribution of the log temperature; its mean is linear in logarithms of properties of the task.

    Attributes:
        intercept: for one example of each of two classes, one feature and an outputscale of 30.
        shots: slope in log(examples of a class).
        ways: slope in log(classes - 1).
        features: slope in log(features), of at most `MAX_COUNTED` features.
        scale: slope in log(outputscale / 30).
        std: standard deviation.
        spread: slope in log(spread / 0.15), the spread of the cosines between classes (`selection.log_spread`).
    """

    intercept: float
    shots: float
    ways: float
    features: float = 0.0
    scale: float = 0.11
    std: float = 0.3
    spread: float = 0.0

    def mean(self, shots: float, n_way: int, n_features: int, outputscale: float, log_spread: float = 0.0) -> float:
        """Return the mean of the log temperature of a task.

        Example:
            >>> round(TemperaturePrior(-2.0, 0.2, 0.25).mean(5.0, 5, 1280, 30.0), 2)
            -1.33
        """
        return (
            self.intercept
            + self.shots * math.log(max(shots, 1.0))
            + self.ways * math.log(max(n_way - 1, 1))
            + self.features * math.log(min(n_features, MAX_COUNTED))
            + self.scale * math.log(outputscale / 30.0)
            + self.spread * log_spread
        )


def of_moderated(earlier: TemperaturePrior) -> TemperaturePrior:
    """Convert the temperature prior of `E[softmax]^(1 / tau)` to that of the moderated softmax.

    The best log temperatures differ by `1.23 - 0.13 log(classes - 1)` on sets of embeddings, standard deviation 0.03.
    """
    return earlier._replace(intercept=earlier.intercept + 1.23, ways=earlier.ways - 0.13)


MAX_COUNTED = 2048
LINK, EARLIER_LINK = "moderated", "power"  # the link of a prior's temperature; the first files do not contain it
BROAD_TEMPERATURE = TemperaturePrior(0.72, 0.17, 0.08, -0.19, std=0.35, spread=0.33)
"""For embeddings of unknown origin: a regression over sets of images, characters, texts and tables."""
TABLE_TEMPERATURE = BROAD_TEMPERATURE._replace(intercept=-0.22, ways=0.03, std=0.5)
"""For few features: tables differ more than embeddings."""
OTHER_TEMPERATURE = TemperaturePrior(-0.76, 0.15, 0.06, scale=0.15, std=0.5)
"""For kernels that do not measure angles, fitted on tables."""
_FEW_FEATURES = 100


def broad_map(x: Float[NDArray[np.float64], "N D"]) -> FeatureMap:
    """Return the map of embeddings of unknown origin: unit length, after square roots if no value is negative.

    Square roots of rectified features, counts and pixels are nearer to normal, and no single large feature dominates.
    """
    return FeatureMap(root=bool((x >= 0).all()), unit=True)


def has_few_features(n_features: int) -> bool:
    """Whether the embeddings may be measurements of a table."""
    return n_features < _FEW_FEATURES


def broad_outputscale(n_features: int) -> float:
    """Return the outputscale for embeddings of unknown origin: few features need a more flexible prior."""
    return 100.0 if has_few_features(n_features) else 30.0


@dataclass(frozen=True, eq=False)
class Prior:
    """Knowledge about the embeddings of an encoder. Immutable.

    Attributes:
        map: from embeddings to features.
        outputscale: of the cosine kernel.
        centre: share of the mean of a task's examples that is subtracted from the features, from 0 to 1.
        temperature: prior of the predictive temperature.
        encoder: name of the encoder, or empty.
        learned_on: description of the data.
    """

    map: FeatureMap
    outputscale: float
    centre: float
    temperature: TemperaturePrior
    encoder: str = ""
    learned_on: str = ""

    def check_features(self, n_features: int) -> None:
        """Raise `InvalidInputError` if the prior was learned on another number of features."""
        if self.map.mean is not None and len(self.map.mean) != n_features:
            of = f" of the encoder {self.encoder!r}" if self.encoder else ""
            raise InvalidInputError(
                f"Expected embeddings of {len(self.map.mean)} features, because the prior was learned on those{of}, "
                f"but got {n_features}. Use the prior of your encoder, or none."
            )

    def save(self, path: str | Path) -> None:
        """Write the prior as a sealed safetensors file."""
        save_sealed(Path(path), *prior_state(self), kind="prior", version=PRIOR_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> "Prior":
        """Read a prior written by `save`. Nothing in the file is executed.

        Raises:
            CheckpointError: the file is truncated, changed, foreign, or of a newer mirrorshot.
        """
        saved = load_sealed(Path(path), kind="prior", version=PRIOR_VERSION, max_bytes=MAX_BYTES)
        try:
            return restore_prior(saved.tensors, saved.info)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"Expected {path} to hold a prior, but {error}. Make the file again.") from error


def prior_state(prior: Prior) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Return a prior as single-precision arrays and JSON."""
    names = ("mean", "directions", "gain")
    arrays = {name: array.astype(np.float32) for name in names if (array := getattr(prior.map, name)) is not None}
    info = {
        "root": prior.map.root,
        "unit": prior.map.unit,
        **{name: getattr(prior, name) for name in _NUMBERS},
        "temperature": prior.temperature._asdict(),
        "link": LINK,
        "encoder": prior.encoder,
        "learned_on": prior.learned_on,
    }
    return arrays, info


def restore_prior(arrays: Mapping[str, NDArray[Any]], info: Mapping[str, Any]) -> Prior:
    """Return the prior of a state; raise KeyError, TypeError or ValueError with a reason if a part is invalid."""
    if type(info["root"]) is not bool or type(info["unit"]) is not bool:
        raise ValueError("root and unit are not true or false")
    outputscale, centre = (_number(name, info[name], 1e6) for name in _NUMBERS)
    if outputscale < 1e-6 or not 0.0 <= centre <= 1.0:
        raise ValueError("its output scale is not positive, or its centre is not between 0 and 1")
    texts = [info["encoder"], info["learned_on"]]
    if not all(isinstance(text, str) and len(text) <= _MAX_NAME for text in texts):
        raise ValueError(f"its encoder and data are not texts of at most {_MAX_NAME} characters")
    found = info["temperature"]
    known = set(TemperaturePrior._fields)
    if not isinstance(found, dict) or not known - {"spread"} <= set(found) <= known:  # earlier files have no spread
        raise ValueError("its temperature is not a table of the expected numbers")
    temperature = TemperaturePrior(**{name: _number(name, value, _MAX_COEFFICIENT) for name, value in found.items()})
    if temperature.std < 0.01:
        raise ValueError("the deviation of its temperature is not positive")
    link = info.get("link", EARLIER_LINK)
    if link not in (LINK, EARLIER_LINK):
        raise ValueError(f"its temperature is that of {str(link)[:40]!r}, which is unknown")
    if link == EARLIER_LINK:
        temperature = of_moderated(temperature)
    return Prior(_restored_map(arrays, info["root"], info["unit"]), outputscale, centre, temperature, *texts)


def _restored_map(arrays: Mapping[str, NDArray[Any]], root: bool, unit: bool) -> FeatureMap:
    if not set(arrays) <= {"mean", "directions", "gain"} or ("directions" in arrays) != ("gain" in arrays):
        raise ValueError("its arrays are not a mean, directions and gains")
    if "mean" not in arrays:
        return FeatureMap(root, unit)
    D, R = len(arrays["mean"]), len(arrays.get("gain", ()))
    shapes = {"mean": (D,), "directions": (R, D), "gain": (R,)}
    for name, array in arrays.items():
        if array.shape != shapes[name] or array.dtype != np.float32 or not bool((np.abs(array) <= 1e6).all()):
            raise ValueError(f"{name} is {array.shape} of {array.dtype}, not finite float32 of {shapes[name]}")
    if not 1 <= D <= MAX_FEATURES or R > MAX_RANK or bool((arrays.get("gain", np.zeros(0)) <= -1.0).any()):
        raise ValueError("its directions are too many, or a gain is not above -1")
    return FeatureMap(root, unit, **{name: array.astype(np.float64) for name, array in arrays.items()})


def _number(name: str, value: Any, largest: float) -> float:
    if type(value) not in (int, float) or not abs(value) <= largest:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a number of at most {largest:g}")
    return float(value)
