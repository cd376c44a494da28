"""Bayesian few-shot classification with probabilities that mean what they say."""

TYPE_CHECKING = False  # not imported: `python -m mirrorshot` gets here with the working folder still on its path
if TYPE_CHECKING:
    from typing import Any

    from mirrorshot.classifier import FewShotClassifier

__version__ = "0.1.0"
__all__ = ["FewShotClassifier", "__version__"]


def __getattr__(name: str) -> "Any":
    """Import the estimator on first use: `import mirrorshot` alone stays free of torch and scikit-learn."""
    if name == "FewShotClassifier":
        from mirrorshot.classifier import FewShotClassifier

        return FewShotClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names for tab-completion, the lazily imported ones included."""
    return sorted({*globals(), *__all__})
