import os
import shutil

import numpy as np
import pytest
from PIL import Image

from mirrorshot.tool import read_labelled, read_unlabelled
from mirrorshot.tool.doctor.images import list_images
from mirrorshot.types import DataError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_folder_of_class_folders_is_labelled(pictures):
    items = read_labelled(pictures / "support")
    assert (items.kind, len(items.names)) == ("picture", 12)
    assert items.labels == ["bar"] * 4 + ["cross"] * 4 + ["ring"] * 4
    assert items.names[0] == str(pictures / "support" / "bar" / "0.png")


@pytest.mark.parametrize("header", ["label,a,b", "a,b,label", "a,class,b", "y,a,b"])
def test_embeddings_come_from_a_table(tmp_path, header):
    values = {"a": "1", "b": "2.5"}
    row = ",".join(values.get(name, "cat") for name in header.split(","))
    items = read_labelled(write(tmp_path / "t.csv", f"{header}\n{row}\n{row}\n"))
    assert items.content.tolist() == [[1.0, 2.5], [1.0, 2.5]]
    assert (items.labels, items.names) == (["cat", "cat"], ["row 1", "row 2"])


def test_a_table_may_name_pictures_or_texts(tmp_path, pictures):
    file = pictures / "query" / "bar" / "0.png"
    items = read_labelled(write(tmp_path / "t.csv", f"path,label\n{file},bar\n"))
    assert (items.kind, items.content) == ("picture", [file])
    items = read_labelled(write(tmp_path / "t.csv", 'name,text,label\nn,"a, b",x\n'))
    assert items[:3] == ("text", ["n"], ["a, b"])


def test_pictures_are_found_in_folders_patterns_and_lists(pictures):
    names = [str(pictures / "query" / "bar" / f"{i}.png") for i in range(3)]
    assert read_unlabelled([str(pictures / "query" / "bar")]).names == names
    assert read_unlabelled([str(pictures / "query" / "bar" / "*.png")]).names == names
    assert read_unlabelled(names[::-1]).names == names[::-1]
    assert read_unlabelled(["-"], [f"{name}\n" for name in names] + ["\n"]).names == names
    assert len(read_unlabelled([str(pictures / "query")]).names) == 9
    for pattern in ("**/*.png", "**"):
        assert len(read_unlabelled([str(pictures / "query" / pattern)]).names) == 9


def test_names_that_look_like_patterns_are_names_first(tmp_path):
    odd = tmp_path / "a[1]*?.png"
    Image.new("L", (20, 20)).save(odd)
    assert read_unlabelled([str(odd)]).content == [odd]


def test_unlabelled_tables_have_no_label(tmp_path):
    np.savez(tmp_path / "x.npz", X=np.ones((3, 2), np.float32))
    assert read_unlabelled([str(tmp_path / "x.npz")]).content.shape == (3, 2)
    assert read_unlabelled([str(write(tmp_path / "x.txt", "one\n\ntwo\n"))]).content == ["one", "two"]
    assert read_unlabelled([str(write(tmp_path / "x.csv", "a,b\n1,2\n"))]).labels is None


BAD_TABLES = {
    "empty": "",
    "only a header": "label,a\n",
    "no label": "a,b\n1,2\n",
    "only labels": "label\ncat\n",
    "words for numbers": "label,a\ncat,dog\n",
    "an empty label": "label,a\n,1\n",
    "an empty number": "label,a\ncat,\n",
    "uneven rows": "label,a\ncat,1,2\n",
    "a column twice": "label,a,a\ncat,1,2\n",
    "NaN": "label,a\ncat,nan\n",
    "infinity": "label,a\ncat,1e999\n",
    "a null character": "label,a\ncat,\0\n",
    "a huge field": "label,a\ncat," + "1" * (2**20 + 10) + "\n",
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_a_table_with_wrong_columns_is_refused(tmp_path, what):
    with pytest.raises(DataError, match="Expected"):
        read_labelled(write(tmp_path / "t.csv", BAD_TABLES[what]))


def test_a_table_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes("label,a\nK\xe4se,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        read_labelled(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["nothing.png", "nothing", "no/*.png", "a\0b", "", "x" * 5000])
def test_what_is_not_there_is_told(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="Expected"):
        read_unlabelled([name])


def test_an_empty_list_or_folder_is_told(tmp_path):
    with pytest.raises(DataError, match="at least one image"):
        read_unlabelled(["-"], [])
    with pytest.raises(DataError, match="to hold images"):
        read_unlabelled([str(tmp_path)])


def test_a_table_and_pictures_do_not_mix(tmp_path, pictures):
    table = write(tmp_path / "t.csv", "a\n1\n")
    with pytest.raises(DataError, match="one table"):
        read_unlabelled([str(table), str(pictures)])


@pytest.mark.parametrize("what", ["empty", "one is empty", "a file", "missing", "loose pictures"])
def test_a_folder_without_classes_is_told(tmp_path, pictures, write_pictures, what):
    root = tmp_path / "root"
    root.mkdir()
    if what == "one is empty":
        write_pictures(root / "full" / "..", kinds=("bar",))
        (root / "none").mkdir()
    elif what == "a file":
        root = write(tmp_path / "notes.md", "hello")
    elif what == "missing":
        root = tmp_path / "nowhere"
    elif what == "loose pictures":
        Image.new("L", (20, 20)).save(root / "a.png")
    with pytest.raises(DataError, match="Expected"):
        read_labelled(root)


def test_images_outside_of_class_folders_are_named(pictures, tmp_path):
    image = (pictures / "query" / "bar" / "0.png").read_bytes()
    folder = shutil.copytree(pictures / "support", tmp_path / "support")
    for name in ("stray.png", "bar/deeper/0.png", ".hidden.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(image)
    for read in (read_labelled, list_images):
        with pytest.warns(UserWarning, match="Left out 2 images .*: 'bar/deeper/0.png', 'stray.png'"):
            read(folder)


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_link_that_leads_back_is_no_class(pictures, tmp_path):
    support = shutil.copytree(pictures / "support", tmp_path / "support")
    (support / "all").symlink_to("..")
    assert set(read_labelled(support).labels) == {"bar", "cross", "ring"}
    items, empty = list_images(support)
    assert (set(items.labels), empty) == ({"bar", "cross", "ring"}, [])
