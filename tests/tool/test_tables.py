import json
import os
from pathlib import Path

import numpy as np
import pytest

from mirrorshot.tool import Model, read_labelled, read_unlabelled
from mirrorshot.types import DataError, InvalidInputError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_of_texts_and_labels_may_have_any_name(tmp_path):
    path = write(tmp_path / "t.csv", "nr,body text,topic\n1,hello there,a\n2,good bye,b\n")
    items = read_labelled(path, text_column="body text", label_column="topic")
    assert (items.kind, items.content, items.labels) == ("text", ["hello there", "good bye"], ["a", "b"])
    assert read_unlabelled([str(path)], text_column="body text").content == items.content


@pytest.mark.parametrize("option", ["text_column", "label_column"])
def test_a_missing_column_is_told_with_those_that_are_there(tmp_path, option):
    path = write(tmp_path / "t.csv", "body,topic\nhello,a\n")
    names = {"text_column": "body", "label_column": "topic", option: "nothing"}
    with pytest.raises(DataError, match=r"'nothing' of --.*-column, but it has 'body', 'topic'"):
        read_labelled(path, **names)


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv", "jsonl", "parquet"])
def test_embeddings_come_from_every_format(tmp_path, suffix):
    X, y = np.random.default_rng(0).normal(size=(6, 3)), ["a", "a", "b", "b", "c", "c"]
    path = tmp_path / f"t.{suffix}"
    rows = [{"label": label, **{f"x{i}": float(v) for i, v in enumerate(row)}} for label, row in zip(y, X, strict=True)]
    if suffix == "npz":
        np.savez(path, X=X, y=y)
    elif suffix == "npy":
        np.save(path, X)
    elif suffix == "csv":
        write(path, "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    elif suffix == "jsonl":
        write(path, "\n".join(json.dumps({"label": r, "embedding": list(x)}) for r, x in zip(y, X, strict=True)))
    else:
        pytest.importorskip("pyarrow")
        import pyarrow
        import pyarrow.parquet as pq

        pq.write_table(pyarrow.Table.from_pylist(rows), path)
    items = read_unlabelled([str(path)])
    assert items.kind == "embedding"
    assert np.allclose(items.content, X)
    if suffix == "npy":
        with pytest.raises(DataError, match="labels"):
            read_labelled(path)
    else:
        assert read_labelled(path).labels == y


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_rows_count_from_one(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    for value in (0.5, np.nan):
        X = np.array([[1.0, 2.0], [value, 1.0], [3.0, 4.0]])
        if suffix == "npz":
            np.savez(path, X=X)
        else:
            write(path, "\n".join(["a,b", *(",".join(map(str, row)) for row in X)]))
        if np.isfinite(value):
            assert read_unlabelled([str(path)]).names == ["row 1", "row 2", "row 3"]
    with pytest.raises(DataError, match=r"in row 2\."):
        read_unlabelled([str(path)])


def test_a_table_without_labels_is_told_with_its_columns(tmp_path):
    path = write(tmp_path / "t.csv", "body,topic\nhello,a\n")
    with pytest.raises(DataError, match=r"labels, but it has 'body', 'topic'.*--label-column"):
        read_labelled(path)
    with pytest.raises(DataError, match=r"Expected a table at .*nowhere\.csv"):
        read_labelled(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_columns_are_separated_as_spreadsheets_do(tmp_path, mark):
    path = write(tmp_path / "t.csv", f'text{mark}label\n"hello, you; there"{mark}a\n')
    items = read_labelled(path)
    assert (items.content, items.labels) == (["hello, you; there"], ["a"])


def test_labels_of_arrays_may_be_positions_in_names(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.eye(3), y=[1, 0, 1], class_names=["owl", "wren"])
    assert read_labelled(tmp_path / "t.npz").labels == ["wren", "owl", "wren"]
    np.savez(tmp_path / "t.npz", X=np.eye(3), y=[1, 0, 2], class_names=["owl", "wren"])
    with pytest.raises(DataError, match="below 2"):
        read_labelled(tmp_path / "t.npz")


@pytest.mark.parametrize(
    "arrays",
    [
        {"X": np.eye(3), "y": [0.5, 1, 2]},
        {"X": np.eye(3), "y": [0, 1]},
        {"y": [0]},
        {"X": np.eye(2), "features": np.eye(2)},
    ],
)
def test_arrays_that_do_not_fit_are_told(tmp_path, arrays):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match="Expected"):
        read_labelled(tmp_path / "t.npz")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK"])
def test_an_array_file_that_is_none_is_told(tmp_path, content):
    (tmp_path / "t.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"\.npy file"):
        read_unlabelled([str(tmp_path / "t.npy")])


def test_a_file_of_objects_is_not_unpickled(tmp_path):
    np.save(tmp_path / "t.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_unlabelled([str(tmp_path / "t.npy")])


def test_columns_of_different_units_are_made_alike_and_stay_so_in_the_file(tmp_path, table_of):
    items, queries, y = table_of("wine")
    model = Model.fit(items)
    answers = model.predict(queries)
    assert np.mean([answer.label == label for answer, label in zip(answers, y, strict=True)]) > 0.85
    model.save(tmp_path / "model")
    assert Model.load(tmp_path / "model").predict(queries) == answers
    with pytest.raises(InvalidInputError, match="length 13"):
        model.predict(queries._replace(content=queries.content[:, :5]))


def test_a_table_of_measurements_gets_the_kernel_that_suits_it(table_of):
    items, queries, y = table_of("iris")
    right = {}
    for kernel in (None, "cosine"):
        answers = Model.fit(items, parameters={"kernel": kernel} if kernel else {}).predict(queries)
        right[kernel] = np.mean([answer.label == label for answer, label in zip(answers, y, strict=True)])
    assert right[None] > right["cosine"]
    assert right[None] > 0.85


@pytest.fixture
def table_of():
    from sklearn import datasets

    from mirrorshot.tool import Items

    def make(name, n_shot=5):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        rng = np.random.default_rng(0)
        rows = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
        s, q = (np.concatenate([r[part] for r in rows]) for part in (slice(n_shot), slice(n_shot, 40)))
        support = Items("embedding", [f"row {i}" for i in s], X[s], [str(c) for c in y[s]])
        return support, Items("embedding", [f"row {i}" for i in q], X[q], None), [str(c) for c in y[q]]

    return make


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path, monkeypatch):
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"")
    assert [Path(name).parent.name for name in read_unlabelled([str(tmp_path)]).names] == ["a", "b"]
    scan = os.scandir

    def refuse(folder):
        if Path(folder).name == "b":
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"Expected to read all folders in .*Permission denied"):
        read_unlabelled([str(tmp_path)])


MEASURED = "label,length,width\na,1.0,5.0\na,1.1,5.2\nb,4.0,1.0\nb,4.2,1.1\n"


@pytest.fixture
def measured(tmp_path):
    """A model of a table of two columns, as it is read from its file."""
    model = Model.fit(read_labelled(write(tmp_path / "examples.csv", MEASURED)))
    model.save(tmp_path / "m.mirrorshot")
    return Model.load(tmp_path / "m.mirrorshot")


def test_columns_in_another_order_are_those_of_the_model(tmp_path, measured):
    usual, turned = (
        measured.predict(read_unlabelled([str(write(tmp_path / f"{name}.csv", text))]))
        for name, text in (("usual", "length,width\n1.0,5.1\n"), ("turned", "width,length\n5.1,1.0\n"))
    )
    assert usual[0].label == "a"
    assert usual[0].probabilities == turned[0].probabilities


@pytest.mark.parametrize(
    ("header", "message"),
    [("length,height", "'length', 'width', but it lacks 'width'"), ("length,width,height", "but it also has 'height'")],
)
def test_tables_with_other_columns_than_the_model_are_refused(tmp_path, measured, header, message):
    path = write(tmp_path / "other.csv", header + "\n" + ",".join("1" * len(header.split(","))) + "\n")
    with pytest.raises(DataError, match=message):
        measured.predict(read_unlabelled([str(path)]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,label\n1,2,x\n3,,y\n", "column 'b' .* got nothing in row 2"),
        ('a,b,label\n1,"2,5",x\n', r"column 'b' .* \(with a decimal point\), but got '2,5' in row 1"),
        ("a,city,label\n1,Rome,x\n", "column 'city' .* got 'Rome' in row 1"),
        ("a,label\n1,x\n1e200,y\n", "larger ones than 1e.100 in row 2"),
    ],
)
def test_what_is_no_number_is_told_with_its_column_and_row(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_labelled(write(tmp_path / "t.csv", content))


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1, 2], [3]], "but got 1 after 2 in row 2"),
        ([[1, 2], None], "'None' in row 2"),
        (["ab", [1]], "'ab' in row 1"),
    ],
)
def test_a_vector_of_another_length_is_told_with_its_row(tmp_path, vectors, message):
    lines = [json.dumps({"embedding": vector, "label": "a"}) for vector in vectors]
    with pytest.raises(DataError, match=message):
        read_labelled(write(tmp_path / "t.jsonl", "\n".join(lines)))


def test_a_number_too_large_for_any_float_is_told(tmp_path):
    for row in ({"a": 10**400}, {"embedding": [10**400]}):
        with pytest.raises(DataError, match="in row 1"):
            read_labelled(write(tmp_path / "t.jsonl", json.dumps({**row, "label": "a"})))


def test_a_text_that_is_none_is_told_with_its_row(tmp_path):
    path = write(tmp_path / "t.jsonl", '{"text": "x", "label": "a"}\n{"text": {"body": "y"}, "label": "b"}')
    with pytest.raises(DataError, match=r"column 'text' .* dict, in row 2"):
        read_labelled(path)


def test_an_array_of_labels_may_have_any_name(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.eye(3), target=["a", "b", ""])
    with pytest.raises(DataError, match="row 3 has none"):
        read_labelled(tmp_path / "t.npz", label_column="target")
    with pytest.raises(DataError, match="'other' of --label-column, but it has 'X', 'target'"):
        read_labelled(tmp_path / "t.npz", label_column="other")


def test_measurements_of_a_model_are_no_labels_and_names(tmp_path):
    model = Model.fit(read_labelled(write(tmp_path / "t.csv", "x,y,class,label\n1,2,3,a\n4,5,6,b\n7,8,8,b\n")))
    path = write(tmp_path / "q.csv", "class,y,x\n3,2,1\n6,5,4\n")
    items = read_unlabelled([str(path)], numbers=model.columns)
    assert items.labels is None
    assert [answer.label for answer in model.predict(items)] == ["a", "b"]
    with pytest.raises(DataError, match=r"column .* of labels"):
        read_labelled(path, numbers=model.columns)


@pytest.mark.parametrize(
    ("label", "message"), [("NaN", "row 2 has none"), ("null", "row 2 has none"), ('{"a": 1}', "'a': 1.* in row 2")]
)
def test_what_is_no_label_is_told_with_its_row(tmp_path, label, message):
    path = write(tmp_path / "t.jsonl", f'{{"text": "x", "label": "a"}}\n{{"text": "y", "label": {label}}}')
    with pytest.raises(DataError, match=message):
        read_labelled(path)


def test_one_column_is_not_both_text_and_label(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\nhello,a\n")
    with pytest.raises(DataError, match="'text' for both --text-column and --label-column"):
        read_labelled(path, text_column="text", label_column="text")
    with pytest.raises(DataError, match=r"to have a column .* of labels"):
        read_labelled(path, text_column="label")
    assert read_labelled(path, text_column="label", label_column="text").content == ["a"]


def test_the_index_of_pandas_is_no_measurement(tmp_path):
    path = write(tmp_path / "t.csv", ",a,b,label\n0,1.5,2,x\n1,2.5,3,y\n")
    with pytest.warns(UserWarning, match="without a name is left out"):
        items = read_labelled(path)
    assert (items.columns, items.content.tolist()) == (["a", "b"], [[1.5, 2.0], [2.5, 3.0]])


def test_a_column_of_vectors_may_have_others_beside_it(tmp_path):
    path = write(tmp_path / "t.jsonl", '{"embedding": [1, 2], "label": "a", "source": "x"}')
    assert read_labelled(path).content.tolist() == [[1.0, 2.0]]
