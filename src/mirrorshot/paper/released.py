"""Imitations of released code where it differs from the papers: formulas, and methods with options that choose them.

Written from reading that code, for comparisons only. The methods of `mirrorshot.methods` have none of these options;
within `imitation`, a run whose settings name one is built from the subclass here.
"""

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition
from mirrorshot.gp.objective import State, make_problem
from mirrorshot.gp.one_vs_each import one_vs_each_scores
from mirrorshot.gp.quasi_newton import MirrorInfo
from mirrorshot.gp.steps import fixed_descent, towards
from mirrorshot.methods import METHODS, FewShotMethod
from mirrorshot.methods import bayesian_maml as bmaml
from mirrorshot.methods.ove_gp import OneVsEachGP
from mirrorshot.methods.relationnet import RelationNet
from mirrorshot.methods.shared import check_choice, class_log_softmax
from mirrorshot.networks.backbones import Backbone
from mirrorshot.paper.released_cdkt import ReleasedLogisticSoftmaxGP
from mirrorshot.training.config import Config
from mirrorshot.types import TaskBatch


def released_step(sites: GaussianSites, state: State, rho: float) -> GaussianSites:
    """A mirror step with `g_m - 2 g_m g_v` where the paper (eq. 10) has `g_m - 2 g_v m`."""
    target = GaussianSites(state.grad_mean * (1 + state.curvature), state.curvature)
    return towards(sites, target, rho)


@torch.no_grad()
def released_descent(
    K: Float[Tensor, "T _ N N"], y: Int[Tensor, "T N"], *, n_way: int, max_steps: int, step_size: float
) -> tuple[GaussianPosterior, MirrorInfo]:
    """Run the released inner loop of MD-BFSC from the prior. Its fixed point is not the optimum."""
    problem = make_problem(K, y, n_way, None, None, None, validate=True)
    start = GaussianSites.zeros_like(K, n_way)
    sites, info = fixed_descent(problem, start, max_steps, step_size, released_step)
    return condition(K, sites), info


def released_scores(
    mean: Float[Tensor, "T C M"], covariance: Float[Tensor, "T M C C"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T M C"]:
    """The scores of OVE with variances where the quadrature takes standard deviations."""
    own = covariance.diagonal(dim1=-2, dim2=-1)
    var = own[..., :, None] + own[..., None, :] - 2 * covariance
    # latents of covariance -var^2 / 2, zero on the diagonal, have differences of variance var^2
    return one_vs_each_scores(mean, -0.5 * var.square(), class_mask)


class ReleasedOneVsEachGP(OneVsEachGP):
    """OVE PG GP with `released_scores`, or (`geometric`) the mean of the chains' scores, not of their probabilities."""

    def __init__(
        self, backbone: Backbone, *, released_quadrature: bool = False, geometric: bool = False, **options: Any
    ) -> None:
        super().__init__(backbone, **options)
        self.released_quadrature, self.geometric = released_quadrature, geometric

    def _scores(self, mean: Tensor, covariance: Tensor, class_mask: Tensor) -> Float[Tensor, "TS M C"]:
        scores = released_scores if self.released_quadrature else one_vs_each_scores
        return scores(mean, covariance, class_mask)

    def _combine(self, scores: Float[Tensor, "T S M C"], tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        if not self.geometric:
            return super()._combine(scores, tasks)
        return class_log_softmax(scores.mean(1), tasks.class_mask)


class ReleasedRelationNet(RelationNet):
    """RelationNet; with "sigmoid_logits" and loss "mse" the sigmoids are logits of a softmax.

    The published calibration has them so, which makes five classes at most 40 % sure.
    """

    def __init__(self, backbone: Backbone, *, probabilities: str = "normalised", **options: Any) -> None:
        super().__init__(backbone, **options)
        check_choice(Literal["normalised", "sigmoid_logits"], probabilities=probabilities)
        self.probabilities = probabilities

    def _log_prob(self, scores: Float[Tensor, "T M C"], tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        if self.loss_name != "mse" or self.probabilities == "normalised":
            return super()._log_prob(scores, tasks)
        return class_log_softmax(scores.sigmoid(), tasks.class_mask)


def released_direction(theta: Float[Tensor, "T P V"], gradient: Float[Tensor, "T P V"]) -> Float[Tensor, "T P V"]:
    """The SVGD direction in the code of OVE. It has no defined target.

    The kernel is exp(-d / h), h has the median with the zeros of the diagonal, means are sums, and the repulsion is
    that of another kernel.
    """
    P = theta.shape[1]
    if P == 1:
        return -gradient
    d2 = bmaml.squared_distances(theta)
    d = d2.masked_fill(d2 == 0, 1.0).sqrt().masked_fill(d2 == 0, 0.0)  # the root has no derivative at zero
    h = d.flatten(1).median(-1).values / math.log(P)
    h = h.clamp(min=torch.finfo(h.dtype).eps)[:, None, None]
    K = torch.exp(-d / h)
    return (K.sum(-1, keepdim=True) * theta - K @ theta) / h - K @ gradient


class ReleasedBayesianMAML(bmaml.BayesianMAML):
    """Bayesian MAML; with rule "ove" as the code of OVE, along `released_direction`.

    There the standard deviation of the prior is 1 / lambda, and the density of lambda is not transformed to log lambda.
    It is finite with one step only, unless features are few.
    """

    def __init__(self, backbone: Backbone, *, rule: str = "svgd", **options: Any) -> None:
        super().__init__(backbone, **options)
        check_choice(Literal["svgd", "ove"], rule=rule)
        self.rule = rule

    def _direction(self, theta: Tensor, gradient: Tensor) -> Float[Tensor, "T P V"]:
        return released_direction(theta, gradient) if self.rule == "ove" else super()._direction(theta, gradient)

    def energy_gradient(
        self, theta: Float[Tensor, "T P V"], points: bmaml.LabelledPoints, used: Bool[Tensor, "T S"]
    ) -> Float[Tensor, "T P V"]:
        """Gradient of the energy, `sum CE + lambda^2 |W|^2 / 2 - n log lambda + 0.1 lambda` with the rule "ove"."""
        if self.rule == "svgd" or not self.has_precision:
            return super().energy_gradient(theta, points, used)
        W = self._rows(theta)
        squares, n = W.square().sum((-2, -1)), used.sum(-1, keepdim=True).to(W.dtype) * W.shape[-1]
        precision = theta[..., -1].exp()
        slope = precision.square() * squares - n + bmaml.RATE * precision
        gradient = self._fit_gradient(W, points, used) + precision.square()[..., None, None] * W
        return torch.cat([gradient.flatten(2), slope[..., None]], -1)

    def _unit(self, used: Tensor, W: Tensor) -> Float[Tensor, "T 1"]:
        unit = super()._unit(used, W)
        return torch.ones_like(unit) if self.rule == "ove" else unit


class ReleasedChaserBayesianMAML(ReleasedBayesianMAML, bmaml.ChaserBayesianMAML):
    """Bayesian MAML with the chaser loss; options as `ReleasedBayesianMAML` and `ChaserBayesianMAML`."""


RELEASED: dict[str, type[FewShotMethod]] = {
    "ove_gp": ReleasedOneVsEachGP,
    "logistic_softmax_gp": ReleasedLogisticSoftmaxGP,
    "relationnet": ReleasedRelationNet,
    "bayesian_maml": ReleasedBayesianMAML,
    "bayesian_maml_chaser": ReleasedChaserBayesianMAML,
}
"""Subclasses by the name of the method; with the defaults of their further options they do as the method."""


def released_options(name: str) -> dict[str, Any]:
    """Further options of the imitation of a method, with their defaults; empty where there is none."""
    parameters = inspect.signature(RELEASED[name].__init__).parameters.values() if name in RELEASED else ()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@contextlib.contextmanager
def imitation(config: Config) -> Iterator[None]:
    """Within the block, the method of the settings is its subclass in `RELEASED` if they name an option of it."""
    name = config.method
    if not set(config.method_options) & set(released_options(name)):
        yield
        return
    own, METHODS[name] = METHODS[name], RELEASED[name]
    try:
        yield
    finally:
        METHODS[name] = own
