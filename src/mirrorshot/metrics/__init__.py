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
from mirrorshot.metrics.temperature import apply_temperature, fit_temperature

__all__ = [
    "accuracy", "nll", "brier",
    "CalibrationBins", "calibration_bins", "expected_calibration_error", "maximum_calibration_error",
    "fit_temperature", "apply_temperature",
]  # fmt: skip
