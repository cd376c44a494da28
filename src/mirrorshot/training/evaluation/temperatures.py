"""Temperatures inside the likelihood: predictions `E[softmax(f / T)]` of Gaussian latents f.

Design note: the search tries 260 likelihood temperatures on 45,000 queries, with means over 128 Sobol points, the same
for all queries and temperatures. They are a hundred times faster than the quadrature, which gives the reported metrics.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot import metrics
from mirrorshot.gp.threads import threads
from mirrorshot.metrics import PAPER_GRID, TwoTemperatures
from mirrorshot.softmax.moments import log_predictive
from mirrorshot.training.evaluation.calibration import Calibration, calibration_of
from mirrorshot.training.evaluation.predictions import Latents, Predictions

_N_DRAWS = 128
_N_POINTS = {"cpu": 1_000, "cuda": 100_000}  # queries at a time
_MAX_NLL_QUERIES = 6_000  # approximate limit for fitting by NLL; tasks are selected at equal distances


class Tempered(NamedTuple):
    """Calibration of the test tasks at temperatures of the paper's kind.

    `rule` is the criterion of their choice on validation tasks: "nll" (T1 alone), "ece" or "mce" (both).
    """

    rule: str
    likelihood: float | None  # T1, inside the expected softmax; None for methods without Gaussian latents
    predictive: float  # T2, on the logarithm of the averaged probability
    calibration: Calibration


def latent_log_prob(latents: Latents, temperature: float) -> Float[Tensor, "T M C"]:
    """Return `log E[softmax(f / temperature)]` by quadrature, on the CPU in float64."""
    mask = latents.mean > -torch.inf
    mean = latents.mean.masked_fill(~mask, 0.0) / temperature
    return log_predictive(mean, latents.var / temperature**2, mask).cpu().double()


def sampled_log_prob(latents: Latents) -> Callable[[float], Float[Tensor, "T M C"]]:
    """Return `log E[softmax(f / T)]` by quasi-random draws, as a function of T; on the device of the latents."""
    shape, C = latents.mean.shape, latents.mean.shape[-1]
    mean, std = latents.mean.reshape(-1, C).T.contiguous(), latents.var.sqrt().reshape(-1, C).T.contiguous()
    uniform = torch.quasirandom.SobolEngine(C, scramble=True, seed=0).draw(_N_DRAWS)
    draws = torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6)).T.to(mean)[:, :, None]
    tiny, size = torch.finfo(mean.dtype).tiny, _N_POINTS.get(mean.device.type, _N_POINTS["cpu"])

    def log_prob(temperature: float) -> Tensor:
        parts = []
        for m, s in zip(mean.split(size, 1), std.split(size, 1), strict=True):
            f = torch.addcmul(m[:, None], s[:, None], draws).div_(temperature)
            f.sub_(f.amax(0)).clamp_(min=-80.0).exp_()  # avoids subnormal numbers, which are slow
            f.div_(f.sum(0))
            parts.append(f.mean(1).clamp_(min=tiny).log_().masked_fill(m == -torch.inf, -torch.inf))
        return torch.cat(parts, 1).T.reshape(shape)

    return log_prob


def fit_likelihood_temperature(latents: Latents, predictions: Predictions) -> float:
    """Return T1 with the smallest NLL of validation tasks, at T2 = 1."""
    every = max(1, -(-predictions.y.numel() // _MAX_NLL_QUERIES))
    some = Latents(*(tensor[::every] for tensor in latents))
    y, real = predictions.y[::every, :, None], predictions.weight[::every] > 0

    def nll(temperature: float) -> float:
        return -float(latent_log_prob(some, temperature).gather(-1, y)[..., 0][real].mean())

    return metrics.minimise_over_temperature(nll)


def fit_two_temperatures(
    latents: Latents | None, predictions: Predictions, progress: Callable[[int, int], None] | None = None
) -> TwoTemperatures:
    """Fit the paper's pairs on validation tasks; without latents only T2 is searched, and T1 is 1."""
    if latents is None:
        return metrics.search_two_temperatures(
            lambda _: predictions.log_prob, predictions.y, likelihood=(1.0,), weight=predictions.weight
        )
    y, weight = predictions.y.to(latents.mean.device), predictions.weight.to(latents.mean.device)
    with threads(1):  # many small steps: threads would mostly wait
        return metrics.search_two_temperatures(
            sampled_log_prob(latents), y, likelihood=PAPER_GRID, weight=weight, progress=progress
        )


def tempered_calibrations(
    likelihood: float | None, pairs: TwoTemperatures, latents: Latents | None, predictions: Predictions
) -> tuple[Tempered, ...]:
    """Return the calibration of the test tasks at all temperatures of the paper's kind."""
    wanted: list[tuple[str, float | None, float]] = []
    if latents is not None:
        wanted.append(("nll", likelihood, 1.0))
    for rule, pair in (("ece", pairs.by_ece), ("mce", pairs.by_mce)):
        wanted.append((rule, None if latents is None else pair.likelihood, pair.predictive))
    found = []
    for rule, T1, T2 in wanted:
        log_prob = predictions.log_prob if latents is None or T1 is None else latent_log_prob(latents, T1)
        at = predictions._replace(log_prob=metrics.apply_temperature(log_prob, T2))
        found.append(Tempered(rule, T1, T2, calibration_of(at)))
    return tuple(found)
