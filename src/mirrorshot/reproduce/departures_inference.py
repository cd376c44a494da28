"""Departures of the released code in the inner loop of MD-BFSC, each a small experiment on synthetic tasks."""

import torch
from torch import Tensor

from mirrorshot.gaussian import GaussianSites, predict_latent
from mirrorshot.inference import mirror_descent
from mirrorshot.inference.mirror import fixed_descent
from mirrorshot.inference.objective import evaluate, expected_log_likelihood, make_problem
from mirrorshot.likelihoods import log_predictive
from mirrorshot.reproduce.released import released_descent

SEED = 0
_N_TASKS, _N_WAY = 8, 5


def synthetic_tasks(
    n_shot: int, scale: float, n_tasks: int = _N_TASKS, n_way: int = 5, extra: int = 0
) -> tuple[Tensor, ...]:
    """Covariances and labels of support and, with `extra`, cross-covariances with that many queries of each class."""
    generator = torch.Generator().manual_seed(SEED)
    centre = torch.randn(_N_TASKS, _N_WAY, 1, 64, generator=generator, dtype=torch.float64)
    noise = torch.randn(_N_TASKS, _N_WAY, n_shot + extra, 64, generator=generator, dtype=torch.float64)
    z = torch.nn.functional.normalize(centre + noise, dim=-1)
    support, query = z[:, :, :n_shot].flatten(1, 2), z[:, :, n_shot:].flatten(1, 2)
    y = torch.arange(_N_WAY).repeat_interleave(n_shot).expand(_N_TASKS, -1)
    return scale * (support @ support.mT)[:, None], y, scale * (support @ query.mT)[:, None]


def _optimum(K: Tensor, y: Tensor) -> Tensor:
    return mirror_descent(K, y, n_way=5, max_steps=200, tol=1e-12)[1].elbo[:, -1]


def fixed_point() -> dict[str, float]:
    """Bound that is lost at the fixed point of the released formula."""
    found = {}
    for n_shot, scale in ((1, 0.69), (5, 0.69), (5, 3.0), (5, 10.0), (17, 0.69)):
        K, y, _ = synthetic_tasks(n_shot, scale)
        _, info = released_descent(K, y, n_way=5, max_steps=100, step_size=0.3)
        found[f"nats lost, {5 * n_shot} points, scale {scale:g}"] = float((_optimum(K, y) - info.elbo[:, -1]).mean())
    return found


def training_step_size() -> dict[str, float]:
    """Distance from the optimum after three steps of the paper's and of the released size."""
    found = {}
    for n_shot, scale in ((1, 0.69), (17, 0.69), (5, 10.0)):
        K, y, _ = synthetic_tasks(n_shot, scale)
        for rho in (1.0, 0.5):
            elbo = mirror_descent(K, y, n_way=5, max_steps=3, step_size=rho)[1].elbo[:, -1]
            name = f"gap after 3 steps of {rho:g}, nats, {5 * n_shot} points, scale {scale:g}"
            found[name] = float((_optimum(K, y) - elbo).mean())
    return found


def test_steps() -> dict[str, float]:
    """Distance from the optimum after as many steps as the paper and the code take at test."""
    K, y, _ = synthetic_tasks(5, 3.0)
    elbo = mirror_descent(K, y, n_way=5, max_steps=50, step_size=0.5)[1].elbo
    gap = _optimum(K, y)[:, None] - elbo
    return {f"gap after {n} steps of 0.5, nats": float(gap[:, n].mean().clamp(min=0.0)) for n in (30, 50)}


def start() -> dict[str, float]:
    """Bound that is lost by starting at N(0, I)."""
    found = {}
    for scale in (0.69, 3.0):
        K, y, _ = synthetic_tasks(1, scale)
        problem = make_problem(K, y, 5, None, None, max(1.0, scale**0.5), validate=True)
        _, g_m, curvature = expected_log_likelihood(
            problem, torch.zeros_like(problem.Y), torch.ones_like(problem.Y), problem.max_std
        )
        first = GaussianSites(g_m, curvature)
        for n in (1, 3, 30):
            elbo = evaluate(problem, first).elbo if n == 1 else fixed_descent(problem, first, n - 1, 1.0)[1].elbo[:, -1]
            prior = mirror_descent(K, y, n_way=5, max_steps=n, step_size=1.0)[1].elbo[:, -1]
            found[f"nats lost after {n} steps of 1, scale {scale:g}"] = float((prior - elbo).mean())
    return found


def class_order() -> dict[str, float]:
    """The same tasks with their classes in another order: how much a class's probabilities change."""
    K, y, cross = synthetic_tasks(5, 3.0, extra=3)
    scales = torch.tensor([0.5, 0.75, 1.0, 1.5, 2.0], dtype=K.dtype)[:, None, None]
    order = torch.tensor([3, 0, 4, 1, 2])
    found = {}
    for name, factor in (("a kernel per class slot", scales), ("one kernel", torch.ones_like(scales))):
        probs, prior_var = [], (3.0 * factor[:, 0]).expand(len(K), -1, cross.shape[-1])
        for labels in (y, order[y]):
            posterior, _ = mirror_descent(factor * K, labels, n_way=5, max_steps=100)
            mean, var = predict_latent(posterior, factor * cross, prior_var)
            probs.append(log_predictive(mean.mT, var.mT).exp())
        found[f"largest change of a probability, {name}"] = float((probs[0] - probs[1][..., order]).abs().max())
    return found
