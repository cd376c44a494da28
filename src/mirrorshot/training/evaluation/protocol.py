"""Evaluation by the protocol of the paper's tables, with NLL, Brier score and a temperature from validation classes."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.data import ClassSource
from mirrorshot.data.decoding import Progress
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.metrics import PAPER_GRID, apply_temperature, fit_temperature
from mirrorshot.training.evaluation import temperatures
from mirrorshot.training.evaluation.calibration import calibration_of
from mirrorshot.training.evaluation.predictions import Latents, Passes, Predictions, Prepare, joined
from mirrorshot.training.evaluation.results import Evaluation, Protocol, interval_95
from mirrorshot.types import InvalidInputError, check_at_least


def evaluate(
    method: FewShotMethod,
    test: ClassSource,
    *,
    n_way: int,
    n_shot: int,
    n_query: int = 15,
    n_tasks: int = 600,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    prepare: Prepare,
    batch_size: int = 16,
    validation: ClassSource | None = None,
    n_validation_tasks: int = 600,
    two_temperatures: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate a method on the episodes of several seeds.

    The same data, seeds and sizes give the same episodes to every method, `n_tasks` per seed. Calibration is computed
    over the queries of all tasks, without a temperature and, with `validation` classes, at one temperature fitted by
    NLL to `n_validation_tasks` tasks of these, drawn with the first seed. `two_temperatures` also calibrates as the
    paper's released code: a likelihood temperature and a second one, chosen by the ECE and by the MCE of the validation
    tasks (`mirrorshot.metrics.two_temperatures`). `batch_size` is the number of tasks per batch; it affects the random
    numbers of stochastic methods.

    Raises `NumericalError` if a prediction is NaN, `DataError` if the data have too few classes or items.

    Example:
        >>> from mirrorshot.networks.backbones import make_backbone
        >>> from mirrorshot.methods import make_method
        >>> source = ClassSource.from_arrays(torch.arange(100.0)[:, None], torch.arange(100) // 20)
        >>> method = make_method("protonet", make_backbone("identity", in_features=1))
        >>> result = evaluate(method, source, n_way=5, n_shot=1, n_tasks=10, prepare=torch.Tensor.float)
        >>> result.accuracy > 0.5, result.raw.intervals["accuracy"].low < result.accuracy, result.temperature
        (True, True, None)
    """
    _check_arguments(test, validation, n_tasks, n_validation_tasks, seeds, two_temperatures)
    once = n_validation_tasks * (validation is not None) + n_tasks * len(seeds)
    total = once + (once + len(PAPER_GRID)) * two_temperatures
    passes = Passes(method, (n_way, n_shot, n_query), prepare, batch_size, progress, total)
    fitted_on = (0, 0) if validation is None else (n_validation_tasks, validation.n_classes)
    protocol = Protocol(
        n_way,
        n_shot,
        n_query,
        n_tasks,
        tuple(map(int, seeds)),
        test.n_classes,
        test.n_items,
        *fitted_on,
        test.fingerprint,
    )
    validated = validation and passes.predictions(validation, seeds[0], n_validation_tasks, "validation")
    tested = [passes.predictions(test, seed, n_tasks, f"test, seed {seed}") for seed in seeds]
    found = _summary(protocol, tested, fit_temperature(*validated) if validated else None)
    if validation is None or validated is None or not two_temperatures:
        return found
    fitted = passes.latents(validation, seeds[0], n_validation_tasks, "latents, validation")
    latents = [passes.latents(test, seed, n_tasks, f"latents, seed {seed}") for seed in seeds]
    return found._replace(tempered=_tempered(validated, fitted, tested, latents, passes))


def _tempered(
    validated: Predictions,
    fitted: Latents | None,
    tested: Sequence[Predictions],
    latents: Sequence[Latents | None],
    passes: Passes,
) -> tuple[temperatures.Tempered, ...]:
    progress = passes.progress("two temperatures", len(PAPER_GRID))
    report = None if progress is None else lambda done, of: progress(done, of, "")
    pairs = temperatures.fit_two_temperatures(fitted, validated, report)
    likelihood = None if fitted is None else temperatures.fit_likelihood_temperature(fitted, validated)
    parts = [part for part in latents if part is not None]
    everything = joined(parts) if parts else None
    return temperatures.tempered_calibrations(likelihood, pairs, everything, joined(tested))


def _summary(protocol: Protocol, passes: Sequence[Predictions], temperature: float | None) -> Evaluation:
    everything = joined(passes)
    task_accuracy = torch.stack([_task_mean(p, (p.log_prob.argmax(-1) == p.y).double()) for p in passes])
    task_nll = torch.stack([_task_mean(p, -p.log_prob.gather(-1, p.y[..., None])[..., 0]) for p in passes])
    means = task_accuracy.mean(1)
    return Evaluation(
        protocol=protocol,
        accuracy=float(means.mean()),
        accuracy_sd=float(means.std(correction=0)),
        accuracy_interval=interval_95(task_accuracy),
        raw=calibration_of(everything),
        temperature=temperature,
        calibrated=None if temperature is None else calibration_of(_at_temperature(everything, temperature)),
        task_accuracy=task_accuracy,
        task_nll=task_nll,
    )


def _at_temperature(predictions: Predictions, temperature: float) -> Predictions:
    real = (predictions.weight > 0)[..., None]  # padding is arbitrary and must not become NaN
    safe = torch.where(real, predictions.log_prob, 0.0)
    return predictions._replace(log_prob=apply_temperature(safe, temperature))


def _task_mean(predictions: Predictions, values: Float[Tensor, "T M"]) -> Float[Tensor, " T"]:
    real = predictions.weight > 0
    return torch.where(real, values, 0.0).sum(-1) / real.sum(-1)


def _check_arguments(
    test: ClassSource,
    validation: ClassSource | None,
    n_tasks: int,
    n_validation_tasks: int,
    seeds: Sequence[int],
    two_temperatures: bool,
) -> None:
    if two_temperatures and validation is None:
        raise InvalidInputError(
            "Expected `validation` classes to choose the two temperatures on, but got None. Pass them, or leave out "
            "`two_temperatures`."
        )
    check_at_least(1, n_tasks=n_tasks, n_validation_tasks=n_validation_tasks)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInputError(f"Expected `seeds` to be distinct and at least one, but got {list(seeds)}.")
    if validation is not None and validation.items.data_ptr() == test.items.data_ptr():
        raise InvalidInputError(
            "Expected `validation` to be other data than `test`, but got the same: a temperature fitted on the test "
            "tasks says nothing about new ones. Pass the validation classes, or None."
        )
