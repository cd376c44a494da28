"""Bayesian few-shot classification with probabilities that mean what they say."""

TYPE_CHECKING = False  # not imported: under `python -m mirrorshot` the working folder is still on sys.path here
if TYPE_CHECKING:
    from typing import Any

    from mirrorshot.classifier import FewShotClassifier

__version__ = "0.1.0"
__all__ = ["FewShotClassifier", "__version__"]


def __getattr__(name: str) -> "Any":
    """Import the estimator on first use, so that `import mirrorshot` imports neither torch nor scikit-learn."""
    if name == "FewShotClassifier":
        from mirrorshot.classifier import FewShotClassifier

        return FewShotClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names for tab-completion, including those imported on first use."""
    return sorted({*globals(), *__all__})
