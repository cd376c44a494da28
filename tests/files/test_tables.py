import json

import pytest

from mirrorshot.files.tables import delimiter_of, read_columns, read_text
from mirrorshot.types import DataError


def test_the_formats_hold_the_same_table(tmp_path):
    rows = [{"body": "one, two\nthree", "n": 1.5}, {"body": 'a "quoted" wörd', "n": 2.0}]
    (tmp_path / "t.csv").write_text('body,n\n"one, two\nthree",1.5\n"a ""quoted"" wörd",2.0\n', encoding="utf-8")
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    for suffix in ("csv", "jsonl", "parquet"):
        columns = read_columns(tmp_path / f"t.{suffix}")
        assert columns["body"] == [row["body"] for row in rows]
        assert [float(x) for x in columns["n"]] == [1.5, 2.0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_with_a_mark_of_its_encoding_is_read(tmp_path, encoding):
    (tmp_path / "t.csv").write_text("body\nwörd\n", encoding=encoding)
    assert read_columns(tmp_path / "t.csv") == {"body": ["wörd"]}


def test_a_line_in_another_encoding_is_named(tmp_path):
    (tmp_path / "t.csv").write_bytes("body\nwörd\n".encode() + "Käse\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 3"):
        read_columns(tmp_path / "t.csv")


BAD = {
    "empty.jsonl": b"",
    "no JSON.jsonl": b"{",
    "a list.jsonl": b"[1]",
    "other fields.jsonl": b'{"a": 1}\n{"b": 1}',
    "deep.jsonl": b"[" * 100_000,
    "no.parquet": b"PAR1 not really PAR1",
    "empty.parquet": b"",
    "no rows.csv": b"a,b\n",
    "uneven.csv": b"a,b\n1\n",
    "twice.csv": b"a,a\n1,2\n",
    "twice.jsonl": b'{"a": 1, "a": 2}',
    "half.jsonl": b'{"a": "\\ud800"}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_table_is_told(tmp_path, name):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(BAD[name])
    with pytest.raises(DataError, match="Expected"):
        read_columns(tmp_path / name)


def test_a_text_of_ten_megabytes_is_read(tmp_path):
    (tmp_path / "t.csv").write_text(f"body\n{'word ' * 2_000_000}\n")
    assert len(read_columns(tmp_path / "t.csv")["body"][0]) == 10_000_000


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="Expected to read"):
        read_text(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n\n\n3\n", "line 5 has 1. Check"),
        ('a,b\n"two\nlines",2\n3,4,5\n6\n', "line 4 has 3 .and 1 more"),
    ],
)
def test_a_line_of_other_columns_is_named_as_editors_count(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_columns(path)


def test_utf_16_without_a_mark_is_told(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("text,label\nhello,a\n".encode("utf-16-le"))
    with pytest.raises(DataError, match="null bytes, as UTF-16"):
        read_columns(path)


@pytest.mark.parametrize("header", ["a;b;c", '"a, cm";b', "a, cm;b;c", "\r\na;b", "a;b\r1,5;2,5"])
def test_the_mark_between_columns_is_that_of_the_header(header):
    assert delimiter_of(f"{header}\n1,5;2,5,3,5") == ";"


def test_a_table_with_a_column_twice_is_told(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["x", "x"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="'x' occurs twice"):
        read_columns(tmp_path / "t.parquet")
