"""Calibration of predictions over the queries of all tasks, with confidence intervals over tasks."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot import metrics
from mirrorshot.metrics import CalibrationBins, Interval
from mirrorshot.training.evaluation.predictions import Predictions

N_RESAMPLES = 1000
MIN_COUNT = 100
"""Minimum number of predictions of a bin in `mce_full_bins`."""

_BOOTSTRAPPED = ("accuracy", "nll", "brier", "ece", "mce", "debiased_ece")
_MAIN = ("nll", "brier", "ece", "mce")
_SCORES = (
    "accuracy",
    "adaptive_ece",
    "class_ece",
    "debiased_ece",
    "aurc",
    "excess_aurc",
    "correctness_auroc",
    "mce_full_bins",
)
_BIN_SUMS = ("counts", "confidence_sum", "correct_sum")
_SEED = 20240721  # of the bootstrap
_N_COVERAGES = 100


class Calibration(NamedTuple):
    """Calibration over the queries of all tasks.

    Attributes:
        nll: negative log-likelihood, nats per query.
        brier: Brier score, 0 to 2.
        ece, mce: expected and maximum calibration error.
        bins: the 15 confidence bins, for a reliability diagram.
        scores: accuracy; adaptive (equal-mass), classwise and debiased ECE; MCE of bins with at least `MIN_COUNT`
            predictions (`mce_full_bins`, NaN without any); AURC, excess AURC and AUROC of correctness.
        intervals: 95 % bootstrap intervals over tasks, by name of the metric.
        bin_intervals: bootstrap intervals of the accuracy of each bin, lower and upper ends; (2, B).
        risk: error rate of the most confident 1, 2, .. 100 % of the predictions; (100,).
    """

    nll: float
    brier: float
    ece: float
    mce: float
    bins: CalibrationBins
    scores: Mapping[str, float] = MappingProxyType({})
    intervals: Mapping[str, Interval] = MappingProxyType({})
    bin_intervals: Float[Tensor, "2 B"] | None = None
    risk: Float[Tensor, " n"] | None = None

    def record(self) -> dict[str, Any]:
        """Return all fields for JSON; numbers that are not finite become None."""
        ends = self.bin_intervals
        return {
            **{name: finite(getattr(self, name)) for name in _MAIN},
            **{name: finite(value) for name, value in self.scores.items()},
            "intervals_95": {name: [finite(i.low), finite(i.high)] for name, i in self.intervals.items()},
            "bins": {name: getattr(self.bins, name).tolist() for name in _BIN_SUMS},
            "bin_intervals_95": None if ends is None else [[finite(v) for v in row] for row in ends.tolist()],
            "risk_at_coverage": None if self.risk is None else [round(v, 6) for v in self.risk.tolist()],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Calibration":
        """Invert `record`. None becomes infinity for the NLL and ends of `intervals`, otherwise NaN."""
        main = {name: _or(record[name], math.inf if name == "nll" else math.nan) for name in _MAIN}
        scores = {name: _or(record[name], math.nan) for name in _SCORES if name in record}
        ends, risk = record.get("bin_intervals_95"), record.get("risk_at_coverage")
        rows = None if ends is None else [[_or(value, math.nan) for value in row] for row in ends]
        return cls(
            **main,
            bins=stored_bins(record["bins"]),
            scores=scores,
            intervals={
                name: Interval((scores | main)[name], _or(low, math.inf), _or(high, math.inf))
                for name, (low, high) in record.get("intervals_95", {}).items()
            },
            bin_intervals=None if rows is None else torch.tensor(rows, dtype=torch.float64),
            risk=None if risk is None else torch.tensor(risk, dtype=torch.float64),
        )


def calibration_of(predictions: Predictions) -> Calibration:
    """Compute all metrics of predictions, with bootstrap intervals from a fixed seed.

    Design note: each task is reduced to its sums once, and resampling is a matrix product, so 3,000 tasks with 75
    queries take about a second.
    """
    prob, y, weight = predictions.log_prob.exp(), predictions.y, (predictions.weight > 0).double()
    # from log-probabilities, because exp(-800) is zero
    nll = -predictions.log_prob.gather(-1, y[..., None])[..., 0]
    nll = torch.where(weight > 0, nll, 0.0).sum(-1)
    statistics = metrics.task_statistics(prob, y, weight=weight)._replace(nll=nll)
    intervals = metrics.bootstrap_intervals(statistics, _generator(), N_RESAMPLES, metrics=_BOOTSTRAPPED)
    bins = metrics.calibration_bins(prob, y, weight=weight)
    of_equal_mass = metrics.calibration_bins(prob, y, weight=weight, equal_mass=True)
    is_any_full = float(bins.counts.max()) >= MIN_COUNT
    return Calibration(
        **{name: intervals[name].value for name in _MAIN},
        bins=bins,
        scores={
            "accuracy": intervals["accuracy"].value,
            "adaptive_ece": float(metrics.expected_calibration_error(of_equal_mass)),
            "class_ece": float(metrics.class_calibration_error(metrics.class_calibration_bins(prob, y, weight=weight))),
            "debiased_ece": intervals["debiased_ece"].value,
            "aurc": float(metrics.aurc(prob, y, weight)),
            "excess_aurc": float(metrics.excess_aurc(prob, y, weight)),
            "correctness_auroc": float(metrics.correctness_auroc(prob, y, weight)),
            "mce_full_bins": float(metrics.maximum_calibration_error(bins, MIN_COUNT)) if is_any_full else math.nan,
        },
        intervals=intervals,
        bin_intervals=torch.stack(metrics.bootstrap_bins(statistics, _generator(), N_RESAMPLES)),
        risk=metrics.risk_coverage(prob, y, weight, _N_COVERAGES).risk,
    )


def stored_bins(sums: Mapping[str, Sequence[float]]) -> CalibrationBins:
    """Return the bins of equal width from the sums of a record."""
    stored = [torch.tensor(sums[name], dtype=torch.float64) for name in _BIN_SUMS]
    n_bins = len(stored[0])
    return CalibrationBins(torch.arange(n_bins + 1, dtype=torch.float64) / n_bins, *stored)


def finite(value: float) -> float | None:
    """Return the number, or None if it is not finite."""
    return value if math.isfinite(value) else None


def _or(value: float | None, missing: float) -> float:
    return missing if value is None else value


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)
