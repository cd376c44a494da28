import json
from html.parser import HTMLParser

import pytest
import torch

from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import Evaluation, Predictions, Protocol, Tempered, calibration_of
from mirrorshot.types import InvalidInputError
from mirrorshot.views import (
    ReportedRun,
    calibration_table,
    check_gate,
    comparison_record,
    comparison_sections,
    paired_differences,
    write_report,
)

PROTOCOL = Protocol(5, 1, 3, 10, (1, 2), 10, 1797, 5, 64, "abc")
EVIL = "<script>alert('$x$')</script> $\\frac$"


def evaluation(seed=0, sharpness=1.0, protocol=PROTOCOL, two=False):
    g = torch.Generator().manual_seed(seed)
    log_prob = (sharpness * torch.randn(20, 15, 5, generator=g, dtype=torch.float64)).log_softmax(-1)
    y = torch.multinomial(log_prob.flatten(0, 1).exp(), 1, generator=g).reshape(20, 15)
    calibration = calibration_of(Predictions(log_prob, y, torch.ones(20, 15)))
    tasks = torch.rand(2, 10, generator=g, dtype=torch.float64)
    tempered = tuple(Tempered(rule, 0.3, 1.2, calibration) for rule in ("ece", "mce")) if two else ()
    return Evaluation(protocol, float(tasks.mean()), 0.01, 0.02, calibration, 1.1, calibration, tasks, tasks, tempered)


def reported(path, **options):
    log = [{"step": i, "episodes": i, "loss": 1 / i, "val_accuracy": 0.5} for i in range(1, 4)]
    return ReportedRun(path, Config(n_episodes=7), "glyphs", evaluation(**options), log)


class Page(HTMLParser):
    """Tags, and everything that a page would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith(("#", "data:"))]


def test_report_is_one_safe_file_with_every_part(tmp_path):
    runs = {EVIL: reported(tmp_path / "a"), "b": reported(tmp_path / "b", seed=1, two=True)}
    sections = comparison_sections(runs, check_gate({n: r.evaluation for n, r in runs.items()}, 0.9))
    write_report(tmp_path / "r.html", title=EVIL, intro="", sections=sections)
    text = (tmp_path / "r.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert page.loads == []
    assert text.count("<svg") == 3  # reliability, risk, learning
    for words in ("All runs pass.", "points more than", "ECE, two T", "AURC", "n_episodes", "mirrorshot train"):
        assert words in text


def test_record_is_json_with_settings_commands_and_differences(tmp_path):
    runs = {"a": reported(tmp_path / "a"), "b": reported(tmp_path / "b", seed=1)}
    record = json.loads(json.dumps(comparison_record(runs), allow_nan=False))
    assert [run["name"] for run in record["runs"]] == ["a", "b"]
    assert record["runs"][0]["config"]["n_episodes"] == 7
    (pair,) = record["differences"]
    expected = float((runs["a"].evaluation.task_accuracy - runs["b"].evaluation.task_accuracy).mean())
    assert pair["accuracy"]["mean"] == pytest.approx(expected)
    assert record["gate"] is None


def test_runs_of_other_test_sets_are_shown_apart_and_the_reason_is_given(tmp_path):
    other = PROTOCOL._replace(n_test_classes=20, episodes="xyz")
    runs = {"a": reported(tmp_path / "a"), "b": reported(tmp_path / "b", protocol=other)}
    (pair,) = paired_differences({name: run.evaluation for name, run in runs.items()})
    assert "n_test_classes = 10 and 20; episodes = abc and xyz" in pair["not_paired"]
    results = comparison_sections(runs)[0].blocks
    assert "Runs in different tables are not compared in pairs." in results[-1]
    assert "episodes = abc and xyz" in results[-1]
    assert not any("points more than" in column for table in results[:-1] for column in table.columns)


def test_gate_names_the_runs_that_do_not_pass():
    found = {"good": evaluation(), "bad": evaluation()}
    found["bad"] = found["bad"]._replace(raw=found["bad"].raw._replace(ece=0.5))
    gate = check_gate(found, 0.3)
    assert gate.failed == ["bad"]
    assert check_gate(found, 0.3, "calibrated").failed == []
    nan = found["good"].raw._replace(ece=float("nan"))
    assert check_gate({"nan": found["good"]._replace(raw=nan)}, 0.3).failed == ["nan"]


@pytest.mark.parametrize("max_ece", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_gate_outside_zero_and_one_is_refused(max_ece):
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        check_gate({"a": evaluation()}, max_ece)


def test_a_gate_at_a_temperature_needs_one():
    with pytest.raises(InvalidInputError, match="Expected a to have a temperature"):
        check_gate({"a": evaluation()._replace(calibrated=None)}, 0.1, "calibrated")
    with pytest.raises(InvalidInputError, match="'raw' or 'calibrated'"):
        check_gate({"a": evaluation()}, 0.1, "best")


def test_calibration_table_has_raw_beside_fitted_with_intervals():
    table = calibration_table({"a": evaluation(two=True), "b": evaluation(seed=1)}, caption="")
    assert list(table.columns[1:4]) == ["ECE, raw", "ECE, one T", "ECE, two T"]
    low, high = evaluation().raw.intervals["ece"][1:]
    assert table.rows[0][1] == f"{evaluation().raw.ece:.3f} [{low:.3f}, {high:.3f}]"
    assert table.rows[1][3] == "\N{EN DASH}"
    assert "T1 = 0.3, T2 = 1.2" in table.note
