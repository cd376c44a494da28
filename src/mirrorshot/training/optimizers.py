"""Optimisers of a run: Adam, or Muon for the convolutions and Adam for the rest."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mirrorshot.methods import FewShotMethod
from mirrorshot.training.config import Config
from mirrorshot.types import InvalidInputError

_MOMENTUM = 0.95
_STEPS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_SHORTEST = 1e-7  # minimum norm by which a gradient is divided
_LIKE_ADAM = 0.2  # typical root mean square of an Adam step, relative to the learning rate


def make_optimizers(
    method: FewShotMethod, config: Config, *, is_cuda: bool, others: Iterable[nn.Parameter] = ()
) -> list[torch.optim.Optimizer]:
    """Create optimisers with the configured learning rates and an initialised state.

    `others` are further parameters, trained at the learning rate of the network. On a GPU learning rates are tensors,
    which a recorded step reads each time. Raises `InvalidInputError` if there is nothing to train.
    """
    rates = {"network": config.lr, "kernel": config.kernel_lr}
    parts = {name: parameters for name, parameters in method.parameter_groups().items() if parameters}
    if not parts:
        raise InvalidInputError(
            f"Expected a method with parameters to train, but {config.method} on embeddings has no parameters. "
            "Use one with a kernel or a head, such as mirror_gp, dkt or maml."
        )

    def group(name: str, parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
        rate: float | Tensor = torch.tensor(rates[name], device=parameters[0].device) if is_cuda else rates[name]
        return {"params": list(parameters), "lr": rate}

    if added := list(others):
        parts["network"] = [*parts.get("network", []), *added]
    convolutions = [p for p in parts.get("network", []) if p.ndim == 4] if config.optimizer == "muon" else []
    chosen = set(convolutions)
    rest = {name: [p for p in parameters if p not in chosen] for name, parameters in parts.items()}
    groups = [group(name, parameters) for name, parameters in rest.items() if parameters]
    optimizers: list[torch.optim.Optimizer] = [_adam(groups, is_cuda)] if groups else []
    return optimizers + ([Muon([group("network", convolutions)])] if convolutions else [])


def _adam(groups: list[dict[str, Any]], is_cuda: bool) -> torch.optim.Adam:
    adam = torch.optim.Adam(groups, fused=is_cuda or None, capturable=is_cuda)
    for p in (p for group in groups for p in group["params"]):
        step = torch.zeros((), device=p.device if is_cuda else "cpu")
        adam.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return adam


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for convolution kernels.

    A kernel (n, m, h, w) is treated as the matrix (n, m h w). Its gradient with Nesterov momentum, U S Vᵀ, is replaced
    by about U Vᵀ, so directions with rarely large gradients are learned as fast as the others, as with a whitening
    preconditioner (Shampoo), but without its state. Steps have the usual length of Adam's (Liu et al. 2025,
    https://arxiv.org/abs/2502.16982), so both use the same learning rates. The `lr` of a group is a float or, for
    recording in a CUDA graph, a tensor.

    Design note: `torch.optim.Muon` takes matrices only, one after the other. Here kernels of the same shape form one
    batch, and no value is read back from the device.

    Example:
        >>> kernel = torch.nn.Parameter(torch.zeros(2, 1, 1, 2))
        >>> kernel.grad = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).reshape(2, 1, 1, 2)
        >>> Muon([{"params": [kernel], "lr": 0.1}]).step()
        >>> kernel.detach().reshape(2, 2)  # 0.1 x 0.2 x sqrt(2) = 0.028, about, for both directions
        tensor([[-0.0213,  0.0000],
                [ 0.0000, -0.0321]])
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"momentum": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            batches: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    batches[p.shape].append(p)
            for shape, parameters in batches.items():
                grads = [p.grad for p in parameters if p.grad is not None]
                momenta = [self.state[p]["momentum"] for p in parameters]
                torch._foreach_lerp_(momenta, grads, 1 - _MOMENTUM)
                ahead = torch._foreach_lerp(grads, momenta, _MOMENTUM)
                update = orthogonalised(torch.stack(ahead).flatten(2))
                n_out, n_in = update.shape[1:]
                update *= group["lr"] * (_LIKE_ADAM * math.sqrt(max(n_out, n_in)))
                torch._foreach_sub_(parameters, list(update.view(-1, *shape).unbind()))


def orthogonalised(matrices: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
    """Return about U Vᵀ of each matrix U S Vᵀ by a Newton-Schulz iteration, which needs matrix products only.

    Its coefficients raise small singular values quickly: after five steps, values above 0.0014 of the Frobenius norm
    lie between 0.6 and 1.3. On a GPU it runs in bfloat16, which suffices for this accuracy.
    """
    kind = torch.bfloat16 if matrices.is_cuda else matrices.dtype
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if is_tall else matrices).to(kind)
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=_SHORTEST)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        # x <- a x + (b A + c A²) x, A = x xᵀ
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)
