"""What probabilities are worth over the queries of all tasks, with intervals over tasks."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.evaluation.predictions import Predictions
from mirrorshot.metrics import (
    CalibrationBins,
    Interval,
    Summary,
    bootstrap_bins,
    bootstrap_intervals,
    maximum_calibration_error,
    risk_coverage,
    task_statistics,
)

N_RESAMPLES = 1000
MIN_COUNT = 100
"""Predictions that a bin needs to count in `mce_full_bins`."""

SCORES = ("accuracy", "adaptive_ece", "class_ece", "debiased_ece", "aurc", "excess_aurc", "correctness_auroc")
_BOOTSTRAPPED = ("accuracy", "nll", "brier", "ece", "mce", "debiased_ece")
_MAIN = ("nll", "brier", "ece", "mce")
_SEED = 20240721  # of the resamples
_N_COVERAGES = 100


class Calibration(NamedTuple):
    """What the probabilities are worth, over the queries of all tasks.

    Attributes:
        nll: negative log-likelihood, nats per query.
        brier: Brier score, 0 to 2.
        ece, mce: expected and maximum calibration error.
        bins: the 15 confidence bins, for a reliability diagram.
        scores: accuracy; ECE with bins of equal mass, class by class, and less its bias; MCE of bins with at least
            `MIN_COUNT` predictions (`mce_full_bins`, NaN without any); AURC and AUROC of correctness.
        intervals: 95 % intervals by the bootstrap over tasks, by name of the metric.
        bin_intervals: those of the accuracy in each bin, lower ends and upper ends; (2, B).
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
        """All of it for JSON; None for a number that is not finite."""
        numbers = {name: finite(getattr(self, name)) for name in _MAIN}
        ends = self.bin_intervals
        return {
            **numbers,
            **{name: finite(value) for name, value in self.scores.items()},
            "intervals_95": {name: [finite(i.low), finite(i.high)] for name, i in self.intervals.items()},
            "bins": {name: getattr(self.bins, name).tolist() for name in _BIN_SUMS},
            "bin_intervals_95": None if ends is None else [[finite(v) for v in row] for row in ends.tolist()],
            "risk_at_coverage": None if self.risk is None else [round(v, 6) for v in self.risk.tolist()],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Calibration":
        """What `record` was made of. A number that was not finite is infinity if it is the NLL, else NaN."""
        main = {name: _number(record[name]) for name in _MAIN}
        main["nll"] = math.inf if record["nll"] is None else main["nll"]
        scores = {name: _number(record[name]) for name in (*SCORES, "mce_full_bins") if name in record}
        sums = [torch.tensor(record["bins"][name], dtype=torch.float64) for name in _BIN_SUMS]
        edges = torch.arange(len(sums[0]) + 1, dtype=torch.float64) / len(sums[0])
        values = {**scores, **main}
        ends, risk = record.get("bin_intervals_95"), record.get("risk_at_coverage")
        rows = None if ends is None else [[_number(value) for value in row] for row in ends]
        return cls(
            nll=main["nll"],
            brier=main["brier"],
            ece=main["ece"],
            mce=main["mce"],
            bins=CalibrationBins(edges, *sums),
            scores=scores,
            intervals={
                name: Interval(values[name], _end(low), _end(high))
                for name, (low, high) in record.get("intervals_95", {}).items()
            },
            bin_intervals=None if rows is None else torch.tensor(rows, dtype=torch.float64),
            risk=None if risk is None else torch.tensor(risk, dtype=torch.float64),
        )


_BIN_SUMS = ("counts", "confidence_sum", "correct_sum")


def calibration_of(predictions: Predictions) -> Calibration:
    """All metrics of predictions, and their intervals under another draw of tasks; the same for the same predictions.

    Design note: each task is reduced to its sums once, and the resamples are a product of matrices, so 3,000 tasks with
    75 queries take about a second.
    """
    prob = predictions.log_prob.exp()
    weight = (predictions.weight > 0).double()
    # from the logarithms: the exponential of -800 is zero
    nll = -predictions.log_prob.gather(-1, predictions.y[..., None])[..., 0]
    nll = torch.where(weight > 0, nll, 0.0).sum(-1)
    statistics = task_statistics(prob, predictions.y, weight=weight)._replace(nll=nll)
    intervals = bootstrap_intervals(statistics, _generator(), N_RESAMPLES, metrics=_BOOTSTRAPPED)
    bin_intervals = torch.stack(bootstrap_bins(statistics, _generator(), N_RESAMPLES))
    summary = Summary()
    summary.update(prob, predictions.y, weight)
    found = summary.compute()
    assert summary.bins is not None
    scores = {name: found[name] for name in SCORES}
    enough = float(summary.bins.counts.max()) >= MIN_COUNT
    scores["mce_full_bins"] = float(maximum_calibration_error(summary.bins, MIN_COUNT)) if enough else math.nan
    return Calibration(
        nll=float(nll.sum() / weight.sum()),
        brier=found["brier"],
        ece=found["ece"],
        mce=found["mce"],
        bins=summary.bins,
        scores=scores,
        intervals=intervals,
        bin_intervals=bin_intervals,
        risk=risk_coverage(prob, predictions.y, weight, _N_COVERAGES).risk,
    )


def finite(value: float) -> float | None:
    """The number, or None where JSON has none."""
    return value if math.isfinite(value) else None


def _end(value: float | None) -> float:
    return math.inf if value is None else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)
