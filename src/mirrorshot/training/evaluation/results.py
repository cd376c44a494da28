"""Results and settings of an evaluation, and the paired comparison of two evaluations."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.training.evaluation.calibration import Calibration, finite
from mirrorshot.training.evaluation.temperatures import Tempered
from mirrorshot.types import InvalidInputError

Z_95 = 1.96  # rounded as in the references


class Protocol(NamedTuple):
    """Settings of an evaluation."""

    n_way: int
    n_shot: int
    n_query: int
    n_tasks: int  # of each seed
    seeds: tuple[int, ...]
    n_test_classes: int
    n_test_items: int
    n_validation_tasks: int  # 0 without a temperature
    n_validation_classes: int
    episodes: str  # fingerprint of the labels of the test data


class Evaluation(NamedTuple):
    """Result of `evaluate`.

    Attributes:
        protocol: settings of the evaluation.
        accuracy: mean over the seeds of their mean accuracies.
        accuracy_sd: population standard deviation of these means, as in the paper's tables: noise of drawing tasks,
            without that of training.
        accuracy_interval: half-width of the 95 % interval over all tasks.
        raw: calibration without a temperature.
        temperature: fitted on validation tasks; None without them.
        calibrated: calibration at that temperature; None without it.
        task_accuracy, task_nll: values of each task, for paired comparisons; (S, T).
        tempered: calibration at the paper's two temperatures, and at a likelihood temperature by NLL; empty without
            `two_temperatures`.
    """

    protocol: Protocol
    accuracy: float
    accuracy_sd: float
    accuracy_interval: float
    raw: Calibration
    temperature: float | None
    calibrated: Calibration | None
    task_accuracy: Float[Tensor, "S T"]
    task_nll: Float[Tensor, "S T"]
    tempered: tuple[Tempered, ...] = ()

    def record(self, *, with_tasks: bool = False) -> dict[str, Any]:
        """Return all results and settings, ready for JSON; `with_tasks` adds accuracy and NLL of each task."""
        record = {
            "protocol": {**self.protocol._asdict(), "seeds": list(self.protocol.seeds)},
            "accuracy": self.accuracy,
            "accuracy_sd": self.accuracy_sd,
            "accuracy_interval_95": self.accuracy_interval,
            "accuracy_of_seeds": self.task_accuracy.mean(1).tolist(),
            "temperature": self.temperature,
            "raw": self.raw.record(),
            "calibrated": None if self.calibrated is None else self.calibrated.record(),
            "tempered": [{**t._asdict(), "calibration": t.calibration.record()} for t in self.tempered],
        }
        if with_tasks:
            record["task_accuracy"] = self.task_accuracy.tolist()
            record["task_nll"] = [[finite(value) for value in row] for row in self.task_nll.tolist()]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Evaluation":
        """Invert `record(with_tasks=True)`; raises `InvalidInputError` for other records."""
        try:
            protocol = Protocol(**{**record["protocol"], "seeds": tuple(record["protocol"]["seeds"])})
            calibrated = record["calibrated"]
            return cls(
                protocol=protocol,
                accuracy=float(record["accuracy"]),
                accuracy_sd=float(record["accuracy_sd"]),
                accuracy_interval=float(record["accuracy_interval_95"]),
                raw=Calibration.from_record(record["raw"]),
                temperature=record["temperature"],
                calibrated=None if calibrated is None else Calibration.from_record(calibrated),
                task_accuracy=_of_tasks(record["task_accuracy"], protocol),
                task_nll=_of_tasks(record["task_nll"], protocol),
                tempered=tuple(
                    Tempered(t["rule"], t["likelihood"], t["predictive"], Calibration.from_record(t["calibration"]))
                    for t in record["tempered"]
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"Expected the record of an evaluation with its tasks, but got one that does not fit: {error!r}. "
                "Evaluate the run again."
            ) from error


class PairedDifference(NamedTuple):
    """Mean difference of two methods on the same tasks, with the half-width `interval` of its 95 % interval.

    The difference is significant if `abs(mean) > interval`.
    """

    mean: float
    interval: float
    n_tasks: int


def paired_difference(
    a: Evaluation, b: Evaluation, metric: Literal["accuracy", "nll"] = "accuracy"
) -> PairedDifference:
    """Return the mean of `a - b` over tasks. Both have the same tasks, so their difficulty cancels.

    Raises `InvalidInputError` if the evaluations differ in protocol or episodes.
    """
    if metric not in ("accuracy", "nll"):
        raise InvalidInputError(f"Expected `metric` to be 'accuracy' or 'nll', but got {metric!r}.")
    others = differences(a.protocol, b.protocol)
    if others:
        raise InvalidInputError(
            f"Expected two evaluations on the same episodes, but got {'; '.join(others)}. "
            "Evaluate both methods with the same data and settings."
        )
    difference = getattr(a, f"task_{metric}") - getattr(b, f"task_{metric}")
    return PairedDifference(float(difference.mean()), interval_95(difference), difference.numel())


def interval_95(values: Float[Tensor, "..."]) -> float:
    """Return the half-width of the 95 % interval of a mean: 1.96 sd / sqrt(n), with the population sd."""
    return Z_95 * float(values.double().std(correction=0)) / math.sqrt(values.numel())


def differences(a: Protocol, b: Protocol) -> list[str]:
    """Return the settings of the episodes that differ. Temperatures do not affect accuracy and NLL of tasks."""
    names = ("n_way", "n_shot", "n_query", "n_tasks", "seeds", "n_test_classes", "n_test_items", "episodes")
    return [f"{n} = {getattr(a, n)} and {getattr(b, n)}" for n in names if getattr(a, n) != getattr(b, n)]


def _of_tasks(rows: Sequence[Sequence[float | None]], protocol: Protocol) -> Float[Tensor, "S T"]:
    values = torch.tensor([[math.inf if v is None else v for v in row] for row in rows], dtype=torch.float64)
    if tuple(values.shape) != (len(protocol.seeds), protocol.n_tasks):
        raise ValueError(f"tasks of shape {tuple(values.shape)}")
    return values
