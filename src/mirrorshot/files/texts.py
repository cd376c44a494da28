"""Text of strangers: names of classes, and what may go to a terminal or into a table."""

import unicodedata
from collections.abc import Iterable

from mirrorshot.types import InvalidInputError

MAX_CLASS_NAME = 1000
_JOINERS = "\u200c\u200d"  # ZWNJ, as in Persian, and ZWJ, as in emoji of several people
_JOINED = ("L", "M", "S")  # categories of what they join: letters, marks, symbols
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str, *, keep: str = "\n\t") -> str:
    r"""Text that a terminal only shows: control characters and those that turn the direction are written as escapes.

    Args:
        text: any text.
        keep: control characters that stay.

    Example:
        >>> harmless("\x1b[2Jowl\u202e")
        '\\x1b[2Jowl\\u202e'
    """
    plain = text.encode("utf-8", "replace").decode("utf-8")
    if plain.isprintable():
        return plain
    return "".join(c if _is_shown(c) or c in keep else repr(c)[1:-1] for c in plain)


def _is_shown(character: str) -> bool:
    """Whether a character is one to see, a joiner or any kind of space."""
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def csv_cell(text: str) -> str:
    """Text for a cell of a CSV file: a quote before what a spreadsheet would take for a formula.

    Example:
        >>> csv_cell("=1+1"), csv_cell("owl")
        ("'=1+1", 'owl')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def checked_class_name(name: object, *, max_length: int = MAX_CLASS_NAME) -> str:
    r"""The name of a class: printable text without space around it, in Unicode's composed form (NFC).

    Joiners are allowed between characters that are not ASCII, where scripts and emoji need them.

    Raises:
        InvalidInputError: empty, too long, or with characters that cannot be seen.

    Example:
        >>> checked_class_name(" e\u0301tude ") == "\u00e9tude"
        True
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"Expected the name of a class to be text, but got {type(name).__name__}.")
    text = unicodedata.normalize("NFC", name.strip())
    is_visible = _without_joiners(text).isprintable()
    if not 1 <= len(text) <= max_length or not is_visible:
        raise InvalidInputError(
            f"Expected the name of a class to have 1 to {max_length} printable characters, but got {len(text)}"
            f"{'' if is_visible else f', some of which cannot be printed: {harmless(text[:60], keep=str())}'}."
        )
    return text


def checked_class_names(names: Iterable[object], known: Iterable[str] = ()) -> list[str]:
    """Names of classes, checked; two forms of one name are one class, in the form of `known` if that has it.

    Example:
        >>> checked_class_names(["owl ", "wren"], known=["owl"])
        ['owl', 'wren']
    """
    forms = {unicodedata.normalize("NFC", name.strip()): name for name in known}
    names = list(names)
    checked = {name: checked_class_name(name) for name in dict.fromkeys(names)}
    return [forms.get(checked[name], checked[name]) for name in names]


def _without_joiners(text: str) -> str:
    """The text without joiners that join something."""
    kept = [
        c
        for i, c in enumerate(text)
        if not (c in _JOINERS and _is_joined(text[i - 1 : i]) and _is_joined(text[i + 1 : i + 2]))
    ]
    return "".join(kept)


def _is_joined(character: str) -> bool:
    return bool(character) and not character.isascii() and unicodedata.category(character)[0] in _JOINED
