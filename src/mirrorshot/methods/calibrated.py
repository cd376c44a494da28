"""A temperature that follows the task, for the predictions of any method.

`T = exp(a + b phi)`, where `phi = log[(1 - n) / (1 - c)]` says how far the queries of a task are from its labelled
items in comparison with the classes from one another: `n` is the mean over the queries of the largest cosine to a
labelled item, `c` the mean cosine of labelled items of different classes. No label of a query is used, but all queries
of a task are: the prediction of one query depends a little on the others.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.methods.base import FewShotMethod
from mirrorshot.types import TaskBatch

_LEAST = 1e-3  # of 1 - cosine
_SLOPE_PRIOR = 1e-3  # of b^2, in nats per query: phi that says nothing leaves b at zero
_LARGEST = 4.0  # of |log T|


class TaskTemperature(NamedTuple):
    """Rule `log T = a + b clamp(phi, low, high)`; beyond the tasks that it was fitted to it is constant."""

    a: float
    b: float
    low: float
    high: float

    def of(self, phi: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Temperatures of tasks."""
        return (self.a + self.b * phi.clamp(self.low, self.high)).clamp(-_LARGEST, _LARGEST).exp()


def task_shift(support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], tasks: TaskBatch) -> Float[Tensor, " T"]:
    """`phi` of each task, padding left out.

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
    log_prob: Float[Tensor, "T M C"], y: Int[Tensor, "T M"], weight: Float[Tensor, "T M"], phi: Float[Tensor, " T"]
) -> TaskTemperature:
    """Find the rule with the smallest negative log-likelihood of the queries."""
    log_prob, weight, phi = log_prob.double(), weight.double(), phi.double()
    low, high = float(phi.quantile(0.02)), float(phi.quantile(0.98))
    x = phi.clamp(low, high)
    centre = x.mean()
    parameters = torch.zeros(2, dtype=torch.float64, device=phi.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_temperature = parameters[0] + parameters[1] * (x - centre)
        tempered = _tempered(log_prob, log_temperature.exp())
        score = tempered.gather(-1, y[..., None])[..., 0].masked_fill(weight == 0, 0.0)
        total = -(weight * score).sum() / weight.sum() + _SLOPE_PRIOR * parameters[1].square()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    a, b = parameters.tolist()
    return TaskTemperature(a - b * float(centre), b, low, high)


class CalibratedMethod(FewShotMethod):
    """A trained method whose predictions are made at the temperature of each task."""

    def __init__(self, method: FewShotMethod, rule: TaskTemperature) -> None:
        super().__init__(method.backbone)
        self.method, self.rule = method, rule

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """The loss of the method itself."""
        return self.method.loss(tasks, query_y)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the queries, at the temperature of their task."""
        log_prob = self.method.predict(tasks)
        return _tempered(log_prob, self.rule.of(self.shift(tasks)).to(log_prob.dtype))

    def shift(self, tasks: TaskBatch) -> Float[Tensor, " T"]:
        """`phi` of each task."""
        support, query = self.method.features(tasks)
        return task_shift(support.flatten(2), query.flatten(2), tasks)

    def predict_latent(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T M C"], Float[Tensor, "T M C"]] | None:
        """Latents of the method itself, which have no temperature."""
        return self.method.predict_latent(tasks)

    def seed(self, seed: int) -> None:
        """Seed the method itself."""
        self.method.seed(seed)

    def on_features(self) -> "FewShotMethod | None":
        """The same rule around the method on features."""
        inner = self.method.on_features()
        return None if inner is None else CalibratedMethod(inner, self.rule)


def _tempered(log_prob: Float[Tensor, "T M C"], temperature: Float[Tensor, " T"]) -> Float[Tensor, "T M C"]:
    """Log-probabilities at the temperature of each task; classes that do not exist stay at `-inf`."""
    absent = log_prob.isneginf()
    scaled = log_prob.masked_fill(absent, 0.0) / temperature[:, None, None]
    return scaled.masked_fill(absent, -torch.inf).log_softmax(-1)
