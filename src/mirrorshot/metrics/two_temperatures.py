"""Two temperatures: one in the likelihood, one for the averaged probabilities.

For Gaussian latents f, T1 is the likelihood temperature of `p = E[softmax(f / T1)]`, and T2 the predictive temperature
of `softmax(log p / T2)`. The paper's released code chooses both on a grid by the smallest calibration error on
validation tasks, once by ECE and once by MCE, so its numbers are comparable only within this protocol. To predict
probabilities, fit one temperature by NLL instead (`fit_temperature`).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Float, Int

from mirrorshot.metrics.backend import cast, contiguous, sort
from mirrorshot.metrics.inputs import checked_scores
from mirrorshot.softmax.arrays import Array, arange, detach, double, is_tensor, like, namespace
from mirrorshot.types import InvalidInputError

PAPER_GRID = tuple(k / 200 for k in (*range(10, 70), *range(200, 400)))
"""The 260 values of each temperature: 0.05 to 0.345 and 1 to 1.995 in steps of 0.005."""

_CHUNK = {"cpu": 2**17, "cuda": 2**24}  # confidences per chunk; on a CPU they fit into the cache of a core
_LEAST = -80.0  # of exponents; smaller terms would be subnormal numbers, which are slow
_GOLDEN = (math.sqrt(5) - 1) / 2
_LOW, _HIGH = 0.05, 20.0  # range of the search for a minimum
_STARTS = 7  # values of log T that bracket it
_TOLERANCE = 5e-3  # of log T
_N_BINS = 15


class TemperaturePair(NamedTuple):
    """T1 (1 for methods without latents) and T2, with the calibration errors on the validation tasks."""

    likelihood: float
    predictive: float
    ece: float
    mce: float


class TwoTemperatures(NamedTuple):
    """The pairs with the smallest expected and the smallest maximum calibration error."""

    by_ece: TemperaturePair
    by_mce: TemperaturePair


class GridErrors(NamedTuple):
    """Expected and maximum calibration error at each temperature; the maximum is over all bins."""

    ece: Float[Array, " G"]
    mce: Float[Array, " G"]


def temperature_errors(
    log_prob: Float[Array, "*batch C"],
    y: Int[Array, "*batch"],
    temperatures: Sequence[float] = PAPER_GRID,
    weight: Float[Array, "*batch"] | None = None,
) -> GridErrors:
    """Calibration errors of `softmax(log_prob / T)` for many T, with 15 bins of equal width.

    A `weight` of zero is padding; any other weight counts once.

    Design note: T does not change the predicted class, so for each T only its confidence is computed,
    `1 / (1 + sum_c exp((l_c - l_max) / T))` with the sum over the other classes, and two sums per bin.

    Example:
        >>> import torch
        >>> log_prob = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).log()
        >>> temperature_errors(log_prob, torch.tensor([0, 0, 1, 1]), [1.0, 2.0]).ece.round(decimals=4)
        tensor([0.1500, 0.0000], dtype=torch.float64)
    """
    scores, label, share = checked_scores(detach(log_prob), y, weight)
    _check_grid(temperatures)
    scores, label = scores[share > 0], label[share > 0]
    xp, right = namespace(scores), cast(scores.argmax(-1) == label, scores.dtype)
    ordered = sort(scores)[0]
    behind = contiguous((ordered[:, :-1] - ordered[:, -1:]).T)
    size = max(1, _CHUNK.get(scores.device.type if is_tensor(scores) else "cpu", _CHUNK["cpu"]) // len(label))
    parts = [_errors_of_chunk(behind, right, temperatures[i : i + size]) for i in range(0, len(temperatures), size)]
    return GridErrors(*(xp.concatenate(fields) for fields in zip(*parts, strict=True)))


def search_two_temperatures(
    log_prob_at: Callable[[float], Float[Array, "*batch C"]],
    y: Int[Array, "*batch"],
    *,
    likelihood: Sequence[float] = PAPER_GRID,
    predictive: Sequence[float] = PAPER_GRID,
    weight: Float[Array, "*batch"] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TwoTemperatures:
    """Try all pairs of temperatures on validation tasks; return the (first) best by ECE and by MCE.

    `log_prob_at` returns the log-probabilities at a likelihood temperature. For methods without latents, pass
    `likelihood=(1.0,)`. `progress` is called with the number of finished values of T1 and of all values.

    Example:
        >>> import torch
        >>> log_prob = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).log()
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> found = search_two_temperatures(lambda tau: log_prob, y, likelihood=[1.0], predictive=[1.0, 2.0])
        >>> found.by_ece[:2]
        (1.0, 2.0)
    """
    _check_grid(likelihood)
    best: dict[str, TemperaturePair] = {}
    for i, tau in enumerate(likelihood):
        errors = temperature_errors(log_prob_at(tau), y, predictive, weight=weight)
        for name, values in errors._asdict().items():
            k = int(values.argmin())
            pair = TemperaturePair(float(tau), float(predictive[k]), float(errors.ece[k]), float(errors.mce[k]))
            if name not in best or getattr(pair, name) < getattr(best[name], name):
                best[name] = pair
        if progress is not None:
            progress(i + 1, len(likelihood))
    return TwoTemperatures(best["ece"], best["mce"])


def minimise_over_temperature(nll_at: Callable[[float], float]) -> float:
    """Minimise a function, not necessarily convex, of the temperature from 0.05 to 20.

    Seven values of log T bracket the minimum; a golden-section search finds it to half a per cent.

    Example:
        >>> round(minimise_over_temperature(lambda T: (math.log(T) - math.log(2)) ** 2), 2)
        2.0
    """
    step = math.log(_HIGH / _LOW) / (_STARTS - 1)
    starts = [math.log(_LOW) + i * step for i in range(_STARTS)]
    values = [nll_at(math.exp(start)) for start in starts]
    if any(math.isnan(value) for value in values):
        raise InvalidInputError(f"Expected `nll_at` to be a number at every temperature, but got {values}.")
    i = values.index(min(values))
    a, b = starts[max(i - 1, 0)], starts[min(i + 1, _STARTS - 1)]
    return math.exp(_golden_section(lambda log_T: nll_at(math.exp(log_T)), a, b))


def _golden_section(function: Callable[[float], float], a: float, b: float) -> float:
    c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    at_c, at_d = function(c), function(d)
    while b - a > _TOLERANCE:
        if at_c <= at_d:
            b, d, at_d = d, c, at_c
            c = b - _GOLDEN * (b - a)
            at_c = function(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + _GOLDEN * (b - a)
            at_d = function(d)
    return (a + b) / 2


def _errors_of_chunk(behind: Array, right: Array, temperatures: Sequence[float]) -> GridErrors:
    xp, T = namespace(behind), like(behind, temperatures)
    # p_max = 1 / (1 + sum_c exp((l_c - l_max) / T)); in place, because this takes nearly all the time
    terms = behind / T[:, None, None]
    terms = xp.exp(xp.clip(terms, _LEAST, None, out=terms), out=terms)
    confidence = 1 / (terms.sum(1) + 1)
    bin_of = cast(xp.clip(xp.ceil(confidence * _N_BINS) - 1, 0, _N_BINS - 1), xp.int64)
    index = (bin_of + _N_BINS * arange(T, len(T))[:, None]).reshape(-1)
    gap = double(confidence - right).reshape(-1)
    counts = xp.bincount(index, minlength=len(T) * _N_BINS).reshape(-1, _N_BINS)
    gaps = abs(xp.bincount(index, weights=gap, minlength=len(T) * _N_BINS)).reshape(-1, _N_BINS)
    return GridErrors(gaps.sum(-1) / len(right), xp.amax(gaps / xp.clip(counts, 1, None), -1))


def _check_grid(temperatures: Sequence[float]) -> None:
    if not temperatures or not all(0.0 < T < math.inf for T in temperatures):
        raise InvalidInputError(f"Expected temperatures that are positive and finite, but got {list(temperatures)}.")
