"""Y. Tian et al., "Rethinking Few-Shot Image Classification: a Good Embedding Is All You Need?", ECCV 2020.

https://arxiv.org/abs/2003.11539

A network is trained to classify all training classes. A new task gets a multinomial logistic regression with an L2
penalty on the unit-length features of its support. The paper uses scikit-learn's solver, task by task; here Newton's
method solves all tasks at once, with the same optimum. Distillation is not implemented.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mirrorshot.gp.linalg import cholesky_of_shifted
from mirrorshot.methods.frozen_heads import FrozenFeatureMethod
from mirrorshot.methods.shared import check_positive, class_log_softmax, support_one_hot
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import NumericalError, TaskBatch

_HALVINGS = 10  # sizes of a Newton step that are tried
_ARMIJO = 1e-4
_SLACK = 10  # allowed increase of the objective, in rounding errors
_TOLERANCE = 1e-10  # on the slope along the last step, in nats


class LogisticHead(FrozenFeatureMethod):
    """Logistic regression on the features of a pre-trained classifier.

    The head of a task minimises `C sum_n CE_n + |W|^2 / 2`, without a penalty on the bias, as scikit-learn's
    `LogisticRegression` does for more than two classes. With two classes it stays multinomial and equals scikit-learn's
    binary regression with twice the `C`. A larger `C` gives more confident predictions. `normalise` scales features to
    unit length.

    Design note: with fewer points than features, Newton's method works in the space of points: each step needs one N x
    N matrix per class instead of one matrix over all classes and features. It uses double precision, because the
    condition number grows with `C` and the features. After each step it checks whether all tasks have converged,
    usually after 5 to 10 steps. `loss`, which training does not use, has the gradient at a fixed head.
    """

    def __init__(self, backbone: Backbone, *, C: float = 1.0, normalise: bool = True, **options: Any) -> None:
        super().__init__(backbone, **options)
        check_positive(C=C)
        self.C, self.normalise = C, normalise

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the outputs of the fitted regression."""
        support, query = self.features(tasks)
        if self.normalise:
            support, query = F.normalize(support, dim=-1), F.normalize(query, dim=-1)
        weight, bias = self._fit(support.detach(), tasks)
        return class_log_softmax(query @ weight.mT + bias[:, None, :], tasks.class_mask)

    @torch.no_grad()
    def _fit(self, z: Float[Tensor, "T N D"], tasks: TaskBatch) -> tuple[Float[Tensor, "T C D"], Float[Tensor, "T C"]]:
        exact = z.double()
        problem = Problem(self.C * exact @ exact.mT, support_one_hot(tasks, exact.dtype), tasks.class_mask)
        a, bias = fit_logistic(problem)
        return (self.C * a @ exact).to(z.dtype), bias.to(z.dtype)


class Problem(NamedTuple):
    """Logistic regression of each task, in the space of points."""

    K: Float[Tensor, "T N N"]  # inner products of the points, times `C`
    target: Float[Tensor, "T C N"]  # one-hot labels, zero for padding
    class_mask: Bool[Tensor, "T C"]


class Point(NamedTuple):
    """Current iterate, or a step: weights are `a z`, logits `a K + bias`."""

    a: Float[Tensor, "*G T C N"]
    bias: Float[Tensor, "*G T C"]

    def logits(self, K: Float[Tensor, "T N N"]) -> Float[Tensor, "*G T C N"]:
        """Logits of the points."""
        return self.a @ K + self.bias[..., None]

    def moved(self, step: "Point", size: Float[Tensor, " G #T"]) -> "Point":
        """Iterates after several fractions of a step."""
        return Point(self.a + size[..., None, None] * step.a, self.bias + size[..., None] * step.bias)


def fit_logistic(problem: Problem, *, max_steps: int = 100) -> Point:
    """Minimise `sum_n CE_n + sum_c a_c^T K a_c / 2` over `a` and bias, by Newton's method with backtracking.

    Raises `NumericalError` if a task has not converged after `max_steps`.

    Example:
        >>> K = target = torch.eye(2, dtype=torch.float64)[None]  # two points at right angles, one of each class
        >>> point = fit_logistic(Problem(K, target, torch.ones(1, 2).bool()))
        >>> prob = point.logits(K).softmax(1)
        >>> torch.allclose(point.a, target - prob)  # where the gradient is zero
        True
    """
    point = Point(torch.zeros_like(problem.target), torch.zeros_like(problem.target[..., 0]))
    for _ in range(max_steps):
        step = _newton(problem, point)
        slope = _slope(problem, point, step)
        point = _backtrack(problem, point, step, slope)
        is_done = slope.abs() <= _TOLERANCE
        if bool(is_done.all()):
            return point
    raise NumericalError(
        f"Expected logistic regression to converge in {max_steps} Newton steps, but {int((~is_done).sum())} of "
        f"{len(is_done)} tasks did not. Lower `C`, or set `normalise`."
    )


def _newton(problem: Problem, point: Point) -> Point:
    """Step to the minimum of the quadratic model.

    At the minimum `a = b - W f` and each `a_c` sums to zero, with f = a K + bias, the Hessian W of the cross-entropy at
    the old f, and b = W f + y - p there. With E = (K + W^-1)^-1 this gives a = b - E (K b + bias). E is never formed:
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 3.3.
    """
    K, target, mask = problem
    f, weight = point.logits(K), target.sum(1, keepdim=True)
    prob = weight * _prob(f, mask)
    b = prob * (f - (prob * f).sum(1, keepdim=True)) + target - prob
    L, _ = cholesky_of_shifted(K[:, None], prob.sqrt())
    X = torch.linalg.solve_triangular(L, torch.diag_embed(prob.sqrt()), upper=False)
    blocks = X.mT @ X  # of each class: (K + diag(p_c)^-1)^-1
    M, _ = torch.linalg.cholesky_ex(blocks.sum(1) + torch.diag_embed(1 - weight[:, 0]))

    ones = blocks.sum(-1)  # blocks times (1, .., 1)
    S = torch.diag_embed(ones.sum(-1)) - ones @ torch.cholesky_solve(ones.mT, M)
    # neither a constant added to the biases of all classes nor the bias of a missing class has an effect
    S = S + torch.diag_embed((~mask).to(S.dtype)) + mask[:, :, None].to(S.dtype) * mask[:, None, :].to(S.dtype)
    a = b - _times_e(blocks, M, b @ K)
    bias = torch.linalg.solve_ex(S, a.sum(-1, keepdim=True))[0][..., 0]
    a = a - _times_e(blocks, M, bias[..., None].expand_as(a))
    return Point(a - point.a, bias - point.bias)


def _times_e(
    blocks: Float[Tensor, "T C N N"], M: Float[Tensor, "T N N"], v: Float[Tensor, "T C N"]
) -> Float[Tensor, "T C N"]:
    """(K + W^-1)^-1 v, from its blocks without the coupling of the classes and the factor of their sum."""
    u = (blocks @ v[..., None])[..., 0]
    shared = torch.cholesky_solve(u.sum(1)[..., None], M)
    return u - (blocks @ shared[:, None])[..., 0]


def _slope(problem: Problem, point: Point, step: Point) -> Float[Tensor, " T"]:
    """Derivative of the objective along a step; for a Newton step about minus twice the possible decrease."""
    K, target, mask = problem
    residual = target.sum(1, keepdim=True) * _prob(point.logits(K), mask) - target
    return (residual * step.logits(K) + step.a * (point.a @ K)).sum((1, 2))


def _backtrack(problem: Problem, point: Point, step: Point, slope: Float[Tensor, " T"]) -> Point:
    """Move by the longest halved step that decreases the objective enough, up to rounding."""
    K = problem.K
    sizes = 0.5 ** torch.arange(_HALVINGS, dtype=K.dtype, device=K.device)[:, None]
    before, after = (_objective(problem, point.moved(step, t)) for t in (torch.zeros_like(sizes[:1]), sizes))
    slack = _SLACK * torch.finfo(K.dtype).eps * (1 + before)
    is_lower = after <= before + _ARMIJO * sizes * slope + slack
    size = sizes[is_lower.to(torch.int8).argmax(0), 0] * is_lower.any(0)
    return Point(*(part[0] for part in point.moved(step, size[None])))


def _objective(problem: Problem, point: Point) -> Float[Tensor, "G T"]:
    f = point.logits(problem.K)
    log_sum = f.masked_fill(~problem.class_mask[..., None], -torch.inf).logsumexp(-2)
    cross_entropy = (problem.target.sum(1) * log_sum).sum(-1) - (problem.target * f).sum((-2, -1))
    return cross_entropy + (point.a * (point.a @ problem.K)).sum((-2, -1)) / 2


def _prob(f: Float[Tensor, "T C N"], mask: Bool[Tensor, "T C"]) -> Float[Tensor, "T C N"]:
    return f.masked_fill(~mask[..., None], -torch.inf).softmax(1)
