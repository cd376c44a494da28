import csv
import json
import statistics

import numpy as np
import pytest

from mirrorshot.paper.cells import Cell
from mirrorshot.paper.published import STUDIES, TABLE_1
from mirrorshot.paper.table1 import accuracy_sheets
from mirrorshot.paper.table2 import calibration_sheets
from mirrorshot.paper.table3 import study_sheets
from mirrorshot.paper.tables import grouped, markdown, untagged_cells, write_sheets

MIRROR, DKT = Cell("mirror_gp", "cub", 1), Cell("dkt", "cub", 1)


def test_our_number_stands_beside_the_papers_with_their_difference(result_of):
    (sheet,) = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6575)]))
    (record,) = sheet.records
    assert (record["paper"], record["paper_spread"], record["ours"]) == (65.45, 0.42, pytest.approx(65.75))
    assert record["difference"] == pytest.approx(0.30)
    assert record["inside_paper_spread"] is True
    assert "| MD-BFSC | paper | 65.45 ± 0.42 | 65.75 ± 0.50 | +0.30 | yes |" in markdown(sheet)


@pytest.mark.parametrize(("accuracy", "text"), [(0.6586, "yes"), (0.6588, "above"), (0.6504, "yes"), (0.6502, "below")])
def test_inside_is_within_the_spread_that_the_paper_prints_or_above_or_below_it(accuracy, text, result_of):
    (sheet,) = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, accuracy)]))
    assert sheet.records[0]["inside_paper_spread"] is (text == "yes")
    assert sheet.rows[0][sheet.columns.index("inside")] == text


def test_training_seeds_are_the_clean_protocol_and_the_first_is_the_papers(result_of):
    accuracies = {1: 0.65, 2: 0.62, 3: 0.66}
    results = [result_of(MIRROR._replace(seed=seed), value) for seed, value in accuracies.items()]
    (sheet,) = accuracy_sheets(grouped([MIRROR._replace(seed=seed) for seed in accuracies], results))
    (record,) = sheet.records
    assert record["ours"] == pytest.approx(65.0)
    assert record["n_seeds"] == 3
    assert record["clean"] == pytest.approx(100 * statistics.mean(accuracies.values()))
    assert record["clean_spread"] == pytest.approx(100 * statistics.stdev(accuracies.values()))


def test_a_seed_with_other_settings_is_left_out_of_the_mean_and_named(result_of):
    first, second, stale = (MIRROR._replace(seed=seed) for seed in (1, 2, 3))
    results = [result_of(stale, 0.2, config={"lr": 0.01}), result_of(second, 0.62), result_of(first, 0.65)]
    (sheet,) = accuracy_sheets(grouped([first, second, stale], results))
    (record,) = sheet.records
    assert record["n_seeds"] == 2
    assert record["clean"] == pytest.approx(63.5)
    assert any("left out of the mean over seeds, for other settings than those of seed 1: 3." in n for n in sheet.notes)


def test_methods_are_compared_on_the_same_tasks_in_pairs(result_of):
    rng = np.random.default_rng(0)
    easy = rng.uniform(0.3, 0.7, size=(2, 50)).round(4)
    results = [result_of(MIRROR, 0.5, tasks=easy), result_of(DKT, 0.55, tasks=easy + 0.05)]
    (sheet,) = accuracy_sheets(grouped([DKT, MIRROR], results))
    by_row = {record["row"]: record for record in sheet.records}
    assert by_row["dkt"]["paired"] == pytest.approx(5.0)
    assert by_row["dkt"]["paired_interval_95"] == pytest.approx(0.0, abs=1e-9)
    assert by_row["mirror_gp"]["paired"] is None


def test_tasks_of_other_episodes_are_not_paired(result_of):
    tasks = np.full((2, 5), 0.5)
    results = [
        result_of(MIRROR, 0.5, tasks=tasks),
        result_of(DKT, 0.5, tasks=tasks, protocol={"episodes": "other"}),
    ]
    (sheet,) = accuracy_sheets(grouped([DKT, MIRROR], results))
    assert all(record["paired"] is None for record in sheet.records)


def test_a_cell_that_was_not_run_says_so_and_has_only_the_papers_number(result_of):
    (sheet,) = accuracy_sheets(grouped([MIRROR, DKT], [result_of(MIRROR, 0.6)]))
    (record,) = [record for record in sheet.records if record["row"] == "dkt"]
    assert record["paper"] == TABLE_1["dkt"][("cub", 1)].mean
    assert all(record[name] is None for name in ("ours", "ours_spread", "difference", "clean", "interval_95"))
    assert record["command"] == "mirrorshot reproduce table1 --dataset cub --shots 1 --method dkt"
    text = markdown(sheet)
    assert "| DKT | paper | 63.37 ± 0.19 | not run | - | - | - | - | - |" in text
    assert "Not run with the preset paper: `mirrorshot reproduce table1 --dataset cub --shots 1 --method dkt`" in text


def test_what_differs_from_the_papers_set_up_stands_below_the_table(result_of):
    (sheet,) = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6)]))
    assert "192 x 192" in markdown(sheet)
    short = MIRROR._replace(budget="short")
    (sheet,) = accuracy_sheets(grouped([short], [result_of(short, 0.6)]))
    assert "no reproduction" in markdown(sheet)
    assert "| MD-BFSC | paper (budget short) |" in markdown(sheet)


def test_other_settings_are_a_table_of_their_own_with_what_was_changed(result_of):
    tagged = MIRROR._replace(tag="_fast")
    easy = np.random.default_rng(0).uniform(0.3, 0.7, size=(2, 50)).round(4)
    results = [
        result_of(MIRROR, 0.65, tasks=easy),
        result_of(tagged, 0.63, tasks=easy - 0.02, config={"lr": 0.01, "method_options": {"n_steps": 9}}),
    ]
    main, other = accuracy_sheets(grouped([MIRROR, tagged], results))
    assert [row[0] for row in main.rows] == ["MD-BFSC"]
    assert main.rows[0][3] == "65.00 ± 0.50"
    changes = "lr = 0.01 (preset: 0.001); n_steps = 9 (preset: 3)"
    assert other.rows == [
        ["MD-BFSC", "paper", "fast", changes, "63.00 ± 0.50", "± 0.40", "-2.45", "-2.00 ± 0.00"]
    ]  # fmt: skip
    assert other.records[0]["paired_with"] == MIRROR.name
    assert markdown(other, level=3).startswith("#### Other settings")


def test_a_result_that_is_not_what_its_preset_says_is_told(result_of):
    (sheet,) = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6, config={"lr": 0.01})]))
    assert "MD-BFSC, preset paper, was run with lr = 0.01 (preset: 0.001)." in sheet.notes


def test_a_tagged_cell_that_was_not_run_says_what_it_would_change_and_how():
    tagged = MIRROR._replace(tag="_fast", changes=("lr=0.01",))
    (sheet,) = accuracy_sheets(grouped([tagged], []))
    assert sheet.rows[0][:5] == ["MD-BFSC", "paper", "fast", "lr = 0.01 (preset: 0.001)", "not run"]
    assert sheet.notes[-1].endswith("--shots 1 --method mirror_gp --set lr=0.01 --tag fast`")
    assert markdown(sheet).startswith("## Other settings")  # there is no table before it


def test_a_tagged_cell_brings_the_untagged_one_if_it_was_run(result_of):
    tagged = [MIRROR._replace(tag="_fast"), DKT._replace(tag="_fast")]
    results = [result_of(MIRROR, 0.6), result_of(MIRROR._replace(preset="default"), 0.7)]
    assert untagged_cells(tagged, results) == [MIRROR]
    assert untagged_cells([MIRROR, DKT], results) == []


def test_methods_are_paired_with_the_one_of_their_preset(result_of):
    tasks = np.full((2, 5), 0.5)
    ours = [cell._replace(preset="default") for cell in (MIRROR, DKT)]
    results = [result_of(MIRROR, 0.5, tasks=tasks - 0.3)]
    results += [result_of(ours[0], 0.5, tasks=tasks), result_of(ours[1], 0.5, tasks=tasks + 0.1)]
    (sheet,) = accuracy_sheets(grouped([MIRROR, *ours], results))
    found = {(r["row"], r["preset"]): r["paired"] for r in sheet.records}
    assert found == {
        ("dkt", "default"): pytest.approx(10.0), ("mirror_gp", "paper"): None, ("mirror_gp", "default"): None
    }  # fmt: skip


def test_the_command_of_a_whole_table_names_no_rows(result_of):
    cells = [Cell(row, "cub", 1) for row in TABLE_1]
    (sheet,) = accuracy_sheets(grouped(cells, [result_of(MIRROR, 0.6)]))
    command = "mirrorshot reproduce table1 --dataset cub --shots 1"
    assert sheet.notes == [f"Not run with the preset paper, 16 of 17 rows of the paper: `{command}`"]
    (sheet,) = accuracy_sheets(grouped(cells[:6], []))
    assert "--method feature_transfer,baseline_pp,matchingnet,protonet,relationnet,maml`" in sheet.notes[0]


def test_calibration_has_three_columns_and_two_temperatures_where_they_were_fitted(result_of):
    cell = Cell("mirror_gp", "cub", 5)
    (sheet,) = calibration_sheets(grouped([cell], [result_of(cell, 0.6)]))
    assert sheet.rows[0][2:] == ["0.005 / 0.067", "two temperatures", "0.300 / 0.400", "0.020 / 0.060", "not measured"]
    tempered = [
        {"rule": rule, "calibration": {"ece": ece, "mce": mce}}
        for rule, ece, mce in (("nll", 0.9, 0.9), ("ece", 0.011, 0.2), ("mce", 0.03, 0.05))
    ]
    (sheet,) = calibration_sheets(grouped([cell], [result_of(cell, 0.6, tempered=tempered)]))
    assert sheet.rows[0][-1] == "0.011 / 0.050"
    assert sheet.records[0]["ece_difference_same_protocol"] == pytest.approx(0.006)


def test_calibration_with_other_settings_is_a_table_of_its_own(result_of):
    cell = Cell("mirror_gp", "cub", 5)
    tagged = cell._replace(tag="_fast")
    results = [result_of(cell, 0.6), result_of(tagged, 0.6, config={"lr": 0.01}, raw={"ece": 0.1, "mce": 0.2})]
    main, other = calibration_sheets(grouped([cell, tagged], results))
    assert [row[4] for row in main.rows] == ["0.300 / 0.400"]
    assert [row[2:5] for row in other.rows] == [["fast", "lr = 0.01 (preset: 0.001)", "0.100 / 0.200"]]


def test_the_papers_calibration_is_that_of_five_shots(result_of):
    (sheet,) = calibration_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6)]))
    assert sheet.records[0]["ece_paper"] is None


def test_studies_share_their_default(result_of):
    rows = {key for study in STUDIES.values() for key in study}
    sheets = study_sheets(grouped([Cell(row, "cub", 1) for row in rows], [result_of(MIRROR, 0.6)]))
    assert [sheet.columns[0] for sheet in sheets] == ["rho", "kernel", "steps"]
    assert [[row[0] for row in sheet.rows if row[3] != "not run"] for sheet in sheets] == [["1"], ["COS"], ["3"]]


def test_a_study_says_what_a_preset_has_in_place_of_the_papers_setting(result_of):
    cells = [MIRROR, MIRROR._replace(preset="default")]
    sheets = study_sheets(grouped(cells, [result_of(cell, 0.6) for cell in cells]))
    shown = {sheet.columns[0]: [(row[0], row[2]) for row in sheet.rows] for sheet in sheets}
    assert shown["rho"] == [("1", "65.45 ± 0.42"), ("0.7, of the preset", "-")]
    assert shown["kernel"] == [("COS", "65.45 ± 0.42")] * 2


def test_a_study_shows_no_seconds_of_a_training_in_several_sessions(result_of):
    result = result_of(MIRROR, 0.6)
    assert study_sheets(grouped([MIRROR], [result]))[0].rows[0][-1] == "3"
    result.record["is_resumed"] = True
    assert study_sheets(grouped([MIRROR], [result]))[0].rows[0][-1] == "-"


def test_other_settings_of_a_study_say_what_is_studied(result_of):
    tagged = Cell("mirror_gp_rbf", "cub", 1, tag="_fast")
    (sheet,) = study_sheets(grouped([tagged], [result_of(tagged, 0.6, config={"lr": 0.01})]))
    assert sheet.rows[0][:4] == ["MD-BFSC, kernel RBF", "paper", "fast", "lr = 0.01 (preset: 0.001)"]


def test_files_hold_the_same_numbers(tmp_path, result_of):
    sheets = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6575)]))
    page, table, data = write_sheets("table1", sheets, tmp_path / "new")
    assert page.read_text().startswith("## Accuracy, %: CUB, 1 shot")
    (line,) = csv.DictReader(table.read_text().splitlines())
    assert (line["row"], line["paper"]) == ("mirror_gp", "65.45")
    assert json.loads(data.read_text())[0]["records"][0]["paper"] == 65.45
