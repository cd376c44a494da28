"""The list of missing cells of table 1 with its estimates, and the runner that stops at the end of its budget."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="table", scope="module")
def _table():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import table

        yield table
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in ("table", "_common"):
            sys.modules.pop(name, None)


def write(folder, cell, *, config=None, seconds=100.0, device="NVIDIA H200"):
    """A result of a cell with the settings of its preset, or others."""
    from mirrorshot.paper import BUDGETS

    config = config or cell.config()
    budget = BUDGETS["paper"]
    record = {
        "device": device, "training_time_s": seconds, "testing_time_s": 5.0, "tested_with": {"device": device},
        "config": config.to_dict(),
        "evaluation": {
            "protocol": {"n_tasks": budget.n_tasks, "seeds": list(budget.seeds)},
            "accuracy": 0.5, "accuracy_sd": 0.1, "raw": {},
        },
    }  # fmt: skip
    (folder / f"{cell.name}.json").write_text(json.dumps(record))


def test_the_whole_table_has_every_row_and_column_once(table):
    cells = table.wanted_cells(table.REPEATED)
    assert len(cells) == len(set(cells)) == 17 * 6 + 2 * 6 * 6 + 3 * 6


def test_a_cell_with_its_settings_is_not_missing_and_one_with_others_is(table, tmp_path):
    done, shortened, absent = (
        table.Cell("protonet", "cub", n, preset="default", seed=s) for n, s in ((1, 1), (5, 1), (5, 2))
    )
    write(tmp_path, done)
    write(tmp_path, shortened, config=shortened.config().replace(n_episodes=100))
    found = {planned.cell: planned.reason for planned in table.missing([done, shortened, absent], tmp_path)}
    assert done not in found
    assert found[shortened].startswith("n_episodes = 100 (asked for: ")
    assert found[absent] == "no result"


def test_an_estimate_is_the_time_of_the_same_row_scaled_to_the_episodes(table, tmp_path):
    cell = table.Cell("dkt", "cub", 1, preset="default")
    short = cell.config().replace(n_episodes=cell.config().n_episodes // 4)
    write(tmp_path, cell, config=short, seconds=50.0)
    write(tmp_path, table.Cell("protonet", "cub", 1, preset="default"), seconds=9000.0)
    write(tmp_path, table.Cell("dkt", "cub", 1, preset="default", seed=2), seconds=1e6, device="CPU, 1 threads")
    assert table.estimate(cell, table.read_results(tmp_path)) == pytest.approx(4 * 50.0 + 5.0)


def test_the_runner_stops_at_the_end_of_its_budget_and_says_what_is_left(table, capsys):
    cells = [table.Planned(table.Cell("dkt", "cub", 1, seed=s), 1.0, "no result") for s in (1, 2, 3)]
    started = []

    def start(cell):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], text=True))
        return started[-1]

    table.run(cells, start, 2, 1.0)
    assert len(started) == 2
    assert all(process.poll() not in (None, 0) for process in started)  # it has not waited for them
    assert "3 of 3 cells are left" in capsys.readouterr().out


def test_the_runner_ends_when_nothing_is_left(table, capsys):
    cells = [table.Planned(table.Cell("dkt", "cub", 1, seed=s), 1.0, "no result") for s in (1, 2, 3)]
    codes = iter((0, 0, 3))
    table.run(cells, lambda _: subprocess.Popen([sys.executable, "-c", f"raise SystemExit({next(codes)})"]), 2, 120.0)
    printed = capsys.readouterr().out
    assert printed.count("done") == 2
    assert "failed, exit code 3" in printed
    assert "0 of 3 cells are left" in printed
