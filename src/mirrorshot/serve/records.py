"""Records of the store: users, their images, and embeddings."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Session(NamedTuple):
    """A user."""

    key: str  # name of the session in the database; the session id cannot be found from it
    version: int  # number of changes so far
    support: int  # number of changes to labelled images; the classifier changes with it
    encoder: str | None  # identity of the encoder; None until the first image
    parameters: dict[str, Any]  # of the classifier


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image of a user.

    Attributes:
        id: of the image.
        name: as it was uploaded.
        class_id: the class that it is an example of; null if it is not an example.
        accepted_id: the class that the user has accepted for it; the classifier does not learn from it.
        is_none: whether the user says that it is none of the classes.
    """

    id: int
    name: str
    class_id: int | None
    accepted_id: int | None = None
    is_none: bool = False


class Contents(NamedTuple):
    """Everything that a user has, at one moment."""

    session: Session
    classes: dict[int, str]
    pictures: list[Picture]


class Rows(NamedTuple):
    """Images of a user, with embeddings (n, D). The label of an unlabelled image is "", previews are JPEG files."""

    support: int
    encoder: str | None
    ids: list[int]
    names: list[str]
    labels: list[str]
    embeddings: NDArray[Any]
    previews: list[bytes]

    def take(self, places: Sequence[int]) -> "Rows":
        """Some of the images, in the given order."""
        return self._replace(
            ids=[self.ids[place] for place in places],
            names=[self.names[place] for place in places],
            labels=[self.labels[place] for place in places],
            embeddings=self.embeddings[list(places)],
            previews=[self.previews[place] for place in places],
        )


class New(NamedTuple):
    """An image to store: with a preview, and with a copy that other encoders can take (empty: none)."""

    name: str
    embedding: NDArray[Any]
    preview: bytes
    copy: bytes = b""


@dataclasses.dataclass(frozen=True)
class EncoderChange:
    """A change of the encoder in progress.

    Attributes:
        encoder: the new one.
        n_done: number of images that are encoded anew.
        n: number of all images.
        problem: why the change has failed; null while it is in progress.
    """

    encoder: str
    n_done: int
    n: int
    problem: str | None
