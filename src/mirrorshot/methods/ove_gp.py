"""J. Snell and R. Zemel, ICLR 2021 (OVE PG GP).

"Bayesian Few-Shot Classification with One-vs-Each Polya-Gamma Augmented Gaussian Processes"
https://arxiv.org/abs/2007.10417

Each class has a latent Gaussian process on the features of a network. The likelihood of a label is the product of the
sigmoids of the differences between its latent and each other one. Polya-Gamma variables, drawn by Gibbs sampling, make
it Gaussian. Meta-training maximises the evidence of support and query given the draws, or the predictive likelihood.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp import one_vs_each as ove
from mirrorshot.methods.gp import SEPARATE_DRAWS, Covariances, GPMethod, Points
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS, Recipe
from mirrorshot.methods.shared import mean_of_softmax
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import TaskBatch, check_at_least

_LARGEST = {"cpu": 2**26, "cuda": 2**28}  # elements of an array: more than the paper's protocol needs


class OneVsEachGP(GPMethod):
    """One-vs-each Polya-Gamma Gaussian process. Stochastic; draws from `generator`.

    The likelihood is not normalised over the classes. As in the paper, a softmax turns the scores `sum_i E log
    sigma(f_c - f_i)` of each chain into probabilities, which are then averaged over the chains. Gradients treat the
    draws as constants; for objective "ml" this is correct by Fisher's identity once the draws come from the posterior.

    Args:
        n_steps: Gibbs steps in training. The draws of the first step do not depend on the labels, and one step is
            published; each further step costs as much as the evidence.
        n_chains: chains per task, each of which contributes its last draw.
        **options: those of `GPMethod`; there is no objective "cml".
    """

    recipes = (
        Recipe({"validate_every": 500, "n_validation_tasks": 300}, is_benchmark=True),
        MUON_ON_PHOTOGRAPHS,
    )

    def __init__(
        self, backbone: Backbone, *, n_steps: int = 1, n_test_steps: int = 50, n_chains: int = 20, **options: Any
    ) -> None:
        super().__init__(backbone, **options)
        self._refuse("cml", f"{SEPARATE_DRAWS} Use method mirror_gp or logistic_softmax_gp.")
        check_at_least(1, n_steps=n_steps, n_test_steps=n_test_steps, n_chains=n_chains)
        self.n_steps, self.n_test_steps, self.n_chains = n_steps, n_test_steps, n_chains

    def _bound(self, K: Tensor, points: Points) -> Float[Tensor, " T"]:
        pairs = ove.make_pairs(K, *points)
        return ove.pairs_evidence(pairs, self._draws(pairs, self.n_steps)).mean(1)

    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        if differentiable:
            return self._chained_log_prob(tasks, prior, self.n_steps)
        size, found = self._tasks_at_once(tasks), []
        with torch.no_grad():
            for part in (slice(start, start + size) for start in range(0, tasks.n_tasks, size)):
                own = Covariances(*(covariance[part] for covariance in prior))
                found.append(self._chained_log_prob(tasks.select(part), own, self.n_test_steps))
        return torch.cat(found)

    def _tasks_at_once(self, tasks: TaskBatch) -> int:
        """Tasks whose chains fit into memory: factors and gains of `N (C - 1)` unknowns, and nodes of the scores."""
        (N, M), C = (tasks.support_y.shape[1], tasks.query_weight.shape[1]), tasks.n_way
        size = max(N * (C - 1) * max(N * (C - 1), C * M), M * C * C * ove.N_HERMITE)
        return max(1, _LARGEST.get(tasks.support_x.device.type, _LARGEST["cpu"]) // (self.n_chains * size))

    def _chained_log_prob(self, tasks: TaskBatch, prior: Covariances, n_steps: int) -> Float[Tensor, "T M C"]:
        pairs = ove.make_pairs(prior.K, *Points.of(tasks))
        omega = self._draws(pairs, n_steps)
        pairs = pairs.repeat(self.n_chains)
        posterior = ove.condition_pairs(pairs, omega.flatten(0, 1))
        parts = prior.cross, prior.var, tasks.class_mask
        cross, var, mask = (part.repeat_interleave(self.n_chains, 0) for part in parts)
        scores = ove.one_vs_each_scores(*ove.predict_pairs(pairs, posterior, cross, var), mask)
        return mean_of_softmax(scores.unflatten(0, (-1, self.n_chains)), tasks.class_mask, tasks.class_mask)

    def _draws(self, pairs: ove.Pairs, n_steps: int) -> Tensor:
        return ove.gibbs_pairs(pairs, n_steps=n_steps, generator=self.generator, n_chains=self.n_chains)
