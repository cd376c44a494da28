import numpy as np
import pytest
import torch

from mirrorshot.data import ClassSource
from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError, MirrorshotError


@pytest.fixture
def source():
    return ClassSource.from_arrays(np.arange(12.0).reshape(6, 2), ["b", "a", "c", "a", "b", "c"])


def test_labels_are_positions_in_the_sorted_names(source):
    assert source.class_names == ("a", "b", "c")
    assert source.labels.tolist() == [1, 0, 2, 0, 1, 2]
    assert source.counts.tolist() == [2, 2, 2]
    assert (source.n_items, source.n_classes) == (6, 3)


def test_integer_labels_need_not_be_consecutive():
    source = ClassSource.from_arrays(np.zeros((3, 2)), [7, -1, 7])
    assert source.class_names == ("-1", "7")
    assert source.labels.tolist() == [1, 0, 1]


def test_tensors_are_accepted_and_keep_their_type():
    source = ClassSource.from_arrays(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]))
    assert source.items.shape == (4, 3, 8, 8)
    assert source.items.dtype == torch.uint8
    assert source.labels.dtype == torch.int64
    assert ClassSource.from_arrays(torch.zeros(1, 2, dtype=torch.float64), [0]).items.dtype == torch.float64


def test_grey_pictures_get_a_channel():
    assert ClassSource.from_arrays(np.zeros((4, 8, 9), np.uint8), [0, 0, 1, 1]).items.shape == (4, 1, 8, 9)


def test_class_names_name_positions():
    source = ClassSource.from_arrays(np.zeros((3, 2)), [1, 0, 1], ["dog", "cat"])
    assert source.class_names == ("dog", "cat")
    assert source.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("classes", [["c", "a"], [2, 0]])
def test_a_subset_renumbers_its_classes_in_the_given_order(source, classes):
    subset = source.subset(classes)
    assert subset.class_names == ("c", "a")
    assert subset.items[:, 0].tolist() == [2, 4, 6, 10]
    assert subset.labels.tolist() == [1, 0, 1, 0]


def test_a_split_shares_no_class_and_loses_no_item(source):
    these, others = source.split(["b"])
    assert these.class_names == ("b",)
    assert others.class_names == ("a", "c")
    assert these.n_items + others.n_items == source.n_items


def test_moving_keeps_everything(source):
    moved = source.to("meta")
    assert moved.items.device.type == moved.labels.device.type == "meta"
    assert moved.class_names == source.class_names


def test_sizes_of_the_originals_stay_with_their_items(source):
    sized = source._replace(sizes=torch.arange(12).reshape(6, 2))
    assert sized.subset(["c", "a"]).sizes.tolist() == [[2, 3], [4, 5], [6, 7], [10, 11]]
    assert [part.sizes.tolist() for part in sized.split(["b"])] == [
        [[0, 1], [8, 9]],
        [[2, 3], [4, 5], [6, 7], [10, 11]],
    ]
    assert sized.to("meta").sizes.device.type == "meta"


def test_sizes_are_left_out_where_nothing_is_squashed(source):
    assert source.sizes is source.subset(["a"]).sizes is source.to("cpu").sizes is None


@pytest.mark.parametrize(
    ("X", "y", "names", "message"),
    [
        (np.zeros((3, 2)), [0, 1], None, r"one label for each of 3 items, but got shape \(2,\)"),
        (np.zeros((2, 2)), [[0], [1]], None, r"one label for each of 2 items, but got shape \(2, 1\)"),
        (np.zeros((0, 2)), [], None, r"`X` to hold items, but got shape \(0, 2\)"),
        ([[0.0], [np.nan], [np.inf]], [0, 0, 1], None, "NaN or infinity in 2 rows: 1, 2"),
        (np.zeros((2, 2)), [0.0, np.nan], None, "`y` to be labels, but got NaN or infinity in 1 rows: 1"),
        (np.zeros((2, 2)), np.array([None, "a"], dtype=object), None, "labels of one kind, but got a mixture"),
        (np.zeros((2, 2)), [0, 2], ["a", "b", "c"], "every class to have items, but 1 have none: 'b'"),
        (np.zeros((2, 2)), [0, 2], ["a", "b"], "positions 0 to 1 in `class_names`, but got 0 to 2"),
        (np.zeros((2, 2)), ["a", "b"], ["a", "b"], "positions in `class_names`, but got <U1"),
        (np.zeros((2, 2)), [0, 1], ["a", "a"], "distinct, but these occur more than once: 'a'"),
    ],
)
def test_bad_data_are_named(X, y, names, message):
    with pytest.raises(DataError, match=message):
        ClassSource.from_arrays(X, y, names)


@pytest.mark.parametrize("X", [np.zeros(3), np.zeros((3, 2), int), np.zeros((3, 4, 4)), np.zeros((3, 4), np.uint8)])
def test_other_kinds_of_items_are_rejected(X):
    with pytest.raises(InvalidInputError, match=r"Expected `X` to be images .* or embeddings .*, but got shape"):
        ClassSource.from_arrays(X, [0, 0, 1])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["a", "z"], "names or positions of the 3 classes, but got 'z'"),
        ([0, 3], "but got 3"),
        ([-1], "but got -1"),
        (["a", "a"], "distinct and at least one, but got 2 entries of 1 classes"),
        ([], "distinct and at least one, but got 0 entries"),
    ],
)
def test_classes_that_cannot_be_chosen_are_named(source, classes, message):
    with pytest.raises(DataError, match=message):
        source.subset(classes)


def test_a_split_leaves_classes_over(source):
    with pytest.raises(DataError, match="leave some of the 3 classes, but got all"):
        source.split([0, 1, 2])


def test_data_errors_can_be_caught_as_value_errors():
    assert issubclass(DataError, MirrorshotError)
    assert issubclass(DataError, ValueError)


def test_long_lists_are_cut():
    assert first([1, 2, 3]) == "1, 2, 3"
    assert first(list(range(100))) == "0, 1, 2, 3, 4 and 95 more"
