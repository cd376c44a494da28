"""Where the released code departs from the paper or from correctness, each shown by a small experiment on the CPU.

Formulas of the released code are written down here from reading it; none of it is run or copied. Tasks are synthetic:
random class centres and noise of equal size in 64 dimensions, unit norm, cosine kernel, float64 unless said.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mirrorshot.gaussian import GaussianSites, condition, covariance, predict_latent
from mirrorshot.inference import mirror_descent
from mirrorshot.inference.logistic_softmax import make_labels, mean_field, mean_field_elbo
from mirrorshot.inference.mirror import fixed_descent
from mirrorshot.inference.objective import evaluate, expected_log_likelihood, make_problem
from mirrorshot.inference.one_vs_each import one_vs_each_scores
from mirrorshot.likelihoods import log_predictive
from mirrorshot.reproduce.released import released_descent
from mirrorshot.reproduce.sheets import Record, Sheet

SEED = 0
_N_TASKS = 8


class Departure(NamedTuple):
    """A place where the released code does something else.

    Attributes:
        paper: what the paper says, or what is right.
        released: what the released code does.
        measure: the experiment; returns what it found, by name, in the unit that the name says.
    """

    paper: str
    released: str
    measure: Callable[[], dict[str, float]]


def _tasks(n_shot: int, scale: float, n_tasks: int = _N_TASKS, n_way: int = 5, extra: int = 0) -> tuple[Tensor, ...]:
    """Covariances and labels of support and, with `extra`, cross-covariances with that many queries of each class."""
    generator = torch.Generator().manual_seed(SEED)
    centre = torch.randn(n_tasks, n_way, 1, 64, generator=generator, dtype=torch.float64)
    noise = torch.randn(n_tasks, n_way, n_shot + extra, 64, generator=generator, dtype=torch.float64)
    z = torch.nn.functional.normalize(centre + noise, dim=-1)
    support, query = z[:, :, :n_shot].flatten(1, 2), z[:, :, n_shot:].flatten(1, 2)
    y = torch.arange(n_way).repeat_interleave(n_shot).expand(n_tasks, -1)
    return scale * (support @ support.mT)[:, None], y, scale * (support @ query.mT)[:, None]


def _optimum(K: Tensor, y: Tensor) -> Tensor:
    return mirror_descent(K, y, n_way=5, max_steps=200, tol=1e-12)[1].elbo[:, -1]


def _fixed_point() -> dict[str, float]:
    found = {}
    for n_shot, scale in ((1, 0.69), (5, 0.69), (5, 3.0), (5, 10.0), (17, 0.69)):
        K, y, _ = _tasks(n_shot, scale)
        _, info = released_descent(K, y, n_way=5, max_steps=100, step_size=0.3)
        found[f"nats lost, {5 * n_shot} points, scale {scale:g}"] = float((_optimum(K, y) - info.elbo[:, -1]).mean())
    return found


def _training_step_size() -> dict[str, float]:
    found = {}
    for n_shot, scale in ((1, 0.69), (17, 0.69), (5, 10.0)):
        K, y, _ = _tasks(n_shot, scale)
        for rho in (1.0, 0.5):
            elbo = mirror_descent(K, y, n_way=5, max_steps=3, step_size=rho)[1].elbo[:, -1]
            name = f"gap after 3 steps of {rho:g}, nats, {5 * n_shot} points, scale {scale:g}"
            found[name] = float((_optimum(K, y) - elbo).mean())
    return found


def _test_steps() -> dict[str, float]:
    K, y, _ = _tasks(5, 3.0)
    elbo = mirror_descent(K, y, n_way=5, max_steps=50, step_size=0.5)[1].elbo
    gap = _optimum(K, y)[:, None] - elbo
    return {f"gap after {n} steps of 0.5, nats": float(gap[:, n].mean().clamp(min=0.0)) for n in (30, 50)}


def _start() -> dict[str, float]:
    found = {}
    for scale in (0.69, 3.0):
        K, y, _ = _tasks(1, scale)
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


def _class_order() -> dict[str, float]:
    """The same tasks with their classes in another order: how much a class's probabilities change."""
    K, y, cross = _tasks(5, 3.0, extra=3)
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


def _logistic_softmax_bound() -> dict[str, float]:
    generator = torch.Generator().manual_seed(SEED)
    z = torch.nn.functional.normalize(torch.randn(9, 8, generator=generator, dtype=torch.float64), dim=-1)
    K, y = 3 * (z @ z.mT) + 1e-6 * torch.eye(9, dtype=torch.float64), torch.arange(9)[None] % 3
    labels = make_labels(y, torch.ones(1, 9), torch.ones(1, 3, dtype=torch.bool), K.dtype)
    curves = {
        released: [
            float(mean_field_elbo(mean_field(K[None, None], labels, n_steps=n), labels, released=released))
            for n in range(1, 21)
        ]
        for released in (False, True)
    }
    draws = torch.randn(400_000, 3, 9, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(K).mT
    log_s = torch.nn.functional.logsigmoid(draws)
    log_p = (log_s.gather(1, y.expand(len(draws), 1, 9))[:, 0] - log_s.logsumexp(1)).sum(-1)
    evidence = float(log_p.logsumexp(0) - torch.tensor(float(len(draws))).log())
    return {
        "log-evidence by sampling, nats": evidence,
        "bound as derived": curves[False][-1],
        "as released": curves[True][-1],
        "largest fall in a step, as derived": _largest_fall(curves[False]),
        "largest fall in a step, as released": _largest_fall(curves[True]),
    }


def _largest_fall(curve: list[float]) -> float:
    return max(0.0, *(before - after for before, after in itertools.pairwise(curve)))


def _support_rows() -> dict[str, float]:
    found = {}
    for n_shot in (1, 5):
        labels = torch.arange(5).repeat_interleave(n_shot + 16)  # class-major, support and query of a class together
        taken = labels[: 5 * n_shot]
        found[f"classes in the support of 5, {n_shot} shot{'s' * (n_shot > 1)}"] = float(len(taken.unique()))
    return found


def _quadrature() -> dict[str, float]:
    """Five classes, the first of which is ahead by 2: its probability."""
    found = {}
    mask = torch.ones(1, 5, dtype=torch.bool)
    mean = torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)[None, :, None]
    for var in (0.1, 0.5, 4.0):
        spread = torch.diag_embed(torch.full((1, 1, 5), var, dtype=torch.float64))
        for name, released in (("standard deviation", False), ("variance in its place", True)):
            score = one_vs_each_scores(mean, spread, mask, released=released)
            found[f"probability, latents of variance {var:g}, {name}"] = float(score.softmax(-1)[0, 0, 0])
    return found


def _averages() -> dict[str, float]:
    """Two chains that disagree: what their averages make of it."""
    chains = torch.tensor([[0.98, 0.01, 0.01], [0.2, 0.4, 0.4]], dtype=torch.float64)
    geometric = chains.log().mean(0).softmax(0)
    return {
        "first class, mean of probabilities": float(chains.mean(0)[0]),
        "first class, mean of logarithms": float(geometric[0]),
    }


def _inverse() -> dict[str, float]:
    """105 points with 64 features; as released, white noise is added until the smallest eigenvalue is above 1e-6."""
    generator = torch.Generator().manual_seed(SEED)
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


def _saturation() -> dict[str, float]:
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


def _overflow() -> dict[str, float]:
    f = torch.tensor([100.0, 0.0])
    return {
        "NaN of exp(f) / sum exp(f) at f = 100": float((f.exp() / f.exp().sum()).isnan().any()),
        "NaN of softmax": float(f.softmax(0).isnan().any()),
    }


def _skipped_steps() -> dict[str, float]:
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
    "shift of the sites": Departure("g_m - 2 g_v m", "g_m - 2 g_m g_v", _fixed_point),
    "step size in training": Departure("rho = 1", "rho = 0.5, whatever is asked for", _training_step_size),
    "steps at test": Departure("50", "30", _test_steps),
    "start": Departure("the prior", "N(0, I)", _start),
    "kernel of each class": Departure(
        "classes of a task have no order", "kernel parameters for every class slot", _class_order
    ),
    "bound of CDKT": Departure("- C E[lambda]", "- E[lambda]", _logistic_softmax_bound),
    "support of CDKT (PL)": Departure("the labelled items", "the first rows of a class-major array", _support_rows),
    "quadrature of OVE": Departure("nodes times the standard deviation", "nodes times the variance", _quadrature),
    "average over chains": Departure("of probabilities", "of their logarithms", _averages),
    "inverse of K, float32": Departure("Sigma of a singular K exists", "inv(inv(K) + W)", _inverse),
    "certain predictions, float32": Departure(
        "natural parameters of the sites", "mean and variance of the sites, and back", _saturation
    ),
    "large latents, float32": Departure("softmax", "exp(f) / sum exp(f)", _overflow),
    "a gradient that is NaN": Departure("-", "the step is left out, its gradient is kept", _skipped_steps),
}
"""Departures by name."""


def measure_departures() -> Record:
    """Run all experiments."""
    return {
        "departures": {
            name: {"paper": departure.paper, "released": departure.released, "found": departure.measure()}
            for name, departure in DEPARTURES.items()
        }
    }


def departures_sheet(record: Record) -> Sheet:
    """What was found."""
    rows, records = [], []
    for name, about in record["departures"].items():
        for i, (what, value) in enumerate(about["found"].items()):
            rows.append(
                [*((name, about["paper"], about["released"]) if i == 0 else ("", "", "")), what, f"{value:.3g}"]
            )
            records.append({"departure": name, "paper": about["paper"], "released": about["released"],
                            "what": what, "value": value})  # fmt: skip
    columns = ("", "paper", "released code", "measured", "")
    return Sheet("Departures of the released code", columns, rows, records, [])
