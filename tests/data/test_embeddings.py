import numpy as np
import pandas as pd
import pytest
import torch

from mirrorshot.data.embeddings import read_embeddings
from mirrorshot.types import DataError

X = np.random.default_rng(0).normal(size=(6, 4))
Y = np.array(["b", "a", "c", "a", "b", "c"])


def save(tmp_path, **arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """Makes a file whose table is the given one, whether or not an engine is installed."""

    def make(table):
        path = tmp_path / "set.parquet"
        path.write_bytes(b"PAR1")
        monkeypatch.setattr(pd, "read_parquet", lambda read: table if read == path else None)
        return path

    return make


@pytest.mark.parametrize("x_name", ["X", "embeddings", "features"])
@pytest.mark.parametrize("y_name", ["y", "labels"])
def test_archives_are_read_under_common_names(tmp_path, x_name, y_name):
    source = read_embeddings(save(tmp_path, **{x_name: X, y_name: Y, "other": np.zeros(2)}))
    assert torch.equal(source.items, torch.from_numpy(X))
    assert source.class_names == ("a", "b", "c")
    assert source.labels.tolist() == [1, 0, 2, 0, 1, 2]


def test_class_names_are_used(tmp_path):
    source = read_embeddings(save(tmp_path, X=X, y=[0, 1, 1, 0, 2, 2], class_names=["cat", "dog", "bird"]))
    assert source.class_names == ("cat", "dog", "bird")
    assert source.labels.tolist() == [0, 1, 1, 0, 2, 2]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", ">f8"])
def test_floats_of_any_kind_are_read(tmp_path, dtype):
    items = read_embeddings(save(tmp_path, X=X.astype(dtype), y=Y)).items
    assert items.dtype == (torch.float64 if dtype == ">f8" else torch.float32)
    torch.testing.assert_close(items.double(), torch.from_numpy(X), atol=2e-3, rtol=0)


def test_bytes_are_names_too(tmp_path):
    assert read_embeddings(save(tmp_path, X=X, y=Y.astype("S"))).class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "one array `X` or `embeddings` or `features`, but it has 'y'"),
        ({"X": X, "features": X, "y": Y}, "one array `X` or"),
        ({"X": X}, "one array `y` or `labels`, but it has 'X'"),
        (
            {"X": X[:5], "y": Y},
            r"does not hold embeddings with labels\. Expected `y` to hold one label for each of 5 items",
        ),
        ({"X": X.astype(int), "y": Y}, r"embeddings \(n, D\) as floats, but got shape \(6, 4\) of int64"),
        ({"X": X[None], "y": Y}, r"but got shape \(1, 6, 4\)"),
        ({"X": np.where(X > 1, np.nan, X), "y": Y}, "Expected `X` to be finite, but got NaN"),
        ({"X": X, "y": np.arange(6), "class_names": ["a"]}, "positions 0 to 0 in `class_names`, but got 0 to 5"),
        ({"X": X, "y": np.arange(6), "class_names": np.arange(6)}, "`class_names` of .* to be a list of strings"),
    ],
)
def test_archives_with_other_content_are_refused(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        read_embeddings(save(tmp_path, **arrays))


def test_a_column_for_each_dimension_is_read(parquet):
    table = pd.DataFrame(X, columns=list("efgh"))
    table.insert(2, "label", Y)
    source = read_embeddings(parquet(table))
    assert torch.equal(source.items, torch.from_numpy(X))
    assert source.class_names == ("a", "b", "c")


def test_a_column_of_lists_is_read(parquet):
    source = read_embeddings(parquet(pd.DataFrame({"embedding": list(X), "label": [3, 3, 1, 1, 2, 2]})))
    assert torch.equal(source.items, torch.from_numpy(X))
    assert source.class_names == ("1", "2", "3")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1.0]}, "a column `label` and others, but it has 'a'"),
        ({"label": ["x"]}, "a column `label` and others, but it has 'label'"),
        ({"label": ["x", None], "a": [1.0, 2.0]}, "to have a label, but 1 have none"),
        ({"label": ["x"], "a": [1.0], "file": ["f.png"]}, "numbers, but these are not: 'file'; drop them"),
        ({"label": ["x", "y"], "embedding": [[1.0], [1.0, 2.0]]}, "lists of one length"),
        ({"label": ["x"], "embedding": [["a"]]}, "lists of one length"),
    ],
)
def test_tables_with_other_content_are_refused(parquet, table, message):
    with pytest.raises(DataError, match=message):
        read_embeddings(parquet(pd.DataFrame(table)))


def test_a_missing_engine_is_named(tmp_path, monkeypatch):
    def no_engine(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", no_engine)
    (tmp_path / "set.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        DataError, match=r"pandas and pyarrow .* are missing; install them with `pip install pandas pyarrow"
    ):
        read_embeddings(tmp_path / "set.parquet")


def test_a_damaged_table_is_named(tmp_path, monkeypatch):
    def broken(path):
        raise OSError("magic bytes not found")

    monkeypatch.setattr(pd, "read_parquet", broken)
    (tmp_path / "set.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"set\.parquet to be a \.parquet file, but it cannot be read: magic bytes"):
        read_embeddings(tmp_path / "set.parquet")


@pytest.mark.parametrize("name", ["set.npz", "set.parquet"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(DataError, match=rf"file at .*{name}, but there is none"):
        read_embeddings(tmp_path / name)


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a file \.npz or \.parquet, but got .*set\.csv"):
        read_embeddings(tmp_path / "set.csv")
