"""Encoders of other packages, by name, and functions of the user.

The packages are imported on first use and are not dependencies. Weights are downloaded only with `download`; without it
the hubs are in offline mode, and missing weights are an error.

A name may come from an untrusted model file. So it must not be a local file or folder, code from the hub is not run,
pickled weights are read without running their code, and the package is not imported from the working folder.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, Kind, checked_embeddings
from mirrorshot.encoders.guards import check_not_local, import_installed, without_pickled_code
from mirrorshot.types import InvalidInputError, MirrorshotError

Encode = Callable[[list[Any]], Any]
PACKAGES = {
    "timm": "timm",
    "open_clip": "open_clip_torch",
    "transformers": "transformers",
    "sentence-transformers": "sentence-transformers",
}
"""Prefixes of names, and the packages for pip."""

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[\w.\-]+)*(@[\w.\-]+)?")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_AT_ONCE = 32
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class Foreign(Encoder):
    """A pre-trained model of another package.

    Args:
        name: for instance "timm:vit_small_patch14_dinov2.lvd142m"; "open_clip:ViT-B-32/laion2b_s34b_b79k";
            "transformers:facebook/dinov2-small"; "sentence-transformers:all-MiniLM-L6-v2" (for texts).
        download: whether weights may be downloaded; otherwise they have to be on this machine.
    """

    def __init__(self, name: str, *, download: bool = False) -> None:
        package, _, model = name.partition(":")
        if package not in PACKAGES or not _NAME.fullmatch(model) or ".." in model:
            raise InvalidInputError(
                f"Expected the name of an encoder such as timm:NAME, but got {name!r}. Packages are: "
                f"{', '.join(PACKAGES)}."
            )
        self.name, self.settings = name, {}
        self.kind: Kind = "text" if package == "sentence-transformers" else "picture"
        self._encode = _load(package, model, download)

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return the embeddings of images, converted to RGB, or of texts."""
        ready = [item if isinstance(item, str) else item.convert("RGB") for item in items]
        parts = [self._encode(ready[i : i + _AT_ONCE]).float().numpy() for i in range(0, len(ready), _AT_ONCE)]
        return checked_embeddings(np.concatenate(parts), len(items), self.name)


class UserFunction(Encoder):
    """A function of the user, `module:function`.

    Its argument is a list of Pillow images (grey "L" or colour "RGB", of any size), or of texts. It returns an array or
    tensor (n, D) of numbers, in which the row of an image does not depend on the other images. The module is installed
    or in the working folder. It is imported, which runs its code, only if it is `trusted`.
    """

    def __init__(self, name: str, *, trusted: bool) -> None:
        if not trusted:
            raise EncoderError(
                f"Expected permission to run the encoder {name!r}, which the model file names: to use it its module is "
                "imported, which runs whatever code is in there. If you trust file and module, pass --trust-encoder "
                "(trust_encoder=True in Python)."
            )
        self.name, self.settings = name, {}
        self._function = _import(name)

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return the checked embeddings of the function."""
        try:
            found = self._function(list(items))
        except MirrorshotError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise EncoderError(
                f"Expected {self.name} to return embeddings, but it raised {type(error).__name__}: {error}."
            ) from error
        return checked_embeddings(found, len(items), self.name)


def is_function_name(name: str) -> bool:
    """Return whether a name is that of a user's function.

    Example:
        >>> is_function_name("my.module:encode"), is_function_name("timm:resnet18")
        (True, False)
    """
    return bool(_FUNCTION.fullmatch(name)) and not is_foreign_name(name)


def is_foreign_name(name: str) -> bool:
    """Return whether a name is that of a model of another package."""
    package, colon, _ = name.partition(":")
    return bool(colon) and package in PACKAGES


def _import(name: str) -> Encode:
    module_name, _, function_name = name.partition(":")
    try:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.partition(".")[0]:
                raise
            sys.path.append(os.getcwd())
            module = importlib.import_module(module_name)
    except Exception as error:  # the module may raise anything
        raise EncoderError(
            f"Expected to import {module_name!r} for the encoder {name!r}, but got {type(error).__name__}: {error}. "
            "Check the name, and that the module is installed or in the working folder."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise EncoderError(f"Expected {module_name!r} to have a function {function_name!r}, but it has none.")
    return function


def _load(package: str, model: str, download: bool) -> Encode:
    if not download:
        os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    check_not_local(package, model)
    try:
        for name in ("torch", package.replace("-", "_")):
            import_installed(name)
    except ImportError as error:
        raise EncoderError(
            f"Expected the package {package} for the encoder {package}:{model}, but it cannot be imported ({error}). "
            f"Install it: pip install {PACKAGES[package]}"
        ) from error
    try:
        with without_pickled_code():
            return _LOADERS[package](model, download)
    except Exception as error:  # hubs and packages have their own errors
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise EncoderError(
            f"Expected to load {package}:{model}, but got {reason}. {_hint(error, package, download)}"
        ) from error


def _hint(error: Exception, package: str, download: bool) -> str:
    if isinstance(error, TypeError):
        return f"If the package is an old one, update it: pip install -U {PACKAGES[package]}"
    if download:
        return "Check the name and the connection."
    return "If its weights are not on this machine yet, allow to fetch them: --download (in Python download=True)"


def _without_gradients(encode: Callable[[Any, list[Any]], Any]) -> Encode:
    """Bind the first argument to torch and disable gradients."""
    import torch

    return torch.no_grad()(lambda items: encode(torch, items))


def _timm(model: str, download: bool) -> Encode:
    timm = importlib.import_module("timm")
    network = timm.create_model(model, pretrained=True, num_classes=0).eval()
    options = timm.data.resolve_model_data_config(network)
    transform = timm.data.create_transform(**options, is_training=False)
    return _without_gradients(lambda torch, items: network(torch.stack([transform(item) for item in items])).flatten(1))


def _open_clip(model: str, download: bool) -> Encode:
    open_clip = importlib.import_module("open_clip")
    architecture, _, weights = model.partition("/")
    network, _, transform = open_clip.create_model_and_transforms(architecture, pretrained=weights or None)
    network = network.eval()
    return _without_gradients(
        lambda torch, items: network.encode_image(torch.stack([transform(item) for item in items]))
    )


def _transformers(model: str, download: bool) -> Encode:
    transformers = importlib.import_module("transformers")
    name, _, revision = model.partition("@")
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": not download}
    options |= {"revision": revision} if revision else {}
    processor = transformers.AutoImageProcessor.from_pretrained(name, **options)
    network = transformers.AutoModel.from_pretrained(name, use_safetensors=True, **options).eval()

    def encode(torch: Any, items: list[Any]) -> Any:
        inputs = processor(images=items, return_tensors="pt")
        if hasattr(network, "get_image_features"):
            return torch.as_tensor(network.get_image_features(**inputs))
        found = network(**inputs)
        pooled = getattr(found, "pooler_output", None)
        return torch.as_tensor(found.last_hidden_state.mean(1) if pooled is None else pooled.flatten(1))

    return _without_gradients(encode)


def _sentence_transformers(model: str, download: bool) -> Encode:
    package = importlib.import_module("sentence_transformers")
    network = package.SentenceTransformer(
        model,
        device="cpu",
        trust_remote_code=False,
        local_files_only=not download,
        model_kwargs={"use_safetensors": True},
    )
    return lambda items: network.encode(items, convert_to_tensor=True).cpu()


_LOADERS: dict[str, Callable[[str, bool], Encode]] = {
    "timm": _timm,
    "open_clip": _open_clip,
    "transformers": _transformers,
    "sentence-transformers": _sentence_transformers,
}
