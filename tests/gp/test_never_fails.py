"""Inference fails on no task: random ones, of which most are degenerate in some way."""

import collections
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirrorshot.gp import elbo, mirror_descent
from mirrorshot.gp.gaussian import kl_to_prior, loo_latent, predict_latent
from mirrorshot.softmax.moments import softmax_moments

N_NEW = 3  # points to predict


def draw_features(rng, n, n_features, dtype):
    """Random points with something wrong with them."""
    g = torch.Generator().manual_seed(rng.getrandbits(31))
    x = torch.randn(n, n_features, generator=g, dtype=torch.float64)
    kind = rng.choice(["plain", "duplicated", "constant", "zero vectors", "all zero", "line", "tiny", "nearly equal"])
    if kind == "duplicated":
        x = x[torch.randint(0, max(n // 2, 1), (n,), generator=g)]
    elif kind == "constant":
        x = x[:1].expand(n, -1)
    elif kind == "zero vectors":
        x = x * (torch.rand(n, 1, generator=g) < 0.5)
    elif kind == "all zero":
        x = torch.zeros_like(x)
    elif kind == "line":
        x = x[:, :1] * x[:1]
    elif kind == "tiny":
        x = 1e-8 * x
    elif kind == "nearly equal":
        x = x[:1] + 1e-6 * x
    return x.to(dtype)


def draw_kernel(rng, x, n_way):
    """A kernel matrix of the points, (1 or C, n, n), computed in their own floating-point type."""
    kind = rng.choice(["cosine", "linear", "rbf", "polynomial"])
    if kind == "cosine":
        z = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        K = z @ z.mT
    elif kind == "linear":
        K = x @ x.mT / x.shape[-1]
    elif kind == "rbf":
        K = torch.exp(-0.5 * (x[:, None] - x[None]).square().sum(-1))
    else:
        K = (x @ x.mT / x.shape[-1] + 0.5) ** 2
        K = K / K.diagonal().amax()
    K = 10.0 ** rng.uniform(-6, 6) * (K + K.mT) / 2
    per_class = rng.random() < 0.2
    return torch.stack([K * (1.0 - 0.1 * c) for c in range(n_way)]) if per_class else K[None].repeat(n_way, 1, 1)


def draw_tasks(rng, n_tasks):
    """A batch of tasks of different sizes: covariances, labels, weights and masks, with points to predict."""
    dtype = rng.choice([torch.float32, torch.float64])
    n, n_way, n_features = rng.randint(1, 14), rng.randint(2, 6), rng.randint(1, 8)
    ragged, weighted = rng.random() < 0.4, rng.random() < 0.3
    K = torch.zeros(n_tasks, n_way, n + N_NEW, n + N_NEW, dtype=dtype)
    y = torch.zeros(n_tasks, n, dtype=torch.long)
    weight, mask = torch.zeros(n_tasks, n, dtype=dtype), torch.ones(n_tasks, n_way, dtype=torch.bool)
    for t in range(n_tasks):
        K[t] = draw_kernel(rng, draw_features(rng, n + N_NEW, n_features, dtype), n_way)
        n_here, way_here = (rng.randint(0, n), rng.randint(2, n_way)) if ragged else (n, n_way)
        n_labels = rng.randint(1, way_here)  # the other classes have no point
        y[t] = torch.tensor([rng.randrange(n_labels) for _ in range(n)])
        weight[t] = torch.tensor([rng.uniform(0, 3) if weighted else 1.0 for _ in range(n)])
        weight[t, n_here:], y[t, n_here:] = 0.0, -1
        mask[t, way_here:] = False
    if bool((K[:, :1] == K).all()):
        K = K[:, :1]
    prior_var = K.diagonal(dim1=-2, dim2=-1)[..., n:]
    return K[..., :n, :n].contiguous(), K[..., :n, n:], prior_var, y, weight, mask


def check_tasks(rng, n_tasks):
    """Infer, predict and differentiate; assert what is promised, and return the diagnostics."""
    K, K_cross, prior_var, y, weight, mask = draw_tasks(rng, n_tasks)
    K.requires_grad_()
    tol = rng.choice([1e-6, 1e-6, 1e-3, None])
    posterior, info = mirror_descent(
        K, y, n_way=mask.shape[1], weight=weight, class_mask=mask, tol=tol, max_steps=rng.choice([3, 30])
    )
    assert all(t.isfinite().all() for t in (*posterior.sites, posterior.mean, posterior.var, info.elbo, info.gap))
    assert (posterior.var >= 0).all()
    assert kl_to_prior(posterior).isfinite().all()
    assert (info.elbo.diff(dim=1) >= 0).all()
    bound = elbo(K, y, posterior, weight=weight, class_mask=mask)
    tolerance = 1e-3 if K.dtype == torch.float32 else 1e-9
    assert ((bound - info.elbo[:, -1]).abs() <= tolerance * (1 + bound.abs())).all()
    assert torch.autograd.grad(bound.sum(), K)[0].isfinite().all()
    with torch.no_grad():
        latents = predict_latent(posterior, K_cross, prior_var), loo_latent(posterior), posterior[1:3]
        for mean, var in latents:
            moments = softmax_moments(mean.mT, var.mT, mask[:, None, :])
            assert all(t.isfinite().all() for t in moments)
            assert (moments.prob >= 0).all()
            assert moments.error.max() <= 1e-5
            assert (moments.prob.masked_select(~mask[:, None, :]) == 0).all()
    return info


@settings(max_examples=50, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_inference_never_fails_on_a_random_task(rng):
    check_tasks(rng, n_tasks=3)


@pytest.mark.parametrize("seed", range(5))
def test_inference_never_fails_on_seeded_random_tasks(seed):
    check_tasks(random.Random(seed), n_tasks=10)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(10))
def test_inference_never_fails_on_ten_thousand_random_tasks(part, capsys):
    """Each part is 125 batches of 8 tasks."""
    total = collections.Counter()
    for batch in range(125):
        info = check_tasks(random.Random(1000 * (part + 1) + batch), n_tasks=8)
        total["tasks"] += len(info.n_steps)
        total["steps"] += int(info.n_steps.sum())
        total["evaluations"] += int(info.n_evaluations.sum())
        total["converged"] += int(info.converged.sum())
    with capsys.disabled():
        print(f"\npart {part}: " + ", ".join(f"{count} {name}" for name, count in total.items()))
    assert total["tasks"] == 1000
