"""`FewShotClassifier`: Bayesian few-shot classification of embeddings with scikit-learn's interface."""

from mirrorshot.estimator.classifier import FewShotClassifier
from mirrorshot.estimator.decisions import Suspects, Uncertainty
from mirrorshot.estimator.explanations import Evidence
from mirrorshot.estimator.promises import Rejection

__all__ = ["Evidence", "FewShotClassifier", "Rejection", "Suspects", "Uncertainty"]
