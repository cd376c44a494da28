"""Transfer of a temperature from validation to test classes: calibration of a run at several temperatures.

    MIRRORSHOT_DATA=FOLDER python benchmarks/temperature_transfer.py runs/accuracy_omniglot_to_emnist_5shot_default

If the two sets of classes differ in difficulty, the calibration error at one temperature is due to the split. A
temperature that depends on the task is `exp(a + b s)`, where `s` is the mean NLL of the labelled items, each under the
posterior of the others, and `a` and `b` minimise the NLL of validation tasks. It needs at least 2 shots. "Full bins"
are those of the 15 with at least 100 predictions.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from _common import save, table
from mirrorshot.data import ClassSource, EpisodeSampler, load_dataset
from mirrorshot.methods import FewShotMethod
from mirrorshot.metrics import (
    accuracy,
    calibration_bins,
    expected_calibration_error,
    fit_temperature,
    maximum_calibration_error,
)
from mirrorshot.training.folder import read_config
from mirrorshot.training.runs import load_run, on_features
from mirrorshot.types import TaskBatch

FULL, N_QUERY, AT_ONCE = 100, 15, 20


class Found(NamedTuple):
    """Predictions of tasks, labels, and the leave-one-out NLL of the labelled items of each task."""

    log_prob: Float[Tensor, "T M C"]
    y: Int[Tensor, "T M"]
    left_out_nll: Float[Tensor, " T"]


def nll(log_prob: Float[Tensor, "T M C"], y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
    """Return the mean NLL of each task."""
    return -log_prob.gather(-1, y[..., None])[..., 0].mean(-1)


def left_out(tasks: TaskBatch) -> TaskBatch:
    """Return a task for every labelled item, which is the query; the other items are labelled."""
    T, N = tasks.support_y.shape
    x, y, mask = (part.repeat_interleave(N, 0) for part in (tasks.support_x, tasks.support_y, tasks.class_mask))
    others = (1 - torch.eye(N)).repeat(T, 1)
    return TaskBatch(x, y, tasks.support_x.flatten(0, 1)[:, None], tasks.n_way, others, torch.ones(T * N, 1), mask)


@torch.no_grad()
def predict(method: FewShotMethod, source: ClassSource, config: dict[str, Any], n_tasks: int) -> Found:
    """Predict tasks of features."""
    sampler, parts = EpisodeSampler(source, config["n_way"], config["n_shot"], N_QUERY, seed=1), []
    for start in range(0, n_tasks, AT_ONCE):
        tasks, y = sampler.tasks(range(start, min(start + AT_ONCE, n_tasks)))
        labelled = method.predict(left_out(tasks)).reshape(*tasks.support_y.shape, -1)
        parts.append(Found(method.predict(tasks).double(), y, nll(labelled, tasks.support_y).double()))
    return Found(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def at_temperature(found: Found, weights: Float[Tensor, "2"]) -> Float[Tensor, "T M C"]:
    """Return the log-probabilities of each task at its temperature."""
    log_temperature = weights[0] + weights[1] * found.left_out_nll
    return (found.log_prob * (-log_temperature).exp()[:, None, None]).log_softmax(-1)


def fit_to_tasks(found: Found) -> Float[Tensor, "2"]:
    """Return the weights with the lowest NLL."""
    weights = torch.zeros(2, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nll(at_temperature(found, weights), found.y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach()


def calibration(found: Found, weights: Float[Tensor, "2"]) -> dict[str, float]:
    """Return NLL, ECE, MCE and MCE of full bins at the temperatures by `weights`."""
    log_prob = at_temperature(found, weights)
    bins = calibration_bins(log_prob.exp(), found.y)
    return {
        "mean_temperature": float((weights[0] + weights[1] * found.left_out_nll).exp().mean()),
        "nll": float(nll(log_prob, found.y).mean()),
        "ece": float(expected_calibration_error(bins)),
        "mce": float(maximum_calibration_error(bins)),
        "mce_full_bins": float(maximum_calibration_error(bins, FULL)),
        "fewest_in_a_bin": int(bins.counts[bins.counts > 0].min()),
    }


def one_temperature(found: Found) -> Float[Tensor, "2"]:
    """Return weights that give every task the same temperature, with the lowest NLL."""
    return torch.tensor([fit_temperature(found.log_prob, found.y), 1.0], dtype=torch.double).log()


def measure(folder: Path, n_tasks: int) -> dict[str, Any]:
    """Return accuracies of both sets of classes, and calibrations of the test classes at each temperature."""
    config = read_config(folder)
    dataset = load_dataset(config["data"])
    run, features = on_features(load_run(folder, dataset, device="cpu"), dataset)
    assert features.val is not None
    val, test = (predict(run.method, source, config, n_tasks) for source in (features.val, features.test))
    ways = {
        "validation classes": one_temperature(val),
        "validation classes, following the task": fit_to_tasks(val),
        "test classes": one_temperature(test),
    }
    return {
        "run": folder.name,
        "n_tasks": n_tasks,
        "accuracy": {
            name: float(accuracy(part.log_prob.exp(), part.y).mean()) for name, part in (("val", val), ("test", test))
        },
        "at": {name: {"weights": weights.tolist(), **calibration(test, weights)} for name, weights in ways.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tasks", type=int, default=600)
    options = parser.parse_args()
    rows = [measure(folder, options.tasks) for folder in options.runs]
    save("temperature_transfer", {"rows": rows}, seed=1)
    keys = ["mean_temperature", "nll", "ece", "mce", "mce_full_bins", "fewest_in_a_bin"]
    shown = [[row["run"], name, *(f"{at[key]:.4g}" for key in keys)] for row in rows for name, at in row["at"].items()]
    print(table(["run", "fitted to", *keys], shown))
    print({row["run"]: row["accuracy"] for row in rows})


if __name__ == "__main__":
    main()
