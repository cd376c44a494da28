"""Docstrings of this project, in the words that the reader of the API reference understands.

- "Example:" becomes "Examples:", the section whose content is code.
- One item for several names ("x, y: coordinates") becomes an item for each.
- An attribute whose type is not declared gets an empty one; it would have that of the item before.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

ITEM = re.compile(r"^    (?P<names>\w+(?:, \w+)*):(?P<text> .*\n(?:(?: {5,}.*)?\n)*)", flags=re.MULTILINE)
SECTION = re.compile(r"^(?P<title>Args|Attributes):\n(?P<items>(?:(?: {4,}.*)?\n)+)", flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Change all docstrings of a package, once it is loaded as a whole."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change them before they are parsed."""
        for item in objects(pkg):
            if item.docstring is not None:
                item.docstring.value = in_plain_words(item.docstring.value, item)


def objects(parent: griffe.Object) -> Iterator[griffe.Object]:
    """All objects of a package, each where it is defined."""
    yield parent
    for member in parent.members.values():
        if not isinstance(member, griffe.Alias):
            yield from objects(member)


def in_plain_words(text: str, owner: griffe.Object) -> str:
    """The docstring of an object, changed."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return SECTION.sub(lambda section: _section(section, owner), text + "\n").removesuffix("\n")


def _section(section: re.Match[str], owner: griffe.Object) -> str:
    def items(item: re.Match[str]) -> str:
        names = item["names"].split(", ")
        has_type = [section["title"] == "Args" or _is_declared(name, owner) for name in names]
        return "".join(
            f"    {name}{'' if known else ' ()'}:{item['text']}" for name, known in zip(names, has_type, strict=True)
        )

    return f"{section['title']}:\n{ITEM.sub(items, section['items'])}"


def _is_declared(name: str, owner: griffe.Object) -> bool:
    try:
        return getattr(owner[name], "annotation", None) is not None
    except KeyError:
        return False
