"""Tables of evaluations with their protocols."""

from collections.abc import Mapping, Sequence
from typing import Literal

from mirrorshot.training.evaluation import Calibration, Evaluation, Protocol, paired_difference
from mirrorshot.types import InvalidInputError
from mirrorshot.views.page import Table

_COLUMNS = ("method", "accuracy, %", "± sd", "95 %", "NLL", "Brier", "ECE", "MCE")
_ACCURACY, _COMPARED = 1, (1, 4, 5, 6, 7)
_Metric = Literal["accuracy", "nll"]
_PAIRED: tuple[_Metric, ...] = ("accuracy", "nll")
_NOTE = (
    "sd: population standard deviation of the seeds' means. 95 %: half-width of the interval over all tasks. "
    "NLL in nats per query. ECE, MCE: 15 bins of equal width over the queries of all tasks."
)
_FITTED = (
    " Rows with a temperature T have one for all tasks, fitted by NLL on validation tasks; it changes no accuracy."
)
_MARKED = " The best of a column is marked among the rows with T and, apart from them, among those without."
_TWO = (
    " two T: the protocol of the paper's released code, p = E[softmax(f / T1)] and then softmax(log p / T2), each of "
    "260 values, chosen by the smallest validation ECE (for the ECE) or MCE (for the MCE). These compare only with "
    "numbers made alike."
)


def evaluation_table(evaluations: Mapping[str, Evaluation], *, caption: str) -> Table:
    """Accuracy and calibration of several methods on the same episodes.

    A method has one row, and a second one at its temperature if one was fitted. The best of each column is marked
    separately among the raw predictions and among those at a temperature.

    Raises:
        InvalidInputError: the evaluations differ in protocol or episodes.
    """
    protocol = _common_protocol(evaluations)
    rows: list[list[str]] = []
    raw: list[int] = []
    fitted: list[int] = []
    for name, found in evaluations.items():
        accuracy = [f"{100 * v:.2f}" for v in (found.accuracy, found.accuracy_sd, found.accuracy_interval)]
        if len(protocol.seeds) == 1:
            accuracy[1] = "-"
        raw.append(len(rows))
        rows.append([name, *accuracy, *_cells(found.raw)])
        if found.calibrated is not None:
            fitted.append(len(rows))
            temperature = f"T\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{found.temperature:.3g}"
            rows.append([f"{name}, {temperature}", *accuracy, *_cells(found.calibrated)])
    best = [*_best(rows, raw), *_best(rows, fitted)]
    note = _NOTE + _FITTED * bool(fitted) + _MARKED * bool(fitted and best)
    return Table(caption, _COLUMNS, rows, _facts(protocol), best, note)


def calibration_table(evaluations: Mapping[str, Evaluation], *, caption: str) -> Table:
    """Calibration errors of raw predictions, at one temperature and at two, with intervals over tasks.

    If an evaluation has two temperatures, their columns follow the paper's released code: the ECE at the pair with the
    smallest validation ECE, the MCE at the pair with the smallest validation MCE.
    """
    protocol = _common_protocol(evaluations)
    has_one = any(e.calibrated is not None for e in evaluations.values())
    has_two = any(e.tempered for e in evaluations.values())
    kinds = ["raw", *["one T"] * has_one, *["two T"] * has_two]
    columns = ["method", *(f"{metric}, {kind}" for metric in ("ECE", "MCE") for kind in kinds), "debiased ECE, raw"]
    cells = {
        name: [_with_interval(_kind(found, kind, m), m) for m in ("ece", "mce") for kind in kinds]
        for name, found in evaluations.items()
    }
    rows = [[name, *cells[name], _with_interval(e.raw, "debiased_ece")] for name, e in evaluations.items()]
    note = "In brackets: 95 % intervals by the bootstrap over tasks. raw: the predictions as they are."
    if has_one:
        note += " one T: one temperature, fitted by NLL on validation tasks."
    return Table(caption, columns, rows, _facts(protocol), note=note + (_TWO + _pairs(evaluations) if has_two else ""))


def _pairs(evaluations: Mapping[str, Evaluation]) -> str:
    said = []
    for name, found in evaluations.items():
        for t in found.tempered:
            T1 = "without latents, T2 alone" if t.likelihood is None else f"T1 = {t.likelihood:.3g}"
            said.append(f"{name} by {t.rule.upper()}: {T1}, T2 = {t.predictive:.3g}")
    return f" {'; '.join(said)}."


def _kind(found: Evaluation, kind: str, metric: str) -> Calibration | None:
    if kind == "raw":
        return found.raw
    if kind == "one T":
        return found.calibrated
    return next((t.calibration for t in found.tempered if t.rule == metric), None)


def _with_interval(calibration: Calibration | None, metric: str) -> str:
    if calibration is None:
        return "\N{EN DASH}"
    value = calibration.scores[metric] if metric in calibration.scores else getattr(calibration, metric, None)
    interval = calibration.intervals.get(metric)
    shown = "\N{EN DASH}" if value is None else f"{value:.3f}"
    return shown if interval is None else f"{shown} [{interval.low:.3f}, {interval.high:.3f}]"


def difference_table(evaluations: Mapping[str, Evaluation], *, reference: str, caption: str) -> Table:
    """Paired differences of the other methods from the `reference`, over the same tasks."""
    if reference not in evaluations:
        raise InvalidInputError(f"Expected `reference` to be one of {', '.join(evaluations)}, but got {reference!r}.")
    rows = [
        [name, *(cell for metric in _PAIRED for cell in _difference(found, evaluations[reference], metric))]
        for name, found in evaluations.items()
        if name != reference
    ]
    columns = ("method", f"points more than {reference}", "95 %", "accuracy", "NLL, nats more", "95 %", "NLL")
    note = "95 %: half-width of the interval of the mean difference over tasks. NLL of the predictions as they are."
    return Table(caption, columns, rows, _facts(_common_protocol(evaluations)), note=note)


def _difference(a: Evaluation, b: Evaluation, metric: _Metric) -> list[str]:
    """Return the mean, the half-width of its interval, and "more", "less" or "not clear"."""
    scale, digits = (100, 2) if metric == "accuracy" else (1, 3)
    mean, interval, _ = paired_difference(a, b, metric)
    clear = "more" if mean > interval else "less" if mean < -interval else "not clear"
    value = f"{scale * mean:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return [value, f"{scale * interval:.{digits}f}", clear]


def _cells(calibration: Calibration) -> list[str]:
    return [f"{value:.3f}" for value in calibration[:4]]


def _best(rows: Sequence[Sequence[str]], group: Sequence[int]) -> list[tuple[int, int]]:
    """Return the best cells of a group of rows, by printed digits; none in columns where all are equal."""
    best: list[tuple[int, int]] = []
    for c in _COMPARED:
        values = [float(rows[i][c]) for i in group]
        if len(set(values)) > 1:
            first = max(values) if c == _ACCURACY else min(values)
            best += [(i, c) for i, value in zip(group, values, strict=True) if value == first]
    return best


def _common_protocol(evaluations: Mapping[str, Evaluation]) -> Protocol:
    if not evaluations:
        raise InvalidInputError("Expected at least one evaluation. Pass those to compare.")
    first, *others = evaluations.values()
    for other in others:
        paired_difference(first, other)  # raises for other episodes
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
