"""Figure 4: loss of the network with each inner loop, on the paper's fixed episode and on fresh tasks.

The loss is the predictive NLL of the queries after two steps of the inner loop on the support; gradients go through
the steps. Training on one repeated episode, as in the paper, shows how fast a network overfits it; fresh tasks show
how fast it learns to solve new tasks.
"""

from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.predictive import training_latents
from mirrorshot.methods.base import query_nll
from mirrorshot.methods.gp import Covariances, GPMethod
from mirrorshot.paper.episodes import N_WAY, Labelled, Laboratory
from mirrorshot.paper.figure3 import name_axes, panels
from mirrorshot.paper.tables import Record, Sheet, column_title, place
from mirrorshot.softmax.moments import log_predictive, softmax_moments
from mirrorshot.views.figures import BLUE, GREEN, ORANGE, VERMILION

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

RHO = {1: 0.1, 5: 0.02}
"""Step sizes of both inner loops in the paper, by number of shots."""
NOISE = 0.01
"""White noise relative to the prior variance, in all loops: gradient descent needs the inverse of the covariance."""
SIZES = {
    "smoke": {"n_iterations": 3, "n_fresh": 6, "n_held_out": 2},
    "short": {"n_iterations": 30, "n_fresh": 30, "n_held_out": 5},
    "paper": {"n_iterations": 30, "n_fresh": 300, "n_held_out": 20},
}
Inner = Literal["MD", "GD", "MD, rho = 1", "MD, to the optimum"]
_STYLES: dict[Inner, dict[str, Any]] = {
    "MD": {"color": BLUE, "marker": "o"},
    "GD": {"color": VERMILION, "marker": "s"},
    "MD, rho = 1": {"color": GREEN, "marker": "^"},
    "MD, to the optimum": {"color": ORANGE, "marker": "D", "linestyle": "--"},
}
INNER: tuple[Inner, ...] = tuple(_STYLES)
_N_STEPS, _N_TO_OPTIMUM = 2, 60
_FAR = 10**6  # number of the first held-out task


def predictive_loss(method: GPMethod, labelled: Labelled, inner: Inner, rho: float) -> Float[Tensor, ""]:
    """Return the mean NLL of the queries, given the support."""
    tasks, query_y = labelled
    support, query = method.features(tasks)
    parts = method.kernel(support), method.kernel(support, query), method.kernel.diagonal(query)
    K, cross, var = (part.double() for part in parts)
    prior = Covariances(K + NOISE * torch.diag_embed(K.diagonal(dim1=-2, dim2=-1)), cross, var)
    if inner == "GD":
        mean, var = gradient_predictions(prior, tasks.support_y, n_steps=_N_STEPS, rho=rho)
    elif inner == "MD, to the optimum":
        mean, var = training_latents(*prior, tasks.support_y, n_way=N_WAY, n_steps=_N_TO_OPTIMUM)
    else:
        step_size = 1.0 if inner == "MD, rho = 1" else rho
        posterior, _ = mirror_descent(
            prior.K, tasks.support_y, n_way=N_WAY, max_steps=_N_STEPS, step_size=step_size, gradient="unroll"
        )
        mean, var = predict_latent(posterior, prior.cross, prior.var)
    return query_nll(log_predictive(mean.mT, var.mT), tasks, query_y).mean()


def gradient_predictions(
    prior: Covariances, y: Int[Tensor, "T N"], *, n_steps: int, rho: float
) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T C M"]]:
    """Return mean and variance of the query latents after plain gradient steps; differentiable through the steps."""
    Y = one_hot(y, N_WAY, prior.K.dtype)
    K_inv = torch.linalg.inv(prior.K)
    mean, Sigma = torch.zeros_like(Y), prior.K.expand(-1, N_WAY, -1, -1)
    for _ in range(n_steps):
        var = Sigma.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
        moments = softmax_moments(mean.mT, var.mT)
        g_m, g_v = Y - moments.prob.mT, -0.5 * moments.curvature.mT
        # m + rho (g_m - K^-1 m),  Sigma + rho (diag(g_v) + Sigma^-1 / 2 - K^-1 / 2)
        slope = torch.diag_embed(g_v) + 0.5 * (torch.linalg.inv(Sigma) - K_inv)
        mean, Sigma = mean + rho * (g_m - (K_inv @ mean[..., None])[..., 0]), Sigma + rho * slope
    pull = K_inv @ prior.cross
    explained = (pull * prior.cross).sum(-2) - (pull * (Sigma @ pull)).sum(-2)
    return (pull.mT @ mean[..., None])[..., 0], (prior.var - explained).clamp(min=0.0)


def measure_outer_loop(data: str, n_shot: int, *, n_iterations: int, n_fresh: int, n_held_out: int) -> Record:
    """Train with each inner loop, `n_iterations` times on the fixed episode, and on `n_fresh` tasks one at a time.

    During the latter, the loss is measured at the start and about six times on `n_held_out` other tasks.
    """
    laboratory = Laboratory(data, n_shot)
    rho = RHO.get(n_shot, RHO[5])
    fixed, held_out = laboratory.fixed(), laboratory.fresh(n_held_out, first=_FAR)
    every = max(1, n_fresh // 6)
    curves: dict[str, Record] = {}
    for inner in INNER:
        method, optimiser = _begin(laboratory)
        losses = [_learn(method, optimiser, fixed, inner, rho) for _ in range(n_iterations)]
        method, optimiser = _begin(laboratory)
        fresh = [(0, _loss_on(method, held_out, inner, rho))]
        for i in range(n_fresh):
            _learn(method, optimiser, laboratory.fresh(1, first=i), inner, rho)
            if (i + 1) % every == 0:
                fresh.append((i + 1, _loss_on(method, held_out, inner, rho)))
        curves[inner] = {"fixed": losses, "fresh_iterations": [i for i, _ in fresh], "fresh": [x for _, x in fresh]}
    return {
        "data": data,
        "n_shot": n_shot,
        "rho": rho,
        "n_inner_steps": _N_STEPS,
        "n_held_out": n_held_out,
        "curves": curves,
    }


def _begin(laboratory: Laboratory) -> tuple[GPMethod, torch.optim.Adam]:
    method = laboratory.method()
    assert isinstance(method, GPMethod)
    rates = {"network": laboratory.config.lr, "kernel": laboratory.config.kernel_lr}
    groups = [{"params": group, "lr": rates[name]} for name, group in method.parameter_groups().items()]
    return method.train(), torch.optim.Adam(groups)


def _learn(method: GPMethod, optimiser: torch.optim.Adam, labelled: Labelled, inner: Inner, rho: float) -> float:
    optimiser.zero_grad()
    loss = predictive_loss(method, labelled, inner, rho)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


@torch.no_grad()
def _loss_on(method: GPMethod, labelled: Labelled, inner: Inner, rho: float) -> float:
    """Return the mean loss of tasks; each task is normalised by itself, as in training."""
    parts = [
        Labelled(labelled.tasks.select(slice(t, t + 1)), labelled.query_y[t : t + 1])
        for t in range(labelled.tasks.n_tasks)
    ]
    return sum(float(predictive_loss(method, part, inner, rho)) for part in parts) / len(parts)


def outer_loop_sheet(record: Record) -> Sheet:
    """Return the numbers of the figure as a table."""
    rows, records = [], []
    mirror, gradient = (record["curves"][name] for name in ("MD", "GD"))
    for name, curve in record["curves"].items():
        fixed, fresh = curve["fixed"], curve["fresh"]
        losses = {"fixed_first": fixed[0], "fixed_last": fixed[-1], "fresh_last": fresh[-1]}
        rows.append([name, *(f"{loss:.4f}" for loss in losses.values())])
        records.append({**place(record), "inner_loop": name, **losses})
    n_fixed, n_fresh = len(mirror["fixed"]), mirror["fresh_iterations"][-1]
    below = sum(a < b for a, b in zip(mirror["fixed"], gradient["fixed"], strict=True))
    notes = [
        f"Nats per query. {record['n_inner_steps']} inner steps of {record['rho']:g} for MD and GD, Adam at 1e-3 "
        f"(network) and 1e-4 (kernel). Fresh: mean of {record['n_held_out']} held-out tasks.",
        f"MD is below GD in {below} of {n_fixed} iterations on the fixed episode.",
    ]
    columns = ("inner loop", "fixed episode, first iteration", f"iteration {n_fixed}", f"{n_fresh} fresh tasks")
    title = f"Outer loop: {column_title(**place(record))}"
    return Sheet(title, columns, rows, records, notes)


def outer_loop_figure(record: Record) -> "matplotlib.figure.Figure":
    """Draw the loss on the fixed episode as in the paper, and on held-out tasks during training on fresh ones."""
    figure, axes = panels(2)
    for name, curve in record["curves"].items():
        style = {"linewidth": 1.8, "markersize": 5, "markeredgecolor": "white", "label": name, **_STYLES[name]}
        iterations = range(1, len(curve["fixed"]) + 1)
        axes[0].plot(iterations, curve["fixed"], markevery=max(1, len(iterations) // 8), **style)
        axes[1].plot(curve["fresh_iterations"], curve["fresh"], **style)
    name_axes(axes[0], "fixed episode: loss, nats per query", "iterations")
    name_axes(axes[1], "held-out tasks: loss, nats per query", "fresh tasks learned from")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"Outer loop: {column_title(**place(record))}")
    return figure
