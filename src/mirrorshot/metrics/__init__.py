"""Metrics of predicted class probabilities: how often they are right, and whether they mean what they say."""

from mirrorshot.metrics.bootstrap import (
    Interval,
    TaskStatistics,
    bootstrap_bins,
    bootstrap_intervals,
    bootstrap_mean,
    join_statistics,
    task_statistics,
)
from mirrorshot.metrics.calibration import (
    BrierDecomposition,
    adaptive_calibration_bins,
    brier_decomposition,
    class_calibration_bins,
    class_calibration_error,
    debiased_calibration_error,
    debiased_squared_error,
)
from mirrorshot.metrics.functional import (
    CalibrationBins,
    accuracy,
    brier,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
    nll,
)
from mirrorshot.metrics.ranking import RiskCoverage, aurc, auroc, correctness_auroc, excess_aurc, risk_coverage
from mirrorshot.metrics.streaming import SeparationSummary, Summary
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
    "CalibrationBins", "calibration_bins", "expected_calibration_error", "maximum_calibration_error",
    "adaptive_calibration_bins", "class_calibration_bins", "class_calibration_error",
    "debiased_calibration_error", "debiased_squared_error", "BrierDecomposition", "brier_decomposition",
    "auroc", "correctness_auroc", "aurc", "excess_aurc", "RiskCoverage", "risk_coverage",
    "Interval", "TaskStatistics", "task_statistics", "join_statistics", "bootstrap_intervals", "bootstrap_mean",
    "bootstrap_bins",
    "Summary", "SeparationSummary",
    "fit_temperature", "apply_temperature",
    "PAPER_GRID", "TemperaturePair", "TwoTemperatures", "GridErrors", "search_two_temperatures", "temperature_errors",
    "minimise_over_temperature",
]  # fmt: skip
