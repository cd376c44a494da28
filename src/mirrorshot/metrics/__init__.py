"""Metrics of predicted class probabilities: how often they are right, and whether they mean what they say."""

from mirrorshot.metrics.functional import (
    CalibrationBins,
    accuracy,
    brier,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
    nll,
)

__all__ = [
    "accuracy", "nll", "brier",
    "CalibrationBins", "calibration_bins", "expected_calibration_error", "maximum_calibration_error",
]  # fmt: skip
