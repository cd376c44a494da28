"""Vanilla gradient ascent on the bound of mirror descent, to compare convergence.

T. Ke, H. Cao and F. Zhou, "Accelerating Convergence in Bayesian Few-Shot Classification", ICML 2024, compare mirror
descent with Euclidean gradient steps on the mean and the covariance of `q_c = N(m_c, Sigma_c)`. There are two forms:

- **plain**, as in the paper, takes fixed steps on (m, Sigma). Sigma may become indefinite.
- **cholesky** has unconstrained parameters and shortens a step until the bound rises.

Design note: the parameters of the cholesky form are whitened, `f = R u` with the symmetric root `R R = K` and
`u ~ N(mu, A A^T)`, where `A` is lower triangular and stored with the logarithm of its diagonal. The prior is
`mu = 0`, `A = I`, also for a singular `K`. Rejected: m and the Cholesky factor of Sigma, a weaker opponent, because
they need `K^-1` and suffer from its condition number.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mirrorshot.gp.objective import Problem, expected_log_likelihood, make_problem
from mirrorshot.types import InvalidInputError

_ARMIJO = 0.25
_WIDEST = 1.5  # largest standard deviation of the cholesky form, in units of the largest of the prior


class FullGaussian(NamedTuple):
    """A Gaussian per class: mean (T, C, N) and covariance (T, C, N, N)."""

    mean: Float[Tensor, "T C N"]
    covariance: Float[Tensor, "T C N N"]


class GradientInfo(NamedTuple):
    """Diagnostics of `gradient_descent`.

    Attributes:
        elbo: the bound at the start and after each step, (T, max_steps + 1) in nats; the last value repeats.
        n_steps: steps taken, (T,).
        n_evaluations: evaluations of the bound and its gradient, (T,): the start, steps and rejected proposals.
        failed: tasks whose next q was not positive definite or not finite, (T,); they keep the last valid q.
    """

    elbo: Float[Tensor, "T S"]
    n_steps: Int[Tensor, " T"]
    n_evaluations: Int[Tensor, " T"]
    failed: Bool[Tensor, " T"]


class AscentState(NamedTuple):
    """Parameters (`matrix` is Sigma, or A with its log diagonal), bound (-inf where infeasible) and gradient."""

    mean: Float[Tensor, "T C N"]
    matrix: Float[Tensor, "T C N N"]
    elbo: Float[Tensor, " T"]
    grad_mean: Float[Tensor, "T C N"]
    grad_matrix: Float[Tensor, "T C N N"]

    @property
    def slope(self) -> Float[Tensor, " T"]:
        """Slope of the bound along its gradient: the squared length of the gradient."""
        return self.grad_mean.square().sum((1, 2)) + self.grad_matrix.square().sum((1, 2, 3))

    def step(self, length: Float[Tensor, " T"]) -> tuple[Tensor, Tensor]:
        """Parameters after a step along the gradient."""
        rho = length[:, None, None]
        return self.mean + rho * self.grad_mean, self.matrix + rho[..., None] * self.grad_matrix


def gradient_descent(
    K: Float[Tensor, "T _ N N"],
    y: Int[Tensor, "T N"],
    *,
    n_way: int,
    max_steps: int,
    step_size: float,
    form: Literal["plain", "cholesky"] = "plain",
    weight: Float[Tensor, "T N"] | None = None,
    class_mask: Bool[Tensor, "T C"] | None = None,
    validate: bool = True,
) -> tuple[FullGaussian, GradientInfo]:
    """Climb the bound from the prior by gradient steps. The result is not differentiable.

    Arguments are as in `mirror_descent`, except for `form`: "plain" (the paper's) takes steps of the fixed `step_size`
    and needs positive definite `K`, padding included; "cholesky" (safeguarded) starts its search at `step_size`.

    Example:
        >>> import torch
        >>> K, y = torch.eye(3, dtype=torch.float64)[None, None], torch.tensor([[0, 0, 1]])
        >>> q, info = gradient_descent(K, y, n_way=2, max_steps=20, step_size=1.0, form="cholesky")
        >>> q.mean.argmax(1).tolist(), bool((info.elbo.diff() >= 0).all())
        ([[0, 0, 1]], True)
    """
    if form not in ("plain", "cholesky"):
        raise InvalidInputError(f"Expected `form` to be one of plain, cholesky, but got {form!r}.")
    for name, value in (("max_steps", max_steps), ("step_size", step_size)):
        if not 0 < value < float("inf"):
            raise InvalidInputError(f"Expected `{name}` to be positive and finite, but got {value}.")
    with torch.no_grad():
        problem = make_problem(K.detach(), y, n_way, weight, class_mask, None, validate)
        climb = _climb_plain if form == "plain" else _climb_whitened
        return climb(problem, max_steps, step_size)


def _expectations(
    problem: Problem, feasible: Tensor, mean: Tensor, var: Tensor, max_std: float | None
) -> tuple[Float[Tensor, " T"], Float[Tensor, "T C N"], Float[Tensor, "T C N"]]:
    """Expected log-likelihood (-inf if infeasible), `g_m = y - E[p]` and `g_v = -E[p (1 - p)] / 2`."""
    mean, var = _where(feasible, mean, 0.0), _where(feasible, var, 0.0)
    expected, g_m, curvature = expected_log_likelihood(problem, mean, var, max_std)
    return _where(feasible, expected, -torch.inf), g_m, -0.5 * curvature


def evaluate_plain(
    problem: Problem, K_chol: Float[Tensor, "T _ N N"], mean: Float[Tensor, "T C N"], Sigma: Float[Tensor, "T C N N"]
) -> AscentState:
    """The bound at `q_c = N(m_c, Sigma_c)` and its gradient in the mean and the covariance."""
    chol, status = torch.linalg.cholesky_ex(Sigma)
    feasible = (status == 0).all(1) & _finite(chol) & _finite(mean)
    chol = _where(feasible, chol, torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device))
    K_inv, Sigma_inv = torch.cholesky_inverse(K_chol), torch.cholesky_inverse(chol)
    alpha = (K_inv @ mean[..., None])[..., 0]
    expected, g_m, g_v = _expectations(problem, feasible, mean, _diagonal(Sigma), None)
    # KL_c = 1/2 (tr K^-1 Sigma - N + m^T K^-1 m + log|K| - log|Sigma|)
    log_det = 2 * (_diagonal(K_chol).log() - _diagonal(chol).log()).sum(-1)
    kl = 0.5 * ((K_inv * Sigma).sum((-2, -1)) - mean.shape[-1] + (mean * alpha).sum(-1) + log_det)
    # g_m - K^-1 m  and  diag(g_v) + Sigma^-1 / 2 - K^-1 / 2
    grad_Sigma = torch.diag_embed(g_v) + 0.5 * (Sigma_inv - K_inv)
    return AscentState(mean, Sigma, expected - kl.sum(-1), g_m - alpha, grad_Sigma)


def _climb_plain(problem: Problem, max_steps: int, step_size: float) -> tuple[FullGaussian, GradientInfo]:
    K_chol = _factor_of_prior(problem.K)
    zeros = torch.zeros_like(problem.Y)
    now = evaluate_plain(problem, K_chol, zeros, problem.K + torch.diag_embed(zeros))
    elbo, rho = [now.elbo], torch.full_like(now.elbo, step_size)
    n_steps, alive = torch.zeros_like(rho, dtype=torch.long), torch.ones_like(rho, dtype=torch.bool)
    for _ in range(max_steps):
        trial = evaluate_plain(problem, K_chol, *now.step(rho))
        alive = alive & trial.elbo.isfinite()
        now = AscentState(*(_where(alive, new, old) for new, old in zip(trial, now, strict=True)))
        elbo.append(now.elbo)
        n_steps = n_steps + alive
    info = GradientInfo(torch.stack(elbo, 1), n_steps, n_steps + 1 + ~alive, ~alive)
    return FullGaussian(now.mean, now.matrix), info


def _factor_of_prior(K: Tensor) -> Tensor:
    """Cholesky factor of `K`; raise if it is singular to working precision."""
    chol, status = torch.linalg.cholesky_ex(K)
    smallest = K.shape[-1] * torch.finfo(K.dtype).eps * _diagonal(K).amax(-1)
    regular = (status == 0) & (_diagonal(chol).square().amin(-1) > smallest)
    if not bool(regular.all()):
        raise InvalidInputError(
            "Expected `K` to be positive definite, since form='plain' needs its inverse, but got a singular "
            f"matrix (to working precision) in task {int((~regular).nonzero()[0, 0])}. Use form='cholesky'."
        )
    return torch.as_tensor(chol)


def evaluate_whitened(
    problem: Problem, R: Float[Tensor, "T _ N N"], mean: Float[Tensor, "T C N"], factor: Float[Tensor, "T C N N"]
) -> AscentState:
    """The bound at `f = R u`, `u ~ N(mean, A A^T)`, and its gradient in `mean` and `factor`."""
    A = _triangle(factor)
    latent, RA = (R @ mean[..., None])[..., 0], R @ A
    var, max_std = RA.square().sum(-1), _WIDEST * problem.max_std
    feasible = _finite(latent) & _finite(A) & (var.amax((1, 2)) <= max_std**2)
    expected, g_m, g_v = _expectations(problem, feasible, latent, var, max_std)
    # KL_c = 1/2 (|A|^2 - N + |mu|^2) - sum log diag A
    kl = 0.5 * (A.square().sum((-2, -1)) + (mean.square() - 1 - 2 * _diagonal(factor)).sum(-1))
    # R g_m - mu  and  tril(2 R diag(g_v) R A - A) + A^-T, the diagonal times dA_ii / d log A_ii = A_ii
    grad_mean = (R @ g_m[..., None])[..., 0] - mean
    grad_A = 2 * R @ (g_v[..., None] * RA) - A
    grad_factor = grad_A.tril(-1) + torch.diag_embed(_diagonal(grad_A) * _diagonal(A) + 1)
    return AscentState(mean, factor, expected - kl.sum(-1), grad_mean, grad_factor)


def _climb_whitened(problem: Problem, max_steps: int, step_size: float) -> tuple[FullGaussian, GradientInfo]:
    R = _symmetric_root(problem.K)
    zeros = torch.zeros_like(problem.Y)
    now = evaluate_whitened(problem, R, zeros, torch.diag_embed(zeros))
    elbo, length = now.elbo[:, None].repeat(1, max_steps + 1), torch.full_like(now.elbo, step_size)
    n_steps, n_evaluations = (torch.full_like(now.elbo, n, dtype=torch.long) for n in (0, 1))
    active = at_once = torch.ones_like(now.elbo, dtype=torch.bool)
    while bool(active.any()):
        trial = evaluate_whitened(problem, R, *now.step(length))
        accepted = active & (trial.elbo - now.elbo >= _ARMIJO * length * now.slope)
        now = AscentState(*(_where(accepted, new, old) for new, old in zip(trial, now, strict=True)))
        n_steps, n_evaluations = n_steps + accepted, n_evaluations + active
        later = torch.arange(max_steps + 1, device=elbo.device) >= n_steps[:, None]
        elbo = torch.where(later, now.elbo[:, None], elbo)
        # halve after a rejection, double after a step that was accepted at once
        length = torch.where(accepted, torch.where(at_once, 2 * length, length), 0.5 * length)
        at_once = accepted
        # stop where rounding hides the gain of a step
        visible = length * now.slope > torch.finfo(length.dtype).eps * (now.elbo.abs() + 1)
        active = active & visible & (n_steps < max_steps)
    RA = R @ _triangle(now.matrix)
    q = FullGaussian((R @ now.mean[..., None])[..., 0], RA @ RA.mT)
    return q, GradientInfo(elbo, n_steps, n_evaluations, torch.zeros_like(active))


def _symmetric_root(K: Tensor) -> Tensor:
    """`R = R^T` with `R R = K`; `K` may be singular, but not indefinite."""
    eigenvalues, U = torch.linalg.eigh(K)
    rounding = 1e2 * K.shape[-1] * torch.finfo(K.dtype).eps * eigenvalues.amax(-1)
    if bool((eigenvalues.amin(-1) < -rounding).any()):
        lowest = float(eigenvalues.amin())
        raise InvalidInputError(f"Expected `K` to be positive semi-definite, but got eigenvalue {lowest:.3g}.")
    return torch.matmul(U * eigenvalues.clamp(min=0.0).sqrt()[..., None, :], U.mT)


def _where(chosen: Bool[Tensor, " T"], new: Tensor, old: Tensor | float) -> Tensor:
    return torch.where(chosen.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _finite(tensor: Tensor) -> Bool[Tensor, " T"]:
    return tensor.isfinite().flatten(1).all(1)


def _triangle(factor: Tensor) -> Tensor:
    return factor.tril(-1) + torch.diag_embed(_diagonal(factor).exp())


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)
