import pytest

from mirrorshot.methods import METHODS, method_options
from mirrorshot.paper.cells import Cell
from mirrorshot.paper.program import rows_named
from mirrorshot.paper.published import DATA, ROWS, STUDIES, TABLE_1, TABLE_2, TABLE_3, TABLE_4, all_rows
from mirrorshot.paper.released_cdkt import OPTIONS as RELEASED_OPTIONS
from mirrorshot.training.config import Config
from mirrorshot.types import InvalidInputError

# the numbers that the paper prints in bold
BEST = {
    ("cub", 1): ("mirror_gp", 65.45),
    ("cub", 5): ("logistic_softmax_gp", 79.10),
    ("mini_imagenet_to_cub", 1): ("mirror_gp", 40.75),
    ("mini_imagenet_to_cub", 5): ("baseline_pp", 57.31),
    ("omniglot_to_emnist", 1): ("ove_gp_pl", 77.00),
    ("omniglot_to_emnist", 5): ("dkt", 88.10),
}


@pytest.mark.parametrize("column", BEST)
def test_the_best_row_of_each_column_is_the_bold_one(column):
    best = max((row for row in TABLE_1 if column in TABLE_1[row]), key=lambda row: TABLE_1[row][column].mean)
    assert (best, TABLE_1[best][column].mean) == BEST[column]


def test_tables_have_all_their_cells():
    assert list(TABLE_1) == list(ROWS)
    assert sum(map(len, TABLE_1.values())) == 94
    assert sum(map(len, TABLE_2.values())) == 37
    assert [len(values) for values in TABLE_3.values()] == [len(rows) for rows in STUDIES.values()] == [4, 4, 4]
    assert list(TABLE_4) == ["MD", "GD", "CDKT (ML)", "CDKT (PL)"]


def test_the_default_of_every_study_is_the_row_of_table_1():
    for study, rows in STUDIES.items():
        assert TABLE_3[study][list(rows).index("mirror_gp")] == TABLE_1["mirror_gp"][("cub", 1)]


@pytest.mark.parametrize("row", all_rows())
@pytest.mark.parametrize("data", [*DATA, "glyphs"])
@pytest.mark.parametrize("preset", ["paper", "default"])
def test_every_row_has_settings_that_its_method_takes(row, data, preset):
    config = Cell(row, data, 5, preset).config()
    assert isinstance(config, Config)
    assert set(config.method_options) <= {*method_options(config.method), *RELEASED_OPTIONS}


def test_the_paper_fits_no_temperature_in_any_gaussian_process():
    for row in ("dkt", "ove_gp", "logistic_softmax_gp", "mirror_gp"):
        assert Cell(row, "cub", 5).config().method_options["temperature"] is False


def test_studies_change_one_setting_each():
    default = Cell("mirror_gp", "cub", 1).config().to_dict()["method_options"]
    for study, rows in STUDIES.items():
        for row in set(rows) - {"mirror_gp"}:
            options = Cell(row, "cub", 1).config().to_dict()["method_options"]
            changed = {name for name in options if options[name] != default.get(name)} - {"kernel_options"}
            assert changed == {{"rho": "step_size", "kernel": "kernel", "steps": "n_steps"}[study]}


def test_rows_are_named_by_themselves_by_patterns_and_by_methods_the_paper_does_not_have():
    assert rows_named(["protonet", "logistic_softmax_gp_pl*"]) == [
        "protonet",
        "logistic_softmax_gp_pl",
        "logistic_softmax_gp_pl_tau1",
    ]
    assert rows_named([]) == list(ROWS)
    assert rows_named(["simpleshot"]) == ["simpleshot"]
    assert {row.method for row in all_rows().values()} <= set(METHODS)
    with pytest.raises(InvalidInputError, match=r"a method or a row .* but got 'protnet'"):
        rows_named(["protnet"])
