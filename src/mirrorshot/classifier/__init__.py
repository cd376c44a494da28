"""`FewShotClassifier`: Bayesian few-shot classification of embeddings with scikit-learn's interface.

`Fitted` is an immutable value with everything that was learned. Fitting, predicting, deciding, explaining and editing
are functions of it. `FewShotClassifier` is their scikit-learn interface, `Learned` the one for plain arrays. Names are
imported on first use, because only `FewShotClassifier` needs scikit-learn, which takes as long to import as all others.
"""

from typing import TYPE_CHECKING

from mirrorshot.files.lazy import lazy_exports

if TYPE_CHECKING:
    from mirrorshot.classifier.decide import Suspects
    from mirrorshot.classifier.decisions import Uncertainty
    from mirrorshot.classifier.estimator import FewShotClassifier
    from mirrorshot.classifier.explain import Evidence
    from mirrorshot.classifier.fitted import Fitted
    from mirrorshot.classifier.learned import Learned
    from mirrorshot.classifier.promise import Rejection

__all__ = ["Evidence", "FewShotClassifier", "Fitted", "Learned", "Rejection", "Suspects", "Uncertainty"]

__getattr__ = lazy_exports(
    __name__,
    {
        "decide": "Suspects",
        "decisions": "Uncertainty",
        "estimator": "FewShotClassifier",
        "explain": "Evidence",
        "fitted": "Fitted",
        "learned": "Learned",
        "promise": "Rejection",
    },
)


def __dir__() -> list[str]:
    """Return the names for tab-completion, including those imported on first use."""
    return sorted({*globals(), *__all__})
