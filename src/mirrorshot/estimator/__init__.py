"""`FewShotClassifier`: Bayesian few-shot classification of embeddings with scikit-learn's interface."""

from mirrorshot.estimator.classifier import FewShotClassifier
from mirrorshot.estimator.decisions import Suspects, Uncertainty

__all__ = ["FewShotClassifier", "Suspects", "Uncertainty"]
