import pytest
from pydantic import ValidationError

from mirrorshot.serve.forms import MAX_LABEL, ClassName


def test_two_forms_of_a_name_are_one_and_joiners_stay():
    assert ClassName(name="e\u0301tude").name == ClassName(name=" \u00e9tude").name
    assert ClassName(name="👩\u200d🚀").name == "👩\u200d🚀"


@pytest.mark.parametrize("name", ["a\u202eb", "o\u200dwl", "\x1b[2J", "", "x" * (MAX_LABEL + 1)])
def test_names_that_cannot_be_seen_are_refused(name):
    with pytest.raises((ValidationError, ValueError)):
        ClassName(name=name)
