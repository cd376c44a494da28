import _thread
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from mirrorshot.data import ClassSource
from mirrorshot.data.augment import IMAGENET_MEAN, IMAGENET_STD
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.files.lock import RunLock
from mirrorshot.methods import method_options
from mirrorshot.paper import runner
from mirrorshot.paper.cell_run import TenSeconds, run_cell
from mirrorshot.paper.cells import Cell, different_settings, read_results
from mirrorshot.paper.runner import plan, run_cells
from mirrorshot.types import InvalidInputError

SILENT = {"say": lambda line: None}


def cell_of(data, row="dkt", **options):
    return Cell(row, data, 1, budget="smoke", changes=("device=cpu", "save_every=0"), **options)


@pytest.fixture
def cell(data):
    return cell_of(data, "mirror_gp")


def accuracy(places, cell):
    return json.loads((places.results / f"{cell.name}.json").read_text())["evaluation"]["accuracy_of_seeds"]


def test_a_result_says_what_was_found_and_how(cell, places):
    (outcome,) = run_cells([cell], places, **SILENT)
    assert (outcome.cell, outcome.status) == (cell, "done")
    (result,) = read_results(places.results)
    record, found = result.record, result.evaluation
    assert record["command"].startswith(f"mirrorshot reproduce table1 --dataset {cell.data} --shots 1")
    assert set(record) >= {"commit", "device", "torch", "seed", "wall_time_s", "config", "log", "best_validation"}
    assert different_settings(cell.config(), record["config"]) == []
    assert set(record["config"]["method_options"]) == set(method_options("mirror_gp"))
    # 2 seeds of 10 tasks with 75 queries, in the bins and in the tasks
    assert sum(found["raw"]["bins"]["counts"]) == sum(found["calibrated"]["bins"]["counts"]) == 2 * 10 * 75
    tasks = [[float(x) for x in line.split()] for line in record["task_accuracy"]]
    assert [sum(row) / 10 for row in tasks] == pytest.approx(found["accuracy_of_seeds"], abs=1e-4)


def test_a_finished_cell_is_never_run_twice(cell, places):
    run_cells([cell], places, **SILENT)
    before = (places.results / f"{cell.name}.json").stat().st_mtime_ns
    (outcome,) = run_cells([cell], places, **SILENT)
    assert outcome.status == "has a result"
    assert (places.results / f"{cell.name}.json").stat().st_mtime_ns == before
    (outcome,) = run_cells([cell], places, again=True, **SILENT)
    assert outcome.status == "done"


def test_an_interrupted_cell_goes_on_to_the_same_result(cell, places, tmp_path):
    def stop(done, total, label):
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells([cell], places, progress=lambda name: stop, **SILENT)
    assert not (places.results / f"{cell.name}.json").exists()
    run_cells([cell], places, **SILENT)
    (result,) = read_results(places.results)
    assert result.record["is_resumed"]
    whole = places._replace(results=tmp_path / "other", runs=tmp_path / "other-runs")
    run_cells([cell], whole, **SILENT)
    assert accuracy(places, cell) == accuracy(whole, cell)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_cell_that_was_only_trained_is_tested_later(cell, places, tmp_path, n_jobs, monkeypatch):
    (outcome,) = run_cells([cell], places, train_only=True, n_jobs=n_jobs, **SILENT)
    assert outcome.status == "trained"
    assert not places.results.exists()
    (places.runs / cell.name / "last.safetensors").unlink()  # only needed to train on
    monkeypatch.setenv("MIRRORSHOT_COMMIT", "another")
    run_cells([cell], places, **SILENT)
    (result,) = read_results(places.results)
    assert result.record["tested_with"]["commit"] == "another" != result.record["commit"]
    assert result.record["wall_time_s"] >= result.record["training_time_s"] > 0
    whole = places._replace(results=tmp_path / "other", runs=tmp_path / "other-runs")
    run_cells([cell], whole, **SILENT)
    assert accuracy(places, cell) == accuracy(whole, cell)


def test_cells_in_processes_of_their_own_find_the_same_and_one_that_fails_is_reported(data, places, tmp_path):
    good = cell_of(data)
    bad = good._replace(changes=("n_way=8", "n_shot=20", "device=cpu"), tag="_bad")
    alone = places._replace(results=tmp_path / "other", runs=tmp_path / "other-runs")
    for where, n_jobs in ((places, 2), (alone, 1)):
        outcomes = {o.cell: o for o in run_cells([bad, good], where, n_jobs=n_jobs, **SILENT)}
        assert outcomes[good].status == "done", outcomes
        assert outcomes[bad].status == "failed"
        assert "items" in outcomes[bad].detail
        assert [result.cell for result in read_results(where.results)] == [good._replace(data="points", changes=())]
    assert accuracy(places, good) == accuracy(alone, good)


def test_no_cell_begins_after_the_time(cell, places):
    (outcome,) = run_cells([cell], places, seconds=-1.0, **SILENT)
    assert outcome.status == "no time left"
    assert not places.results.exists()


def test_beginning_anew_removes_a_run_only_when_its_time_has_come_and_nobody_is_at_it(cell, places):
    run_cells([cell], places, **SILENT)
    folder = places.runs / cell.name
    run_cells([cell], places, again=True, seconds=-1.0, **SILENT)
    assert (folder / "training.json").exists()
    lock = RunLock.acquire(folder)
    (outcome,) = run_cells([cell], places, again=True, **SILENT)
    assert outcome.status == "failed"
    assert "no other process" in outcome.detail
    assert (folder / "training.json").exists()
    lock.release()


def test_a_cell_that_another_machine_has_finished_meanwhile_is_not_run(data, places, tmp_path):
    first, second = cell_of(data), cell_of(data, "mirror_gp")
    elsewhere = places._replace(results=tmp_path / "other", runs=tmp_path / "other-runs")
    run_cells([second], elsewhere, **SILENT)

    def finish(line):
        if line.startswith(f"{first.name}: accuracy"):
            (elsewhere.results / f"{second.name}.json").rename(places.results / f"{second.name}.json")

    outcomes = run_cells([first, second], places, say=finish)
    assert [outcome.status for outcome in outcomes] == ["done", "has a result"], outcomes
    assert not (places.runs / second.name).exists()


def test_a_run_that_is_being_tested_is_not_tested_by_another(cell, places):
    run_cells([cell], places, train_only=True, **SILENT)
    lock = RunLock.acquire(places.runs / cell.name)
    (outcome,) = run_cells([cell], places, **SILENT)
    lock.release()
    assert outcome.status == "failed"
    assert "no other process" in outcome.detail
    assert not places.results.exists()


def test_a_cell_that_breaks_in_an_unforeseen_way_does_not_stop_the_others(data, places, monkeypatch):
    broken, good = cell_of(data), cell_of(data, "mirror_gp")
    said = []

    def fail_once(*arguments, **options):
        monkeypatch.undo()
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("mirrorshot.paper.cell_run.train", fail_once)
    outcomes = run_cells([broken, good], places, say=said.append)
    assert [(o.status, o.detail) for o in outcomes] == [("failed", "RuntimeError: CUDA out of memory"), ("done", "")]
    assert f"{broken.name}: failed: RuntimeError: CUDA out of memory" in said


def test_weights_of_other_settings_are_never_tested_as_those_of_a_cell(cell, places):
    earlier = cell._replace(changes=(*cell.changes, "lr=0.5"))
    run_cells([earlier], places, train_only=True, **SILENT)
    with pytest.raises(InvalidInputError, match=r"Expected the run in .* lr = 0.5 \(asked for: 0.001\)"):
        run_cell(cell, places, load_dataset(cell.data), progress=None, say=None, train_only=False, again=False)


def test_test_tasks_that_cannot_be_are_known_before_training(cell, places):
    impossible = cell._replace(changes=(*cell.changes, "n_way=9"), tag="_ways")
    (outcome,) = run_cells([impossible], places, **SILENT)
    assert outcome.status == "failed"
    assert not (places.runs / impossible.name).exists()


def test_a_training_that_does_not_say_how_is_named(cell, places):
    run_cells([cell], places, train_only=True, **SILENT)
    (places.runs / cell.name / "training.json").write_text("{}")
    (outcome,) = run_cells([cell], places, **SILENT)
    assert "training.json to say how the run was trained" in outcome.detail


def test_results_and_runs_with_other_settings_are_refused_before_any_work(cell, places):
    run_cells([cell], places, **SILENT)
    other = cell._replace(changes=(*cell.changes, "lr=0.5"))
    with pytest.raises(InvalidInputError, match=r"lr = 0.001 \(asked for: 0.5\).*--again"):
        plan([other], places)
    (places.results / f"{cell.name}.json").unlink()
    with pytest.raises(InvalidInputError, match=r"Expected the run in .* lr = 0.001 \(asked for: 0.5\)"):
        plan([other], places)
    assert plan([cell], places) == [cell]


def test_all_cells_with_other_settings_are_named(data, places):
    cells = [cell_of(data, row) for row in ("dkt", "mirror_gp")]
    run_cells(cells, places, **SILENT)
    others = [cell._replace(changes=(*cell.changes, "lr=0.5")) for cell in cells]
    with pytest.raises(InvalidInputError, match=rf"{others[0].name}.json .* Other cells .*: {others[1].name}\."):
        plan(others, places)


def test_a_run_that_cannot_be_read_is_refused_with_what_to_do(cell, places):
    (places.runs / cell.name).mkdir(parents=True)
    (places.runs / cell.name / "config.json").write_text("x")
    with pytest.raises(InvalidInputError, match=r"config.json to be a JSON object.* or give --again"):
        plan([cell], places)
    assert plan([cell], places, again=True) == [cell]


def test_progress_is_a_line_every_ten_seconds(monkeypatch):
    lines, clock = [], iter([0.0, 5.0, 10.5, 10.5, 12.0, 21.0, 21.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    tell = TenSeconds(lines.append, "cell")
    for done in (1, 2, 3, 4):
        tell(done, 9, "loss 1")
    assert lines == ["  cell: 2/9 loss 1", "  cell: 4/9 loss 1"]


def small_photographs(n_classes, seed):
    rng = np.random.default_rng(seed)
    pattern = rng.integers(0, 128, (n_classes, 1, 3, 16, 16))
    X = (pattern + rng.integers(0, 128, (n_classes, 24, 3, 16, 16))).astype(np.uint8)
    return ClassSource.from_arrays(X.reshape(-1, 3, 16, 16), np.arange(n_classes).repeat(24))


RESNET = ("backbone=resnet12", "device=cpu", "n_calibration_tasks=2", "n_tune_tasks=2", "n_validation_tasks=2")


@pytest.mark.long
@pytest.mark.parametrize(("data", "n_shot"), [("mini_imagenet", 1), ("cub", 5)])
def test_a_resnet_trains_with_our_recipe_for_photographs(places, data, n_shot):
    cell = Cell("mirror_gp", data, n_shot, "default", "smoke", tag="_resnet12", changes=(*RESNET, "n_episodes=8"))
    config = cell.config()
    assert (config.backbone, config.optimizer, config.auxiliary_weight > 0) == ("resnet12", "muon", True)
    assert config.method_options["objective"] == {1: "cml", 5: "tpl"}[n_shot]
    colours = (IMAGENET_MEAN, IMAGENET_STD)
    dataset = Dataset(data, *(small_photographs(6, seed) for seed in (0, 1, 2)), 16, 3, True, *colours)
    progress = TenSeconds(lambda line: None, "")
    run_cell(cell, places, dataset, progress=progress, say=lambda line: None, train_only=False, again=False)
    (result,) = read_results(places.results)
    assert result.cell == cell._replace(changes=())
    assert result.evaluation["accuracy"] > 0.2


@pytest.fixture
def heeds_interrupts():
    """As in a terminal; background jobs of a shell ignore SIGINT, and so would the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_processes_of_cells_end_with_an_interruption_of_the_command(data, places, monkeypatch):
    started, code = [], "print('trains', flush=True); import time; time.sleep(3600)"

    def process(*args, **options):
        started.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True))
        return started[-1]

    said = []

    def say(line):
        said.append(line)
        if said.count("trains") == 2 and line == "trains":
            _thread.interrupt_main()

    monkeypatch.setattr(runner, "cell_process", process)
    with pytest.raises(KeyboardInterrupt):
        run_cells([cell_of(data), cell_of(data, "protonet")], places, say=say, n_jobs=2)
    assert len(started) == 2
    assert all(process.poll() not in (None, 0) for process in started)
