"""One pass of an evaluation: the tasks of a seed, and how far it has come."""

from collections.abc import Sequence
from typing import NamedTuple

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.evaluation.predictions import (
    Latents,
    Predictions,
    Prepare,
    Progress,
    Share,
    gather_latents,
    gather_predictions,
    predict_latents,
    predict_tasks,
)
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.types import NumericalError


class Tasks(NamedTuple):
    """Size and number of the tasks of a pass, and how to get through them."""

    n_way: int
    n_shot: int
    n_query: int
    prepare: Prepare
    batch_size: int
    share: Share


class Counter:
    """Adds up the progress of several passes."""

    def __init__(self, progress: Progress | None, passes: Sequence[int]) -> None:
        self.progress, self.total, self.before = progress, sum(passes), 0

    def of_pass(self, label: str, n_tasks: int) -> Progress | None:
        """Progress of the next pass, of which this process may do a part only."""
        if self.progress is None:
            return None
        report, before, total = self.progress, self.before, self.total
        self.before += n_tasks
        return lambda done, of, _: report(before + done * n_tasks // of, total, label)


def prediction_pass(
    method: FewShotMethod,
    source: ClassSource,
    seed: int,
    n_tasks: int,
    *,
    label: str,
    sizes: Tasks,
    counter: Counter,
) -> Predictions:
    """Predictions of all tasks of a seed, shared between processes."""
    sampler = EpisodeSampler(source, sizes.n_way, sizes.n_shot, sizes.n_query, seed=seed)
    numbers = sizes.share.of(n_tasks, sizes.batch_size)
    part = predict_tasks(
        method,
        sampler,
        numbers,
        prepare=sizes.prepare,
        batch_size=sizes.batch_size,
        progress=counter.of_pass(label, n_tasks),
    )
    predictions = gather_predictions(part, numbers, n_tasks, sizes.share)
    _check_numbers(predictions, label)  # after gathering, so that all processes fail together
    return predictions


def latent_pass(
    method: FewShotMethod,
    source: ClassSource,
    seed: int,
    n_tasks: int,
    *,
    label: str,
    sizes: Tasks,
    counter: Counter,
) -> Latents | None:
    """The latents of these tasks; None for methods without latents."""
    sampler = EpisodeSampler(source, sizes.n_way, sizes.n_shot, sizes.n_query, seed=seed)
    numbers = sizes.share.of(n_tasks, sizes.batch_size)
    part = predict_latents(
        method, sampler, numbers, prepare=sizes.prepare, batch_size=sizes.batch_size,
        progress=counter.of_pass(label, n_tasks),
    )  # fmt: skip
    return gather_latents(part, numbers, n_tasks, sizes.share)


def _check_numbers(predictions: Predictions, label: str) -> None:
    bad = (predictions.log_prob.isnan().any(-1) & (predictions.weight > 0)).any(-1).nonzero()[:, 0].tolist()
    if bad:
        raise NumericalError(
            f"Expected predictions to be numbers, but got NaN in {len(bad)} of {len(predictions.y)} tasks "
            f"({label}; the first is number {bad[0]}). Check the parameters of the method for NaN."
        )
