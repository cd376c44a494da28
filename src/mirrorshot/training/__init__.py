"""Meta-training and evaluation on the CPU, one GPU or several.

`build` makes the parts of a run from its settings, `trainer` has the training loop, `session` begins or resumes a run,
`folder` is its directory, and `runs` loads trained methods. Imports are lazy, so the command line can start without
torch.
"""

from typing import TYPE_CHECKING

from mirrorshot.files.lazy import lazy_exports

if TYPE_CHECKING:
    from mirrorshot.training.build import build_method, build_preprocess
    from mirrorshot.training.session import train
    from mirrorshot.training.trainer import Trainer, TrainResult

__all__ = ["TrainResult", "Trainer", "build_method", "build_preprocess", "train"]

__getattr__ = lazy_exports(
    __name__, {"build": "build_method build_preprocess", "session": "train", "trainer": "Trainer TrainResult"}
)
