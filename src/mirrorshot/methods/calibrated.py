"""Task-dependent temperature for the predictions of any method.

`log T = a + b phi + c psi + d psi^2` of two signs of a task:

- `phi = log[(1 - n) / (1 - m)]` compares the distance of the queries from the labelled items with the distance between
  classes: `n` is the mean over the queries of the largest cosine to a labelled item, `m` the mean cosine of labelled
  items of different classes.
- `psi = log[p / (1 - p)]` is the confidence of the method: `p` is the mean over the queries of the largest probability.

The temperature uses no labels of queries, but all queries of a task: the prediction of one query depends slightly on
the others.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.methods.base import FewShotMethod
from mirrorshot.types import TaskBatch

_LEAST = 1e-3  # lower bound of 1 - cosine, p and 1 - p
_SLOPE_PRIOR = 1e-3  # penalty on each squared slope, in nats per query, for uninformative signs
_LARGEST = 4.0  # upper bound of |log T|


class TaskTemperature(NamedTuple):
    """Coefficients of the rule, and ranges outside which it is constant: 2 % to 98 % quantiles of the fit."""

    a: float
    b: float
    c: float
    d: float
    phi_low: float
    phi_high: float
    psi_low: float
    psi_high: float

    @classmethod
    def constant(cls, temperature: float) -> "TaskTemperature":
        """Return the rule with the same temperature for every task."""
        return cls(math.log(temperature), *[0.0] * 7)

    def of(self, signs: Float[Tensor, "T 2"]) -> Float[Tensor, " T"]:
        """Return the temperatures of tasks from `phi` and `psi` of each."""
        phi, psi = signs[:, 0].clamp(self.phi_low, self.phi_high), signs[:, 1].clamp(self.psi_low, self.psi_high)
        # log T = a + b phi + c psi + d psi^2
        return (self.a + self.b * phi + self.c * psi + self.d * psi.square()).clamp(-_LARGEST, _LARGEST).exp()


def task_signs(
    support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], log_prob: Float[Tensor, "T M C"], tasks: TaskBatch
) -> Float[Tensor, "T 2"]:
    """`phi` and `psi` of each task, from features and predictions."""
    weight = tasks.query_weight.to(log_prob.dtype)
    p = ((weight * log_prob.amax(-1).exp()).sum(-1) / weight.sum(-1)).clamp(_LEAST, 1 - _LEAST)
    phi = task_shift(support.flatten(2), query.flatten(2), tasks)
    return torch.stack([phi, p.logit().to(phi.dtype)], -1)


def task_shift(support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], tasks: TaskBatch) -> Float[Tensor, " T"]:
    """`phi` of each task, without padding.

    Example:
        >>> z, ones = torch.eye(2)[None], torch.ones(1, 2)
        >>> tasks = TaskBatch(z, torch.tensor([[0, 1]]), z, 2, ones, ones, ones.bool())
        >>> task_shift(z, 0.5 * z + 0.5, tasks)
        tensor([-2.2484])
    """
    support, query = (z / z.norm(dim=-1, keepdim=True).clamp(min=1e-12) for z in (support, query))
    real = tasks.support_weight > 0
    nearest = (query @ support.mT).masked_fill(~real[:, None, :], -torch.inf).amax(-1)
    weight = tasks.query_weight.to(nearest.dtype)
    n = (weight * nearest).sum(-1) / weight.sum(-1)
    pairs = (tasks.support_y[:, :, None] != tasks.support_y[:, None, :]) & real[:, :, None] & real[:, None, :]
    c = ((support @ support.mT) * pairs).sum((-2, -1)) / pairs.sum((-2, -1)).clamp(min=1)
    return ((1 - n).clamp(min=_LEAST) / (1 - c).clamp(min=_LEAST)).log()


def fit_task_temperature(
    log_prob: Float[Tensor, "T M C"], y: Int[Tensor, "T M"], weight: Float[Tensor, "T M"], signs: Float[Tensor, "T 2"]
) -> TaskTemperature:
    """Fit the rule with the smallest weighted negative log-likelihood of the queries.

    Predictions that exclude the correct class are left out: their loss is infinite at every temperature.
    """
    log_prob, weight, signs = log_prob.double(), weight.double(), signs.double()
    weight = weight.masked_fill(log_prob.gather(-1, y[..., None])[..., 0].isneginf(), 0.0)
    low, high = signs.quantile(0.02, 0), signs.quantile(0.98, 0)
    signs = signs.clamp(low, high)
    centre = signs.mean(0)
    x = signs - centre
    x = torch.cat([torch.ones_like(x[:, :1]), x, x[:, 1:].square()], 1)
    slopes = torch.zeros(4, dtype=torch.float64, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([slopes], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        score = _tempered(log_prob, (x @ slopes).exp()).gather(-1, y[..., None])[..., 0].masked_fill(weight == 0, 0.0)
        total = -(weight * score).sum() / weight.sum() + _SLOPE_PRIOR * slopes[1:].square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    (a, b, c, d), (phi, psi) = slopes.tolist(), centre.tolist()
    # a + b (phi' - phi) + c (psi' - psi) + d (psi' - psi)^2, sorted by powers of phi' and psi'
    polynomial = a - b * phi - c * psi + d * psi**2, b, c - 2 * d * psi, d
    (phi_low, psi_low), (phi_high, psi_high) = low.tolist(), high.tolist()
    return TaskTemperature(*polynomial, phi_low, phi_high, psi_low, psi_high)


class CalibratedMethod(FewShotMethod):
    """A trained method whose predictions use the temperature of each task."""

    def __init__(self, method: FewShotMethod, rule: TaskTemperature) -> None:
        super().__init__(method.backbone)
        self.method, self.rule = method, rule
        self._on_features = method.on_features()

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Loss of the method itself."""
        return self.method.loss(tasks, query_y)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the queries at the temperature of their task."""
        method = self.method
        if self._on_features is not None:  # computes the features of each item once
            support, query = FewShotMethod.features(method, tasks)
            method, tasks = self._on_features, tasks._replace(support_x=support, query_x=query)
        log_prob = method.predict(tasks)
        signs = task_signs(*method.features(tasks), log_prob, tasks)
        return _tempered(log_prob, self.rule.of(signs).to(log_prob.dtype))

    def predict_latent(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T M C"], Float[Tensor, "T M C"]] | None:
        """Latents of the method itself, without a temperature."""
        return self.method.predict_latent(tasks)

    def seed(self, seed: int) -> None:
        """Seed the method itself."""
        for method in (self.method, self._on_features):
            if method is not None:
                method.seed(seed)

    def on_features(self) -> "FewShotMethod | None":
        """The same rule for the method on features."""
        return None if self._on_features is None else CalibratedMethod(self._on_features, self.rule)


def _tempered(log_prob: Float[Tensor, "T M C"], temperature: Float[Tensor, " T"]) -> Float[Tensor, "T M C"]:
    """Log-probabilities at the temperature of each task; missing classes stay at `-inf`."""
    absent = log_prob.isneginf()
    scaled = log_prob.masked_fill(absent, 0.0) / temperature[:, None, None]
    return scaled.masked_fill(absent, -torch.inf).log_softmax(-1)
