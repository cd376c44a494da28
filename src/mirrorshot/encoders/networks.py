"""Encoders from the networks of training runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders.backbones import GRAPHS, new_graph
from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, checked_embeddings
from mirrorshot.encoders.characters import as_character
from mirrorshot.encoders.runtime import Network

_AT_ONCE = 64  # images in a batch
_MAX_SIDE, _LARGEST_MEAN, _SMALLEST_STD = 512, 1e3, 1e-6
_MARGIN = 1.15  # photographs are resized to this times the network's side and cropped to the centre


class RunNetwork(Encoder):
    """The network of a run of `mirrorshot train`. Model files contain its weights."""

    def __init__(self, settings: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        _check_settings(settings)
        self.name, self.settings = "run", dict(settings)
        self._weights = {name: np.asarray(array) for name, array in weights.items()}
        self._network = _build(settings, self._weights)

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return the weights."""
        return self._weights

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return features of images, (n, D)."""
        images = np.stack([_prepared(item, self.settings) for item in items])
        features = self._features(images)
        if self.settings.get("average_flips", False):
            features = np.float32(0.5) * (features + self._features(np.ascontiguousarray(images[..., ::-1])))
        return checked_embeddings(features, len(items), self.name)

    def _features(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        parts = [self._network({"x": images[i : i + _AT_ONCE]}) for i in range(0, len(images), _AT_ONCE)]
        return np.concatenate(parts)


def read_run(folder: Path) -> RunNetwork:
    """Return the network of a run, with the weights that were best in validation.

    Raises:
        RunError: the folder has no run.
        EncoderError: the run has no network that returns a vector for an image, or torch is not installed.
    """
    try:
        from mirrorshot.files.checkpoint import load_checkpoint
        from mirrorshot.training.build import backbone_name
        from mirrorshot.training.folder import read_config
        from mirrorshot.training.runs import load_run, stand_in
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise EncoderError(
            f"Expected torch for reading the run in {folder}, but it is not installed: pip install "
            "'mirrorshot[train]'. A model that was fitted with a run needs no torch."
        ) from error

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
        "even_light": True,
    }
    return RunNetwork(settings, {name: tensor.cpu().numpy() for name, tensor in backbone.state_dict().items()})


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse invalid settings of a file before memory is allocated."""
    channels, size = settings.get("channels"), settings.get("image_size")
    wrong = [
        *(["backbone"] if settings.get("backbone") not in list(GRAPHS) else []),
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
    is_list = isinstance(values, list) and len(values) == channels
    return is_list and all(type(value) in (int, float) and abs(value) <= _LARGEST_MEAN for value in values)


def _build(settings: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> Network:
    channels, size = settings["channels"], settings["image_size"]
    try:
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise ValueError("some weights are not finite")
        graph = new_graph(channels, size)
        network = Network(graph.encoded(GRAPHS[settings["backbone"]](graph, "x", weights)), "run")
        network({"x": np.zeros((1, channels, size, size), np.float32)})
    except (KeyError, TypeError, ValueError, IndexError, EncoderError) as error:
        raise EncoderError(f"Expected the settings and weights of a network, but got others: {error}") from error
    return network


def _prepared(item: Item, settings: Mapping[str, Any]) -> NDArray[np.float32]:
    """Prepare an image like the run's data: characters as white ink on black, photographs resized; normalised."""
    assert isinstance(item, Image.Image)
    size = int(settings["image_size"])
    if settings["channels"] == 1:
        picture = Image.fromarray(as_character(item, even_light="even_light" in settings))
    else:
        picture = item.convert("RGB")
    if settings["channels"] == 3 or picture.size != (size, size):
        large = int(_MARGIN * size)
        start = round(0.5 * (large - size))
        picture = picture.resize((large, large), Image.Resampling.BILINEAR)
        picture = picture.crop((start, start, start + size, start + size))
    pixels = np.asarray(picture, dtype=np.float32).reshape(size, size, -1).transpose(2, 0, 1) / np.float32(255.0)
    mean, std = (np.array(settings[name], np.float32)[:, None, None] for name in ("mean", "std"))
    return (pixels - mean) / std
