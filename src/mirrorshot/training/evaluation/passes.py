"""Passes of an evaluation: the predictions and latents of all tasks of a seed, with one progress for all passes."""

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.training.evaluation.predictions import (
    Latents,
    Predictions,
    Prepare,
    Progress,
    predict_latents,
    predict_tasks,
)
from mirrorshot.types import NumericalError


class Passes:
    """Passes of one method over tasks of one size.

    Args:
        method: a trained one.
        sizes: classes of a task, labelled items of each and items to classify of each.
        prepare: from gathered items to what the backbone takes.
        batch_size: tasks at a time.
        progress: called with the sum of all passes; None: not reported.
        total: size of all passes together.
    """

    def __init__(
        self,
        method: FewShotMethod,
        sizes: tuple[int, int, int],
        prepare: Prepare,
        batch_size: int,
        progress: Progress | None,
        total: int,
    ) -> None:
        self.method, self.sizes, self.prepare, self.batch_size = method, sizes, prepare, batch_size
        self._report, self._done, self._total = progress, 0, total

    def predictions(self, source: ClassSource, seed: int, n_tasks: int, label: str) -> Predictions:
        """Predictions of all tasks of a seed, in float64.

        Raises:
            NumericalError: a prediction is NaN.
        """
        found = predict_tasks(
            self.method, EpisodeSampler(source, *self.sizes, seed=seed), range(n_tasks),
            prepare=self.prepare, batch_size=self.batch_size, progress=self.progress(label, n_tasks),
        )  # fmt: skip
        is_bad = (found.log_prob.isnan().any(-1) & (found.weight > 0)).any(-1)
        if bool(is_bad.any()):
            raise NumericalError(
                f"Expected predictions to be numbers, but got NaN in {int(is_bad.sum())} of {n_tasks} tasks "
                f"({label}; the first is number {int(is_bad.nonzero()[0])}). "
                "Check the parameters of the method for NaN."
            )
        return found._replace(log_prob=found.log_prob.double())

    def latents(self, source: ClassSource, seed: int, n_tasks: int, label: str) -> Latents | None:
        """Latents of all tasks of a seed; None for methods without latents."""
        return predict_latents(
            self.method, EpisodeSampler(source, *self.sizes, seed=seed), range(n_tasks),
            prepare=self.prepare, batch_size=self.batch_size, progress=self.progress(label, n_tasks),
        )  # fmt: skip

    def progress(self, label: str, size: int) -> Progress | None:
        """Progress of the next pass."""
        if self._report is None:
            return None
        report, before, total = self._report, self._done, self._total
        self._done += size
        return lambda done, of, _: report(before + done * size // of, total, label)
