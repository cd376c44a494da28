"""What the store gives and takes: users, their pictures, and rows of embeddings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Session(NamedTuple):
    """A user.

    Attributes:
        key: what the database knows the session by; the session id cannot be found from it.
        version: number of changes so far.
        support: number of changes to labelled pictures; the classifier is the same as long as it is.
        encoder: identity of the encoder; None until the first picture.
        parameters: of the classifier.
    """

    key: str
    version: int
    support: int
    encoder: str | None
    parameters: dict[str, Any]


class Picture(NamedTuple):
    """A picture of a user; `class_id` is None for one that is not labelled."""

    id: int
    name: str
    class_id: int | None


class Contents(NamedTuple):
    """All that a user has, at one moment."""

    session: Session
    classes: dict[int, str]
    pictures: list[Picture]


class Rows(NamedTuple):
    """Embeddings of pictures, with their ids, names and classes.

    Attributes:
        support: of the session at that moment.
        ids: of the pictures.
        names: of the pictures.
        labels: names of their classes; empty text for unlabelled ones.
        embeddings: (n, D).
        previews: small JPEG files.
    """

    support: int
    ids: list[int]
    names: list[str]
    labels: list[str]
    embeddings: NDArray[Any]
    previews: list[bytes]

    def take(self, places: Sequence[int]) -> "Rows":
        """Some of the pictures, in the given order."""
        return Rows(
            self.support,
            [self.ids[place] for place in places],
            [self.names[place] for place in places],
            [self.labels[place] for place in places],
            self.embeddings[list(places)],
            [self.previews[place] for place in places],
        )


class New(NamedTuple):
    """A picture that is to be stored."""

    name: str
    embedding: NDArray[Any]
    preview: bytes
