"""Time of calibration: all metrics with intervals, and the paper's search over two temperatures.

Latents are random, with the sizes of the paper's protocol: 3,000 test tasks and 600 validation tasks with 75 queries.

    python benchmarks/two_temperatures.py
"""

import time

import torch

from _common import save
from mirrorshot.training.evaluation import Latents, Predictions, calibration_of
from mirrorshot.training.evaluation.temperatures import (
    fit_likelihood_temperature,
    fit_two_temperatures,
    latent_log_prob,
)

SEED = 0
N_QUERIES, N_WAY = 75, 5


def make_tasks(n_tasks: int, seed: int) -> tuple[Latents, Predictions]:
    """Return latents, and labels drawn from their softmax at temperature 1.3."""
    g = torch.Generator().manual_seed(seed)
    shape = n_tasks, N_QUERIES, N_WAY
    latents = Latents(2 * torch.randn(shape, generator=g), 0.2 + torch.rand(shape, generator=g))
    f = latents.mean + latents.var.sqrt() * torch.randn(shape, generator=g)
    y = torch.multinomial((f / 1.3).softmax(-1).flatten(0, 1), 1, generator=g).reshape(shape[:2])
    log_prob = latents.mean.double().log_softmax(-1)
    return latents, Predictions(log_prob, y, torch.ones(shape[:2]))


def timed(function, *arguments):
    """Return the result of a function and its seconds."""
    start = time.perf_counter()
    found = function(*arguments)
    return found, round(time.perf_counter() - start, 2)


def main() -> None:
    _, test = make_tasks(3000, SEED)
    latents, validation = make_tasks(600, SEED + 1)
    _, summary_s = timed(calibration_of, test)
    pairs, search_s = timed(fit_two_temperatures, latents, validation)
    likelihood, likelihood_s = timed(fit_likelihood_temperature, latents, validation)
    _, quadrature_s = timed(latent_log_prob, latents, pairs.by_ece.likelihood)
    figures = {
        "all_metrics_with_intervals_3000_tasks_s": summary_s,
        "search_of_67600_pairs_600_tasks_s": search_s,
        "likelihood_temperature_by_nll_s": likelihood_s,
        "quadrature_600_tasks_s": quadrature_s,
        "likelihood_temperature": round(likelihood, 3),
        "by_ece": pairs.by_ece._asdict(),
        "by_mce": pairs.by_mce._asdict(),
    }
    for name, value in figures.items():
        print(f"{name:45s} {value}")
    save("two_temperatures", figures, seed=SEED)


if __name__ == "__main__":
    main()
