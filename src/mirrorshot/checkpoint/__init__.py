"""What a run leaves on disk: checkpoints that are whole or not there, and the folder that holds them."""

from mirrorshot.checkpoint.files import (
    Checkpoint,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    load_checkpoint,
    load_info,
    save_checkpoint,
    write_atomically,
)
from mirrorshot.checkpoint.lock import RunError
from mirrorshot.checkpoint.runs import RunFolder, read_config, read_log
from mirrorshot.checkpoint.sealed import load_sealed, save_sealed
from mirrorshot.checkpoint.state import load_method_state, pack_method

__all__ = [
    "Checkpoint", "save_checkpoint", "load_checkpoint", "load_info", "write_atomically",
    "CheckpointError", "CheckpointNotFoundError", "CheckpointWriteError",
    "save_sealed", "load_sealed",
    "pack_method", "load_method_state",
    "RunFolder", "RunError", "read_config", "read_log",
]  # fmt: skip
