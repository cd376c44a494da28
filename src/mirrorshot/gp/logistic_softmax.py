"""Inference for the logistic-softmax likelihood `p(y = c | f) = sigma(f_c) / sum_j sigma(f_j)`.

T. Galy-Fajou, F. Wenzel, C. Donner and M. Opper, "Multi-Class Gaussian Process Classification Made Conjugate", UAI
2019. Three augmentations make the likelihood Gaussian in `f`: a rate `lambda` per point replaces the denominator by an
exponential, Poisson counts `n` per (class, point) linearise the exponential of each term, and Polya-Gamma variables
`omega ~ PG(y + n, f)` replace the sigmoids. Given these, the sites of `f_c` have shift `(y - n) / 2` and precision
`omega`. For a temperature, `sigma(f / tau)`, divide `K` by `tau^2` and the prior mean by `tau`.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition, kl_to_prior, root_of
from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.polya_gamma import draw_prior, prior_root, sample_polya_gamma

Start = Literal["prior", "labels"]

_N_START = 10  # updates of counts and rates before the first step; they are cheap


class Labels(NamedTuple):
    """Labelled points of a batch of tasks."""

    Y: Float[Tensor, "T C N"]  # one-hot labels, zero for classes that do not exist
    weight: Float[Tensor, "T 1 N"]  # how often each point counts; zero for padding
    exists: Float[Tensor, "T C 1"]  # one for existing classes, else zero

    @property
    def n_classes(self) -> Float[Tensor, "T 1 1"]:
        """Number of existing classes."""
        return self.exists.sum(1, keepdim=True)


def make_labels(
    y: Int[Tensor, "T N"], weight: Float[Tensor, "T N"], class_mask: Bool[Tensor, "T C"], dtype: torch.dtype
) -> Labels:
    """Build `Labels`."""
    exists = class_mask[..., None].to(dtype)
    return Labels(one_hot(y, class_mask.shape[1], dtype) * exists, weight[:, None, :].to(dtype), exists)


class MeanField(NamedTuple):
    """The factorised posterior `q(f) q(lambda) q(n, omega)`."""

    posterior: GaussianPosterior  # of the latents without their prior mean
    gamma: Float[Tensor, "T C N"]  # expected Poisson counts
    alpha: Float[Tensor, "T 1 N"]  # shape of the gamma distribution of the rates `lambda`


def mean_field(
    K: Float[Tensor, "T _ N N"],
    labels: Labels,
    *,
    n_steps: int,
    prior_mean: float = 0.0,
    start: Start | tuple[Float[Tensor, "T C N"], Float[Tensor, "T C N"]] = "prior",
) -> MeanField:
    """Maximise the evidence lower bound by coordinate ascent; differentiable in `K`.

    Each of the `n_steps` (at least one) updates every factor and costs one factorisation. `start` is "prior"; "labels",
    with latents one prior standard deviation above the prior mean for the class of a point and one below for others; or
    means, prior mean included, and variances. A few steps from "labels" give a low bound where `K` makes points of
    different classes alike; after many steps both give the same.

    Example:
        >>> labels = make_labels(torch.tensor([[0, 1]]), torch.ones(1, 2), torch.ones(1, 2).bool(), torch.float32)
        >>> q = mean_field(torch.eye(2)[None, None], labels, n_steps=30)
        >>> q.posterior.mean[0, 0].tolist() == q.posterior.mean[0, 1].flip(0).tolist()
        True
    """
    mean, var = _start(K, labels, prior_mean, start)
    alpha = labels.n_classes.expand_as(labels.weight)  # E lambda = 1
    tilt = tilt_of(mean, var)
    for _ in range(_N_START):
        alpha = 1 + expected_count(mean, tilt, alpha, labels).sum(1, keepdim=True)
    posterior = None
    for _ in range(n_steps):
        gamma = expected_count(mean, tilt, alpha, labels)
        alpha = 1 + gamma.sum(1, keepdim=True)
        posterior = condition(K, _sites(gamma, expected_omega(labels.Y + gamma, tilt), labels, prior_mean))
        mean = prior_mean + posterior.mean
        tilt = tilt_of(mean, posterior.var)
    assert posterior is not None
    gamma = expected_count(mean, tilt, alpha, labels)
    return MeanField(posterior, gamma, 1 + gamma.sum(1, keepdim=True))


def _start(
    K: Tensor, labels: Labels, prior_mean: float, start: Start | tuple[Tensor, Tensor]
) -> tuple[Float[Tensor, "T C N"], Float[Tensor, "T C N"]]:
    if isinstance(start, tuple):
        return start
    var = K.diagonal(dim1=-2, dim2=-1).expand_as(labels.Y)
    deviation = root_of(var) * (2 * labels.Y - 1)
    named = {
        "prior": (torch.full_like(labels.Y, prior_mean), var),
        "labels": (prior_mean + deviation, torch.zeros_like(var)),
    }
    return named[start]


def tilt_of(mean: Tensor, var: Tensor) -> Tensor:
    """`ft = sqrt(mu^2 + var)`, the tilt of `q(omega)`."""
    return (mean.square() + var).clamp(min=1e-8).sqrt()


def expected_count(mean: Tensor, tilt: Tensor, alpha: Tensor, labels: Labels) -> Float[Tensor, "T C N"]:
    """`gamma = exp(psi(alpha) - mu / 2) / (2 C cosh(ft / 2))`."""
    log_rate = torch.digamma(alpha) - labels.n_classes.log()
    return labels.exists * torch.exp(log_rate - mean / 2 - math.log(2) - _log_cosh_half(tilt))


def expected_omega(b: Tensor, tilt: Tensor) -> Tensor:
    """`E omega` of `PG(b, ft)`: `b tanh(ft / 2) / (2 ft)`."""
    return b * torch.tanh(tilt / 2) / (2 * tilt)


def _log_cosh_half(tilt: Tensor) -> Tensor:
    return tilt / 2 + torch.log1p(torch.exp(-tilt)) - math.log(2)


def _sites(gamma: Tensor, omega: Tensor, labels: Labels, prior_mean: float) -> GaussianSites:
    """Sites of the latents without their prior mean."""
    precision = labels.weight * omega
    return GaussianSites(labels.weight * (labels.Y - gamma) / 2 - precision * prior_mean, precision)


def mean_field_elbo(q: MeanField, labels: Labels, *, prior_mean: float = 0.0) -> Float[Tensor, " T"]:
    """Evidence lower bound of each task, for the result of `mean_field` with the same labels and prior mean."""
    mean = prior_mean + q.posterior.mean
    per_class, entropy = bound_terms(mean, tilt_of(mean, q.posterior.var), q.gamma, q.alpha, labels)
    # - C E lambda = - alpha
    per_point = per_class.sum(1, keepdim=True) + entropy - q.alpha
    return (labels.weight * per_point).sum((1, 2)) - kl_to_prior(q.posterior).sum(-1)


def bound_terms(
    mean: Tensor, tilt: Tensor, gamma: Tensor, alpha: Tensor, labels: Labels
) -> tuple[Float[Tensor, "T C N"], Float[Tensor, "T 1 N"]]:
    """`E log p(y, n, omega | f, lambda) / q(n, omega)` without `- C E lambda`, and the entropy of `q(lambda)`."""
    psi, log_classes = torch.digamma(alpha), labels.n_classes.log()
    log_gamma = gamma.clamp(min=torch.finfo(gamma.dtype).tiny).log()
    per_class = (labels.Y - gamma) * mean / 2 - (labels.Y + gamma) * (math.log(2) + _log_cosh_half(tilt))
    per_class = per_class + gamma * (1 - log_gamma + psi - log_classes)
    # q(lambda) = Gamma(alpha, rate C)
    return per_class, alpha - log_classes + torch.lgamma(alpha) + (1 - alpha) * psi


class Augmentation(NamedTuple):
    """A draw of the variables that make the likelihood Gaussian: Poisson counts and `omega`, (T, C, N) each."""

    counts: Float[Tensor, "T C N"]
    omega: Float[Tensor, "T C N"]


@torch.no_grad()
def gibbs(
    K: Float[Tensor, "T _ N N"], labels: Labels, *, n_steps: int, generator: Generator, prior_mean: float = 0.0
) -> Augmentation:
    """Draw the augmentation by `n_steps` sweeps of Gibbs sampling, which start from a draw of the prior.

    Each task has one chain; repeat the task for more. The generator is on the device of `K`.
    """
    root, n_way = prior_root(K), labels.Y.shape[1]
    f = prior_mean + draw_prior(root, n_way, generator)
    rate = torch.ones_like(labels.weight)
    counts = omega = torch.zeros_like(labels.Y)
    for step in range(n_steps):
        if step > 0:
            posterior = condition(K, _sites(counts, omega, labels, prior_mean))
            f = prior_mean + _draw_latent(posterior, draw_prior(root, n_way, generator), generator)
        # n ~ Po(lambda sigma(-f)),  lambda ~ Gamma(1 + sum_c n_c, rate C),  omega ~ PG(n + y, f)
        counts = torch.poisson(labels.exists * rate * torch.sigmoid(-f), generator=generator)
        rate = torch._standard_gamma(1 + counts.sum(1, keepdim=True), generator=generator) / labels.n_classes
        omega = sample_polya_gamma(labels.Y + counts, f, generator)
    return Augmentation(counts, omega)


def _draw_latent(posterior: GaussianPosterior, f: Tensor, generator: Generator) -> Float[Tensor, "T C N"]:
    """Turn a draw `f` of the prior into one of the posterior: `f + m - V^T L^-1 (S f + noise)` (Matheron's rule)."""
    noise = torch.empty_like(f).normal_(generator=generator)
    surprise = root_of(posterior.sites.precision) * f + noise
    whitened: Tensor = torch.linalg.solve_triangular(posterior.chol, surprise[..., None], upper=False)
    return f + posterior.mean - (posterior.gain.mT @ whitened)[..., 0]


def augmented_posterior(
    K: Float[Tensor, "T _ N N"], labels: Labels, draw: Augmentation, *, prior_mean: float = 0.0
) -> GaussianPosterior:
    """Posterior of the latents without their prior mean, given the augmentation; differentiable in `K`."""
    return condition(K, _sites(draw.counts, draw.omega, labels, prior_mean))


def augmented_evidence(
    K: Float[Tensor, "T _ N N"], labels: Labels, draw: Augmentation, *, prior_mean: float = 0.0
) -> Float[Tensor, " T"]:
    """`log p(y, n | omega)` of each task, up to terms without `K`.

    By Fisher's identity the mean of its gradient over draws of the posterior is the gradient of the log-evidence.
    """
    posterior = augmented_posterior(K, labels, draw, prior_mean=prior_mean)
    shift, precision = labels.weight * (labels.Y - draw.counts) / 2, labels.weight * draw.omega
    # int N(g; 0, K) exp(b^T g - g^T W g / 2) dg = exp(b^T m / 2) / |B|^(1/2)
    fit = posterior.sites.shift * posterior.mean / 2 - posterior.chol.diagonal(dim1=-2, dim2=-1).log()
    at_mean = prior_mean * (shift - precision * prior_mean / 2)
    return (fit + at_mean - labels.weight * (labels.Y + draw.counts) * math.log(2)).sum((1, 2))
