"""Base class of Gaussian-process methods: a deep kernel, its objectives, and a predictive temperature."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mirrorshot.gp.kernels import KERNELS, Kernel, make_kernel
from mirrorshot.gp.kernels.trainable import TrainableKernel, trainable
from mirrorshot.methods.base import FittedTemperature, query_nll
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS, Recipe
from mirrorshot.methods.shared import check_choice, check_positive
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import InvalidInputError, TaskBatch

Objective = Literal["ml", "cml", "pl", "tpl"]
SEPARATE_DRAWS = "draws for all points and for the support do not belong together."

KERNEL_OPTIONS: dict[str, dict[str, Any]] = {
    "cosine": {"outputscale": 1.0},
    "rbf": {"outputscale": 1.0, "lengthscale": 0.7, "normalise": True},
    "matern": {"outputscale": 1.0, "lengthscale": 0.7, "normalise": True},
    "linear": {"outputscale": 1.0, "normalise": True},
    "polynomial": {"outputscale": 1.0, "power": 2, "normalise": True},
}
"""Default initial values of kernels on unit-norm features, as in the paper's code."""


class Points(NamedTuple):
    """Labelled points of a batch of tasks; points of weight zero are padding."""

    y: Int[Tensor, "T N"]
    weight: Float[Tensor, "T N"]
    class_mask: Bool[Tensor, "T C"]

    @property
    def n_way(self) -> int:
        """Number of classes."""
        return self.class_mask.shape[1]

    @property
    def sizes(self) -> dict[str, Any]:
        """Number and mask of the classes, and weights, as keyword arguments of inference."""
        return {"n_way": self.n_way, "weight": self.weight, "class_mask": self.class_mask}

    @classmethod
    def of(cls, tasks: TaskBatch, query_y: Int[Tensor, "T M"] | None = None) -> "Points":
        """Create the points of the support or, with `query_y`, of support and query."""
        if query_y is None:
            return cls(tasks.support_y, tasks.support_weight, tasks.class_mask)
        weight = torch.cat([tasks.support_weight, tasks.query_weight], 1)
        return cls(torch.cat([tasks.support_y, query_y], 1), weight, tasks.class_mask)


class Covariances(NamedTuple):
    """Prior covariances of a batch of tasks: of the support, of support with query, and variances of the query."""

    K: Float[Tensor, "T _ N N"]
    cross: Float[Tensor, "T _ N M"]
    var: Float[Tensor, "T _ M"]


class GPMethod(FittedTemperature):
    """A Gaussian process on the features of a backbone, one latent function per class.

    Subclasses define a bound of the evidence of labelled points (`_bound`) and predictions (`_log_prob`). Training
    maximises one of these objectives:

    - **ml**: bound of the evidence of support and query together (the paper's ELBO).
    - **cml**: conditional marginal likelihood, bound of support and query minus bound of the support: how well the
      support predicts the query, as at test. A difference of two bounds is not a bound.
    - **pl**: predictive likelihood of each query given the support, at `training_temperature`.
    - **tpl**: as "pl", at the temperature last fitted by `tune`, so training need not learn the confidence that the
      temperature provides.

    Temperature: training on the bound of 85 points leaves predictions from 5 points under-confident. `tune` fits one
    temperature on the predictions of *training* tasks; `predict` uses it.

    Args:
        kernel: name of a kernel of `KERNELS`, or a kernel.
        kernel_options: arguments of a named kernel, in addition to `KERNEL_OPTIONS`.
        objective: "ml", "cml", "pl" or, with a temperature, "tpl".
        predictive_weight: weight of "pl" when added to "ml" or "cml".
        temperature: whether `tune` fits a predictive temperature.
        training_temperature: temperature of the probabilities in "pl". Values below 1 reduce the effort of training on
            confident queries; `predict` gets its confidence from its own temperature.
    """

    recipes: ClassVar[tuple[Recipe, ...]] = (
        Recipe({"method_options": {"kernel": "rbf"}}, kind="characters"),
        Recipe({"method_options": {"kernel": "cosine"}}, kind="photographs"),
        Recipe({"method_options": {"temperature": False}}, preset="paper"),
        Recipe({"method_options": {"temperature": True}}, preset="default"),
        MUON_ON_PHOTOGRAPHS,
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        kernel: str | Kernel | TrainableKernel = "cosine",
        kernel_options: Mapping[str, Any] | None = None,
        objective: Objective = "ml",
        predictive_weight: float = 0.0,
        temperature: bool = True,
        training_temperature: float = 1.0,
    ) -> None:
        super().__init__(backbone)
        check_choice(Objective, objective=objective)
        if objective == "tpl" and not temperature:
            raise InvalidInputError("Expected `temperature` to be True for objective 'tpl', but got False: use 'pl'.")
        if objective in ("pl", "tpl") and predictive_weight:
            raise InvalidInputError(
                f"Expected predictive_weight=0 for objective {objective!r}, which has no bound to add it to, but got "
                f"{predictive_weight}."
            )
        if objective == "tpl" and training_temperature != 1.0:
            raise InvalidInputError(
                "Expected training_temperature=1 for objective 'tpl', which takes the fitted one, but got "
                f"{training_temperature}. Use 'pl'."
            )
        given = _named_kernel(kernel, kernel_options or {}) if isinstance(kernel, str) else kernel
        self.kernel = trainable(given)
        self.is_centred = self.kernel.is_centred
        check_positive(training_temperature=training_temperature)
        self.training_temperature = training_temperature
        if predictive_weight:
            check_positive(predictive_weight=predictive_weight)
        self.objective, self.predictive_weight, self.has_temperature = objective, predictive_weight, temperature
        self.register_buffer("log_temperature", torch.zeros(()))

    @abc.abstractmethod
    def _bound(self, K: Float[Tensor, "T _ N N"], points: Points) -> Float[Tensor, " T"]:
        """Lower bound of the log-evidence of labelled points, differentiable in `K`."""

    @abc.abstractmethod
    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the queries before any temperature."""

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Negative objective, per point."""
        if self.objective in ("pl", "tpl"):
            return self._query_loss(tasks, self._task_covariances(tasks), query_y)
        support, query = self.features(tasks)
        K = self._covariance(tasks, torch.cat([support, query], 1))
        points, n = Points.of(tasks, query_y), support.shape[1]
        total = self._bound(K, points)
        if self.objective == "ml":
            loss = -total / points.weight.sum(-1)
        else:
            loss = (self._bound(K[..., :n, :n], Points.of(tasks)) - total) / tasks.query_weight.sum(-1)
        if self.predictive_weight:
            prior = Covariances(K[..., :n, :n], K[..., :n, n:], K.diagonal(dim1=-2, dim2=-1)[..., n:])
            loss = loss + self.predictive_weight * self._query_loss(tasks, prior, query_y)
        return loss

    def _query_loss(self, tasks: TaskBatch, prior: Covariances, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        log_prob = self._log_prob(tasks, prior, differentiable=True)
        if self.objective == "tpl":
            log_prob = self._tempered(log_prob)
        elif self.training_temperature != 1.0:
            log_prob = torch.log_softmax(log_prob / self.training_temperature, -1)
        return query_nll(log_prob, tasks, query_y)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the queries, at the fitted temperature."""
        log_prob = self._raw_log_prob(tasks)
        return self._tempered(log_prob) if self.has_temperature else log_prob

    def _tempered(self, log_prob: Float[Tensor, "T M C"]) -> Float[Tensor, "T M C"]:
        return torch.log_softmax(log_prob / self.log_temperature.exp().to(log_prob.dtype), -1)

    def _refuse(self, objective: Objective, why: str) -> None:
        refused = ("pl", "tpl") if objective == "pl" else (objective,)
        if self.objective in refused or (objective == "pl" and self.predictive_weight):
            others = " or ".join(repr(name) for name in get_args(Objective) if name not in refused)
            raise InvalidInputError(f"Expected `objective` to be {others}, but got {self.objective!r}: {why}")

    def _raw_log_prob(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        return self._log_prob(tasks, self._task_covariances(tasks), differentiable=False)

    def _task_covariances(self, tasks: TaskBatch) -> Covariances:
        support, query = self.features(tasks)
        centre, K = self._centre(tasks, support), self._covariance(tasks, support)
        cross = self.kernel(support, query, centre=centre)
        return Covariances(K, cross, self.kernel.diagonal(query, centre=centre))

    def _covariance(self, tasks: TaskBatch, z: Float[Tensor, "T P D"]) -> Float[Tensor, "T _ P P"]:
        """Prior covariance of features, with the support first."""
        K = self.kernel(z, centre=self._centre(tasks, z[:, : tasks.support_x.shape[1]]))
        if K.shape[1] not in (1, tasks.n_way):
            raise InvalidInputError(
                f"Expected tasks of {K.shape[1]} classes, each of which has a kernel of its own, but got "
                f"{tasks.n_way}. Leave out `n_way` of the kernel for tasks of any number."
            )
        return K

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The network, and the kernel with its own learning rate."""
        return {"network": list(self.backbone.parameters()), "kernel": list(self.kernel.parameters())}

    def accelerate(self) -> None:
        """Compile the backbone and the kernel."""
        super().accelerate()
        self.kernel.compile(dynamic=False)

    def _centre(self, tasks: TaskBatch, support: Float[Tensor, "T N D"]) -> Float[Tensor, "T 1 D"] | None:
        """Mean of the support without padding, for kernels that centre."""
        if not self.is_centred:
            return None
        weight = tasks.support_weight[..., None].to(support.dtype)
        return (weight * support).sum(1, keepdim=True) / weight.sum(1, keepdim=True)


def _named_kernel(name: str, options: Mapping[str, Any]) -> Kernel:
    if name not in KERNELS:
        raise InvalidInputError(f"Expected `kernel` to be one of {', '.join(KERNELS)}, but got {name!r}.")
    try:
        return make_kernel(name, **{**KERNEL_OPTIONS.get(name, {}), **options})
    except InvalidInputError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"Expected `kernel_options` to be arguments of kernel {name!r}, but got {dict(options)}: {error}."
        ) from error
