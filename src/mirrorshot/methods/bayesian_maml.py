"""J. Yoon, T. Kim, O. Dia, S. Kim, Y. Bengio and S. Ahn, "Bayesian Model-Agnostic Meta-Learning", NeurIPS 2018 (BMAML).

https://arxiv.org/abs/1806.03836

A few particles represent the posterior of the last layer of the network; the layers below are shared by all tasks. For
a task, the particles move from a learned start by Stein variational gradient descent (Q. Liu and D. Wang, 2016,
https://arxiv.org/abs/1608.04471): they follow the gradients of nearby particles and repel each other. Predictions are
the mean of the particles' softmax. Training minimises the cross-entropy of the queries or the chaser loss.
"""

import math
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mirrorshot.gp.linalg import one_hot
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.methods.recipe import Recipe
from mirrorshot.methods.shared import check_positive, mean_of_softmax, used_slots, xavier_rows
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import TaskBatch, check_at_least

RATE = 0.1  # of the exponential prior of lambda


class LabelledPoints(NamedTuple):
    """Features with a last column of ones, one-hot labels, and weights of the points."""

    x: Float[Tensor, "T N D1"]
    Y: Float[Tensor, "T N S"]
    weight: Float[Tensor, "T N"]


def svgd_direction(theta: Float[Tensor, "T P V"], gradient: Float[Tensor, "T P V"]) -> Float[Tensor, "T P V"]:
    """Direction of Stein variational gradient descent, from the gradient of the energy at the particles `theta`.

    The kernel is exp(-d^2 / h), where h is the squared median distance over log P.

    Example:
        >>> theta = torch.tensor([[[0.0], [1.0]]])
        >>> svgd_direction(theta, torch.zeros(1, 2, 1)).flatten()  # nothing but repulsion: k = 1/2, 2 / h = 2 log 2
        tensor([-0.3466,  0.3466])
    """
    P = theta.shape[1]
    if P == 1:
        return -gradient
    d2 = squared_distances(theta)
    i, j = torch.triu_indices(P, P, 1, device=theta.device)
    h = d2[:, i, j].median(-1).values / math.log(P)
    h = h.clamp(min=torch.finfo(h.dtype).eps)[:, None, None]  # for coinciding particles
    K = torch.exp(-d2 / h)
    # φ_i = (1/P) Σ_j [-k_ij ∇U(θ_j) + (2/h) k_ij (θ_i - θ_j)]
    repulsion = K.sum(-1, keepdim=True) * theta - K @ theta
    return (1 / P) * (2 / h * repulsion - K @ gradient)


def squared_distances(theta: Float[Tensor, "T P V"]) -> Float[Tensor, "T P P"]:
    """Squared distances between the particles of each task."""
    centred = theta - theta.mean(1, keepdim=True)
    G = centred @ centred.mT
    squares = G.diagonal(dim1=-2, dim2=-1)
    return (squares[:, :, None] + squares[:, None, :] - 2 * G).clamp(min=0.0)


class BayesianMAML(FewShotMethod):
    """Bayesian MAML on the last layer, by Stein variational gradient descent.

    Model of a task: weights and biases of the last layer are N(0, 1 / lambda), lambda is exponential with rate 0.1, and
    the likelihood is the softmax. A particle consists of weights, biases and log lambda.

    Design note: the curvature of the energy in log lambda is half the number of weights, 4000 for Conv4, so log lambda
    diverges with a step size that suits the weights. Particles therefore use units of its posterior width (`log lambda
    * sqrt(n_weights / 2)`), which is SVGD of the same posterior in another coordinate.
    """

    # Validation accuracy on Omniglot -> EMNIST at 1 shot: 0.496 with the published step size of 0.01 (10,000 tasks),
    # 0.539 with 0.1 (3,000), 0.615 with 0.1 and one task per step (10,000). At 5 shots 0.704 with 0.01, 0.572 with 0.1.
    recipes: ClassVar[tuple[Recipe, ...]] = (
        Recipe({"tasks_per_step": 4}),
        Recipe({"validate_every": 1000, "n_validation_tasks": 200}, is_benchmark=True),
        Recipe({"tasks_per_step": 1, "method_options": {"step_size": 0.1}}, kind="characters", n_shot=1),
    )
    has_precision = True

    def __init__(
        self,
        backbone: Backbone,
        *,
        n_way: int = 5,
        n_particles: int = 10,
        n_steps: int = 5,
        step_size: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone)
        check_at_least(2, n_way=n_way)
        check_at_least(1, n_particles=n_particles, n_steps=n_steps)
        check_positive(step_size=step_size)
        self.n_way, self.n_steps, self.step_size = n_way, n_steps, step_size
        generator = torch.Generator().manual_seed(seed)
        self.head = nn.Parameter(xavier_rows(n_particles, n_way, backbone.out_features, generator))
        if self.has_precision:
            self.log_lambda = nn.Parameter(torch.ones(n_particles))

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Logarithm of the mean over the particles of their softmax."""
        used = used_slots(tasks, self.n_way)
        theta, _, query = self._adapted(tasks, used)
        return mean_of_softmax(query[:, None] @ self._rows(theta).mT, used, tasks.class_mask)

    def _adapted(
        self, tasks: TaskBatch, used: Bool[Tensor, "T S"]
    ) -> tuple[Float[Tensor, "T P V"], LabelledPoints, Float[Tensor, "T M D1"]]:
        support, query = (_with_ones(z) for z in self.features(tasks))
        points = self._points(support, tasks.support_y, tasks.support_weight)
        return self.adapt(self._start(used, support.dtype), points, used, self.step_size), points, query

    def adapt(
        self, theta: Float[Tensor, "T P V"], points: LabelledPoints, used: Bool[Tensor, "T S"], step_size: float
    ) -> Float[Tensor, "T P V"]:
        """Particles after `n_steps` steps on labelled points."""
        for _ in range(self.n_steps):
            theta = theta + step_size * svgd_direction(theta, self.energy_gradient(theta, points, used))
        return theta

    def energy_gradient(
        self, theta: Float[Tensor, "T P V"], points: LabelledPoints, used: Bool[Tensor, "T S"]
    ) -> Float[Tensor, "T P V"]:
        """Gradient of the energy U, the negative log-density of particle and labels."""
        W = self._rows(theta)
        fit = self._fit_gradient(W, points, used)
        if not self.has_precision:
            return (fit + W).flatten(2)
        n, unit, squares = _n_weights(used, W), self._unit(used, W), W.square().sum((-2, -1))
        precision = (theta[..., -1] / unit).exp()
        # U = Σ CE + λ |W|^2 / 2 - (n/2) log λ + 0.1 λ - log λ, the last for the density of log λ
        slope = 0.5 * precision * squares - 0.5 * n + RATE * precision - 1.0
        gradient = fit + precision[..., None, None] * W
        return torch.cat([gradient.flatten(2), (slope / unit)[..., None]], -1)

    def _fit_gradient(self, W: Tensor, points: LabelledPoints, used: Tensor) -> Float[Tensor, "T P S D1"]:
        logits = (points.x[:, None] @ W.mT).masked_fill(~used[:, None, None, :], -torch.inf)
        # ∂/∂W Σ_n CE_n = Σ_n (p_n - y_n) x_n^T
        residual = points.weight[:, None, :, None] * (logits.softmax(-1) - points.Y[:, None])
        return residual.mT @ points.x[:, None]

    def _start(self, used: Bool[Tensor, "T S"], dtype: torch.dtype) -> Float[Tensor, "T P V"]:
        """Learned initial particles. Rows of unused slots are zero and have zero gradients."""
        W = self.head.to(dtype) * used[:, None, :, None]
        if not self.has_precision:
            return W.flatten(2)
        last = (self.log_lambda.to(dtype) * self._unit(used, W)).expand(len(W), -1)
        return torch.cat([W.flatten(2), last[..., None]], -1)

    def _rows(self, theta: Float[Tensor, "T P V"]) -> Float[Tensor, "T P S D1"]:
        weights = theta[..., :-1] if self.has_precision else theta
        return weights.reshape(*theta.shape[:2], self.n_way, -1)

    def _unit(self, used: Bool[Tensor, "T S"], W: Float[Tensor, "T P S D1"]) -> Float[Tensor, "T 1"]:
        """Factor of log lambda in a particle."""
        return (0.5 * _n_weights(used, W)).sqrt()

    def _points(self, x: Float[Tensor, "T N D1"], y: Int[Tensor, "T N"], weight: Tensor) -> LabelledPoints:
        return LabelledPoints(x, one_hot(y, self.n_way, x.dtype).mT, weight.to(x.dtype))


class ChaserBayesianMAML(BayesianMAML):
    """Bayesian MAML with the chaser loss. Predictions are made in the same way.

    The chaser is the particles after the steps on the support; the leader continues from there with the labelled
    queries added, for `n_steps` steps of `leader_step_size`. The loss is the squared distance between the two, summed
    over all particles; no gradient flows into the leader. Weights and biases have the prior N(0, 1), without lambda.
    """

    # Validation accuracy as above, step size 0.01 / 0.1: 0.481 / 0.535 at 1 shot, 0.671 / 0.437 at 5 shots.
    recipes = (
        Recipe({"tasks_per_step": 4, "method_options": {"leader_step_size": 0.05}}, kind="characters", n_shot=1),
    )
    has_precision = False

    def __init__(self, backbone: Backbone, *, leader_step_size: float = 0.005, **options: Any) -> None:
        super().__init__(backbone, **options)
        self.leader_step_size = leader_step_size

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Squared distance from the chaser to the leader."""
        used = used_slots(tasks, self.n_way)
        chaser, points, query = self._adapted(tasks, used)
        others = self._points(query, query_y, tasks.query_weight)
        with torch.no_grad():
            both = LabelledPoints(*(torch.cat(pair, 1) for pair in zip(points, others, strict=True)))
            leader = self.adapt(chaser, both, used, self.leader_step_size)
        return (chaser - leader).square().sum((1, 2))


def _with_ones(z: Float[Tensor, "T N *features"]) -> Float[Tensor, "T N D1"]:
    z = z.flatten(2)
    return torch.cat([z, torch.ones_like(z[..., :1])], -1)


def _n_weights(used: Bool[Tensor, "T S"], W: Float[Tensor, "T P S D1"]) -> Float[Tensor, "T 1"]:
    return used.sum(-1, keepdim=True).to(W.dtype) * W.shape[-1]
