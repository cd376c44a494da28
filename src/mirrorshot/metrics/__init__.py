"""Metrics of predicted class probabilities: accuracy, calibration, ranking by confidence, temperatures.

`prob` (..., M, C) are class probabilities, `y` (..., M) labels 0 .. C - 1, and `weight` (..., M) counts each query. A
weight of zero is padding with arbitrary values; None counts each query once. `accuracy`, `nll` and `brier` return one
number per task. The other metrics pool the queries of all tasks, because one task is too small to measure calibration.
"""

from mirrorshot.metrics.bins import CalibrationBins, calibration_bins, class_calibration_bins, wilson_interval
from mirrorshot.metrics.bootstrap import (
    Interval,
    TaskStatistics,
    bootstrap_bins,
    bootstrap_intervals,
    task_statistics,
)
from mirrorshot.metrics.calibration_errors import (
    BrierDecomposition,
    brier_decomposition,
    class_calibration_error,
    debiased_calibration_error,
    debiased_squared_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from mirrorshot.metrics.ranking import RiskCoverage, aurc, auroc, correctness_auroc, excess_aurc, risk_coverage
from mirrorshot.metrics.scores import accuracy, brier, nll
from mirrorshot.metrics.temperature import apply_temperature, fit_temperature
from mirrorshot.metrics.two_temperatures import (
    PAPER_GRID,
    GridErrors,
    TemperaturePair,
    TwoTemperatures,
    minimise_over_temperature,
    search_two_temperatures,
    temperature_errors,
)

__all__ = [
    "accuracy", "nll", "brier",
    "CalibrationBins", "calibration_bins", "class_calibration_bins", "wilson_interval",
    "expected_calibration_error", "maximum_calibration_error", "class_calibration_error",
    "debiased_calibration_error", "debiased_squared_error", "BrierDecomposition", "brier_decomposition",
    "auroc", "correctness_auroc", "aurc", "excess_aurc", "RiskCoverage", "risk_coverage",
    "Interval", "TaskStatistics", "task_statistics", "bootstrap_intervals", "bootstrap_bins",
    "fit_temperature", "apply_temperature",
    "PAPER_GRID", "TemperaturePair", "TwoTemperatures", "GridErrors", "search_two_temperatures", "temperature_errors",
    "minimise_over_temperature",
]  # fmt: skip
