"""What a model says about an item, and why."""

from typing import NamedTuple


class Prediction(NamedTuple):
    """What a model says about one item.

    Attributes:
        name: of the item.
        label: most probable class.
        probability: its probability.
        is_novel: whether it looks like none of the classes.
        labels: classes that together hold the right one with the wanted coverage; None: too few examples to say.
        novelty: how much it looks like none of the classes, 0 to 1.
        epistemic: uncertainty in nats that more examples can remove.
        aleatoric: uncertainty in nats that they cannot: the classes overlap.
        probabilities: of all classes.
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


class Reason(NamedTuple):
    """What one example adds to the latent of a class at an item; positive speaks for the class."""

    name: str
    label: str
    added: float
