"""Departures of the released code in single precision, and what it does when numbers are not finite."""

import torch
from torch import Tensor

from mirrorshot.gaussian import GaussianSites, condition, covariance
from mirrorshot.reproduce.departures_inference import SEED


def inverse() -> dict[str, float]:
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


def saturation() -> dict[str, float]:
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


def overflow() -> dict[str, float]:
    """Softmax of a large latent."""
    f = torch.tensor([100.0, 0.0])
    return {
        "NaN of exp(f) / sum exp(f) at f = 100": float((f.exp() / f.exp().sum()).isnan().any()),
        "NaN of softmax": float(f.softmax(0).isnan().any()),
    }


def skipped_steps() -> dict[str, float]:
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
