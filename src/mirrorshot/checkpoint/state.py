"""Methods and optimizers, to and from the tensors and the JSON of a checkpoint.

Tensors of a method are named `method.*`, those of an optimizer `optimizer.*`; any others belong to whoever wrote them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mirrorshot.checkpoint.files import Checkpoint, CheckpointError

_METHOD, _OPTIMIZER = "method.", "optimizer."


def pack_method(method: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a method, named for a checkpoint.

    Example:
        >>> sorted(pack_method(nn.Linear(2, 3)))
        ['method.bias', 'method.weight']
    """
    return {_METHOD + name: tensor for name, tensor in method.state_dict().items()}


def load_method_state(method: nn.Module, checkpoint: Checkpoint, *, method_name: str) -> None:
    """Give a method the parameters and buffers of a checkpoint.

    Args:
        method: built as it was when the checkpoint was written.
        checkpoint: its `info` has the name of the method as "method", its tensors come from `pack_method`.
        method_name: the name of `method`.

    Raises:
        CheckpointError: another method, or one of other size. The message says what differs.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> load_method_state(network, Checkpoint(pack_method(network), {"method": "linear"}), method_name="linear")
    """
    saved_name = checkpoint.info.get("method")
    if saved_name != method_name:
        raise CheckpointError(
            f"Expected a checkpoint of the method {method_name!r}, but got one of {saved_name!r}. "
            "Build the method that the checkpoint names, or choose another checkpoint."
        )
    saved = {name[len(_METHOD) :]: t for name, t in checkpoint.tensors.items() if name.startswith(_METHOD)}
    _check_same_tensors(saved, method.state_dict(), "the method")
    method.load_state_dict(saved)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer: tensors, and the rest as JSON.

    Returns:
        Tensors named for a checkpoint, and what belongs into its `info`, for instance as "optimizer".

    Example:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> tensors, info = pack_optimizer(torch.optim.Adam([weight], lr=0.1))
        >>> info["name"], info["groups"][0]["lr"]
        ('Adam', 0.1)
    """
    state = optimizer.state_dict()
    entries = {f"state.{i}.{key}": v for i, values in state["state"].items() for key, v in values.items()}
    for i, group in enumerate(state["param_groups"]):  # `capturable` optimizers have tensors there
        entries.update({f"groups.{i}.{key}": v for key, v in group.items() if isinstance(v, Tensor)})
    tensors = {_OPTIMIZER + name: v.detach() for name, v in entries.items() if isinstance(v, Tensor)}
    info = {
        "name": type(optimizer).__name__,
        "sizes": [len(group["params"]) for group in state["param_groups"]],
        "values": {name: v for name, v in entries.items() if not isinstance(v, Tensor)},
        "groups": [_plain_options(group) for group in state["param_groups"]],
    }
    return tensors, info


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    """Give an optimizer the state that `pack_optimizer` took, bit for bit.

    Args:
        optimizer: of the same kind, over the same parameters in the same groups.
        tensors: those of `pack_optimizer`; others are ignored, so all tensors of a checkpoint may be given.
        info: that of `pack_optimizer`.

    Raises:
        CheckpointError: the optimizer is of another kind or over other parameters.

    Example:
        >>> make = lambda: torch.optim.Adam([nn.Parameter(torch.zeros(2))], lr=0.1)
        >>> other = make()
        >>> other.param_groups[0]["lr"] = 0.01
        >>> unpack_optimizer(other, *pack_optimizer(make()))
        >>> other.param_groups[0]["lr"]
        0.1
    """
    _check_optimizer(optimizer, info)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries: dict[str, Any] = dict(info["values"])
    entries |= {name[len(_OPTIMIZER) :]: t for name, t in tensors.items() if name.startswith(_OPTIMIZER)}
    current = optimizer.state_dict()["param_groups"]
    groups = [_restored_options(old, saved) for old, saved in zip(current, info["groups"], strict=True)]
    state: dict[int, dict[str, Any]] = {}
    for name, value in entries.items():
        kind, number, key = name.split(".", 2)
        if kind == "groups":
            groups[int(number)][key] = value.clone()
        else:
            state.setdefault(int(number), {})[key] = _laid_out_like(parameters[int(number)], key, value)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_same_tensors(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], what: str) -> None:
    """Refuse to load unless names and shapes agree."""
    differences = [
        *(f"{name}: only in {what}" for name in own if name not in saved),
        *(f"{name}: only in the checkpoint" for name in saved if name not in own),
        *(
            f"{name}: {tuple(saved[name].shape)} in the checkpoint, {tuple(own[name].shape)} in {what}"
            for name in own
            if name in saved and saved[name].shape != own[name].shape
        ),
    ]
    if differences:
        raise CheckpointError(
            f"Expected the tensors of the checkpoint to be those of {what}, but {len(differences)} differ: "
            f"{_some(differences)}. Build {what} with the configuration that is in the checkpoint."
        )


def _check_optimizer(optimizer: torch.optim.Optimizer, info: Mapping[str, Any]) -> None:
    ours = (type(optimizer).__name__, [len(group["params"]) for group in optimizer.param_groups])
    saved = (info["name"], info["sizes"])
    if ours != saved:
        raise CheckpointError(
            f"Expected a checkpoint of {ours[0]} with groups of {ours[1]} parameters, "
            f"but got one of {saved[0]} with groups of {saved[1]}."
        )


def _plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    skipped = ("params", "param_names")
    return {key: v for key, v in group.items() if key not in skipped and not isinstance(v, Tensor)}


def _restored_options(current: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    tuples = {key for key, value in current.items() if isinstance(value, tuple)}  # JSON made lists of them
    return {**current, **{key: tuple(v) if key in tuples else v for key, v in saved.items()}}


def _laid_out_like(parameter: Tensor, key: str, value: Any) -> Any:
    """A copy of a tensor, in the memory format of its parameter if it has its shape."""
    if not isinstance(value, Tensor):
        return value
    if key == "step" or value.shape != parameter.shape:  # torch itself knows where steps are kept
        return value.clone()
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _some(things: Sequence[str], n: int = 4) -> str:
    return "; ".join(things[:n]) + (f"; and {len(things) - n} more" if len(things) > n else "")
