"""Encoders by name: from pictures or texts to the embeddings that `FewShotClassifier` takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, Kind, NoEncoder
from mirrorshot.encoders.characters import as_character, is_colour, look_like_characters
from mirrorshot.encoders.foreign import PACKAGES, Foreign, UserFunction, is_function_name
from mirrorshot.encoders.networks import Glyphs, RunNetwork, read_run
from mirrorshot.encoders.pixels import Pixels
from mirrorshot.types import InvalidInputError

__all__ = [
    "Encoder", "EncoderError", "Embeddings", "Item", "Kind", "ENCODERS", "Choice",
    "make_encoder", "restore_encoder", "choose_encoder", "as_character", "is_colour",
]  # fmt: skip

ENCODERS: dict[str, str] = {
    "auto": "glyphs or pixels, whichever the pictures look like; says which.",
    "glyphs": "Single characters, printed or written. Part of the package.",
    "pixels": "Small pictures as they are: scans, screens, a fixed camera.",
    "FOLDER": "The network of a run of `mirrorshot train`.",
    "timm:NAME": "A network of timm, for photographs.",
    "open_clip:NAME/WEIGHTS": "A network of open_clip, for photographs.",
    "transformers:NAME": "A vision network of transformers, for photographs.",
    "sentence-transformers:NAME": "For texts.",
    "module:function": "Your own function, from a list of pictures to an array (n, D).",
}
"""What a user may name, with a line about each."""


class Choice(NamedTuple):
    """An encoder that was chosen for the user, and why."""

    name: str
    reason: str


def make_encoder(name: str, *, download: bool = False) -> Encoder:
    """The encoder that a user names. `auto` has to be decided first, by `choose_encoder`.

    Args:
        name: one of `ENCODERS`. A function is imported, which runs its module.
        download: whether weights may be fetched.

    Raises:
        InvalidInputError: there is no such encoder.
        EncoderError: a package or weights are missing. The message says what to do.

    Example:
        >>> make_encoder("pixels").settings
        {'size': 24}
    """
    if name == "glyphs":
        return Glyphs()
    if name == "pixels":
        return Pixels()
    if name == "embeddings":
        return NoEncoder()
    if name.partition(":")[0] in PACKAGES and ":" in name:
        return Foreign(name, download=download)
    if name and Path(name).is_dir():
        return read_run(Path(name))
    if is_function_name(name):
        return UserFunction(name, trusted=True)
    raise InvalidInputError(f"Expected an encoder ({', '.join(ENCODERS)}), but got {name!r}. Check the spelling.")


def restore_encoder(
    name: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    trust_encoder: bool = False,
    download: bool = False,
) -> Encoder:
    """The encoder that a model file names. Code of others runs only with `trust_encoder`.

    Args:
        name: name of the encoder.
        settings: its settings.
        weights: its weights, if the file has them.
        trust_encoder: whether a function that the file names may be imported.
        download: whether weights may be fetched.
    """
    if name == "run":
        return RunNetwork(settings, weights)
    if is_function_name(name):
        return UserFunction(name, trusted=trust_encoder)
    if name.partition(":")[0] in PACKAGES and ":" in name:
        return Foreign(name, download=download)
    try:
        if name == "glyphs":
            return Glyphs(digest=settings["digest"])
        if name == "pixels":
            return Pixels(size=settings["size"])
    except KeyError as error:
        raise EncoderError(f"Expected the settings of encoder {name!r}, but {error} is missing.") from error
    if name == "embeddings":
        return NoEncoder()
    raise EncoderError(f"Expected the model to name an encoder ({', '.join(ENCODERS)}), but it has {name[:80]!r}.")


def choose_encoder(pictures: Sequence[Image.Image]) -> Choice:
    """What `auto` means for these pictures: `glyphs` for characters, `pixels` for everything else.

    Characters are pictures of which nine in ten are grey and show something on a plain ground: 40 % of the pixels, and
    60 % of those at the border, have the shade of the border.

    Example:
        >>> choose_encoder([Image.new("RGB", (20, 20), "red")]).name
        'pixels'
    """
    if look_like_characters(pictures):
        return Choice("glyphs", "the pictures are grey, on a plain ground, like characters")
    return Choice(
        "pixels",
        "the pictures do not look like characters. For photographs a network is much better, for instance "
        "--encoder timm:vit_small_patch14_dinov2.lvd142m --download",
    )
