"""Implicit differentiation of the inner optimum with respect to the kernel.

At the optimum the sites are a fixed point `u = M(u, K)` of the full mirror step. By the implicit function theorem a
cotangent `c` of `u` pulls back to `K` as that of `M(u, K)` with `a` in the place of `c`, where
`a = c + (dM/du)^T a`. The linear system is solved by GMRES, one vector-Jacobian product of one mirror step
per iteration: the memory of one step, the gradient of infinitely many.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.objective import Problem, evaluate, mirror_target

_ITERATIONS = 40
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of the residual; rounding leaves less in no type


def attach_implicit_gradient(problem: Problem, sites: GaussianSites) -> GaussianSites:
    """Return the same sites, now differentiable with respect to `problem.K` as the optimum is.

    The sites must be converged; the derivative is that of the fixed point nearest to them.
    """
    if not (torch.is_grad_enabled() and problem.K.requires_grad):
        return sites
    sites = GaussianSites(sites.shift.detach(), sites.precision.detach())
    moved = mirror_target(evaluate(problem, sites))
    moved = GaussianSites(*(old + new - new.detach() for old, new in zip(sites, moved, strict=True)))

    inputs = GaussianSites(*(s.clone().requires_grad_() for s in sites))
    outputs = mirror_target(evaluate(problem._replace(K=problem.K.detach()), inputs))

    def pull_back(a: Float[Tensor, "T V"]) -> Float[Tensor, "T V"]:
        cotangent = _unflatten(a, sites)
        shift, precision = torch.autograd.grad(outputs, inputs, cotangent, retain_graph=True)
        return _flatten((shift, precision))

    return GaussianSites(*_Solve.apply(*moved, pull_back))  # type: ignore[no-untyped-call]


class _Solve(torch.autograd.Function):
    """Identity whose backward solves `a - J^T a = c` for both site parameters together."""

    @staticmethod
    def forward(
        ctx: Any, shift: Tensor, precision: Tensor, pull_back: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        ctx.pull_back = pull_back
        return shift.clone(), precision.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_shift, grad_precision = grads
        c = _flatten((grad_shift, grad_precision))
        a = batched_gmres(lambda v: v - ctx.pull_back(v), c, _ITERATIONS, _TOLERANCE[c.dtype])
        return *_unflatten(a, (grad_shift, grad_precision)), None


def _flatten(pair: tuple[Tensor, Tensor]) -> Float[Tensor, "T V"]:
    return torch.cat([t.flatten(1) for t in pair], 1)


def _unflatten(vector: Tensor, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    half = vector.shape[1] // 2
    return vector[:, :half].reshape(like[0].shape), vector[:, half:].reshape(like[1].shape)


def batched_gmres(
    operator: Callable[[Tensor], Tensor], c: Float[Tensor, "T V"], max_iterations: int, tol: float
) -> Float[Tensor, "T V"]:
    """Solve `operator(a) = c` per task in the Krylov space of `c` (Arnoldi with re-orthogonalisation)."""
    scale = c.norm(dim=1, keepdim=True)
    tiny = torch.finfo(c.dtype).tiny
    basis = [c / scale.clamp(min=tiny)]
    images: list[Tensor] = []
    coefficient = c.new_zeros(c.shape[0], 1)
    for _ in range(min(max_iterations, c.shape[1])):
        image = operator(basis[-1])
        images.append(image)
        A = torch.stack(images, -1)  # (T, V, j)
        normal = A.mT @ A
        ridge = 1e-14 * normal.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + tiny
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        coefficient = torch.linalg.solve(normal + ridge * eye, (A.mT @ c[..., None]))[..., 0]
        residual = c - (A @ coefficient[..., None])[..., 0]
        if bool((residual.norm(dim=1) <= tol * scale[:, 0]).all()):
            break
        Q = torch.stack(basis, -1)
        for _ in range(2):
            image = image - (Q @ (Q.mT @ image[..., None]))[..., 0]
        basis.append(image / image.norm(dim=1, keepdim=True).clamp(min=tiny))
    return (torch.stack(basis[: len(images)], -1) @ coefficient[..., None])[..., 0]
