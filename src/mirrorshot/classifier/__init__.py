"""`FewShotClassifier`: Bayesian few-shot classification of embeddings with scikit-learn's interface.

`Fitted` is an immutable value with everything that was learned; fitting, predicting, deciding, explaining and editing
are functions of it. `FewShotClassifier` is the scikit-learn surface over them.
"""

from mirrorshot.classifier.decide import Suspects, Uncertainty
from mirrorshot.classifier.estimator import FewShotClassifier
from mirrorshot.classifier.explain import Evidence
from mirrorshot.classifier.fitted import Fitted
from mirrorshot.classifier.promise import Rejection

__all__ = ["Evidence", "FewShotClassifier", "Fitted", "Rejection", "Suspects", "Uncertainty"]
