import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorshot.files.texts import checked_class_name, checked_class_names, csv_cell, cut, harmless
from mirrorshot.types import InvalidInputError

FAMILY, RAINBOW = "👨\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@pytest.mark.parametrize("name", [FAMILY, RAINBOW, PERSIAN, "owl", "Öl", "क्\u200dष", "two words", "=sum", "a'b"])
def test_legitimate_names_are_accepted(name):
    assert checked_class_name(f"  {name}\t") == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    "name",
    ["", " ", "o\u200dwl", "owl\u200d", "\u200cowl", "👨\u200d\u200d👩", "👨\u200d", "\u200d", "a\x1b[2J", "a\nb",
     "\x00", "x" * 1001, "\ud800", "a\u202eb", "a\u2028b", 3, None],
)  # fmt: skip
def test_names_that_hide_something_are_refused(name):
    with pytest.raises(InvalidInputError, match="Expected the name of a class"):
        checked_class_name(name)


def test_two_forms_of_a_name_are_one():
    composed, decomposed = "\u00e9tude", "e\u0301tude"
    assert checked_class_names([composed, decomposed, "owl"]) == [composed, composed, "owl"]
    assert checked_class_names([composed], known=[decomposed]) == [decomposed]


def test_control_characters_and_directions_become_escapes():
    assert harmless("\x1b]0;title\x07\x9b2J") == r"\x1b]0;title\x07\x9b2J"
    assert harmless("a\nb\tc\rd") == "a\nb\tc\\rd"
    assert harmless("a\nb", keep="") == r"a\nb"
    assert not set(harmless(BIDI)) & set(BIDI)
    assert harmless("\udcff") == "?"
    assert harmless("T\u00a0=\u00a01") == "T\u00a0=\u00a01"
    assert harmless(FAMILY + RAINBOW + PERSIAN) == FAMILY + RAINBOW + PERSIAN


@given(st.text())
def test_nothing_that_steers_is_left(text):
    left = {c for c in harmless(text) if not c.isprintable() and c not in "\n\t\u200c\u200d"}
    assert all(unicodedata.category(c) == "Zs" for c in left)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_cells_are_no_formulas(text):
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["owl", "", "a=1", "1-2", "é"])
def test_other_cells_stay(text):
    assert csv_cell(text) == text


def test_the_middle_of_a_long_name_is_cut():
    assert cut("short", 20) == "short"
    assert cut("a" * 30 + "b" * 30, 20) == "a" * 10 + "…" + "b" * 9
