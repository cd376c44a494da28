"""Tables of evaluations, with the protocol that made them."""

from collections.abc import Mapping, Sequence

from mirrorshot.evaluation import Calibration, Evaluation, Protocol, paired_difference
from mirrorshot.report.page import Table
from mirrorshot.types import InvalidInputError

_COLUMNS = ("method", "accuracy, %", "± sd", "95 %", "NLL", "Brier", "ECE", "MCE")
_ACCURACY, _COMPARED = 1, (1, 4, 5, 6, 7)
_NOTE = (
    "sd: population standard deviation of the seeds' means. 95 %: half-width of the interval over all tasks. "
    "NLL in nats per query. ECE, MCE: 15 bins of equal width over the queries of all tasks."
)
_FITTED = (
    " Rows with a temperature T have one for all tasks, fitted by NLL on validation tasks; it changes no accuracy."
)


def evaluation_table(evaluations: Mapping[str, Evaluation], *, caption: str) -> Table:
    """Accuracy and calibration of several methods on the same episodes.

    A method has one row, and a second one at its temperature if that was fitted. The best of each column is marked,
    among the predictions as they are and among those at a temperature.

    Args:
        evaluations: for each name, what `evaluate` found.
        caption: what the table shows.

    Raises:
        InvalidInputError: the evaluations differ in protocol or episodes.
    """
    protocol = _common_protocol(evaluations)
    rows: list[list[str]] = []
    groups: tuple[list[int], list[int]] = [], []
    for name, found in evaluations.items():
        accuracy = [f"{100 * v:.2f}" for v in (found.accuracy, found.accuracy_sd, found.accuracy_interval)]
        groups[0].append(len(rows))
        rows.append([name, *accuracy, *_cells(found.raw)])
        if found.calibrated is not None:
            groups[1].append(len(rows))
            rows.append(
                [
                    f"{name}, T\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{found.temperature:.3g}",
                    *accuracy,
                    *_cells(found.calibrated),
                ]
            )
    best = [place for group in groups for place in _best(rows, group)]
    return Table(caption, _COLUMNS, rows, _facts(protocol), best, _NOTE + (_FITTED if groups[1] else ""))


def difference_table(evaluations: Mapping[str, Evaluation], *, reference: str, caption: str) -> Table:
    """How much more the methods reach than one of them, task by task.

    Args:
        evaluations: for each name, what `evaluate` found.
        reference: the one to compare with.
        caption: what the table shows.
    """
    if reference not in evaluations:
        raise InvalidInputError(f"Expected `reference` to be one of {', '.join(evaluations)}, but got {reference!r}.")
    rows = []
    for name, found in evaluations.items():
        if name != reference:
            mean, interval, _ = paired_difference(found, evaluations[reference])
            clear = "more" if mean > interval else "less" if mean < -interval else "not clear"
            rows.append([name, f"{100 * mean:+.2f}".replace("-", "\N{MINUS SIGN}"), f"{100 * interval:.2f}", clear])
    columns = ("method", f"points more than {reference}", "95 %", "difference")
    return Table(caption, columns, rows, _facts(_common_protocol(evaluations)))


def _cells(calibration: Calibration) -> list[str]:
    return [f"{value:.3f}" for value in calibration[:4]]


def _best(rows: Sequence[Sequence[str]], group: Sequence[int]) -> list[tuple[int, int]]:
    """Best cells among some rows, as printed: who shows the same digits shares the first place, unless all do."""
    best: list[tuple[int, int]] = []
    for c in _COMPARED:
        values = [float(rows[i][c]) for i in group]
        if len(set(values)) > 1:
            first = max(values) if c == _ACCURACY else min(values)
            best += [(i, c) for i, value in zip(group, values, strict=True) if value == first]
    return best


def _common_protocol(evaluations: Mapping[str, Evaluation]) -> Protocol:
    if not evaluations:
        raise InvalidInputError("Expected at least one evaluation, but got none.")
    first, *others = evaluations.values()
    for other in others:
        paired_difference(first, other)  # refuses other episodes, and says why
    return max((e.protocol for e in evaluations.values()), key=lambda p: p.n_validation_tasks)


def _facts(protocol: Protocol) -> dict[str, str]:
    facts = {
        "classes of a task": str(protocol.n_way),
        "examples of each": str(protocol.n_shot),
        "queries of each": str(protocol.n_query),
        "test tasks": f"{len(protocol.seeds)} × {protocol.n_tasks:,}",
        "seeds": _in_words(protocol.seeds),
        "test classes": f"{protocol.n_test_classes:,}",
        "test items": f"{protocol.n_test_items:,}",
    }
    if protocol.n_validation_tasks:
        facts["validation tasks"] = f"{protocol.n_validation_tasks:,}"
        facts["validation classes"] = f"{protocol.n_validation_classes:,}"
    return facts


def _in_words(seeds: Sequence[int]) -> str:
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 2 and list(seeds) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, seeds))
