"""Methods, to and from the tensors of a checkpoint. They are named `method.*`; others belong to whoever wrote them."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mirrorshot.files.checkpoint import Checkpoint, CheckpointError

_METHOD = "method."


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


def _some(things: Sequence[str], n: int = 4) -> str:
    return "; ".join(things[:n]) + (f"; and {len(things) - n} more" if len(things) > n else "")
