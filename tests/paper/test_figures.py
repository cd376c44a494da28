import json
from pathlib import Path

import pytest

from mirrorshot.paper.cells import Cell, Result
from mirrorshot.paper.figure2 import calibration_figure
from mirrorshot.paper.figure3 import inner_loop_figure
from mirrorshot.paper.figure4 import INNER, outer_loop_figure
from mirrorshot.paper.program import write_figure
from mirrorshot.training.evaluation.calibration import stored_bins

RESULTS = Path(__file__).parents[2] / "results"
BINS = {"counts": [0.0, 4.0, 6.0], "confidence_sum": [0.0, 2.0, 5.4], "correct_sum": [0.0, 3.0, 5.0]}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("figure3_*.json")), ids=lambda path: path.stem)
def test_the_inner_loop_is_drawn_from_its_result(path):
    record = json.loads(path.read_text())
    bound, gap, seconds = inner_loop_figure(record).axes
    mirror, plain = (line.get_ydata() for line in bound.lines[:2])
    assert all(a > b for a, b in zip(mirror[1:], plain[1:], strict=True))  # the claim of the paper's figure
    assert len(gap.lines) == len(seconds.lines) == len(record["curves"])
    assert "milliseconds" in seconds.get_xlabel()
    edges = {line.get_marker(): line.get_markeredgecolor() for line in gap.lines}
    assert "white" not in {edges[marker] for marker in "x*P"}  # markers too thin for an edge


def test_the_outer_loop_is_drawn_from_its_result(tmp_path):
    curve = {"fixed": [2.0, 1.5, 1.0], "fresh_iterations": [0, 10], "fresh": [2.0, 1.8]}
    figure = outer_loop_figure({"data": "glyphs", "n_shot": 5, "curves": dict.fromkeys(INNER, curve)})
    fixed, fresh = figure.axes
    assert fixed.lines[0].get_xdata().tolist() == [1, 2, 3]
    figure.canvas.draw()
    assert all(tick == round(tick) for ax in figure.axes for tick in ax.get_xticks())
    assert fresh.lines[0].get_ydata().tolist() == [2.0, 1.8]
    assert [path.suffix for path in write_figure(figure, "figure4", tmp_path)] == [".svg", ".png"]


def test_reliability_diagrams_are_drawn_from_stored_bins():
    bins = stored_bins(BINS)
    assert bins.edges.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert bins.accuracy[1:].tolist() == pytest.approx([0.75, 5 / 6])
    records = {
        "5 shots": {"evaluation": {"raw": {"bins": BINS}, "calibrated": {"bins": BINS}}},
        "1 shot": {"evaluation": {"raw": {"bins": BINS}, "calibrated": None}},
    }
    cell = Cell("mirror_gp", "cub", 5)
    figure = calibration_figure({title: Result(cell, Path("x.json"), record) for title, record in records.items()})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["5 shots\nas predicted", "5 shots\none temperature", "1 shot\nas predicted"]
