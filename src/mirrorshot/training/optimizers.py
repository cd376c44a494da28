"""The optimisers of a run: Adam, or Muon for the convolutions and Adam for the rest."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mirrorshot.methods import FewShotMethod
from mirrorshot.training.config import Config
from mirrorshot.training.muon import Muon
from mirrorshot.types import InvalidInputError


def make_optimizers(method: FewShotMethod, config: Config, *, is_cuda: bool) -> list[torch.optim.Optimizer]:
    """Optimisers with the learning rates of the settings, their state made at once.

    On a GPU learning rates are tensors, which a recorded step reads anew each time.

    Raises:
        InvalidInputError: there is nothing to train.
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
