"""Metrics of predictions that come in batches, or from several processes.

`Summary` does what the functions do, with the same code, on sums instead of tensors of all predictions. Metrics that
depend on the order of all confidences need these: they are stored, 24 bytes for a float64 prediction, unless
`ranking=False`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.metrics._terms import (
    TopLabel,
    brier_terms,
    checked,
    nll_terms,
    right_terms,
    top_label,
    weight_of,
)
from mirrorshot.metrics.calibration import (
    brier_decomposition,
    class_calibration_bins,
    class_calibration_error,
    debiased_calibration_error,
    equal_mass_bins,
)
from mirrorshot.metrics.functional import (
    CalibrationBins,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
)
from mirrorshot.metrics.ranking import aurc_of, auroc, correctness_auroc_of, excess_aurc_of, pooled_scores
from mirrorshot.types import InvalidInputError


class Summary:
    """All metrics of a stream of predictions, pooled over the queries of all tasks.

    Equal to the one-shot functions up to rounding, in whatever pieces the predictions come: `accuracy`, `nll`, `brier`,
    `ece`, `mce`, `class_ece`, `debiased_ce` (norm 2), `debiased_ece` (norm 1), `reliability`, `resolution`,
    `uncertainty` from sums; `adaptive_ece`, `aurc`, `excess_aurc`, `correctness_auroc` from stored confidences.

    Args:
        n_bins: number of bins of the calibration errors.
        min_count: bins with fewer predictions are left out of `mce`; it is NaN if that leaves none.
        ranking: whether to store confidences, for the metrics that need them.

    Attributes:
        sums: of weights, right predictions, negative log-likelihoods and Brier scores; (4,), float64. None at first.
        bins: calibration bins of the top label; None before the first update.
        class_bins: those of each class; None before the first update.
        stored: confidences of each update; empty without `ranking`.

    Example:
        >>> summary = Summary()
        >>> summary.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> summary.update(torch.tensor([[0.6, 0.4]]), torch.tensor([1]))
        >>> found = summary.compute()
        >>> found["accuracy"], round(found["ece"], 4), found["correctness_auroc"]
        (0.5, 0.35, 1.0)
    """

    def __init__(self, n_bins: int = 15, min_count: int = 0, ranking: bool = True) -> None:
        self.n_bins, self.min_count, self.ranking = n_bins, min_count, ranking
        self.sums: Tensor | None = None
        self.bins: CalibrationBins | None = None
        self.class_bins: CalibrationBins | None = None
        self.stored: list[TopLabel] = []

    def update(
        self,
        prob: Float[Tensor, "*batch M C"],
        y: Int[Tensor, "*batch M"],
        weight: Float[Tensor, "*batch M"] | None = None,
    ) -> None:
        """Add predictions.

        Args:
            prob: class probabilities, of the same number of classes in each update.
            y: labels 0 .. C - 1.
            weight: how often each query counts; zero is padding. None: once.
        """
        part = Summary(self.n_bins, self.min_count, self.ranking)
        prob, y, weight = checked(prob.detach(), y, weight)
        share = weight_of(weight, y)
        terms = (torch.ones_like(share), right_terms(prob, y), nll_terms(prob, y), brier_terms(prob, y))
        part.sums = torch.stack([(share * term.double()).sum() for term in terms])
        part.bins = calibration_bins(prob, y, self.n_bins, weight)
        part.class_bins = class_calibration_bins(prob, y, self.n_bins, weight)
        part.stored = [top_label(prob, y, weight)] if self.ranking else []
        self.merge(part)

    def merge(self, other: "Summary") -> None:
        """Add what another summary has seen.

        Args:
            other: of the same settings and number of classes; stays as it is.
        """
        self._check_alike(other)
        if other.sums is None:
            return
        self.sums = other.sums if self.sums is None else self.sums + other.sums
        self.bins = _add(self.bins, other.bins)
        self.class_bins = _add(self.class_bins, other.class_bins)
        self.stored = self.stored + other.stored

    def compute(self) -> dict[str, float]:
        """All metrics of what was seen so far."""
        if self.sums is None or self.bins is None or self.class_bins is None:
            raise InvalidInputError("Expected at least one prediction, but `update` was not called yet.")
        accuracy, nll, brier = (self.sums[1:] / self.sums[0]).unbind()
        enough = float(self.bins.counts.max()) >= self.min_count
        mce = maximum_calibration_error(self.bins, self.min_count) if enough else torch.nan
        metrics = {
            "accuracy": accuracy,
            "nll": nll,
            "brier": brier,
            "ece": expected_calibration_error(self.bins),
            "mce": mce,
            "class_ece": class_calibration_error(self.class_bins),
            "debiased_ce": debiased_calibration_error(self.bins),
            "debiased_ece": debiased_calibration_error(self.bins, norm=1),
            **brier_decomposition(self.bins)._asdict(),
            **self._ranked(),
        }
        return {name: float(value) for name, value in metrics.items()}

    def _ranked(self) -> dict[str, Tensor]:
        if not self.stored:
            return {}
        top = TopLabel(*(torch.cat(parts) for parts in zip(*self.stored, strict=True)))
        return {
            "adaptive_ece": expected_calibration_error(equal_mass_bins(top, self.n_bins)),
            "aurc": aurc_of(top),
            "excess_aurc": excess_aurc_of(top),
            "correctness_auroc": correctness_auroc_of(top),
        }

    def _check_alike(self, other: "Summary") -> None:
        mine, others = ((s.n_bins, s.min_count, s.ranking) for s in (self, other))
        if mine != others:
            raise InvalidInputError(
                f"Expected a summary with (n_bins, min_count, ranking) = {mine}, but got one with {others}."
            )
        if self.class_bins is not None and other.class_bins is not None:
            n_classes, n_others = len(self.class_bins.counts), len(other.class_bins.counts)
            if n_classes != n_others:
                raise InvalidInputError(f"Expected predictions of {n_classes} classes as before, but got {n_others}.")


class SeparationSummary:
    """Area under the ROC curve of two streams of scores, as for out-of-distribution detection; stores the scores.

    Example:
        >>> separation = SeparationSummary()
        >>> separation.update(positive=torch.tensor([0.9, 0.8]), negative=torch.tensor([0.4]))
        >>> separation.update(positive=torch.tensor([0.4]), negative=torch.tensor([0.2]))
        >>> round(separation.compute(), 4)
        0.9167
    """

    def __init__(self) -> None:
        self.scores: dict[str, list[Tensor]] = {"positive": [], "negative": []}
        self.weights: dict[str, list[Tensor]] = {"positive": [], "negative": []}

    def update(
        self,
        positive: Float[Tensor, "..."] | None = None,
        negative: Float[Tensor, "..."] | None = None,
        positive_weight: Float[Tensor, "..."] | None = None,
        negative_weight: Float[Tensor, "..."] | None = None,
    ) -> None:
        """Add scores, of either kind or both; see `auroc`."""
        self._store("positive", positive, positive_weight)
        self._store("negative", negative, negative_weight)

    def merge(self, other: "SeparationSummary") -> None:
        """Add what another summary has seen; that one stays as it is."""
        for name in self.scores:
            self.scores[name] = self.scores[name] + other.scores[name]
            self.weights[name] = self.weights[name] + other.weights[name]

    def compute(self) -> float:
        """`auroc` of all scores."""
        for name, parts in self.scores.items():
            if not parts:
                raise InvalidInputError(f"Expected at least one score in `{name}`, but got none.")
        scores = (torch.cat(parts) for parts in self.scores.values())
        return float(auroc(*scores, *(torch.cat(parts) for parts in self.weights.values())))

    def _store(self, name: str, score: Tensor | None, weight: Tensor | None) -> None:
        if score is None:
            return
        score, share = pooled_scores(score.detach(), weight, name)
        self.scores[name].append(score)
        self.weights[name].append(share)


def _add(a: CalibrationBins | None, b: CalibrationBins | None) -> CalibrationBins | None:
    if a is None or b is None:
        return a if b is None else b
    return CalibrationBins(a.edges, *(x + y for x, y in zip(a[1:], b[1:], strict=True)))
