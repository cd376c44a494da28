"""`mirrorshot list`: everything that can be chosen by name."""

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from mirrorshot.cli.completion import complete_topic
from mirrorshot.cli.options import AsJson, examples
from mirrorshot.cli.terminal import errors_as_messages, note, refuse, say_json

Row = dict[str, Any]

_NOTES = {
    "methods": "Options: mirrorshot train --set method_options.NAME=VALUE",
    "data": "Classes are those of training, validation and test. A data set is here if its files are in the folder "
    "MIRRORSHOT_DATA; glyphs are part of the package. Own data are given by their path.",
    "encoders": "mirrorshot fit SUPPORT --encoder NAME. Weights of other packages are fetched only with --download.",
    "kernels": "Options: mirrorshot train --set method_options.kernel=NAME "
    "--set method_options.kernel_options.OPTION=VALUE",
    "settings": "mirrorshot train --set NAME=VALUE, or a line NAME = VALUE in a TOML file for --config. Presets change "
    "some of the defaults.",
}
_BACKBONES = {
    "conv4": "Four convolutions of 64 channels, for images of 84 x 84.",
    "conv4s": "The same for grey images of 28 x 28.",
    "conv4np": "Conv4 without some of its pooling: features are maps, for relation networks.",
    "conv4snp": "The same for grey images of 28 x 28.",
    "resnet10": "ResNet with one block in each of four stages; 512 features.",
    "resnet12": "ResNet of four blocks with three convolutions each; 640 features.",
    "resnet18": "ResNet with two blocks in each of four stages; 512 features.",
    "identity": "No network: the items are embeddings.",
}


def methods() -> list[Row]:
    """Return the methods with their papers and options."""
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
    """Return the data sets, and whether they are on this machine."""
    from mirrorshot.data.benchmarks import DATASETS

    return [
        {"name": name, "what": about.title, "classes": " / ".join(map(str, about.classes)), "here": _is_here(name)}
        for name, about in DATASETS.items()
    ]


def _is_here(name: str) -> bool:
    """Return whether all files of a data set are present, packed or as published, without reading them."""
    from mirrorshot.data.loaders import check_present
    from mirrorshot.types import DataError

    try:
        check_present(name)
    except DataError:
        return False
    return True


def presets() -> list[Row]:
    """Return the presets."""
    from mirrorshot.training.presets import PRESETS

    return _described(PRESETS)


def backbones() -> list[Row]:
    """Return the backbones."""
    from mirrorshot.networks.backbones import BACKBONES

    return _described({name: _BACKBONES.get(name, "") for name in BACKBONES})


def _described(about: Mapping[str, str]) -> list[Row]:
    return [{"name": name, "what": what} for name, what in about.items()]


def kernels() -> list[Row]:
    """Return the kernels with their options; defaults are those of the methods."""
    from mirrorshot.gp.kernels import FAMILIES
    from mirrorshot.methods.gp import KERNEL_OPTIONS

    return [
        {"name": name, "what": _first_line(FAMILIES[name]), "options": {**_keywords(FAMILIES[name]), **start}}
        for name, start in KERNEL_OPTIONS.items()
    ]


def _keywords(kernel: type) -> Row:
    """Return the keyword arguments of a kernel with their defaults, without `n_way`."""
    classes = [cls for cls in reversed(kernel.__mro__) if "__init__" in vars(cls)]
    parameters = [p for cls in classes for p in inspect.signature(cls).parameters.values()]
    own = inspect.signature(kernel).parameters
    is_open = any(p.kind is p.VAR_KEYWORD for p in own.values())
    return {
        p.name: p.default
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.name != "n_way" and (is_open or p.name in own)
    }


def encoders() -> list[Row]:
    """Return the encoders of images and texts."""
    from mirrorshot.encoders import ENCODERS

    return _described(ENCODERS)


def settings() -> list[Row]:
    """Return the settings of a run with their defaults."""
    from mirrorshot.training.config import Config

    meaning = attribute_docs(Config)
    return [
        {"name": name, "default": default, "what": meaning.get(name, "")}
        for name, default in Config().to_dict().items()
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {
    rows.__name__: rows for rows in (methods, data, presets, backbones, kernels, encoders, settings)
}


@examples(
    {
        "mirrorshot list methods": "Their papers, and their options for --set method_options.NAME=VALUE.",
        "mirrorshot list data": "Which of them are on this machine, in the folder MIRRORSHOT_DATA.",
        "mirrorshot list settings --json": "All settings with their defaults, for a program.",
    }
)
def list_names(
    topic: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(LISTS)}.", metavar="TOPIC", show_default="all of them", autocompletion=complete_topic
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List methods, data sets, presets, backbones, kernels, encoders and settings, with a line about each."""
    if topic is not None and topic not in LISTS:
        refuse(f"Expected TOPIC to be one of {', '.join(LISTS)}, but got {topic!r}.")
    listed, missing = {}, {}
    with errors_as_messages():
        for name in [topic] if topic else LISTS:
            try:
                listed[name] = LISTS[name]()
            except ImportError as error:  # a missing extra; the other lists are still shown
                if topic:
                    raise
                missing[name] = error
    if as_json:
        say_json(listed)
    else:
        _print(listed)
    if missing:
        note(f"Not listed: {', '.join(missing)}. They need torch: pip install 'mirrorshot[train]'")


def _print(listed: dict[str, list[Row]]) -> None:
    from mirrorshot.cli.tables import print_rows, print_text

    for title, rows in listed.items():
        print_rows(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows], title=title)
        if title in _NOTES:
            print_text(_NOTES[title], "dim")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name} = {_written(option)}" for name, option in value.items()) or "none"
    return _written(value)


def _written(value: Any) -> str:
    """Format a value as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the texts under "Attributes:" in a docstring, by attribute; `a, b: text` describes both.

    Example:
        >>> from mirrorshot.types import TaskBatch
        >>> attribute_docs(TaskBatch)["class_mask"]
        'which classes exist.'
    """
    _, _, attributes = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    docs: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", attributes.partition("\n\n")[0]):
        names, _, text = entry.strip().partition(": ")
        docs |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
    return docs


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]
