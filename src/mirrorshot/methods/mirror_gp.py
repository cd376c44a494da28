"""T. Ke, H. Cao and F. Zhou, "Accelerating Convergence in Bayesian Few-Shot Classification", ICML 2024 (MD-BFSC).

https://proceedings.mlr.press/v235/ke24a.html

Class probabilities are the softmax of latent Gaussian processes on the features of a network. The posterior is found by
mirror descent on the evidence lower bound: each step replaces the likelihood by Gaussian sites. Meta-training minimises
the negative bound over the network and the kernel (bi-level optimisation). Expectations are deterministic integrals
here, samples in the paper.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.gp import AmortisedSites, amortise, mirror_descent
from mirrorshot.gp.bound import training_elbo
from mirrorshot.gp.gaussian import GaussianPosterior, predict_latent
from mirrorshot.gp.mirror import Gradient
from mirrorshot.gp.objective import make_problem
from mirrorshot.gp.predictive import training_latents, training_log_prob
from mirrorshot.gp.steps import Solution, can_fuse, fits_fused, solve
from mirrorshot.methods.gp import Covariances, GPMethod, Points
from mirrorshot.methods.recipe import Recipe
from mirrorshot.methods.shared import check_choice, class_log_prob, in_parts
from mirrorshot.networks.backbones import Backbone
from mirrorshot.softmax.moments import log_predictive
from mirrorshot.types import InvalidInputError, TaskBatch, check_at_least

Start = Literal["prior", "amortised"]
_N_FEATURES = 6  # of AmortisedSites
_BY_THE_BOUND = {
    "objective": "cml",
    "n_steps": 2,
    "step_size": 0.7,
    "start": "amortised",
    "gradient": "envelope",
}
# one step from the prior is least squares with one precision for all points; measured in docs/research.md
_BY_ONE_STEP = {"objective": "pl", "n_steps": 1, "step_size": 1.0, "start": "prior", "gradient": "unroll"}


class MirrorGP(GPMethod):
    """Mirror-descent Gaussian process (MD-BFSC).

    Args:
        n_steps: mirror steps in training. At test the loop runs to its optimum.
        step_size: the paper's rho in (0, 1], in training.
        gradient: gradient of the outer loop. "unroll" differentiates through the steps, as in the paper; "envelope"
            holds the sites fixed, which is cheaper, and accurate if the steps come close to the optimum. Objectives
            "pl" and "tpl" then ignore `n_steps` and `step_size`; they use the steps and the implicit gradient of
            `gp.predictive`, which come close to the optimum.
        start: "prior" as in the paper, or "amortised": sites predicted from the kernel by a linear map that `tune` fits
            on solved training tasks. It applies to bounds; predictive likelihoods start at the prior.
    """

    recipes = (
        Recipe(
            {
                "method_options": {
                    "objective": "ml",
                    "n_steps": 3,
                    "step_size": 1.0,
                    "start": "prior",
                    "gradient": "unroll",
                },
                "validate_every": 100,
                "n_validation_tasks": 100,
            },
            preset="paper",
        ),
        Recipe({"method_options": _BY_THE_BOUND}, preset="default"),
        Recipe({"method_options": _BY_ONE_STEP}, preset="default", kind="characters"),
        Recipe({"train_shot": 5, "train_query": 15}, preset="default", kind="characters", n_shot=1),
        Recipe({"validate_every": 100, "distort": 0.5}, preset="default", kind="characters"),
        Recipe({"n_calibration_tasks": 100}, preset="default", is_benchmark=True),
        Recipe({"turn_classes": True}, preset="default", kind="characters", is_benchmark=True),
        # measured with one seed per benchmark (docs/research.md); both are worse on characters
        Recipe(
            {
                "auxiliary_weight": 3.0,
                "auxiliary_schedule": "cosine",
                "method_options": {"objective": "tpl"},
            },
            preset="default",
            kind="photographs",
        ),
        Recipe({"method_options": {"objective": "cml"}}, preset="default", kind="photographs", n_shot=1),
    )

    def __init__(
        self,
        backbone: Backbone,
        *,
        n_steps: int = 3,
        step_size: float = 1.0,
        start: Start = "prior",
        gradient: Gradient = "unroll",
        **options: Any,
    ) -> None:
        super().__init__(backbone, **options)
        if not 0.0 < step_size <= 1.0:
            raise InvalidInputError(f"Expected `step_size` in (0, 1], but got {step_size}.")
        check_at_least(1, n_steps=n_steps)
        check_choice(Start, start=start)
        check_choice(Gradient, gradient=gradient)
        self.n_steps, self.step_size, self.start, self.gradient = n_steps, step_size, start, gradient
        # zeros predict zero sites, that is, the prior until the first `tune`
        self.register_buffer("amortised_strength", torch.zeros(()))
        self.register_buffer("amortised_own", torch.zeros(_N_FEATURES, 2))
        self.register_buffer("amortised_other", torch.zeros(_N_FEATURES, 2))

    def _bound(self, K: Tensor, points: Points) -> Float[Tensor, " T"]:
        options: dict[str, Any] = {"n_steps": self.n_steps, "step_size": self.step_size, "gradient": self.gradient}
        return training_elbo(K, points.y, start=self._start(K), **options, **points.sizes)

    def _start(self, K: Tensor) -> Literal["prior"] | AmortisedSites:
        if self.start == "prior":
            return "prior"
        return AmortisedSites(*(getattr(self, f"amortised_{field}").to(K.dtype) for field in AmortisedSites._fields))

    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        mean, var = self._latent(tasks, prior, differentiable=differentiable)
        if differentiable:
            return training_log_prob(mean, var, tasks.class_mask)
        if can_fuse(prior.K, tasks.n_way):
            from mirrorshot.gp.fused import prob_fused

            return class_log_prob(prob_fused(mean, var, tasks.class_mask), tasks.class_mask)
        return log_predictive(mean.mT, var.mT, tasks.class_mask[:, None, :])

    @torch.no_grad()
    def predict_latent(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T M C"], Float[Tensor, "T M C"]]:
        """Mean and variance of the latents of every query, at the optimum of the bound."""
        mean, var = self._latent(tasks, self._task_covariances(tasks), differentiable=False)
        return mean.mT, var.mT

    def _latent(
        self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool
    ) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T C M"]]:
        points = Points.of(tasks)
        if not differentiable:
            return predict_latent(_optimum(prior.K, points), prior.cross, prior.var)
        if self.gradient == "envelope":
            return training_latents(*prior, points.y, **points.sizes)
        n_steps, step_size = self.n_steps, self.step_size
        return training_latents(
            *prior, points.y, n_steps=n_steps, step_size=step_size, gradient="unroll", **points.sizes
        )

    def _training_covariance(self, tasks: TaskBatch) -> Float[Tensor, "T _ P P"]:
        """Prior covariance of support and query together, with features as in training (one view)."""
        return self._covariance(tasks, self.embed(torch.cat([tasks.support_x, tasks.query_x], 1), one_view=True))

    def is_recordable(self, n_points: int, n_way: int) -> bool:
        """Whether the fused kernels support tasks of this size."""
        return fits_fused(n_points, n_way)

    @property
    def is_tuned(self) -> bool:
        """Whether there is a temperature or a start to fit."""
        return super().is_tuned or self.start == "amortised"

    @torch.no_grad()
    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Fit the temperature and, with start="amortised", the starting sites on training tasks."""
        super().tune(tasks, query_y)
        if self.start == "amortised":
            K = torch.cat([self._training_covariance(part) for part in in_parts(tasks)])
            points = Points.of(tasks, query_y)
            weight, mask = points.weight, points.class_mask
            fitted = amortise(K, points.y, _optimum(K, points), weight=weight, class_mask=mask)
            for field, value in fitted._asdict().items():
                getattr(self, f"amortised_{field}").copy_(value)


def _optimum(K: Float[Tensor, "T _ N N"], points: Points) -> Solution | GaussianPosterior:
    """Posterior at the optimum; with fused kernels by the paper's 50 steps of rho = 0.5, which read nothing back."""
    if not can_fuse(K, points.n_way):
        return mirror_descent(K, points.y, max_steps=100, validate=False, **points.sizes)[0]
    problem = make_problem(K.detach(), points.y, points.n_way, points.weight, points.class_mask, torch.inf, False)
    return solve(problem, None, n_steps=50, step_size=0.5)
