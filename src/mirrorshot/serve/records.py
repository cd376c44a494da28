"""Records of the database: users, images and embeddings."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Session(NamedTuple):
    """A user."""

    key: str  # hash of the session id
    version: int  # number of changes
    support: int  # number of changes that affect the classifier
    encoder: str | None  # identity; None until the first image
    parameters: dict[str, Any]  # of the classifier


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image of a user.

    Attributes:
        id: id of the image.
        name: name of the uploaded file.
        class_id: class whose example the image is; null if it is not an example.
        accepted_id: class that the user accepted as the answer; the classifier does not learn from it.
        is_none: whether the user marked the image as none of the classes.
    """

    id: int
    name: str
    class_id: int | None
    accepted_id: int | None = None
    is_none: bool = False


class Contents(NamedTuple):
    """All data of a user, except embeddings and previews."""

    session: Session
    classes: dict[int, str]
    pictures: list[Picture]


class Rows(NamedTuple):
    """Images of a user, with embeddings (n, D) and JPEG previews. The label of an unlabelled image is ""."""

    support: int
    encoder: str | None
    ids: list[int]
    names: list[str]
    labels: list[str]
    embeddings: NDArray[Any]
    previews: list[bytes]

    def take(self, places: Sequence[int]) -> "Rows":
        """Return the images at some indices, in that order."""
        return self._replace(
            ids=[self.ids[place] for place in places],
            names=[self.names[place] for place in places],
            labels=[self.labels[place] for place in places],
            embeddings=self.embeddings[list(places)],
            previews=[self.previews[place] for place in places],
        )


class New(NamedTuple):
    """An image to store: embedding, preview, and copy for other encoders (empty: none)."""

    name: str
    embedding: NDArray[Any]
    preview: bytes
    copy: bytes = b""


@dataclasses.dataclass(frozen=True)
class EncoderChange:
    """A change of the encoder that is in progress or failed.

    Attributes:
        encoder: the new encoder.
        n_done: number of images that it has encoded.
        n: number of all images.
        problem: why the change failed; null while it is in progress.
    """

    encoder: str
    n_done: int
    n: int
    problem: str | None
