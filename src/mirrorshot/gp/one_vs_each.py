"""Gibbs sampling for the one-vs-each likelihood `p(y = c | f) ~ prod_{i != c} sigma(f_c - f_i)`.

Each point n and class `i != y_n` form a pair with the difference `psi = f_{y_n, n} - f_{i, n}`; `A f` are all
differences. Given Polya-Gamma variables `omega ~ PG(1, psi)`, the likelihood of a pair is Gaussian up to a constant:
`exp(psi / 2 - omega psi^2 / 2)`. With `G = A K A^T`, `S = diag(sqrt omega)` and `B = I + S G S = L L^T`, a step needs
one factorisation per chain, of the size of the N (C - 1) pairs; neither `K` nor `omega` is inverted. `A` is never
formed: a pair is two classes of one point, so `G` is the covariance of the points times a pattern of classes.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.gp.linalg import cholesky_of_shifted
from mirrorshot.gp.polya_gamma import draw_prior, prior_root, sample_polya_gamma
from mirrorshot.softmax.quadrature import hermite

N_HERMITE = 20  # nodes for the expectation of a logistic sigmoid


class Pairs(NamedTuple):
    """The P = N (C - 1) pairs of each task, ordered by point."""

    K: Float[Tensor, "T _ N N"]  # prior covariances
    contrast: Float[Tensor, "T P C"]  # `e_{y_n} - e_i` of each pair; zero for padding
    kappa: Float[Tensor, "T P"]  # one half; zero for padding
    G: Float[Tensor, "T P P"]  # prior covariance of the differences `psi`

    def repeat(self, n_chains: int) -> "Pairs":
        """Repeat each task for every chain."""
        return Pairs(*(x.repeat_interleave(n_chains, 0) for x in self))

    def differences(self, f: Float[Tensor, "T C N"]) -> Float[Tensor, "T P"]:
        """`A f`."""
        per_point = self.contrast.unflatten(1, (f.shape[-1], -1))
        psi: Tensor = (per_point * f.mT[:, :, None]).sum(-1).flatten(1)
        return psi

    def spread(self, v: Float[Tensor, "T P"]) -> Float[Tensor, "T C N"]:
        """`A^T v`."""
        per_point: Tensor = (self.contrast * v[..., None]).unflatten(1, (self.K.shape[-1], -1))
        return per_point.sum(2).mT


def make_pairs(
    K: Float[Tensor, "T _ N N"], y: Int[Tensor, "T N"], weight: Float[Tensor, "T N"], class_mask: Bool[Tensor, "T C"]
) -> Pairs:
    """Build the pairs of labelled points; differentiable in `K`.

    Example:
        >>> y, ones = torch.tensor([[0, 1]]), torch.ones(1, 2)
        >>> make_pairs(torch.ones(1, 1, 2, 2), y, ones, ones.bool()).G
        tensor([[[ 2., -2.],
                 [-2.,  2.]]])
    """
    n_way = class_mask.shape[1]
    eye = torch.eye(n_way, dtype=K.dtype, device=K.device)
    others = (y[..., None] + torch.arange(1, n_way, device=y.device)) % n_way
    exists = class_mask[:, None].expand(-1, y.shape[1], -1).gather(-1, others) & (weight > 0)[..., None]
    contrast = ((eye[y][:, :, None] - eye[others]) * exists[..., None]).flatten(1, 2)
    wide = K.repeat_interleave(n_way - 1, -2).repeat_interleave(n_way - 1, -1)
    if K.shape[1] == 1:
        G = (contrast @ contrast.mT) * wide[:, 0]
    else:
        G = torch.einsum("tpc,tqc,tcpq->tpq", contrast, contrast, wide)
    return Pairs(K, contrast, exists.flatten(1).to(K.dtype) / 2, G)


class PairPosterior(NamedTuple):
    """The prior conditioned on `omega`."""

    alpha: Float[Tensor, "T C N"]  # `A^T (G + Omega^-1)^-1 kappa / omega`; `K alpha` is the posterior mean
    chol: Float[Tensor, "T P P"]  # `L` of `B`
    root: Float[Tensor, "T P"]  # `sqrt omega`


def condition_pairs(pairs: Pairs, omega: Float[Tensor, "T P"]) -> PairPosterior:
    """Condition the latents on a draw of `omega`; differentiable in `K`."""
    root = omega.sqrt()
    L, _ = cholesky_of_shifted(pairs.G, root)
    Gk = (pairs.G @ pairs.kappa[..., None])[..., 0]
    # (G + Omega^-1)^-1 kappa / omega = kappa - S B^-1 S G kappa
    v = pairs.kappa - root * _solve(L, root * Gk)
    return PairPosterior(pairs.spread(v), L, root)


def pairs_evidence(pairs: Pairs, omega: Float[Tensor, "T S P"]) -> Float[Tensor, "T S"]:
    """`log p(y | omega)` of each of S draws; differentiable once in `K`.

    The gradient in `G` is written out, which is cheaper than back-propagation through a factorisation per draw:
    `(v v^T - S B^-1 S) / 2` with `v = (G + Omega^-1)^-1 kappa / omega`.
    """
    return _Evidence.apply(pairs.G, pairs.kappa, omega.sqrt())  # type: ignore[no-untyped-call]


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, G: Tensor, kappa: Tensor, root: Tensor) -> Tensor:
        L, _ = cholesky_of_shifted(G[:, None], root)
        Gk = (G @ kappa[..., None])[:, None, :, 0]
        v = kappa[:, None] - root * _solve(L, root * Gk)
        ctx.save_for_backward(L, root, v)
        log_det = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        # kappa^T E[psi] / 2 - log |B| / 2 - P log 2
        return (v * Gk).sum(-1) / 2 - log_det - 2 * math.log(2) * kappa.sum(-1, keepdim=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        L, root, v = ctx.saved_tensors
        half = torch.linalg.solve_triangular(L, torch.diag_embed(root), upper=False)  # L^-1 S
        explained = (grad[..., None, None] * half).flatten(1, 2).mT @ half.flatten(1, 2)
        return 0.5 * ((grad[..., None] * v).mT @ v - explained), None, None


def _solve(L: Tensor, x: Tensor) -> Tensor:
    half = torch.linalg.solve_triangular(L, x[..., None], upper=False)
    solution: Tensor = torch.linalg.solve_triangular(L.mT, half, upper=True)
    return solution[..., 0]


@torch.no_grad()
def gibbs_pairs(pairs: Pairs, *, n_steps: int, generator: Generator, n_chains: int = 1) -> Float[Tensor, "T S P"]:
    """Draw `omega` by Gibbs sampling, with `n_chains` chains (S) per task.

    The first of `n_steps` steps draws `omega` for latents of the prior; each further step costs a factorisation. The
    generator is on the device of the pairs.
    """
    root, n_way = prior_root(pairs.K).repeat_interleave(n_chains, 0), pairs.contrast.shape[-1]
    chains = pairs.repeat(n_chains)
    f = draw_prior(root, n_way, generator)
    omega = torch.zeros_like(chains.kappa)
    for step in range(n_steps):
        if step > 0:
            f = _draw_latent(chains, omega, draw_prior(root, n_way, generator), generator)
        omega = sample_polya_gamma(1.0, chains.differences(f), generator) * (chains.kappa > 0)
    chained: Tensor = omega.unflatten(0, (-1, n_chains))
    return chained


def _draw_latent(pairs: Pairs, omega: Tensor, f: Tensor, generator: Generator) -> Float[Tensor, "T C N"]:
    """Turn a draw `f` of the prior into `f + K A^T (v - S B^-1 (S A f + noise))`, a draw given `omega` (Matheron)."""
    posterior = condition_pairs(pairs, omega)
    surprise = posterior.root * pairs.differences(f) + torch.empty_like(omega).normal_(generator=generator)
    u = posterior.alpha - pairs.spread(posterior.root * _solve(posterior.chol, surprise))
    return f + (pairs.K @ u[..., None])[..., 0]


def predict_pairs(
    pairs: Pairs, posterior: PairPosterior, K_cross: Float[Tensor, "T _ N M"], prior_var: Float[Tensor, "T _ M"]
) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T M C C"]]:
    """Means of the latents at new points, and covariances between the classes."""
    n_way = pairs.contrast.shape[-1]
    mean = (K_cross.mT @ posterior.alpha[..., None])[..., 0]
    # A K*: the contrast of a pair times the covariance of its point, (T, P, C, M)
    cross = pairs.contrast[..., None] * K_cross.repeat_interleave(n_way - 1, -2).transpose(1, 2)
    scaled = (posterior.root[..., None, None] * cross).flatten(2)
    gain = torch.linalg.solve_triangular(posterior.chol, scaled, upper=False).unflatten(2, (n_way, -1))
    prior = torch.diag_embed(prior_var.expand(-1, n_way, -1).mT)
    return mean, prior - torch.einsum("tpcm,tpdm->tmcd", gain, gain)


def one_vs_each_scores(
    mean: Float[Tensor, "T C M"], covariance: Float[Tensor, "T M C C"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T M C"]:
    """`sum_{i != c} E log sigma(f_c - f_i)` of every class, by Gauss-Hermite quadrature."""
    difference = mean.mT[..., :, None] - mean.mT[..., None, :]
    own = covariance.diagonal(dim1=-2, dim2=-1)
    var = (own[..., :, None] + own[..., None, :] - 2 * covariance).clamp(min=1e-10)
    z, weight = hermite(N_HERMITE, mean.dtype, mean.device)
    psi = difference[..., None] + var.sqrt()[..., None] * z
    expected = -(torch.logaddexp(torch.zeros_like(psi), -psi) * weight).sum(-1)
    pair = class_mask[:, None, None, :] & ~torch.eye(mean.shape[1], dtype=torch.bool, device=mean.device)
    return (expected * pair).sum(-1)
