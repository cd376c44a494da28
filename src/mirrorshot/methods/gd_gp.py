"""The vanilla-gradient twin of MD-BFSC, the baseline of the paper's convergence and running-time experiments.

T. Ke, H. Cao and F. Zhou, "Accelerating Convergence in Bayesian Few-Shot Classification", ICML 2024. Model, family and
bound are those of `mirror_gp`, but the posterior `N(m, Sigma)` of each class takes Euclidean gradient steps on the
bound. They need `K^-1`, so the prior has some white noise; mirror descent needs none.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp import FullGaussian, GradientInfo, gradient_descent
from mirrorshot.methods.gp import Covariances, GPMethod, Points
from mirrorshot.methods.shared import check_positive
from mirrorshot.networks.backbones import Backbone
from mirrorshot.softmax.moments import log_predictive
from mirrorshot.types import TaskBatch


class GradientGP(GPMethod):
    """Gaussian process whose posterior is found by vanilla gradient descent.

    Args:
        step_size: length of the (first) step.
        form: "plain", the paper's fixed steps on mean and covariance, or "cholesky", safeguarded. Plain steps easily
            leave the positive definite matrices; such a task keeps its last valid posterior.
        noise: variance of the white noise, relative to the prior variance.
        **options: those of `GPMethod`, with objectives "ml" and "cml" only, as the posterior is not differentiated.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        n_steps: int = 3,
        n_test_steps: int = 50,
        step_size: float = 1.0,
        form: Literal["plain", "cholesky"] = "cholesky",
        noise: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(backbone, **options)
        self._refuse("pl", "gradient descent is not differentiated. Use method mirror_gp.")
        check_positive(noise=noise, n_steps=n_steps, n_test_steps=n_test_steps)
        self.n_steps, self.n_test_steps, self.step_size = n_steps, n_test_steps, step_size
        self.form, self.noise = form, noise

    def is_recordable(self, n_points: int, n_way: int) -> bool:
        """No: each step reads back whether the covariance is still positive definite."""
        return False

    def _bound(self, K: Tensor, points: Points) -> Float[Tensor, " T"]:
        K = self._with_noise(K)
        q, info = self._climb(K, points, self.n_steps)
        # for fixed q, the bound depends on K only through -KL(q | N(0, K))
        moving = _cross_entropy(K, q)
        return info.elbo[:, -1].to(moving.dtype) + (moving - moving.detach()).sum(-1)

    def _climb(self, K: Tensor, points: Points, n_steps: int) -> tuple[FullGaussian, GradientInfo]:
        options: dict[str, Any] = {"step_size": self.step_size, "form": self.form, "validate": False}
        return gradient_descent(K, points.y, max_steps=n_steps, **options, **points.sizes)

    def _with_noise(self, K: Float[Tensor, "T _ N N"]) -> Float[Tensor, "T _ N N"]:
        diagonal = K.diagonal(dim1=-2, dim2=-1)
        # points without variance (zero features with the cosine kernel) need noise, too
        return K + torch.diag_embed(self.noise * torch.maximum(diagonal, diagonal.mean(-1, keepdim=True)))

    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        mean, var = self._latent(tasks, prior)
        return log_predictive(mean.mT, var.mT, tasks.class_mask[:, None, :])

    @torch.no_grad()
    def predict_latent(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T M C"], Float[Tensor, "T M C"]]:
        """Mean and variance of the latents of every query, after the steps at test."""
        mean, var = self._latent(tasks, self._task_covariances(tasks))
        return mean.mT, var.mT

    def _latent(self, tasks: TaskBatch, prior: Covariances) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T C M"]]:
        K = self._with_noise(prior.K)
        q, _ = self._climb(K, Points.of(tasks), self.n_test_steps)
        # mu* = k*^T K^-1 m, var* = k** - k*^T K^-1 k* + k*^T K^-1 Sigma K^-1 k*
        pull = torch.linalg.solve(K, prior.cross)
        mean = (pull.mT @ q.mean[..., None])[..., 0]
        var = prior.var - (pull * prior.cross).sum(-2) + (pull * (q.covariance @ pull)).sum(-2)
        return mean, var.clamp(min=0.0)


def _cross_entropy(K: Float[Tensor, "T _ N N"], q: FullGaussian) -> Float[Tensor, "T C"]:
    """`E_q log N(f; 0, K)` of each class, up to a constant, in float64."""
    chol = torch.linalg.cholesky(K.double())
    second = q.covariance.double() + q.mean.double()[..., :, None] * q.mean.double()[..., None, :]
    # tr K^-1 (Sigma + m m^T)
    solved: Tensor = torch.cholesky_solve(second, chol.expand_as(second))
    log_det: Tensor = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * (solved.diagonal(dim1=-2, dim2=-1).sum(-1) + log_det)
