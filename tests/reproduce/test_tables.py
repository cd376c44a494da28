import csv
import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from mirrorshot.reproduce.cells import Cell, Result
from mirrorshot.reproduce.published import STUDIES, TABLE_1
from mirrorshot.reproduce.sheets import markdown, write_sheets
from mirrorshot.reproduce.tables import accuracy_sheets, calibration_sheets, grouped, study_sheets


def result_of(cell, accuracy, *, tasks=None, **evaluation):
    """What a run of a cell would have written."""
    found = {
        "protocol": {"episodes": "same"},
        "accuracy": accuracy,
        "accuracy_sd": 0.005,
        "accuracy_interval_95": 0.004,
        "raw": {"ece": 0.3, "mce": 0.4},
        "calibrated": {"ece": 0.02, "mce": 0.06},
        **evaluation,
    }
    record = {"config": cell.config().to_dict(), "evaluation": found, "training_time_s": 3.0}
    if tasks is not None:
        record["task_accuracy"] = [" ".join(f"{x:.4f}" for x in row) for row in tasks]
    return Result(cell, Path(f"{cell.name}.json"), record)


MIRROR, DKT = Cell("mirror_gp", "cub", 1), Cell("dkt", "cub", 1)


def test_our_number_stands_beside_the_papers_with_their_difference():
    (sheet,) = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6575)]))
    (record,) = sheet.records
    assert (record["paper"], record["paper_spread"], record["ours"]) == (65.45, 0.42, pytest.approx(65.75))
    assert record["difference"] == pytest.approx(0.30)
    assert record["inside_paper_spread"] is True
    assert "| MD-BFSC | 65.45 ± 0.42 | 65.75 ± 0.50 | +0.30 | yes |" in markdown(sheet)


@pytest.mark.parametrize(("accuracy", "inside"), [(0.6586, True), (0.6588, False), (0.6504, True), (0.6502, False)])
def test_inside_is_within_the_spread_that_the_paper_prints(accuracy, inside):
    (sheet,) = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, accuracy)]))
    assert sheet.records[0]["inside_paper_spread"] is inside


def test_training_seeds_are_the_clean_protocol_and_the_first_is_the_papers():
    accuracies = {1: 0.65, 2: 0.62, 3: 0.66}
    results = [result_of(MIRROR._replace(seed=seed), value) for seed, value in accuracies.items()]
    (sheet,) = accuracy_sheets(grouped([MIRROR._replace(seed=seed) for seed in accuracies], results))
    (record,) = sheet.records
    assert record["ours"] == pytest.approx(65.0)
    assert record["n_seeds"] == 3
    assert record["clean"] == pytest.approx(100 * statistics.mean(accuracies.values()))
    assert record["clean_spread"] == pytest.approx(100 * statistics.stdev(accuracies.values()))


def test_methods_are_compared_on_the_same_tasks_in_pairs():
    rng = np.random.default_rng(0)
    easy = rng.uniform(0.3, 0.7, size=(2, 50)).round(4)
    results = [result_of(MIRROR, 0.5, tasks=easy), result_of(DKT, 0.55, tasks=easy + 0.05)]
    (sheet,) = accuracy_sheets(grouped([DKT, MIRROR], results))
    by_row = {record["row"]: record for record in sheet.records}
    assert by_row["dkt"]["paired"] == pytest.approx(5.0)
    assert by_row["dkt"]["paired_interval_95"] == pytest.approx(0.0, abs=1e-9)
    assert by_row["mirror_gp"]["paired"] is None


def test_tasks_of_other_episodes_are_not_paired():
    tasks = np.full((2, 5), 0.5)
    results = [
        result_of(MIRROR, 0.5, tasks=tasks),
        result_of(DKT, 0.5, tasks=tasks, protocol={"episodes": "other"}),
    ]
    (sheet,) = accuracy_sheets(grouped([DKT, MIRROR], results))
    assert all(record["paired"] is None for record in sheet.records)


def test_a_cell_that_was_not_run_says_so_and_has_only_the_papers_number():
    (sheet,) = accuracy_sheets(grouped([MIRROR, DKT], [result_of(MIRROR, 0.6)]))
    (record,) = [record for record in sheet.records if record["row"] == "dkt"]
    assert record["paper"] == TABLE_1["dkt"][("cub", 1)].mean
    assert all(record[name] is None for name in ("ours", "ours_spread", "difference", "clean", "interval_95"))
    assert record["command"] == "mirrorshot reproduce table1 --dataset cub --shots 1 --method dkt"
    text = markdown(sheet)
    assert "| DKT | 63.37 ± 0.19 | not run | - | - | - | - | - |" in text
    assert "Not run: `mirrorshot reproduce table1 --dataset cub --shots 1 --method dkt`" in text


def test_what_differs_from_the_papers_set_up_stands_below_the_table():
    tagged = MIRROR._replace(tag="_fast")
    changed = result_of(tagged, 0.6)
    changed.record["config"]["lr"] = 0.01
    (sheet,) = accuracy_sheets(grouped([tagged], [changed]))
    text = markdown(sheet)
    assert "192 x 192" in text
    assert "MD-BFSC (fast): lr = 0.01 (asked for: 0.001)." in text
    short = MIRROR._replace(budget="short")
    (sheet,) = accuracy_sheets(grouped([short], [result_of(short, 0.6)]))
    assert "no reproduction" in markdown(sheet)


def test_calibration_has_three_columns_and_two_temperatures_where_they_were_fitted():
    cell = Cell("mirror_gp", "cub", 5)
    (sheet,) = calibration_sheets(grouped([cell], [result_of(cell, 0.6)]))
    assert sheet.rows[0][1:] == ["0.005 / 0.067", "two temperatures", "0.300 / 0.400", "0.020 / 0.060", "not measured"]
    tempered = [
        {"rule": rule, "calibration": {"ece": ece, "mce": mce}}
        for rule, ece, mce in (("nll", 0.9, 0.9), ("ece", 0.011, 0.2), ("mce", 0.03, 0.05))
    ]
    (sheet,) = calibration_sheets(grouped([cell], [result_of(cell, 0.6, tempered=tempered)]))
    assert sheet.rows[0][-1] == "0.011 / 0.050"
    assert sheet.records[0]["ece_difference_same_protocol"] == pytest.approx(0.006)


def test_the_papers_calibration_is_that_of_five_shots():
    (sheet,) = calibration_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6)]))
    assert sheet.records[0]["ece_paper"] is None


def test_studies_share_their_default():
    rows = {key for study in STUDIES.values() for key in study}
    sheets = study_sheets(grouped([Cell(row, "cub", 1) for row in rows], [result_of(MIRROR, 0.6)]))
    assert [sheet.columns[0] for sheet in sheets] == ["rho", "kernel", "steps"]
    assert [[row[0] for row in sheet.rows if row[2] != "not run"] for sheet in sheets] == [["1"], ["COS"], ["3"]]


def test_files_hold_the_same_numbers(tmp_path):
    sheets = accuracy_sheets(grouped([MIRROR], [result_of(MIRROR, 0.6575)]))
    page, table, data = write_sheets("table1", sheets, tmp_path / "new")
    assert page.read_text().startswith("## Accuracy, %: cub, 1 shot")
    (line,) = csv.DictReader(table.read_text().splitlines())
    assert (line["row"], line["paper"]) == ("mirror_gp", "65.45")
    assert json.loads(data.read_text())[0]["records"][0]["paper"] == 65.45
