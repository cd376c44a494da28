"""JSON bodies of requests and answers."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mirrorshot.files.texts import checked_class_name
from mirrorshot.serve.records import EncoderChange, Picture
from mirrorshot.types import InvalidInputError

MAX_LABEL = 60
NONE = "none of these"  # label of images of none of the classes
MAX_CHANGES = 700  # default number of images that a user may have
_MAX_ID = 2**53 - 1  # largest integer that every JSON reader represents exactly

Id = Annotated[int, Field(ge=1, le=_MAX_ID, strict=True)]
Verdict = Literal["sure", "unsure", "none"]


def is_none(label: object) -> bool:
    """Return whether a label, in upper or lower case, means none of the classes."""
    return isinstance(label, str) and label.strip().casefold() == NONE


def checked_label(name: object) -> str:
    """Return the name of a class as printable text without surrounding space."""
    return checked_class_name(name, max_length=MAX_LABEL)


def _checked_new_label(name: object) -> str:
    if is_none(name):
        raise InvalidInputError(f"Expected another name, because {NONE!r} stands for images that no class fits.")
    return checked_label(name)


Label = Annotated[str, BeforeValidator(_checked_new_label), Field(min_length=1, max_length=MAX_LABEL)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Login(_Body):
    """The token of the server."""

    token: Annotated[str, Field(max_length=1000)]


class ClassName(_Body):
    """A name for a class."""

    name: Label


class Place(_Body):
    """The class of an image; null: unlabelled."""

    class_id: Id | None


class Change(_Body):
    """The new state of an image: an example (`class_id`), accepted as a class, none of the classes, or unlabelled."""

    picture_id: Id
    class_id: Id | None = None
    accepted_id: Id | None = None
    is_none: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> "Change":
        if (self.class_id is not None) + (self.accepted_id is not None) + self.is_none > 1:
            raise InvalidInputError("Expected at most one of `class_id`, `accepted_id` and `is_none`, but got several.")
        return self


class Changes(_Body):
    """Changes of images. Either all of them are made, or none."""

    changes: Annotated[list[Change], Field(min_length=1, max_length=MAX_CHANGES)]


class EncoderName(_Body):
    """An encoder of this server; or "auto" while there are no images: the first image then decides."""

    name: Annotated[str, Field(max_length=200)]


class Problem(BaseModel):
    """Why a request failed: what was expected, what was got, and what to do."""

    error: str


class Done(BaseModel):
    """The change is stored on the disk. `version` counts the changes of the user."""

    version: int


class Health(BaseModel):
    """State of the server: whether you need its token, and whether it knows your session cookie."""

    is_running: bool
    needs_token: bool
    has_session: bool


class NewSession(BaseModel):
    """A new user. The session id is a secret: send it as `Authorization: Bearer ID`, or let the cookie do so."""

    session: str


class NewClass(BaseModel):
    """The new class."""

    id: int
    name: str


class ClassInfo(NewClass):
    """A class, and the number of its examples."""

    n_examples: int


class NewPicture(BaseModel):
    """The image is stored, or (`is_new` is false) was stored before.

    `encoder` is the encoder of your images, `best` the one that suits this image best.
    """

    id: int
    name: str
    class_id: int | None
    is_new: bool
    encoder: str
    best: str


class Imported(BaseModel):
    """The number of images that got a label of each kind; the number of lines that fit no image, and some names."""

    version: int
    n_examples: int
    n_accepted: int
    n_none: int
    n_unmatched: int
    unmatched: list[str]


class Bounds(BaseModel):
    """Limits of a user."""

    upload_bytes: int
    pixels: int
    classes: int
    examples: int
    pool: int


class EncoderState(BaseModel):
    """Your encoder (null until the first image), those of this server, and a change that is in progress or failed."""

    encoder: str | None
    encoders: list[str]
    change: EncoderChange | None


class Overview(BaseModel):
    """All data of a user. `is_ready`: at least two classes have examples, so there are answers.

    `user` identifies the session and is not secret. `version` counts all changes, `support` those that change the
    classifier; answers name the `support` that they come from.
    """

    user: str
    version: int
    support: int
    is_ready: bool
    encoder: str | None
    encoders: list[str]
    encoder_change: EncoderChange | None
    classes: list[ClassInfo]
    pictures: list[Picture]
    limits: Bounds


class Share(BaseModel):
    """The probability of a class."""

    label: str
    probability: float


class Answer(BaseModel):
    """Answer of the classifier about an image.

    `verdict` is "none" for an image unlike all examples, "sure" if the probability is at least 0.8 and `labels` has one
    class (or is null: too few examples), and "unsure" otherwise.
    """

    verdict: Verdict
    label: str
    probability: float
    probabilities: list[Share]
    labels: list[str] | None
    novelty: float
    novelty_threshold: float
    epistemic: float
    aleatoric: float
    epistemic_share: float
    aleatoric_share: float
    note: str


class PictureAnswer(Answer):
    """Answer of the classifier about a stored image."""

    picture_id: int


class Suspect(BaseModel):
    """An example whose label the other examples contradict: the label, its probability, and the suggested one."""

    picture_id: int
    label: str
    probability: float
    suggested: str


class Answers(BaseModel):
    """Answers about all unlabelled images, the image to label next, and examples whose label may be wrong."""

    support: int
    answers: list[PictureAnswer]
    suggestion: int | None
    suspects: list[Suspect]


class Bin(BaseModel):
    """The `n` predictions with a confidence between `low` and `high`: mean confidence and accuracy."""

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None


class Checked(BaseModel):
    """An example, predicted from the others: the highest probability, and whether its class is right."""

    picture_id: int
    probability: float
    is_right: bool


class Calibration(BaseModel):
    """Calibration of the probabilities, when each example is predicted from the others.

    Examples that are the only one of their class are left out. `ece` is the expected calibration error.
    """

    support: int
    n: int
    accuracy: float | None
    confidence: float | None
    ece: float | None
    bins: list[Bin]
    examples: list[Checked]
