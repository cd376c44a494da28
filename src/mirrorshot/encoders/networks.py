"""Encoders that are networks of this package: of a trained run, and the packaged one for characters."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mirrorshot.data.augment import Preprocess
from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, checked_embeddings, unit
from mirrorshot.encoders.characters import as_character
from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.files.sealed import load_sealed
from mirrorshot.gp.threads import one_thread
from mirrorshot.networks.backbones import BACKBONES, Backbone, make_backbone
from mirrorshot.training.folder import read_config
from mirrorshot.types import InvalidInputError

GLYPHS_FILE = Path(__file__).parent / "glyphs.safetensors"
GLYPHS_KIND, GLYPHS_VERSION = "encoder", 1
_AT_ONCE = 64  # images in a batch of a network
_MAX_SIDE, _LARGEST_MEAN, _SMALLEST_STD = 512, 1e3, 1e-6


class RunNetwork(Encoder):
    """The network of a run of `mirrorshot train`. Its weights go into the files of models that use it.

    Args:
        settings: from `read_run`, or from a model file.
        weights: by name.
    """

    def __init__(self, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        _check_settings(settings)
        self.name, self.settings = "run", dict(settings)
        self._network = _build(settings, weights)
        self._weights = dict(weights)
        size, mean, std = settings["image_size"], settings["mean"], settings["std"]
        self._preprocess = Preprocess(int(size), tuple(map(float, mean)), tuple(map(float, std)))

    def tensors(self) -> Mapping[str, Tensor]:
        """The weights."""
        return self._weights

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Features of images, (n, D)."""
        stored = torch.from_numpy(np.stack([_stored(item, self.settings) for item in items]))
        return checked_embeddings(_features(self._network, self._preprocess(stored)), len(items), self.name)


def read_run(folder: Path) -> RunNetwork:
    """Return the network of a run, with the weights that were best on its validation tasks.

    Raises:
        RunError: there is no run.
        EncoderError: the run has no network for images.
    """
    from mirrorshot.training.build import backbone_name
    from mirrorshot.training.runs import load_run, stand_in

    config = read_config(folder)
    dataset = stand_in(str(config.get("data", "")), load_checkpoint(Path(folder) / "best.safetensors"))
    if dataset.image_size == 0:
        raise EncoderError(
            f"Expected the run in {folder} to have a network for images, but it was trained on embeddings. Use "
            "another encoder, or fit on embeddings."
        )
    run = load_run(Path(folder), dataset)
    backbone = run.method.backbone
    if len(backbone.out_shape) > 1:
        raise EncoderError(
            f"Expected the network in {folder} to give one vector for an image, but it gives maps of shape "
            f"{tuple(backbone.out_shape)}. Train another method."
        )
    settings = {
        "backbone": backbone_name(run.config, dataset),
        "image_size": dataset.image_size,
        "channels": dataset.channels,
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "average_flips": run.config.average_flips,
        "trained_on": run.config.data,
    }
    return RunNetwork(settings, {name: tensor.clone() for name, tensor in backbone.state_dict().items()})


class Glyphs(Encoder):
    """For characters, printed or written: features of a packaged network, and the blurred image beside them.

    An image is brought to the form of the glyphs first (`as_character`): any size, dark on light or light on dark.

    Design note: features of the network and the blurred image are centred, scaled to length one and concatenated. The
    network was trained on the glyphs and knows which strokes matter, the image keeps details that training never
    showed; together they are better than either on characters unlike the glyphs (`benchmarks/glyph_encoder.py`).

    Args:
        digest: of the weights that a model was made with; others are refused. None: no check.

    Example:
        >>> Glyphs().encode([Image.new("L", (40, 30), 255)]).shape
        (1, 260)
    """

    def __init__(self, digest: str | None = None) -> None:
        own = hashlib.sha256(GLYPHS_FILE.read_bytes()).hexdigest()[:16]
        if digest not in (None, own):
            raise EncoderError(
                f"Expected the weights {digest!r} of encoder 'glyphs', with which the model was made, but this version "
                f"of mirrorshot has {own!r}. Fit the model again."
            )
        self.name, self.settings = "glyphs", {"digest": own}
        saved = load_sealed(GLYPHS_FILE, kind=GLYPHS_KIND, version=GLYPHS_VERSION)
        weights = {n[len("network.") :]: t for n, t in saved.tensors.items() if n.startswith("network.")}
        self._network = _build(saved.info["settings"], weights)
        self._centres = [saved.tensors[f"centre.{part}"].numpy() for part in ("network", "blurred")]

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Embeddings of images, (n, 260)."""
        images = [as_character(item) for item in items if isinstance(item, Image.Image)]
        parts = glyph_parts(self._network, np.stack(images))
        centred = [unit(part - centre) for part, centre in zip(parts, self._centres, strict=True)]
        return np.concatenate(centred, axis=1, dtype=np.float32)


def glyph_parts(network: Backbone, images: NDArray[np.uint8]) -> tuple[Embeddings, Embeddings]:
    """Features of the network (n, 64) and blurred images (n, 196) of white ink on black, (n, 28, 28)."""
    x = torch.from_numpy(images)[:, None].float() / 255.0
    blurred = F.avg_pool2d(F.avg_pool2d(x, 5, 1, 2), 5, 2, 2).flatten(1).numpy()
    return _features(network, x), unit(blurred)


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a file that are not those of a network, before memory is allocated for one."""
    channels, size = settings.get("channels"), settings.get("image_size")
    names = [name for name in BACKBONES if name != "identity"]
    wrong = [
        *(["backbone"] if settings.get("backbone") not in names else []),
        *(["channels"] if type(channels) is not int or channels not in (1, 3) else []),
        *(["image_size"] if type(size) is not int or not 16 <= size <= _MAX_SIDE else []),
        *(name for name in ("mean", "std") if not _is_colour(settings.get(name), channels)),
        *(["average_flips"] if not isinstance(settings.get("average_flips", False), bool) else []),
    ]
    if wrong or min(settings["std"]) < _SMALLEST_STD:
        raise EncoderError(
            f"Expected the settings of a network, but got others for {', '.join(wrong) or 'std'}. Make the file again."
        )


def _is_colour(values: Any, channels: Any) -> bool:
    """Whether there is a number of moderate size for each channel."""
    is_list = isinstance(values, list) and len(values) == channels
    return is_list and all(type(value) in (int, float) and abs(value) <= _LARGEST_MEAN for value in values)


def _build(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Backbone:
    """Return a network in eval mode with given weights."""
    try:
        options: dict[str, Any] = {"generator": torch.Generator(), "in_channels": int(settings["channels"])}
        if str(settings["backbone"]).startswith("conv4"):
            options["image_size"] = int(settings["image_size"])
        network = make_backbone(settings["backbone"], **options)
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise ValueError("some weights are not finite")
        network.load_state_dict(dict(weights))
        network.average_flips = bool(settings.get("average_flips", False))
    except (KeyError, TypeError, ValueError, RuntimeError, InvalidInputError) as error:
        raise EncoderError(f"Expected the settings and weights of a network, but got others: {error}") from error
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.eval().requires_grad_(False)


@torch.no_grad()
def _features(network: Backbone, images: Tensor) -> NDArray[np.float32]:
    """Features (n, D); in eval mode those of an image do not depend on the others."""
    with one_thread(is_small=len(images) <= _AT_ONCE):
        parts = [network(part[None])[0].float() for part in images.split(_AT_ONCE)]
    return np.asarray(torch.cat(parts).numpy())


def _stored(item: Item, settings: Mapping[str, Any]) -> NDArray[np.uint8]:
    """An image in the form of the run's data: characters as white ink on black, photographs resized to a square."""
    assert isinstance(item, Image.Image)
    if settings["channels"] == 1:
        return as_character(item)[None]
    side = int(1.15 * int(settings["image_size"]))
    return np.asarray(item.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
