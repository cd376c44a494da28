"""Departures of the released code from the paper or from correctness, each shown by a small experiment on the CPU.

Tasks are those of `synthetic_tasks`, float64 unless said. Formulas of the released code were written down from reading
it; none of it is run or copied.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import GaussianSites, condition, covariance, predict_latent
from mirrorshot.gp.objective import evaluate, expected_log_likelihood, make_problem
from mirrorshot.gp.steps import fixed_descent
from mirrorshot.paper import departures_baselines as baselines
from mirrorshot.paper.episodes import best_elbo, synthetic_tasks
from mirrorshot.paper.released import released_descent
from mirrorshot.paper.tables import Record, Sheet
from mirrorshot.softmax.moments import log_predictive

Found = dict[str, float]
"""Numbers by name, in the unit that the name says."""


class Departure(NamedTuple):
    """A departure: the paper's version or the right one, the released one, and the experiment."""

    paper: str
    released: str
    measure: Callable[[], Found]


def measure_departures() -> Record:
    """Run all experiments."""
    return {
        "departures": {
            name: {"paper": departure.paper, "released": departure.released, "found": departure.measure()}
            for name, departure in DEPARTURES.items()
        }
    }


def departures_sheet(record: Record) -> Sheet:
    """The table of all experiments."""
    rows, records = [], []
    for name, about in record["departures"].items():
        head = {"departure": name, "paper": about["paper"], "released": about["released"]}
        for i, (what, value) in enumerate(about["found"].items()):
            rows.append([*(head.values() if i == 0 else ("", "", "")), what, f"{value:.3g}"])
            records.append({**head, "what": what, "value": value})
    columns = ("", "paper", "released code", "measured", "")
    return Sheet("Departures of the released code", columns, rows, records, [])


def fixed_point() -> Found:
    """Bound that is lost at the fixed point of the released formula."""
    found = {}
    for n_shot, scale in ((1, 0.69), (5, 0.69), (5, 3.0), (5, 10.0), (17, 0.69)):
        K, y, _ = synthetic_tasks(n_shot, scale)
        _, info = released_descent(K, y, n_way=5, max_steps=100, step_size=0.3)
        found[f"nats lost, {5 * n_shot} points, scale {scale:g}"] = float((best_elbo(K, y) - info.elbo[:, -1]).mean())
    return found


def training_step_size() -> Found:
    """Distance from the optimum after three steps of the paper's and of the released size."""
    found = {}
    for n_shot, scale in ((1, 0.69), (17, 0.69), (5, 10.0)):
        K, y, _ = synthetic_tasks(n_shot, scale)
        for rho in (1.0, 0.5):
            elbo = mirror_descent(K, y, n_way=5, max_steps=3, step_size=rho)[1].elbo[:, -1]
            name = f"gap after 3 steps of {rho:g}, nats, {5 * n_shot} points, scale {scale:g}"
            found[name] = float((best_elbo(K, y) - elbo).mean())
    return found


def test_steps() -> Found:
    """Distance from the optimum after as many steps as the paper and the code take at test."""
    K, y, _ = synthetic_tasks(5, 3.0)
    elbo = mirror_descent(K, y, n_way=5, max_steps=50, step_size=0.5)[1].elbo
    gap = best_elbo(K, y)[:, None] - elbo
    return {f"gap after {n} steps of 0.5, nats": float(gap[:, n].mean().clamp(min=0.0)) for n in (30, 50)}


def start() -> Found:
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


def class_order() -> Found:
    """Largest change of a probability when the classes of a task are put in another order."""
    K, y, cross = synthetic_tasks(5, 3.0, n_query=3)
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


def inverse() -> Found:
    """105 points with 64 features; as released, white noise is added until the smallest eigenvalue is above 1e-6."""
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(105, 64, generator=generator), dim=-1)
    singular, eye, w = 3 * (z @ z.mT), torch.eye(105), torch.full((105,), 0.1)
    K = singular.clone()
    while float(torch.linalg.eigvalsh(K).min()) < 1e-6:
        K += 1e-6 * eye
    K_inv = torch.linalg.inv(K)
    Sigma, exact = torch.linalg.inv(K_inv + torch.diag(w)), _exact_posterior(K, w)
    sites = GaussianSites(torch.zeros(1, 1, 105), w[None, None])
    ours = covariance(singular[None, None], condition(singular[None, None], sites))[0, 0]
    right = torch.linalg.inv(K.double())
    return {
        "error of the inverse of K, relative": float((K_inv - right).norm() / right.norm()),
        "error of Sigma by inverses, relative": _error(Sigma, exact),
        "asymmetry of Sigma by inverses, relative": _error(Sigma, Sigma.mT),
        "error of Sigma without them and without noise, relative": _error(ours, _exact_posterior(singular, w)),
    }


def _exact_posterior(K: Tensor, w: Tensor) -> Tensor:
    """Sigma in float64, by `K - K (K + W^-1)^-1 K`."""
    K, w = K.double(), w.double()
    explained: Tensor = K @ torch.linalg.solve(K + torch.diag(1 / w), K)
    return K - explained


def _error(found: Tensor, right: Tensor) -> float:
    return float((found - right).abs().max() / right.abs().max())


def saturation() -> Found:
    """One point whose class is certain in float32: sites as mean and variance, and as shift and precision."""
    p = torch.tensor([40.0, 0.0, 0.0]).softmax(0)
    g_m, g_v = 1 - p[0], -0.5 * (p[0] - p[0] ** 2)
    theta_1, theta_2 = g_m - 2 * g_v * 40.0, g_v
    mean = -theta_1 / (2 * theta_2)
    ours = condition(torch.ones(1, 1, 1, 1), GaussianSites(theta_1.view(1, 1, 1), -2 * theta_2.view(1, 1, 1)))
    return {
        "NaN after dividing by the second parameter": float((mean * theta_2).isnan()),
        "NaN with shift and precision": float(ours.mean.isnan().any()),
    }


def overflow() -> Found:
    """Softmax of a large latent."""
    f = torch.tensor([100.0, 0.0])
    return {
        "NaN of exp(f) / sum exp(f) at f = 100": float((f.exp() / f.exp().sum()).isnan().any()),
        "NaN of softmax": float(f.softmax(0).isnan().any()),
    }


def skipped_steps() -> Found:
    """Ten steps, the fourth of which has a gradient that is NaN: how many are taken."""
    found = {}
    for name, clears in (("as released: not zeroed after it", False), ("zeroed every time", True)):
        parameter = torch.zeros(1, requires_grad=True)
        n_taken = 0
        for step in range(10):
            if clears:
                parameter.grad = None
            (parameter * (float("nan") if step == 3 else 1.0)).sum().backward()
            if parameter.grad is not None and bool(parameter.grad.isfinite().all()):
                n_taken += 1
                parameter.grad = None
        found[f"steps taken of 10, gradients {name}"] = float(n_taken)
    return found


DEPARTURES: dict[str, Departure] = {
    "shift of the sites": Departure("g_m - 2 g_v m", "g_m - 2 g_m g_v", fixed_point),
    "step size in training": Departure("rho = 1", "rho = 0.5, whatever is asked for", training_step_size),
    "steps at test": Departure("50", "30", test_steps),
    "start": Departure("the prior", "N(0, I)", start),
    "kernel of each class": Departure(
        "classes of a task have no order", "kernel parameters for every class slot", class_order
    ),
    "bound of CDKT": Departure("- C E[lambda]", "- E[lambda]", baselines.logistic_softmax_bound),
    "what the bound of CDKT prefers": Departure("- C E[lambda]", "- E[lambda]", baselines.collapse),
    "support of CDKT (PL)": Departure(
        "the labelled items", "the first rows of a class-major array", baselines.support_rows
    ),
    "quadrature of OVE": Departure(
        "nodes times the standard deviation", "nodes times the variance", baselines.quadrature
    ),
    "average over chains": Departure("of probabilities", "of their logarithms", baselines.averages),
    "inverse of K, float32": Departure("Sigma of a singular K exists", "inv(inv(K) + W)", inverse),
    "certain predictions, float32": Departure(
        "natural parameters of the sites", "mean and variance of the sites, and back", saturation
    ),
    "large latents, float32": Departure("softmax", "exp(f) / sum exp(f)", overflow),
    "a gradient that is NaN": Departure("-", "the step is left out, its gradient is kept", skipped_steps),
}
"""Departures by name."""
