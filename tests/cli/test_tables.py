from mirrorshot.cli.tables import print_tables
from mirrorshot.views import Table


def test_tables_share_their_protocol_and_notes(capsys):
    one = Table("First", ["method", "accuracy"], [["a", "1"], ["a, T = 2", "3"]], {"tasks": "5"}, [(1, 1)], "Small.")
    two = one._replace(caption="Second", rows=[["b", "4"]], best=[])
    print_tables([one, two])
    text = capsys.readouterr().out
    assert text.count("Protocol: tasks 5.") == 1
    assert text.count("Small.") == 1
    assert "3*" in text
    assert "a, T = 2" not in text  # the second row has only what is new
    assert text.index("First") < text.index("Second")
    assert "*: best of its column. Small." in text


def test_only_tables_with_marks_explain_them(capsys):
    table = Table("First", ["method", "accuracy"], [["a", "1"]], {"tasks": "5"}, note="Small.")
    print_tables([table])
    assert "best of its column" not in capsys.readouterr().out
