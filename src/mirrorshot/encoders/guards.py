"""Guards around packages that load models by name; names may come from untrusted files."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mirrorshot.encoders.base import EncoderError


def check_not_local(package: str, model: str) -> None:
    """Refuse a name that the package would read as a local file or folder, which may contain code."""
    name = model.partition("@")[0]
    places = {
        "open_clip": [name, name.partition("/")[2]],  # weights may be a file
        "sentence-transformers": [name, f"sentence-transformers/{name}"],  # its default owner
    }.get(package, [name])
    for place in filter(None, places):
        if os.path.lexists(place):
            raise EncoderError(
                f"Expected {package}:{model} to name a model of its hub, but {os.path.abspath(place)} exists and would "
                "be used instead. Move or rename it, or work in another folder. To use a model in a folder, load it in "
                "a function of your own (--encoder module:function)."
            )


def import_installed(name: str) -> None:
    """Import a package, but refuse one in the working folder, which may have come with the model."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is not None:
        folders = list(spec.submodule_search_locations or [])  # also of a package without an __init__.py
        places = folders or ([spec.origin] if spec.origin else [])
        if any(os.path.dirname(os.path.realpath(place)) == os.path.realpath(os.getcwd()) for place in places):
            raise EncoderError(
                f"Expected {name} to be an installed package, but got {places[0]} in the working folder. Work in "
                "another folder, or, if that is the one you mean, import it in your program first."
            )
    importlib.import_module(name)


@contextmanager
def without_pickled_code() -> Iterator[None]:
    """Force `torch.load` to read only weights within the block, whatever its arguments."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
