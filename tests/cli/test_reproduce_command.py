import json
import os
import re
import shutil

import numpy as np
import pytest

from mirrorshot.paper import BUDGETS, TARGETS

SMOKE = ("--budget", "smoke", "--quiet")


def one_line(result):
    return " ".join(result.output.split())


def test_help_teaches_what_there_is_and_what_it_costs(run):
    text = run("reproduce", "--help").stdout
    assert all(name in text for name in (*TARGETS, *BUDGETS))
    assert "on an H200" in text
    assert "minutes on two CPU cores" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "Expected TARGET to be one of table1, .* but got 'table9'"),
        (["table1", "--dataset", "cubs"], "Expected --dataset to be one of glyphs, .* but 'cubs' is neither"),
        (["table1", "--dataset", "cub"], "MIRRORSHOT_DATA is not set; set it to a folder with CUB-200-2011 from https"),
        (["figure3"], "MIRRORSHOT_DATA is not set"),
        (["table1", *SMOKE, "--method", "protnet"], "Expected a method or a row .* but got 'protnet'"),
        (["table3", *SMOKE, "--method", "protonet"], "Expected --method of table3 to be one of .* but got 'protonet'"),
        (["table1", "--budget", "huge"], "Expected --budget to be one of smoke, short, paper, but got 'huge'"),
        (["table1", *SMOKE, "--preset", "papre"], "Expected --preset to be one of default, paper, but got 'papre'"),
        (["table1", *SMOKE, "--shots", "one"], "Expected --shots to be numbers with commas"),
        (["table1", *SMOKE, "--shots", "0"], "Expected --shots to be distinct and at least 1"),
        (["table1", *SMOKE, "--set", "lr=1"], "Expected --tag with --set lr"),
        (["table1", *SMOKE, "--set", "lrr=1", "--tag", "x"], "Did you mean `lr`"),
        (["figure3", *SMOKE, "--method", "dkt"], "Expected figure3 without --method"),
        (["departures", "--dataset", "glyphs"], "Expected departures without --dataset"),
        (["table4", *SMOKE, "--jobs", "3"], "Expected table4 without --jobs"),
        (["departures", "--shots", "1"], "Expected departures without --shots, which changes nothing there"),
        (["table1", *SMOKE, "--seeds", ""], "Expected --seeds to be numbers with commas"),
        (["table1", *SMOKE, "--set", "data=cub", "--tag", "x"], "Expected --dataset, which the result is named after"),
        (["tables", "--method", "dkt"], "Expected tables without --method"),
        (["figure2", *SMOKE], "reliability bins in results, but .* has none. Run: mirrorshot reproduce table2"),
    ],
)
def test_wrong_usage_is_one_line_before_any_work(run, tmp_path, arguments, message):
    result = run("reproduce", *arguments)
    assert result.exit_code in (1, 2)
    assert re.search(message, one_line(result)), result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(run, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    result = run("reproduce", "table1", *SMOKE, "--results", tmp_path / "locked")
    assert result.exit_code == 2
    assert "Expected --results to be a folder that can be written" in one_line(result)


def test_a_file_in_the_place_of_a_folder_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("")
    result = run("reproduce", "table1", *SMOKE, "--results", tmp_path / "file")
    assert result.exit_code == 2
    assert "Expected --results to be a folder that can be written" in one_line(result)


@pytest.fixture
def data(tmp_path):
    """Embeddings with enough items of each class for the paper's test tasks."""
    rng = np.random.default_rng(0)
    (tmp_path / "points").mkdir()
    for split in ("train", "val", "test"):
        X = np.repeat(rng.normal(size=(8, 6)), 20, 0) + 0.3 * rng.normal(size=(160, 6))
        names = np.repeat([f"{split}-{c}" for c in range(8)], 20)
        np.savez(tmp_path / "points" / f"{split}.npz", X=X.astype(np.float32), y=names)
    return tmp_path / "points"


@pytest.fixture
def trained(run, data):
    """Table 1 of embeddings of one's own, one row."""
    arguments = ("--dataset", data, "--method", "dkt", "--shots", 1, *SMOKE, "--set", "device=cpu")
    result = run("reproduce", "table1", *arguments)
    assert result.exit_code == 0, result.output
    return arguments, result


def test_a_table_is_printed_and_written_and_not_run_again(run, trained, tmp_path):
    arguments, result = trained
    assert re.search(r"\| DKT \| paper \(budget smoke\) \| - \| \d+\.\d\d ± \d+\.\d\d \|", result.stdout)
    assert "these numbers are no reproduction" in result.stdout
    names = {path.name for path in (tmp_path / "reproduction").iterdir()}
    assert names == {"table1_smoke.md", "table1_smoke.csv", "table1_smoke.json"}
    again = run("reproduce", "table1", *arguments, "--json")
    record = json.loads(again.stdout)
    assert [cell["status"] for cell in record["cells"]] == ["has a result"]
    assert record["tables"][0]["records"][0]["row"] == "dkt"


def test_data_of_one_name_do_not_share_results(run, data, tmp_path):
    other = shutil.copytree(data, tmp_path / "other" / data.name)
    for target in ("table1", "figure3"):
        result = run("reproduce", target, *SMOKE, "--dataset", f"{data},{other}")
        assert result.exit_code == 2
        assert "Expected --dataset to have different names" in one_line(result)
    assert run("reproduce", "figure3", *SMOKE, "--shots", 1, "--dataset", data).exit_code == 0
    result = run("reproduce", "figure3", *SMOKE, "--shots", 1, "--dataset", other)
    assert f"to be of --dataset {other}, but it is of {data}".replace(" ", "") in one_line(result).replace(" ", "")


def test_a_result_that_is_not_whole_is_named(run, trained, tmp_path):
    (tmp_path / "results/figure3_glyphs_1shot_smoke.json").write_text("{}")
    result = run("reproduce", "figure3", *SMOKE, "--shots", 1)
    assert "figure3_glyphs_1shot_smoke.json to be a result of figure3, but it is not whole" in one_line(result)
    arguments, _ = trained
    (tmp_path / "results/accuracy_cub_1shot_paper.json").write_text("{}")
    result = run("reproduce", "table1", *arguments, "--again")
    assert "to be the result of a cell" in one_line(result)
    assert "begins" not in result.output


def test_a_figure_is_drawn_from_the_results_of_a_table(run, trained, tmp_path):
    arguments, _ = trained
    result = run("reproduce", "figure2", *arguments)
    assert result.exit_code == 0, result.output
    svg = (tmp_path / "reproduction/figure2_smoke.svg").read_text()
    assert svg.startswith("<?xml")
    assert (tmp_path / "reproduction/figure2_smoke.png").read_bytes()[:4] == b"\x89PNG"


def test_a_cell_that_fails_makes_the_command_fail(run, data):
    options = ("--dataset", data, "--method", "dkt", "--shots", 1, *SMOKE, "--set", "n_way=9", "--tag", "bad")
    result = run("reproduce", "table1", *options, "--set", "device=cpu")
    assert result.exit_code == 1
    assert "accuracy_points_1shot_dkt_paper_smoke_bad: Expected" in one_line(result)


def test_the_page_of_results_is_made_of_what_there_is(run, tmp_path):
    assert "Expected results in results, but there are none" in one_line(run("reproduce", "tables"))
    assert run("reproduce", "table4", *SMOKE, "--dataset", "glyphs").exit_code == 0
    smoke = tmp_path / "results/table4_glyphs_1shot_cpu_smoke.json"
    smoke.rename(tmp_path / "results/table4_glyphs_1shot_cpu.json")
    result = run("reproduce", "tables", "--output", tmp_path / "docs/results.md")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "docs/results_details.md").read_text()
    assert "| CDKT (ML) | 0.0141 |" in page
    assert "Not run: `mirrorshot reproduce figure3`" in page
    assert (
        "Not run with the preset paper, 17 of 17 rows of the paper: `mirrorshot reproduce table1 --dataset cub" in page
    )


@pytest.mark.long
def test_cells_in_processes_of_their_own_leave_json_and_silence_alone(in_subprocess, data):
    arguments = ("-m", "mirrorshot", "reproduce", "table1", "--dataset", data, "--shots", 1, *SMOKE, "--jobs", 2)
    done = in_subprocess(*arguments, "--method", "dkt,mirror_gp", "--set", "device=cpu", "--json")
    cells = json.loads(done.stdout)["cells"]  # nothing but JSON
    assert [cell["status"] for cell in cells] == ["done", "done"]
    assert "accuracy" not in done.stderr


def test_how_long_it_takes_is_said_before_any_cell_begins(run, data):
    arguments = ("--dataset", data, "--shots", 1, "--budget", "smoke", "--set", "device=cpu", "--method")
    assert run("reproduce", "table1", *arguments, "dkt").exit_code == 0
    result = run("reproduce", "table1", *arguments, "dkt,mirror_gp", "--seconds", 0)
    lines = [line for line in result.output.splitlines() if not line.startswith("|")]
    assert re.match(r"accuracy_points_1shot_paper_smoke: by the times of other methods \d+ s on", lines[0])
    assert re.match(r"1 cells to run, one after the other: 1 of them about \d+ s on", lines[1])
    assert "no time left" in lines[2]
