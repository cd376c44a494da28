"""Columns of tables in CSV, JSON Lines and Parquet, read within bounds."""

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirrorshot.files.lazy import need
from mirrorshot.files.regular import NotRegularFileError, open_regular
from mirrorshot.files.texts import count, first
from mirrorshot.types import DataError

Columns = dict[str, list[Any]]
MAX_ROWS = 10**6
MAX_FILE_BYTES = 2**31
_MAX_FIELD = 2**25  # characters
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_QUOTED = re.compile(r'"[^"]*"')
_BEGINNING = 100  # bytes to search for null bytes, which texts do not have


def read_columns(path: Path) -> Columns:
    """Read the columns of a table, all of one length, by name. The suffix is one of `READERS`.

    Raises:
        DataError: the table is damaged, empty, too large, or of another format.
        MissingPackageError: a Parquet file needs pyarrow, which is not installed.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "table.jsonl"
        >>> _ = path.write_text('{"body": "hello", "n": 1}')
        >>> read_columns(path)
        {'body': ['hello'], 'n': [1]}
    """
    columns = READERS[path.suffix.lower()](path)
    n_rows = len(next(iter(columns.values()), []))
    if n_rows == 0:
        raise DataError(f"Expected {path} to have rows, but it has none.")
    _check_rows(path, n_rows)
    return columns


def _check_rows(path: Path, n_rows: int) -> None:
    if n_rows > MAX_ROWS:
        raise DataError(f"Expected {path} to have at most {MAX_ROWS:,} rows, but it has more. Split it.")


def read_text(path: Path) -> str:
    """Read a text file in UTF-8, or in UTF-16 with a byte order mark."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, NotRegularFileError) as error:
        raise DataError(f"Expected to read {path}, but got: {error}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"Expected {path} to have at most {MAX_FILE_BYTES:,} bytes, but it has more. Split it.")
    if content[:2] not in _BYTE_ORDER_MARKS and b"\0" in content[:_BEGINNING]:
        raise DataError(
            f"Expected {path} to be text in UTF-8, but it has null bytes, as UTF-16 without a byte order mark and "
            "files of other kinds have. Save it as UTF-8."
        )
    try:
        return decode_text(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"Expected {path} to be text in UTF-8, but line {line} is not: {error.reason}. Save it as UTF-8."
        ) from error


def decode_text(content: bytes) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark."""
    return content.decode("utf-16" if content[:2] in _BYTE_ORDER_MARKS else "utf-8-sig")


def _read_csv(path: Path) -> Columns:
    csv.field_size_limit(_MAX_FIELD)
    try:
        text = read_text(path)
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
        numbered = [(lines.line_num, row) for row in itertools.islice(lines, MAX_ROWS + 2) if row]
    except csv.Error as error:
        raise DataError(f"Expected {path} to be a CSV file, but got: {error}.") from error
    if len(numbered) < 2:
        raise DataError(f"Expected {path} to have a header and rows, but it has {count(len(numbered), 'lines')}.")
    header, rows = [name.strip() for name in numbered[0][1]], [row for _, row in numbered[1:]]
    uneven = [(line, len(row)) for line, row in numbered if len(row) != len(header)]
    if uneven:
        line, n = uneven[0]
        more = f" (and {len(uneven) - 1} more have others)" if len(uneven) > 1 else ""
        raise DataError(
            f"Expected {count(len(header), 'columns')} in every line of {path}, as in its header, but line {line} has "
            f"{n}{more}. Check separators and quotes there."
        )
    _check_distinct(path, header)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _check_distinct(path: Path, names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise DataError(
            f"Expected {path} to have distinct names of columns, but {first(twice)} occurs twice. Rename one."
        )


def delimiter_of(text: str) -> str:
    """Return the most frequent of comma, semicolon, tab and bar in the header, outside quotes.

    Example:
        >>> delimiter_of('"width, cm";height, cm;label')
        ';'
    """
    header = _QUOTED.sub("", text.lstrip("\r\n").partition("\n")[0].partition("\r")[0])
    return max(",;\t|", key=header.count)


def _read_json_lines(path: Path) -> Columns:
    lines = [(i, line) for i, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    rows = [_json_row(path, i, line) for i, line in lines[: MAX_ROWS + 1]]
    names = list(rows[0]) if rows else []
    for (i, _), row in zip(lines, rows, strict=False):
        if set(row) != set(names):
            raise DataError(
                f"Expected every line of {path} to have the fields {first(names)}, but line {i} has {first(list(row))}."
            )
    return {name: [row[name] for row in rows] for name in names}


def _json_row(path: Path, i: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_distinct)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError) as error:
        raise DataError(f"Expected line {i} of {path} to be JSON, but got: {error}.") from error
    if not isinstance(row, dict):
        raise DataError(f"Expected line {i} of {path} to be a JSON object, but got {type(row).__name__}.")
    return row


def _distinct(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(fields)
    if len(row) < len(fields):
        raise ValueError(f"a field twice, among {first([name for name, _ in fields])}")
    return row


def _read_parquet(path: Path) -> Columns:
    parquet = need("pyarrow.parquet")
    try:
        with open_regular(path) as file:
            table = parquet.ParquetFile(file)
            _check_rows(path, table.metadata.num_rows)
            _check_distinct(path, table.schema_arrow.names)
            return dict(table.read().to_pydict())
    except DataError:
        raise
    except Exception as error:  # pyarrow has its own errors
        raise DataError(f"Expected {path} to be a .parquet file, but it cannot be read: {error}.") from error


READERS: dict[str, Callable[[Path], Columns]] = {
    ".csv": _read_csv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}
"""Readers by suffix."""
