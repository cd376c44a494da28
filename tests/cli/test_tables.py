from mirrorshot.cli.tables import print_rows, print_tables
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


def test_words_are_not_broken_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    columns = ["method", "accuracy", "NLL", "calibration", "temperature", "confidence", "robustness", "milliseconds"]
    print_tables([Table("Wide", columns, [["mirror_gp", *("0.123 ± 0.004" for _ in columns[1:])]], {"tasks": "5"})])
    path = "/a/rather/long/path/to/some/folder/with/many/images/of/birds/IMG_20240101_120000.jpg"
    rows = [[path, "none of these (blackbird?)", "0.981", "blackbird, starling", "0.91 > 0.88"]]
    print_rows(["image", "class", "prob.", "set", "novelty"], rows, numbers=(2, 4), width=80, shorten=0)
    text = capsys.readouterr().out
    for word in [*columns[1:], "0.123", "…", "120000.jpg", "blackbird,", "starling", "0.91 > 0.88"]:
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
