"""Errors, the check of integer options, and `TaskBatch`, the batch of tasks that data sets give to methods.

Shape letters, everywhere: `T` tasks, `C` classes of a task (n_way), `N` conditioning points, `M` query points, `D`
features. The task dimension comes first.
"""

from __future__ import annotations  # the command line needs the errors, but not torch

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor


class MirrorshotError(Exception):
    """Base class of all errors raised by mirrorshot."""


class InvalidInputError(MirrorshotError, ValueError):
    """An argument has the wrong shape, type or values. The message says what was expected and what was got."""


class DataError(MirrorshotError, ValueError):
    """A data set is damaged, too small, or of the wrong kind. The message says what to do."""


class NumericalError(MirrorshotError, ArithmeticError):
    """A computation left the range of its floating-point type."""


def check_at_least(low: int, **options: int) -> None:
    """Refuse options that are below `low` or NaN.

    Example:
        >>> check_at_least(1, n_steps=0)
        Traceback (most recent call last):
        mirrorshot.types.InvalidInputError: Expected `n_steps` to be at least 1, but got 0.
    """
    for name, value in options.items():
        if not value >= low:
            raise InvalidInputError(f"Expected `{name}` to be at least {low}, but got {value}.")


class TaskBatch(NamedTuple):
    """A batch of few-shot tasks, built by `mirrorshot.data.episodes.make_tasks`.

    Points are class-major: all points of class 0, then all of class 1. Tasks with fewer classes or shots than others
    are padded. Padding has weight zero, label 0 and items of zeros; padded classes are false in `class_mask`.

    Design note: labels of queries are passed separately, so that no method can predict from them.

    Attributes:
        support_x, support_y: labelled items and their classes 0 to C - 1.
        query_x: items to classify.
        n_way: `C`, number of classes, including padding.
        support_weight, query_weight: one for points, zero for padding.
        class_mask: which classes exist.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, 3, 4)
        >>> ones = torch.ones(2, 3)
        >>> tasks = TaskBatch(x, torch.tensor([[0, 1, 2]] * 2), x, 3, ones, ones, ones.bool())
        >>> tasks.n_tasks, tasks.select(torch.tensor([1])).support_x.shape
        (2, torch.Size([1, 3, 4]))
    """

    support_x: Shaped[Tensor, "T N *item"]
    support_y: Int[Tensor, "T N"]
    query_x: Shaped[Tensor, "T M *item"]
    n_way: int
    support_weight: Float[Tensor, "T N"]
    query_weight: Float[Tensor, "T M"]
    class_mask: Bool[Tensor, "T C"]

    @property
    def n_tasks(self) -> int:
        """`T`, number of tasks."""
        return self.support_x.shape[0]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> TaskBatch:
        """Return the batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def select(self, index: Int[Tensor, " S"] | Bool[Tensor, " T"] | slice) -> TaskBatch:
        """Return the tasks in `index`."""
        return self._map(lambda tensor: tensor[index])

    def _map(self, function: Callable[[Tensor], Tensor]) -> TaskBatch:
        parts: dict[str, Any] = {name: function(part) for name, part in self._asdict().items() if name != "n_way"}
        return self._replace(**parts)
