"""Times of cells, estimated from results."""

import pytest

from mirrorshot.paper.cells import Cell
from mirrorshot.paper.runner import announcement, estimate

GPU, CPU = "NVIDIA H200", "CPU, 2 threads"


@pytest.fixture
def timed(result_of):
    """A result with its times."""

    def make(cell, seconds, *, device=GPU, testing=0.0, n_tasks=600, **record):
        found = result_of(cell, 0.5, protocol={"n_tasks": n_tasks, "seeds": [1, 2, 3, 4, 5]})
        times = {"device": device, "training_time_s": seconds, "testing_time_s": testing}
        return found._replace(record={**found.record, **times, "tested_with": {"device": device}, **record})

    return make


def test_the_time_of_a_row_is_scaled_to_episodes_and_test_tasks(timed):
    cell = Cell("dkt", "cub", 1, preset="default")
    known = timed(cell, 40.0, testing=2.0, n_tasks=100)
    known.record["config"]["n_episodes"] = cell.config().n_episodes // 4
    others = [timed(Cell("protonet", "cub", 1, preset="default"), 9e3, testing=99.0)]
    found = estimate(cell, [*others, known], GPU)
    assert found == (pytest.approx(4 * 40.0 + 6 * 2.0), GPU, True)


def test_times_of_this_kind_of_device_come_first_and_others_say_so(timed):
    cell = Cell("dkt", "cub", 1)
    on_gpu, on_cpu = timed(cell, 60.0), timed(cell._replace(seed=2), 900.0, device=CPU)
    assert estimate(cell, [on_gpu, on_cpu], "CPU, 1 threads")[:2] == (pytest.approx(900.0), CPU)
    assert estimate(cell, [on_gpu, on_cpu], "NVIDIA A100")[:2] == (pytest.approx(60.0), GPU)
    assert estimate(cell, [on_gpu], CPU)[:2] == (pytest.approx(60.0), GPU)


@pytest.mark.parametrize("changes", ["resumed", "network", "kind", "smoke"])
def test_a_time_that_says_nothing_is_left_out(timed, changes):
    cell = Cell("dkt", "cub", 1)
    known = timed(cell, 60.0)
    if changes == "resumed":
        known.record["is_resumed"] = True
    elif changes == "network":
        known.record["config"]["backbone"] = "resnet12"
    else:
        other = {"kind": cell._replace(data="omniglot"), "smoke": cell._replace(budget="smoke")}[changes]
        known = known._replace(cell=other)
    assert estimate(cell, [known], GPU).seconds is None


def test_the_announcement_names_each_cell_the_sums_and_the_devices(timed):
    dkt, maml, mirror = (Cell(row, "cub", 1) for row in ("dkt", "maml", "mirror_gp"))
    characters = dkt._replace(data="omniglot_to_emnist")
    known = [timed(dkt, 60.0), timed(mirror, 120.0, device=CPU)]
    lines = announcement([dkt._replace(seed=2), maml, mirror._replace(seed=2), characters], known, GPU, n_jobs=6)
    assert lines[0] == "accuracy_cub_1shot_dkt_paper_seed2: about 60 s on NVIDIA H200"
    assert "by the times of other methods" in lines[1]
    assert lines[3] == "accuracy_omniglot_to_emnist_1shot_dkt_paper: not measured"
    assert lines[-1].startswith("4 cells to run, one after the other: 3 of them about ")
    assert "1 of them were never measured. 6 at a time share" in lines[-1]
    assert lines[-1].endswith(f"This device: {GPU}.")
