"""Decisions as pure functions of the Gaussian posterior; `FewShotClassifier` has them as methods.

Expectations come from quadrature, without random draws.
"""

from mirrorshot.classifier.decisions.acquisition import suggest
from mirrorshot.classifier.decisions.doubt import Uncertainty, novelty, uncertainty
from mirrorshot.classifier.decisions.examples import Effects, contributions, effects, kept_without, loo_latents
from mirrorshot.classifier.decisions.thresholds import (
    conformal_threshold,
    errors_tail,
    examples_needed,
    expected_risk_threshold,
    risk_threshold,
    scores_needed,
)

__all__ = [
    "Effects",
    "Uncertainty",
    "conformal_threshold",
    "contributions",
    "effects",
    "errors_tail",
    "examples_needed",
    "expected_risk_threshold",
    "kept_without",
    "loo_latents",
    "novelty",
    "risk_threshold",
    "scores_needed",
    "suggest",
    "uncertainty",
]
