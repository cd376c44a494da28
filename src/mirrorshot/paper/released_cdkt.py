"""Imitations of CDKT's released code ("Revisiting Logistic-softmax Likelihood ...", mean-field ELBO).

For comparisons only. The released training follows a pseudo-gradient, not the gradient of a bound. It departs from the
derivation in its starts, the order of its updates, and terms without a gradient. Each of the `Departures` can be undone
alone.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition, kl_to_prior
from mirrorshot.gp.logistic_softmax import (
    Labels,
    MeanField,
    bound_terms,
    expected_count,
    expected_omega,
    make_labels,
    mean_field_elbo,
    tilt_of,
)
from mirrorshot.methods import METHODS
from mirrorshot.methods.gp import Covariances, Points
from mirrorshot.methods.logistic_softmax_gp import LogisticSoftmaxGP
from mirrorshot.networks.backbones import Backbone
from mirrorshot.training.config import Config
from mirrorshot.types import InvalidInputError, TaskBatch

_START_VARIANCE = 0.01


class Departures(NamedTuple):
    """Departures of the released training from the derivation; False follows the derivation.

    Attributes:
        random_rates: `alpha ~ U(5, 10)` and `omega ~ U(0, 1)` are drawn for every task. Otherwise they follow from the
            means and variances at the start of the task.
        lagging_omega: the covariance uses the `omega` of the previous step.
        held_tilt: the tilt `sqrt(mu^2 + var)` has no gradient, and is one step old in the bound.
        dropped_quadratic: the bound lacks `-omega (mu^2 + var - tilt^2) / 2`, which is zero only for a current tilt and
            whose gradient is never zero. It needs `held_tilt`.
        large_rates: the bound has `- E lambda` instead of `- C E lambda`.
    """

    random_rates: bool = True
    lagging_omega: bool = True
    held_tilt: bool = True
    dropped_quadratic: bool = True
    large_rates: bool = True


class Factors(NamedTuple):
    """Factors of `q` after some steps, for latents in units of the temperature."""

    posterior: GaussianPosterior
    gamma: Float[Tensor, "T C N"]
    alpha: Float[Tensor, "T 1 N"]
    omega: Float[Tensor, "T C N"]
    tilt: Float[Tensor, "T C N"]


class Moments(NamedTuple):
    """Means and variances of the latents."""

    mean: Float[Tensor, "T C N"]
    var: Float[Tensor, "T C N"]


def released_steps(
    K: Float[Tensor, "T _ N N"],
    labels: Labels,
    start: Moments,
    *,
    n_steps: int,
    generator: torch.Generator,
    departures: Departures,
) -> Factors:
    """Mean-field steps in the order of the released code: rates, covariance, means, and `omega` last."""
    mean, var = start
    alpha, omega = _first_rates(labels, start, generator, departures)
    for _ in range(n_steps):
        tilt = _tilt(mean, var, departures)
        gamma = expected_count(mean, tilt, alpha, labels)
        alpha = 1 + gamma.sum(1, keepdim=True)
        new_omega = expected_omega(labels.Y + gamma, tilt)
        precision = omega if departures.lagging_omega else new_omega
        # Sigma = (K^-1 + diag omega)^-1,  mu = Sigma (Y - gamma) / 2
        posterior = condition(K, GaussianSites(labels.weight * (labels.Y - gamma) / 2, labels.weight * precision))
        omega, (mean, var) = new_omega, (posterior.mean, posterior.var)
    return Factors(posterior, gamma, alpha, omega, tilt)


def released_objective(q: Factors, labels: Labels, departures: Departures) -> Float[Tensor, " T"]:
    """Return the objective of the released code for each task. With all departures undone it is the bound."""
    mean, var = q.posterior.mean, q.posterior.var
    tilt = q.tilt if departures.held_tilt else tilt_of(mean, var)
    per_class, entropy = bound_terms(mean, tilt, q.gamma, q.alpha, labels)
    if not departures.dropped_quadratic:
        per_class = per_class - q.omega * (mean.square() + var - tilt.square()) / 2
    rates = q.alpha / labels.n_classes if departures.large_rates else q.alpha
    per_point = per_class.sum(1, keepdim=True) + entropy - rates
    return (labels.weight * per_point).sum((1, 2)) - kl_to_prior(q.posterior).sum(-1)


def released_elbo(q: MeanField, labels: Labels, *, prior_mean: float = 0.0) -> Float[Tensor, " T"]:
    """Return the bound of CDKT with `- E lambda` instead of `- C E lambda`: it is larger, and no longer a bound."""
    surplus = labels.weight * (q.alpha - q.alpha / labels.n_classes)
    return mean_field_elbo(q, labels, prior_mean=prior_mean) + surplus.sum((1, 2))


class ReleasedLogisticSoftmaxGP(LogisticSoftmaxGP):
    """CDKT with the departures of its released code.

    Args:
        backbone: the network.
        released_bound: train on `released_elbo`.
        released_training: train on `released_objective`. Steps start from the means and variances of the previous task,
            whose labels have the same order; the first task starts from random means. Checkpoints do not include these
            moments: a resumed training draws them again.
        departures: changes of the default `Departures`.
        test_prior_mean: prior mean at test, -5 in the released scripts; None: as in training.
        **options: those of `LogisticSoftmaxGP`.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        released_bound: bool = False,
        released_training: bool = False,
        departures: dict[str, bool] | None = None,
        test_prior_mean: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, **options)
        if released_training and (self.objective, self.inference, self.prior_mean) != ("ml", "mean_field", 0):
            raise InvalidInputError(
                "Expected objective='ml', inference='mean_field' and prior_mean=0 with `released_training`, but got "
                f"{self.objective!r}, {self.inference!r} and {self.prior_mean}."
            )
        self.test_prior_mean = self.prior_mean if test_prior_mean is None else test_prior_mean
        self.released_bound, self.released_training = released_bound, released_training
        self.departures = Departures(**(departures or {}))
        self._carried: Moments | None = None

    def is_recordable(self, n_points: int, n_way: int) -> bool:
        """Return False for `released_training`: its steps depend on the previous task and cannot be replayed."""
        return not self.released_training and super().is_recordable(n_points, n_way)

    def _bound(self, K: Tensor, points: Points) -> Float[Tensor, " T"]:
        if not self.released_training:
            return super()._bound(K, points)
        K = K / self.likelihood_temperature**2
        labels = make_labels(*points, K.dtype)
        if self._carried is None or self._carried.mean.shape != labels.Y.shape:
            self._carried = self._first_start(labels)
        q = released_steps(
            K, labels, self._carried, n_steps=self.n_steps, generator=self.generator, departures=self.departures
        )
        self._carried = Moments(q.posterior.mean.detach(), q.posterior.var.detach())
        return released_objective(q, labels, self.departures)

    def _first_start(self, labels: Labels) -> Moments:
        mean = torch.empty_like(labels.Y).normal_(generator=self.generator) / self.likelihood_temperature
        return Moments(mean, torch.full_like(mean, _START_VARIANCE / self.likelihood_temperature**2))

    def _elbo(self, q: MeanField, labels: Labels, a: float) -> Float[Tensor, " T"]:
        return (released_elbo if self.released_bound else mean_field_elbo)(q, labels, prior_mean=a)

    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        trained = self.prior_mean
        self.prior_mean = trained if differentiable else self.test_prior_mean
        try:
            return super()._log_prob(tasks, prior, differentiable=differentiable)
        finally:
            self.prior_mean = trained


def _first_rates(
    labels: Labels, start: Moments, generator: torch.Generator, departures: Departures
) -> tuple[Float[Tensor, "T 1 N"], Float[Tensor, "T C N"]]:
    if departures.random_rates:
        alpha = torch.empty_like(labels.weight).uniform_(5, 10, generator=generator)
        return alpha, torch.empty_like(labels.Y).uniform_(0, 1, generator=generator)
    tilt = _tilt(*start, departures)
    alpha = labels.n_classes.expand_as(labels.weight)  # E lambda = 1
    gamma = expected_count(start.mean, tilt, alpha, labels)
    return 1 + gamma.sum(1, keepdim=True), expected_omega(labels.Y + gamma, tilt)


def _tilt(mean: Tensor, var: Tensor, departures: Departures) -> Float[Tensor, "T C N"]:
    tilt = tilt_of(mean, var)
    return tilt.detach() if departures.held_tilt else tilt


OPTIONS: dict[str, Any] = {
    p.name: p.default
    for p in inspect.signature(ReleasedLogisticSoftmaxGP.__init__).parameters.values()
    if p.kind is p.KEYWORD_ONLY
}
"""Options that only the imitation has. With their defaults it equals CDKT."""


@contextlib.contextmanager
def imitation(config: Config) -> Iterator[None]:
    """Within the block, replace CDKT by `ReleasedLogisticSoftmaxGP` if the settings have one of its options."""
    name = "logistic_softmax_gp"
    own = METHODS[name]
    if OPTIONS.keys() & config.method_options.keys():
        METHODS[name] = ReleasedLogisticSoftmaxGP
    try:
        yield
    finally:
        METHODS[name] = own
