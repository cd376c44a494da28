"""Ideas for a faster training step on the CPU, each measured in turns with the code it replaces.

    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py

Sizes are those of a 5-way 1-shot task with 16 queries per class (85 points) and the small network.
"""

import math
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from _common import save, table
from mirrorshot.gp import AmortisedSites, mirror_descent
from mirrorshot.gp.bound import training_elbo
from mirrorshot.gp.gaussian import condition
from mirrorshot.gp.kernels import RBF
from mirrorshot.methods import make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.softmax.moments import softmax_hessian, softmax_moments
from mirrorshot.softmax.quadrature import choose_rule, grid_start, gumbel_ratios
from mirrorshot.types import TaskBatch

N_WAY, N_POINTS = 5, 85

Pair = tuple[Callable[[], Any], Callable[[], Any]]


def in_turns(pair: Pair, n_turns: int = 21) -> tuple[float, float]:
    """Return median milliseconds of two calls, taken in turns, each repeated for about 20 ms."""
    repeats = []
    for run in pair:
        run()
        started = time.perf_counter()
        run()
        repeats.append(max(1, int(0.02 / (time.perf_counter() - started))))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(n_turns):
        for run, n, seen in zip(pair, repeats, times, strict=True):
            started = time.perf_counter()
            for _ in range(n):
                run()
            seen.append(1e3 * (time.perf_counter() - started) / n)
    return float(torch.tensor(times[0]).median()), float(torch.tensor(times[1]).median())


def make_task() -> tuple[Tensor, Tensor]:
    """Return covariances of clustered features with the paper's kernel, and labels."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(N_POINTS) % N_WAY
    centres = torch.randn(N_WAY, 64, generator=generator).abs()
    x = torch.randn(1, N_POINTS, 64, generator=generator).abs() + 0.8 * centres[y]
    return RBF(outputscale=1.0, lengthscale=0.7, normalise=True)(x).detach(), y[None]


def inference_pairs() -> dict[str, Pair]:
    """Ideas for the Gaussian process: old code, new code."""
    K, y = make_task()
    posterior, _ = mirror_descent(K, y, n_way=N_WAY)
    mean, var = posterior.mean.mT.contiguous(), posterior.var.mT.contiguous()
    bars = [torch.randn(mean.shape, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    nothing = AmortisedSites(torch.zeros(()), torch.zeros(6, 2), torch.zeros(6, 2))

    def bound(start: Any) -> None:
        leaf = K.clone().requires_grad_()
        training_elbo(leaf, y, n_way=N_WAY, gradient="unroll", start=start).sum().backward()

    def twice() -> None:
        m, v = mean.clone().requires_grad_(), var.clone().requires_grad_()
        moments = softmax_moments(m, v, max_std=1.0)
        torch.autograd.grad((moments.prob, moments.curvature), (m, v), bars)

    def ratios(max_std: float) -> None:
        rule = choose_rule(max_std, N_WAY, mean.dtype)
        gumbel_ratios(mean[0], var[0].sqrt(), grid_start(mean[0], var[0].sqrt(), rule), rule, 1)

    L, b = condition(K, posterior.sites).chol, posterior.mean
    eye = torch.eye(N_POINTS).expand_as(L)
    far, near = -torch.linspace(0, 600, 28_000), torch.linspace(-8, 8, 28_000)

    def one_erfc() -> tuple[Tensor, Tensor]:
        smaller, is_left = near.abs().erfc_(), near < 0
        return torch.where(is_left, smaller, 2 - smaller), torch.where(is_left, 2 - smaller, smaller)

    return {
        "first step from the prior: as any other / on its own": (lambda: bound(nothing), lambda: bound("prior")),
        "gradient of the moments: nodes again / second derivatives": (
            twice,
            lambda: softmax_hessian(mean, var, max_std=1.0).pull_back(*bars),
        ),
        "exp below the smallest number: as it is / clamped": (far.exp, lambda: far.clamp(min=-80.0).exp()),
        "inverse factor: from the left / from the right": (
            lambda: torch.linalg.solve_triangular(L, eye, upper=False),
            lambda: torch.linalg.solve_triangular(L, eye, upper=False, left=False),
        ),
        "matrix times vector: as a column / as a row": (lambda: L @ b[..., None], lambda: b[..., None, :] @ L.mT),
        "erfc(x) and erfc(-x): two / one": (lambda: (near.erfc(), (-near).erfc()), one_erfc),
        "nodes by the largest deviation: of the prior / of the posterior": (
            lambda: ratios(1.0),
            lambda: ratios(math.sqrt(float(var.max()))),
        ),
    }


def network_pairs() -> dict[str, Pair]:
    """Ideas for the network."""
    network = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    other = make_backbone("conv4s", generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    x = torch.randn(1, N_POINTS, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for part in (network, other):
        part(x).square().sum().backward()

    def learn(dtype: torch.dtype | None) -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            z = other(x)
        z.float().square().sum().backward()

    adams = [torch.optim.Adam(network.parameters(), fused=fused) for fused in (False, True)]
    return {
        "network: contiguous / channels last": (
            lambda: network(x).square().sum().backward(),
            lambda: other(x).square().sum().backward(),
        ),
        "network: float32 / bfloat16": (lambda: learn(None), lambda: learn(torch.bfloat16)),
        "Adam: loop / fused": (adams[0].step, adams[1].step),
    }


def maml_pairs() -> dict[str, Pair]:
    """Ideas for methods that adapt the network: one task of MAML, one step."""
    backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    method = make_method("maml", backbone, n_steps=1, step_size=0.1)
    x = torch.randn(1, N_POINTS, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(N_POINTS)[None] % N_WAY
    parts = (slice(0, N_WAY), slice(N_WAY, None))
    (support, query), (labels, answers) = ([t[:, part] for part in parts] for t in (x, y))

    def learn(first_weight: float = 1.0) -> None:
        weights = [torch.ones(labels.shape), torch.ones(answers.shape)]
        for weight in weights:
            weight[0, 0] = first_weight
        tasks = TaskBatch(support, labels, query, N_WAY, *weights, torch.ones(1, N_WAY, dtype=torch.bool))
        method.loss(tasks, answers).sum().backward()

    def learn_in_any_layout() -> None:
        with patch.object(torch, "channels_last", torch.preserve_format):
            learn()

    return {
        "MAML, norm: of items that count differently / alike": (lambda: learn(0.999), learn),
        "MAML, adapted weights: as the step leaves them / channels last": (learn_in_any_layout, learn),
    }


def main() -> None:
    rows = []
    for idea, pair in (inference_pairs() | network_pairs() | maml_pairs()).items():
        before, after = in_turns(pair)
        rows.append({"idea": idea, "before_ms": before, "after_ms": after})
    save("cpu_step", {"rows": rows}, seed=0)
    cells = [[row["idea"], f"{row['before_ms']:.3g}", f"{row['after_ms']:.3g}"] for row in rows]
    print(table(["idea: before / after", "before, ms", "after, ms"], cells))


if __name__ == "__main__":
    main()
