"""The list of missing cells of table 1 with its estimates, and the runner that stops at the end of its budget."""

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
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
        for name in ("table", "_common", "_lent"):
            sys.modules.pop(name, None)


def write(folder, cell, *, config=None, seconds=100.0, device="NVIDIA H200"):
    """A result of a cell with the settings of its preset, or others."""
    from mirrorshot.paper import BUDGETS

    config = config or cell.config()
    budget = BUDGETS["paper"]
    record = {
        "commit": "0123456", "wall_time_s": seconds,
        "device": device, "training_time_s": seconds, "testing_time_s": 5.0, "tested_with": {"device": device},
        "config": config.to_dict(),
        "evaluation": {
            "protocol": {"n_tasks": budget.n_tasks, "seeds": list(budget.seeds), "episodes": "same"},
            "accuracy": 0.5, "accuracy_sd": 0.1, "accuracy_interval_95": 0.2, "raw": {"ece": 0.1, "mce": 0.2},
        },
    }  # fmt: skip
    (folder / f"{cell.name}.json").write_text(json.dumps(record))


def test_the_whole_table_has_every_row_and_column_once(table):
    cells = [cell for group in table.wanted_cells(table.REPEATED, []) for cell in group]
    assert len(cells) == len(set(cells)) == 17 * 6 + 2 * 6 * 6 + 3 * 6


def test_a_cell_with_its_settings_is_not_missing_and_one_with_others_is(table, tmp_path):
    done, shortened, absent = (
        table.Cell("protonet", "cub", n, preset="default", seed=s) for n, s in ((1, 1), (5, 1), (5, 2))
    )
    write(tmp_path, done)
    write(tmp_path, shortened, config=shortened.config().replace(n_episodes=100))
    found = {planned.cell: planned.reason for planned in table.missing([[done, shortened, absent]], tmp_path)}
    assert done not in found
    assert found[shortened].startswith("n_episodes = 100 (asked for: ")
    assert found[absent] == "no result"


def test_cells_that_nothing_stands_for_come_before_those_with_a_shortened_result(table, tmp_path):
    shortened = table.Cell("maml", "cub", 1, preset="default", tag="_12k")
    write(tmp_path, shortened)
    plan = table.missing(table.wanted_cells(["dkt"], table.read_results(tmp_path)), tmp_path)
    order = [planned.cell for planned in plan]
    plain = shortened._replace(tag="")
    cells = [
        table.Cell("mirror_gp", "cub", 1, preset="default", seed=3),
        plain._replace(row="protonet"),
        table.Cell("dkt", "cub", 1, preset="default", seed=2),
        plain,
        table.Cell("mirror_gp", "cub", 1, preset="paper"),
    ]
    assert [order.index(cell) for cell in cells] == sorted(order.index(cell) for cell in cells)


def test_in_a_group_the_quickest_comes_first(table, tmp_path):
    slow, quick = (table.Cell(row, "cub", 1, preset="default") for row in ("maml", "protonet"))
    for cell, seconds in ((slow, 500.0), (quick, 50.0)):
        write(tmp_path, cell._replace(seed=9), seconds=seconds)
    plan = table.missing([[slow, quick, slow._replace(row="dkt", data="omniglot")]], tmp_path)
    assert [planned.cell.row for planned in plan] == ["protonet", "maml", "dkt"]
    assert plan[-1].seconds is None


def test_the_runner_stops_at_the_end_of_its_budget_and_says_what_is_left(table, capsys):
    cells = [table.Planned(table.Cell("dkt", "cub", 1, seed=s), 1.0, "", "no result") for s in (1, 2, 3)]
    started = []

    def start(cell):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], text=True))
        return started[-1]

    table.run(cells, start, 2, 1.0)
    assert len(started) == 2
    assert all(process.poll() not in (None, 0) for process in started)  # it has not waited for them
    assert "3 of 3 cells are left" in capsys.readouterr().out


def test_the_runner_ends_when_nothing_is_left(table, capsys):
    cells = [table.Planned(table.Cell("dkt", "cub", 1, seed=s), 1.0, "", "no result") for s in (1, 2, 3)]
    codes = iter((0, 0, 3))
    kept = []
    start = lambda _: subprocess.Popen([sys.executable, "-c", f"raise SystemExit({next(codes)})"])  # noqa: E731
    failed = table.run(cells, start, 2, 120.0, lambda: kept.append(0))
    printed = capsys.readouterr().out
    assert len(kept) >= 3  # after a cell, and at the end
    assert failed == ["accuracy_cub_1shot_dkt_paper_seed3"]
    assert f"1 failed: {failed[0]}" in printed
    assert printed.count("done") == 2
    assert "failed, exit code 3" in printed
    assert "0 of 3 cells are left" in printed


def in_archives(folder):
    names = set()
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as archive:
            names.update(archive.getnames())
    return names


@pytest.fixture(name="embeddings")
def _embeddings(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "points"
    folder.mkdir()
    for split in ("train", "val", "test"):
        X = np.repeat(rng.normal(size=(8, 6)), 20, 0) + 0.3 * rng.normal(size=(160, 6))
        np.savez(folder / f"{split}.npz", X=X.astype(np.float32), y=np.repeat(np.arange(8), 20))
    return str(folder)


@pytest.mark.long
def test_what_a_lent_machine_has_done_goes_on_elsewhere(table, embeddings, tmp_path):
    changes = ("device=cpu", "save_every=0")
    done, begun = (table.Cell(r, embeddings, 1, budget="smoke", changes=changes) for r in ("dkt", "mirror_gp"))
    begun = begun._replace(changes=(*changes, "n_episodes=400", "validate_every=4"))
    there = table.Places(tmp_path / "there/results", tmp_path / "there/runs")
    plan = [table.Planned(cell, None, "", "no result") for cell in (done, begun)]
    kept, limit = tmp_path / "kept", time.monotonic() + 240

    def is_far_enough():  # one cell has its result, and the other a checkpoint
        names = in_archives(kept)
        return {f"{done.name}.json", f"{begun.name}/last.safetensors"} <= names or time.monotonic() > limit

    def keep():
        table.keep_all(kept, plan, there)

    start = table.starter(there, 2)
    processes = [start(cell) for cell in (done, begun)]
    while not is_far_enough():
        time.sleep(0.5)
        keep()
    processes[1].kill()
    for process in processes:
        process.wait()
    here = table.Places(tmp_path / "here/results", tmp_path / "here/runs")
    table._lent.fetch(kept, here.results, here.runs)
    assert table.has_result(done, here.results)
    assert {path.name for path in here.runs.iterdir()} == {begun.name}
    process = table.starter(here, 1)(begun)
    assert process.wait() == 0
    (result,) = [r for r in table.read_results(here.results) if r.cell.row == "mirror_gp"]
    assert result.record["is_resumed"]


def test_a_run_of_an_earlier_preset_is_begun_anew_and_not_kept(table, tmp_path, monkeypatch):
    cell = table.Cell("dkt", "cub", 1, preset="default")
    places = table.Places(tmp_path / "results", tmp_path / "runs")
    (places.runs / cell.name).mkdir(parents=True)
    (places.runs / cell.name / "config.json").write_text(json.dumps(cell.config().replace(lr=0.5).to_dict()))
    begun = []
    monkeypatch.setattr(table, "cell_process", lambda cell, *places, again, **options: begun.append(again))
    table.starter(places, 1)(cell)
    table.keep_all(tmp_path / "kept", [table.Planned(cell, None, "", "no result")], places)
    assert begun == [True]
    assert in_archives(tmp_path / "kept") == set()


def test_archives_are_few_and_bounded_and_say_what_does_not_fit(table, tmp_path):
    runs = []
    for i, megabytes in enumerate((9, 9, 5, 16)):
        runs.append(tmp_path / f"runs/run{i}")
        runs[-1].mkdir(parents=True)
        (runs[-1] / "config.json").write_text("{}")
        (runs[-1] / "last.safetensors").write_bytes(bytes(megabytes * 2**20))
    left_out = table._lent.keep(tmp_path / "kept", [], runs)
    assert left_out == ["run3"]
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "kept").iterdir()}
    assert set(sizes) == {"results.tar", "runs-0.tar", "runs-1.tar"}
    assert max(sizes.values()) <= 16 * 2**20
    assert table._lent.keep(tmp_path / "kept", [], runs[:1]) == []
    assert not (tmp_path / "kept/runs-1.tar").exists()


@pytest.mark.parametrize("works", [True, False])
def test_processes_share_the_gpu_only_where_the_service_computes(table, tmp_path, monkeypatch, works):
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ -n "$1" ] || cat >> {tmp_path}/calls\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(table._lent, "_can_compute", lambda environment: works)
    with table._lent.multi_process_service() as is_shared:
        assert is_shared == works == ("CUDA_MPS_PIPE_DIRECTORY" in os.environ)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert (tmp_path / "calls").read_text().split() == ["-d", "quit"]


def test_without_the_service_there_is_none(table, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with table._lent.multi_process_service() as is_shared:
        assert not is_shared
