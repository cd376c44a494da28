"""T. Ke, H. Cao, Z. Ling and F. Zhou, NeurIPS 2023 (CDKT).

"Revisiting Logistic-softmax Likelihood in Bayesian Meta-Learning for Few-Shot Classification"
https://arxiv.org/abs/2310.10379

The probability of a class is its sigmoid over the sum of the sigmoids of all classes, of latent Gaussian processes on
the features of a network. Rates, Poisson counts and Polya-Gamma variables make that likelihood Gaussian, so every step
of inference has a closed form. CDKT takes mean-field steps and sharpens the sigmoids by a temperature; J. Snell and R.
Zemel (ICLR 2021, https://arxiv.org/abs/2007.10417) use Gibbs sampling. Meta-training maximises the bound, or the
evidence given the samples, of support and query.
"""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mirrorshot.gp import logistic_softmax as ls
from mirrorshot.gp.gaussian import GaussianPosterior, predict_latent
from mirrorshot.methods.gp import SEPARATE_DRAWS, Covariances, GPMethod, Points
from mirrorshot.methods.recipe import Recipe
from mirrorshot.methods.shared import check_choice, check_positive, class_log_prob
from mirrorshot.networks.backbones import Backbone
from mirrorshot.softmax.logistic import logistic_softmax_prob
from mirrorshot.types import TaskBatch

Inference = Literal["mean_field", "gibbs"]
_STEPS = {"mean_field": (2, 30), "gibbs": (1, 50)}  # published numbers in training and at test


class LogisticSoftmaxGP(GPMethod):
    """Gaussian process with the logistic-softmax likelihood: CDKT, and with inference="gibbs" that of Snell and Zemel.

    Deliberate differences from the released codes: the bound is a lower bound; each task starts at the prior or at its
    labels, never at random values or the previous task; training and test have the same prior mean; class probabilities
    are integrals.

    Args:
        inference: "mean_field", or "gibbs", which is stochastic.
        likelihood_temperature: the paper's tau: sigmoids of `f / tau`. Not the predictive temperature that `tune` fits.
        n_steps: mean-field steps or Gibbs sweeps in training; None: 2 or 1, as published.
        n_test_steps: the same at test; None: 30 or 50, as published.
        n_chains: Gibbs chains per task.
        prior_mean: constant prior mean of the latents.
        start: start of the mean-field steps, "prior" or "labels" (see `mean_field`); Gibbs chains start at draws of the
            prior.
        **options: those of `GPMethod`; Gibbs sampling has no objective "cml".
    """

    # Started at the prior, the bound is higher without features than with them, and short training on photographs
    # collapses them (`mirrorshot reproduce departures`, benchmarks/cdkt_collapse.py).
    recipes = (Recipe({"method_options": {"start": "labels"}}, preset="default"),)

    def __init__(
        self,
        backbone: Backbone,
        *,
        inference: Inference = "mean_field",
        likelihood_temperature: float = 0.2,
        n_steps: int | None = None,
        n_test_steps: int | None = None,
        n_chains: int = 20,
        prior_mean: float = 0.0,
        start: ls.Start = "prior",
        **options: Any,
    ) -> None:
        super().__init__(backbone, **options)
        check_choice(Inference, inference=inference)
        check_choice(ls.Start, start=start)
        if inference == "gibbs":
            self._refuse("cml", f"{SEPARATE_DRAWS} Use inference='mean_field'.")
        steps = _STEPS[inference]
        self.n_steps = steps[0] if n_steps is None else n_steps
        self.n_test_steps = steps[1] if n_test_steps is None else n_test_steps
        check_positive(likelihood_temperature=likelihood_temperature)
        check_positive(n_steps=self.n_steps, n_test_steps=self.n_test_steps, n_chains=n_chains)
        self.inference, self.start, self.n_chains = inference, start, n_chains
        self.likelihood_temperature, self.prior_mean = likelihood_temperature, prior_mean

    def _bound(self, K: Tensor, points: Points) -> Float[Tensor, " T"]:
        # the latents f / tau have covariance K / tau^2
        K, a = K / self.likelihood_temperature**2, self.prior_mean / self.likelihood_temperature
        labels = ls.make_labels(*points, K.dtype)
        if self.inference == "mean_field":
            q = ls.mean_field(K, labels, n_steps=self.n_steps, prior_mean=a, start=self.start)
            return self._elbo(q, labels, a)
        K, labels = self._chains(K), ls.Labels(*(self._chains(part) for part in labels))
        draw = ls.gibbs(K, labels, n_steps=self.n_steps, generator=self.generator, prior_mean=a)
        return self._mean_over_chains(ls.augmented_evidence(K, labels, draw, prior_mean=a))

    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        K, K_cross, prior_var = (x / self.likelihood_temperature**2 for x in prior)
        mask, is_gibbs = tasks.class_mask, self.inference == "gibbs"
        labels = ls.make_labels(*Points.of(tasks), K.dtype)
        if is_gibbs:
            K, K_cross, prior_var, mask = (self._chains(x) for x in (K, K_cross, prior_var, mask))
            labels = ls.Labels(*(self._chains(part) for part in labels))
        a = self.prior_mean / self.likelihood_temperature
        with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
            posterior = self._posterior(K, labels, a, self.n_steps if differentiable else self.n_test_steps)
            mean, var = predict_latent(posterior, K_cross, prior_var)
            return self._log_likelihood(a + mean, var, mask, tasks.class_mask)

    def _elbo(self, q: ls.MeanField, labels: ls.Labels, a: float) -> Float[Tensor, " T"]:
        return ls.mean_field_elbo(q, labels, prior_mean=a)

    def _log_likelihood(
        self, mean: Tensor, var: Tensor, mask: Tensor, class_mask: Bool[Tensor, "T C"]
    ) -> Float[Tensor, "T M C"]:
        prob = logistic_softmax_prob(mean, var, mask)
        return class_log_prob(self._mean_over_chains(prob) if self.inference == "gibbs" else prob, class_mask)

    def _posterior(self, K: Tensor, labels: ls.Labels, a: float, n_steps: int) -> GaussianPosterior:
        if self.inference == "mean_field":
            return ls.mean_field(K, labels, n_steps=n_steps, prior_mean=a, start=self.start).posterior
        draw = ls.gibbs(K, labels, n_steps=n_steps, generator=self.generator, prior_mean=a)
        return ls.augmented_posterior(K, labels, draw, prior_mean=a)

    def _chains(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.n_chains, 0)

    def _mean_over_chains(self, x: Tensor) -> Tensor:
        mean: Tensor = x.unflatten(0, (-1, self.n_chains)).mean(1)
        return mean
