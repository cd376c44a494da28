"""Results of a model: predictions and explanations."""

import math
from typing import NamedTuple


class Prediction(NamedTuple):
    """Prediction for one item.

    Attributes:
        name: name of the item.
        label: most probable class.
        probability: probability of `label`.
        is_novel: whether the item looks like none of the classes.
        labels: set of classes that contains the right one with the wanted coverage; None: too few examples.
        novelty: degree to which the item looks like none of the classes, 0 to 1.
        epistemic: uncertainty in nats that more examples can remove.
        aleatoric: uncertainty in nats that they cannot remove, because the classes overlap.
        probabilities: probability of each class.
        novelty_threshold: novelty above which an item is none of the classes.
    """

    name: str
    label: str
    probability: float
    is_novel: bool
    labels: tuple[str, ...] | None
    novelty: float
    epistemic: float
    aleatoric: float
    probabilities: dict[str, float]
    novelty_threshold: float = 1.0

    @property
    def epistemic_share(self) -> float:
        """`epistemic` as a share of the largest possible uncertainty, that of a uniform distribution."""
        return self.epistemic / self._largest

    @property
    def aleatoric_share(self) -> float:
        """`aleatoric` as a share of the largest possible uncertainty."""
        return self.aleatoric / self._largest

    @property
    def _largest(self) -> float:
        return math.log(max(2, len(self.probabilities)))

    @property
    def note(self) -> str:
        """Explanation of a novel item or of an empty set of labels; otherwise empty."""
        if self.is_novel:
            return (
                f"unlike all examples: novelty {self.novelty:.3f}, above {self.novelty_threshold:.3f}; "
                f"{self.label} is only the nearest class, and its {self.probability:.0%} compares it with the others"
            )
        if self.labels == ():
            return f"no class is as plausible as it is for the examples; {self.label} is the nearest"
        return ""


class Reason(NamedTuple):
    """Contribution of one example to the latent of a class at an item; positive values support the class."""

    name: str
    label: str
    added: float


class Word(NamedTuple):
    """Change of the log-odds of a class by one word of a text; positive values support the class."""

    word: str
    added: float
