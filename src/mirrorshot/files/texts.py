"""Text of unknown origin: names of classes, and text for terminals and tables."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from mirrorshot.types import InvalidInputError

MAX_CLASS_NAME = 1000
_JOINERS = "\u200c\u200d"  # ZWNJ, as in Persian, and ZWJ, as in emoji of several people
_JOINED = ("L", "M", "S")  # categories of characters that may be joined: letters, marks, symbols
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def harmless(text: str, *, keep: str = "\n\t") -> str:
    r"""Escape control characters, except those in `keep`, and characters that change the text direction.

    Example:
        >>> harmless("\x1b[2Jowl\u202e")
        '\\x1b[2Jowl\\u202e'
    """
    plain = text.encode("utf-8", "replace").decode("utf-8")
    if plain.isprintable():
        return plain
    return "".join(c if _is_shown(c) or c in keep else repr(c)[1:-1] for c in plain)


def _is_shown(character: str) -> bool:
    """Whether a character is printable, a joiner or any kind of space."""
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def csv_cell(text: str) -> str:
    """Prepend an apostrophe to text that a spreadsheet would read as a formula.

    Example:
        >>> csv_cell("=1+1"), csv_cell("owl")
        ("'=1+1", 'owl')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def checked_class_name(name: object, *, max_length: int = MAX_CLASS_NAME) -> str:
    r"""Return the name of a class in Unicode's composed form (NFC), without space around it.

    Joiners are allowed between characters that are not ASCII, because some scripts and emoji need them.

    Raises:
        InvalidInputError: the name is empty, too long, or has invisible characters.

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
    """Return checked names of classes; a name that is in `known` in another Unicode form gets that form.

    Example:
        >>> checked_class_names(["owl ", "wren"], known=["owl"])
        ['owl', 'wren']
    """
    forms = {unicodedata.normalize("NFC", name.strip()): name for name in known}
    names = list(names)
    checked = {name: checked_class_name(name) for name in dict.fromkeys(names)}
    return [forms.get(checked[name], checked[name]) for name in names]


def _without_joiners(text: str) -> str:
    """Drop joiners between two characters that may be joined."""
    joins = (
        c in _JOINERS and _is_joined(text[i - 1 : i]) and _is_joined(text[i + 1 : i + 2]) for i, c in enumerate(text)
    )
    return "".join(c for c, is_joint in zip(text, joins, strict=True) if not is_joint)


def _is_joined(character: str) -> bool:
    return bool(character) and not character.isascii() and unicodedata.category(character)[0] in _JOINED


def first(things: Sequence[Any], n: int = 5) -> str:
    """Format the first few elements and the number of the others.

    Example:
        >>> first(["a", "b", "c"], 2)
        "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, things[:n]))
    return shown if len(things) <= n else f"{shown} and {len(things) - n} more"


def few(things: Sequence[str], n: int = 3) -> str:
    """Format like `first`, without quotes, for texts that name several things each.

    Example:
        >>> few(["a = b", "c = d", "e = f", "g = h"])
        'a = b, c = d, e = f and 1 more'
    """
    return ", ".join(things[:n]) + (f" and {len(things) - n} more" if len(things) > n else "")


def count(n: int, noun: str) -> str:
    """Format a number with its noun, which is given in the plural.

    Example:
        >>> count(1, "images"), count(2, "classes"), count(1, "classes")
        ('1 image', '2 classes', '1 class')
    """
    singular = {"classes": "class"}.get(noun, noun.removesuffix("s"))
    return f"{n} {singular if n == 1 else noun}"


def cut(text: str, most: int) -> str:
    """Replace the middle of a text that is longer than `most` characters by an ellipsis.

    Example:
        >>> cut("Red_legged_Kittiwake", 11)
        'Red_l…iwake'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"
