"""Departures of the released codes of CDKT and OVE, each a small experiment."""

import itertools
from typing import get_args

import torch

from mirrorshot.files.texts import count
from mirrorshot.gp.logistic_softmax import Start, make_labels, mean_field, mean_field_elbo
from mirrorshot.gp.one_vs_each import one_vs_each_scores
from mirrorshot.paper.episodes import synthetic_tasks
from mirrorshot.paper.released import released_scores
from mirrorshot.paper.released_cdkt import released_elbo


def logistic_softmax_bound() -> dict[str, float]:
    """The released formula, the bound as derived, and the log-evidence."""
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


def collapse() -> dict[str, float]:
    """The bound of 85 points with features, over that with one and the same feature for all items, nats per point.

    At the temperature of the released example, 0.2, and a scale of 1. Where it is negative, training may raise the
    bound by making all items alike.
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


def support_rows() -> dict[str, float]:
    """Number of classes in the support, as the released code takes it."""
    found = {}
    for n_shot in (1, 5):
        labels = torch.arange(5).repeat_interleave(n_shot + 16)  # class-major, support and query of a class together
        taken = labels[: 5 * n_shot]
        found[f"classes in the support of 5, {count(n_shot, 'shots')}"] = float(len(taken.unique()))
    return found


def quadrature() -> dict[str, float]:
    """Probability of the first of five classes, whose mean is ahead by 2."""
    found, mask = {}, torch.ones(1, 5, dtype=torch.bool)
    mean = torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)[None, :, None]
    for var in (0.1, 0.5, 4.0):
        spread = torch.diag_embed(torch.full((1, 1, 5), var, dtype=torch.float64))
        for name, scores in (("standard deviation", one_vs_each_scores), ("variance in its place", released_scores)):
            score = scores(mean, spread, mask)
            found[f"probability, latents of variance {var:g}, {name}"] = float(score.softmax(-1)[0, 0, 0])
    return found


def averages() -> dict[str, float]:
    """Averages of two chains that disagree."""
    chains = torch.tensor([[0.98, 0.01, 0.01], [0.2, 0.4, 0.4]], dtype=torch.float64)
    means = {"probabilities": chains.mean(0), "logarithms": chains.log().mean(0).softmax(0)}
    return {f"first class, mean of {name}": float(mean[0]) for name, mean in means.items()}
