"""What there is to choose from: the rows of `mirrorshot list`."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

_BACKBONES = {
    "conv4": "Four convolutions of 64 channels, for pictures of 84 x 84.",
    "conv4s": "The same for grey pictures of 28 x 28.",
    "conv4np": "Conv4 without some of its pooling: features are maps, for relation networks.",
    "conv4snp": "The same for grey pictures of 28 x 28.",
    "resnet10": "ResNet with one block in each of four stages; 512 features.",
    "resnet12": "ResNet of four blocks with three convolutions each; 640 features.",
    "resnet18": "ResNet with two blocks in each of four stages; 512 features.",
    "identity": "Nothing: the items are embeddings.",
}


def methods() -> list[Row]:
    """Methods with their papers and options."""
    from mirrorshot.methods import METHODS, method_options

    return [
        {
            "name": name,
            "what": _first_line(cls),
            "paper": _first_line(sys.modules[cls.__module__]),
            "options": method_options(name),
        }
        for name, cls in METHODS.items()
    ]


def data() -> list[Row]:
    """Data sets, and whether they are on this machine."""
    from mirrorshot.data.benchmarks import DATASETS

    return [
        {
            "name": name,
            "what": about.title,
            "classes": " / ".join(map(str, about.classes)),
            "here": _is_here(name),
        }
        for name, about in DATASETS.items()
    ]


def presets() -> list[Row]:
    """Presets."""
    from mirrorshot.training.presets import PRESETS

    return [{"name": name, "what": about} for name, about in PRESETS.items()]


def backbones() -> list[Row]:
    """Networks."""
    from mirrorshot.networks.backbones import BACKBONES

    return [{"name": name, "what": _BACKBONES.get(name, "")} for name in BACKBONES]


def kernels() -> list[Row]:
    """Kernels that are chosen by name, with how they start where nothing else is said."""
    from mirrorshot.gp.kernels import KERNELS
    from mirrorshot.methods.gp import KERNEL_OPTIONS

    return [
        {"name": name, "what": _first_line(KERNELS[name]), "options": {**_keywords(KERNELS[name]), **start}}
        for name, start in KERNEL_OPTIONS.items()
    ]


def _keywords(kernel: type) -> Row:
    """Arguments of a kernel with their defaults, but for the number of classes, which tasks have."""
    parameters = [
        p for cls in reversed(kernel.__mro__) if "__init__" in vars(cls)
        for p in inspect.signature(cls).parameters.values()
    ]  # fmt: skip
    own = inspect.signature(kernel).parameters
    is_open = any(p.kind is p.VAR_KEYWORD for p in own.values())
    return {
        p.name: p.default
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.name != "n_way" and (is_open or p.name in own)
    }


def encoders() -> list[Row]:
    """What turns pictures into embeddings."""
    from mirrorshot.encoders import ENCODERS

    return [{"name": name, "what": about} for name, about in ENCODERS.items()]


def settings() -> list[Row]:
    """Settings of a run with their defaults."""
    from mirrorshot.training.config import Config

    meaning = attribute_docs(Config)
    defaults = Config().to_dict()
    return [
        {"name": field.name, "default": defaults[field.name], "what": meaning.get(field.name, "")}
        for field in dataclasses.fields(Config)
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "methods": methods,
    "data": data,
    "presets": presets,
    "backbones": backbones,
    "kernels": kernels,
    "encoders": encoders,
    "settings": settings,
}


def attribute_docs(cls: type) -> dict[str, str]:
    """The lines under "Attributes:" in a docstring, by attribute. A line about several belongs to each of them.

    Example:
        >>> from mirrorshot.types import TaskBatch
        >>> attribute_docs(TaskBatch)["class_mask"]
        'which classes exist, (T, C).'
    """
    _, _, attributes = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    docs: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", attributes.partition("\n\n")[0]):
        names, _, text = entry.strip().partition(": ")
        docs |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
    return docs


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]


def _is_here(name: str) -> bool:
    """Whether all files of a data set are there, packed or as published; nothing is read."""
    from mirrorshot.data.loaders import check_present
    from mirrorshot.types import DataError

    try:
        check_present(name)
    except DataError:
        return False
    return True
