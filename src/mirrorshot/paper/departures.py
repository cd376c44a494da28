"""Departures of the released code from the paper or from correct formulas, each with a small experiment on the CPU.

Tasks are those of `synthetic_tasks`, in float64 unless noted. The formulas of the released code were written down from
reading it; none of it is run or copied.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import GaussianSites, condition, covariance, predict_latent
from mirrorshot.gp.logistic_softmax import Start, make_labels, mean_field, mean_field_elbo
from mirrorshot.gp.objective import evaluate, expected_log_likelihood, make_problem
from mirrorshot.gp.one_vs_each import one_vs_each_scores
from mirrorshot.gp.steps import fixed_descent
from mirrorshot.paper.episodes import best_elbo, synthetic_tasks
from mirrorshot.paper.released import released_descent, released_scores
from mirrorshot.paper.released_cdkt import released_elbo
from mirrorshot.paper.tables import Record, Sheet
from mirrorshot.softmax.moments import log_predictive

Found = dict[str, float]
"""Numbers by name; the name includes the unit."""


class Departure(NamedTuple):
    """A departure: the correct version (mostly the paper's), the released one, and the experiment."""

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
    """Return the table of all experiments."""
    rows, records = [], []
    for name, about in record["departures"].items():
        head = {"departure": name, "paper": about["paper"], "released": about["released"]}
        for i, (what, value) in enumerate(about["found"].items()):
            rows.append([*(head.values() if i == 0 else ("", "", "")), what, f"{value:.3g}"])
            records.append({**head, "what": what, "value": value})
    columns = ("", "paper", "released code", "measured", "")
    return Sheet("Departures of the released code", columns, rows, records, [])


def fixed_point() -> Found:
    """Loss of the bound at the fixed point of the released formula."""
    found = {}
    for n_shot, scale in ((1, 0.69), (5, 0.69), (5, 3.0), (5, 10.0), (17, 0.69)):
        K, y, _ = synthetic_tasks(n_shot, scale)
        _, info = released_descent(K, y, n_way=5, max_steps=100, step_size=0.3)
        found[f"nats lost, {5 * n_shot} points, scale {scale:g}"] = float((best_elbo(K, y) - info.elbo[:, -1]).mean())
    return found


def training_step_size() -> Found:
    """Gap after three steps of the paper's and of the released step size."""
    found = {}
    for n_shot, scale in ((1, 0.69), (17, 0.69), (5, 10.0)):
        K, y, _ = synthetic_tasks(n_shot, scale)
        for rho in (1.0, 0.5):
            elbo = mirror_descent(K, y, n_way=5, max_steps=3, step_size=rho)[1].elbo[:, -1]
            name = f"gap after 3 steps of {rho:g}, nats, {5 * n_shot} points, scale {scale:g}"
            found[name] = float((best_elbo(K, y) - elbo).mean())
    return found


def test_steps() -> Found:
    """Gap after the numbers of test steps of the paper and of the released code."""
    K, y, _ = synthetic_tasks(5, 3.0)
    elbo = mirror_descent(K, y, n_way=5, max_steps=50, step_size=0.5)[1].elbo
    gap = best_elbo(K, y)[:, None] - elbo
    return {f"gap after {n} steps of 0.5, nats": float(gap[:, n].mean().clamp(min=0.0)) for n in (30, 50)}


def start() -> Found:
    """Loss of the bound by the start N(0, I) instead of the prior."""
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
    """Largest change of a probability if the classes of a task are reordered."""
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
    """Errors in float32 for 105 points with 64 features.

    As in the released code, white noise is added to K until its smallest eigenvalue is at least 1e-6.
    """
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


def logistic_softmax_bound() -> Found:
    """Bound of CDKT as derived and as released, and the log-evidence."""
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(9, 8, generator=generator, dtype=torch.float64), dim=-1)
    K, y = 3 * (z @ z.mT) + 1e-6 * torch.eye(9, dtype=torch.float64), torch.arange(9)[None] % 3
    labels = make_labels(y, torch.ones(1, 9), torch.ones(1, 3, dtype=torch.bool), K.dtype)
    steps = [mean_field(K[None, None], labels, n_steps=n) for n in range(1, 21)]
    derived, released = ([float(elbo(q, labels)) for q in steps] for elbo in (mean_field_elbo, released_elbo))
    draws = torch.randn(400_000, 3, 9, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(K).mT
    log_s = torch.nn.functional.logsigmoid(draws)
    log_p = (log_s.gather(1, y.expand(len(draws), 1, 9))[:, 0] - log_s.logsumexp(1)).sum(-1)
    evidence = float(log_p.logsumexp(0) - torch.tensor(float(len(draws))).log())
    return {
        "log-evidence by sampling, nats": evidence,
        "bound as derived": derived[-1],
        "as released": released[-1],
        "largest fall in a step, as derived": _largest_fall(derived),
        "largest fall in a step, as released": _largest_fall(released),
    }


def _largest_fall(curve: list[float]) -> float:
    return max(0.0, *(before - after for before, after in itertools.pairwise(curve)))


def collapse() -> Found:
    """Bound of 85 points minus the bound with equal features for all items, in nats per point.

    The temperature is 0.2, as in the released example, and the scale is 1. If the difference is negative, training can
    raise the bound by making all features equal.
    """
    K, y, _ = synthetic_tasks(17, 1.0)
    labels = make_labels(y, torch.ones(y.shape), torch.ones(len(y), 5, dtype=torch.bool), K.dtype)
    found, starts, steps = {}, get_args(Start), ((2, False), (2, True), (300, False))  # 2 steps in training
    for start, (n_steps, is_released) in itertools.product(starts, steps):
        elbo = released_elbo if is_released else mean_field_elbo
        own, alike = (
            elbo(mean_field(k / 0.2**2, labels, n_steps=n_steps, start=start), labels).mean()
            for k in (K, torch.ones_like(K))
        )
        name = f"from the {start}, {n_steps} steps, as {'released' if is_released else 'derived'}"
        found[f"advantage of features, {name}"] = float((own - alike) / y.shape[1])
    return found


def quadrature() -> Found:
    """Probability of the first of five classes, whose mean is larger by 2."""
    found, mask = {}, torch.ones(1, 5, dtype=torch.bool)
    mean = torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)[None, :, None]
    for var in (0.1, 0.5, 4.0):
        spread = torch.diag_embed(torch.full((1, 1, 5), var, dtype=torch.float64))
        for name, scores in (("standard deviation", one_vs_each_scores), ("variance in its place", released_scores)):
            score = scores(mean, spread, mask)
            found[f"probability, latents of variance {var:g}, {name}"] = float(score.softmax(-1)[0, 0, 0])
    return found


DEPARTURES: dict[str, Departure] = {
    "shift of the sites": Departure("g_m - 2 g_v m", "g_m - 2 g_m g_v", fixed_point),
    "step size in training": Departure("rho = 1", "rho = 0.5, whatever is asked for", training_step_size),
    "steps at test": Departure("50", "30", test_steps),
    "start": Departure("the prior", "N(0, I)", start),
    "kernel of each class": Departure(
        "classes of a task have no order", "kernel parameters for every class slot", class_order
    ),
    "bound of CDKT": Departure("- C E[lambda]", "- E[lambda]", logistic_softmax_bound),
    "what the bound of CDKT prefers": Departure("- C E[lambda]", "- E[lambda]", collapse),
    "quadrature of OVE": Departure("nodes times the standard deviation", "nodes times the variance", quadrature),
    "inverse of K, float32": Departure("Sigma of a singular K exists", "inv(inv(K) + W)", inverse),
}
"""Departures by name."""
