import pytest
import torch

from mirrorshot.metrics import calibration_bins
from mirrorshot.training.evaluation import Calibration, Evaluation, Protocol
from mirrorshot.types import InvalidInputError
from mirrorshot.views import difference_table, evaluation_table

PROTOCOL = Protocol(5, 1, 15, 600, (1, 2, 3, 4, 5), 10, 1797, 600, 64, "abc")


def calibration(nll, ece=0.05):
    bins = calibration_bins(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    return Calibration(nll, 0.25, ece, 0.125, bins)


def evaluation(accuracy, nll=0.5, temperature=None, protocol=PROTOCOL):
    tasks = accuracy + 0.1 * torch.randn(5, 600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fitted = None if temperature is None else calibration(nll / 2, 0.01)
    return Evaluation(protocol, accuracy, 0.0042, 0.0031, calibration(nll), temperature, fitted, tasks, tasks)


def test_table_has_the_numbers_of_the_evaluations():
    table = evaluation_table({"ours": evaluation(0.6545, 0.875)}, caption="CUB")
    assert table.caption == "CUB"
    assert table.rows == [["ours", "65.45", "0.42", "0.31", "0.875", "0.250", "0.050", "0.125"]]
    assert len(table.columns) == 8


def test_one_seed_has_no_standard_deviation():
    protocol = PROTOCOL._replace(seeds=(1,))
    (row,) = evaluation_table({"ours": evaluation(0.6545, protocol=protocol)}, caption="").rows
    assert row[:4] == ["ours", "65.45", "-", "0.31"]


def test_a_fitted_temperature_has_its_own_row():
    table = evaluation_table({"ours": evaluation(0.65, 0.5, 1.2345)}, caption="CUB")
    name, accuracy, *_, nll, _, ece, _ = table.rows[1]
    assert name.replace("\N{NO-BREAK SPACE}", " ") == "ours, T = 1.23"
    assert (accuracy, nll, ece) == ("65.00", "0.250", "0.010")
    assert "fitted by NLL on validation tasks" in table.note


def test_best_is_marked_among_equals():
    table = evaluation_table({"a": evaluation(0.65, 0.9, 1.0), "b": evaluation(0.6, 0.5, 1.0)}, caption="")
    assert set(table.best) == {(0, 1), (1, 1), (2, 4), (3, 4)}  # accuracy of a, NLL of b; raw and fitted
    assert "among the rows with T and, apart from them" in table.note
    assert "is marked" not in evaluation_table({"a": evaluation(0.65, 0.9, 1.0)}, caption="").note


def test_shared_digits_share_the_first_place():
    methods = {"a": evaluation(0.65001), "b": evaluation(0.65002), "c": evaluation(0.5)}
    assert evaluation_table(methods, caption="").best == [(0, 1), (1, 1)]


def test_protocol_is_beside_the_numbers():
    facts = evaluation_table({"a": evaluation(0.5)}, caption="").protocol
    assert facts["classes of a task"] == "5"
    assert facts["test tasks"] == "5 × 600"
    assert facts["seeds"] == "1 to 5"
    assert facts["validation classes"] == "64"


def test_scattered_seeds_are_listed():
    protocol = PROTOCOL._replace(seeds=(1, 7, 3), n_validation_tasks=0)
    facts = evaluation_table({"a": evaluation(0.5, protocol=protocol)}, caption="").protocol
    assert facts["seeds"] == "1, 7, 3"
    assert "validation tasks" not in facts


def test_differences_are_paired_and_judged():
    methods = {"ours": evaluation(0.65), "base": evaluation(0.60), "same": evaluation(0.60), "worse": evaluation(0.55)}
    table = difference_table(methods, reference="base", caption="")
    assert [row[:4] for row in table.rows] == [
        ["ours", "+5.00", "0.00", "more"],
        ["same", "+0.00", "0.00", "not clear"],
        ["worse", "\N{MINUS SIGN}5.00", "0.00", "less"],
    ]
    assert table.rows[0][4:] == ["+0.050", "0.000", "more"]  # the tasks of these tests have the same NLL as accuracy


def test_evaluations_of_other_episodes_are_refused():
    other = evaluation(0.5, protocol=PROTOCOL._replace(n_shot=5))
    with pytest.raises(InvalidInputError, match="n_shot = 1 and 5"):
        evaluation_table({"a": evaluation(0.5), "b": other}, caption="")


def test_an_unknown_reference_and_no_evaluations_are_refused():
    with pytest.raises(InvalidInputError, match="`reference` to be one of a, but got 'b'"):
        difference_table({"a": evaluation(0.5)}, reference="b", caption="")
    with pytest.raises(InvalidInputError, match="at least one evaluation"):
        evaluation_table({}, caption="")
