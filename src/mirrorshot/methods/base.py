"""What a few-shot method is: something that learns over many tasks and then classifies the queries of new ones."""

import abc

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mirrorshot.backbones import Backbone
from mirrorshot.types import TaskBatch


class FewShotMethod(nn.Module, abc.ABC):
    """Base of all methods. A new method is one file with two functions, `loss` and `predict`.

    Items of the tasks are what the backbone takes: normalised floating-point pictures, or embeddings.

    Design note: the labels of the queries are an argument of `loss` alone, so `predict` cannot leak them. `loss` and
    `predict` never look at values on the device (no `.item()`), so that a whole training step can be recorded
    once and replayed; what has to look goes into `tune`.

    Args:
        backbone: from items to features.

    Attributes:
        network_dtype: type in which the backbone computes, for instance bfloat16; None: that of its parameters.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.network_dtype: torch.dtype | None = None

    @abc.abstractmethod
    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """What training makes small, of each task, in nats per point."""

    @abc.abstractmethod
    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Logarithm of the class probabilities of every query; `-inf` for classes that a task does not have."""

    @property
    def is_tuned(self) -> bool:
        """Whether `tune` does anything. Default: if it is overridden."""
        return type(self).tune is not FewShotMethod.tune

    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Fit, on training tasks, what is not learned by gradients (default: nothing). Called before validations."""
        return

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by the name of their learning rate: "network", and "kernel" if the method has one."""
        return {"network": list(self.parameters())}

    def is_recordable(self, n_points: int, n_way: int) -> bool:
        """Whether `loss` of tasks with so many points and classes can be recorded as a CUDA graph. Default: yes."""
        return True

    def accelerate(self) -> None:
        """Compile what pays on a GPU; results stay the same to rounding. Default: the backbone."""
        self.backbone.compile(dynamic=False)

    def features(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T N D"], Float[Tensor, "T M D"]]:
        """Features of support and query, through the backbone in one pass (so in train mode they share statistics)."""
        n_support = tasks.support_x.shape[1]
        x = torch.cat([tasks.support_x, tasks.query_x], 1)
        with torch.autocast(x.device.type, self.network_dtype, enabled=self.network_dtype is not None):
            z = self.backbone(x)
        # a network may run in half precision, probabilities never do
        z = z if z.dtype == torch.float64 else z.float()
        return z[:, :n_support], z[:, n_support:]
