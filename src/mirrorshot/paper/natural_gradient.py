"""Inner loop by GPyTorch's natural-gradient descent, an independent check of the paper's Theorem 3.1.

Mirror descent with the Bregman divergence of the negative entropy is natural-gradient descent. Only the expectations of
the likelihood are ours, because GPyTorch samples them.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.files.lazy import need
from mirrorshot.softmax.moments import softmax_moments


class NaturalDescent(NamedTuple):
    """Bound at the start and after each of S steps; mean and covariance of q after the last one."""

    elbo: Float[Tensor, " S"]
    mean: Float[Tensor, "C N"]
    covariance: Float[Tensor, "C N N"]


def natural_descent(
    K: Float[Tensor, "N N"], y: Int[Tensor, " N"], *, n_way: int, max_steps: int, step_size: float
) -> NaturalDescent:
    """Natural-gradient descent on the bound of one task, from the prior.

    `K` is the prior covariance of every class. It must be positive definite, as natural parameters need its inverse.
    `step_size` is the paper's rho. Raises `MissingPackageError` if GPyTorch is not installed.
    """
    gpytorch = need("gpytorch")
    C, N = n_way, len(y)
    prior = torch.distributions.MultivariateNormal(K.new_zeros(C, N), K.expand(C, N, N))
    q = gpytorch.variational.NaturalVariationalDistribution(N, batch_shape=torch.Size([C])).to(K)
    with torch.no_grad():
        q.natural_vec.zero_()
        q.natural_mat.copy_(-0.5 * torch.linalg.inv(K).expand(C, N, N))
    optimiser = gpytorch.optim.NGD(q.parameters(), num_data=1, lr=step_size)
    max_std = float(K.diagonal().amax().sqrt())
    curve = []
    for _ in range(max_steps):
        optimiser.zero_grad()
        elbo = _bound(q(), prior, y, max_std)
        (-elbo).backward()
        optimiser.step()
        curve.append(elbo.detach())
    with torch.no_grad():
        found = q()
        curve.append(_bound(found, prior, y, max_std))
        return NaturalDescent(torch.stack(curve), found.mean, found.covariance_matrix)


def _bound(q: Any, prior: Any, y: Tensor, max_std: float) -> Float[Tensor, ""]:
    mean, covariance = q.mean, q.covariance_matrix
    var = covariance.diagonal(dim1=-2, dim2=-1)
    # after NGD steps, var is at most the prior variance, up to rounding
    moments = softmax_moments(mean.mT, var.mT, max_std=1.01 * max_std)
    expected = mean.gather(0, y[None])[0] - moments.logsumexp
    plain = torch.distributions.MultivariateNormal(mean, covariance)
    bound: Tensor = expected.sum() - torch.distributions.kl_divergence(plain, prior).sum()
    return bound
