"""Backbones: networks that compute features of the images of a batch of tasks.

To add a backbone, write a function that lists its blocks and register it in `BACKBONES`. Weights are drawn from a
`torch.Generator`, never from the global random state. Networks preserve `channels_last` and support `torch.autocast`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from jaxtyping import Float
from torch import Generator, Tensor, nn

from mirrorshot.networks.blocks import ConvBlock, ResidualBlock, Stem
from mirrorshot.types import InvalidInputError

Norm = Literal["episode", "task"]


class Backbone(nn.Module):
    """Base class of the backbones. `out_shape` is the shape of one point's features, `out_features` their number."""

    average_flips: bool = False

    def __init__(self, out_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.out_shape, self.out_features = out_shape, math.prod(out_shape)


class Identity(Backbone):
    """Embeddings (T, N, D) that were computed before; nothing to train. `norm` and `generator` are ignored.

    Example:
        >>> import torch
        >>> Identity(in_features=8)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, in_features: int, *, norm: Norm = "episode", generator: Generator | None = None) -> None:
        super().__init__((in_features,))

    def forward(self, x: Float[Tensor, "T N D"]) -> Float[Tensor, "T N D"]:
        """Return the embeddings unchanged."""
        if x.ndim != 3 or x.shape[2] != self.out_features or not x.is_floating_point():
            raise InvalidInputError(
                f"Expected `x` to be floating-point embeddings of shape (T, N, {self.out_features}), but got {x.dtype} "
                f"of shape {tuple(x.shape)}. Set `in_features` to their last dimension; images need another backbone."
            )
        return x


class ImageBackbone(Backbone):
    """Sequence of blocks; each takes maps (T * N, c, h, w) and the number of tasks.

    With `exact` the features are the last map, and images must have exactly the given `size`. Otherwise the features
    are the spatial mean of the last map, and images must be at least that large. `norm` selects the statistics of batch
    normalisation in train mode: "episode" for all images of the call, as in the references with one task per step, or
    "task" for each task, so its features do not depend on the other tasks. In eval mode both use running statistics.

    `average_flips` is set after construction. With it, features in eval mode are the mean over an image and its mirror
    image. A kernel on them is averaged over both orientations of both images: a prior invariant to flips.
    """

    def __init__(
        self, blocks: nn.ModuleList, out_shape: tuple[int, ...], in_channels: int, size: int, *, exact: bool, norm: Norm
    ) -> None:
        super().__init__(out_shape)
        if norm not in get_args(Norm):
            raise InvalidInputError(f"Expected `norm` to be 'episode' or 'task', but got {norm!r}.")
        self.blocks, self.in_channels, self.image_size, self.exact, self.norm = blocks, in_channels, size, exact, norm

    def forward(self, x: Float[Tensor, "T N c h w"]) -> Float[Tensor, "T N *features"]:
        """Return the features of the images of `T` tasks."""
        if self.average_flips and not self.training:
            return 0.5 * (self.one_view(x) + self.one_view(x.flip(-1)))
        return self.one_view(x)

    def one_view(self, x: Float[Tensor, "T N c h w"]) -> Float[Tensor, "T N *features"]:
        """Return the features of the images without averaging over flips."""
        self._check_images(x)
        maps = x.flatten(0, 1)
        for block in self.blocks:
            maps = block(maps, len(x) if self.norm == "task" else 1)
        return (maps if self.exact else maps.mean((2, 3))).reshape(*x.shape[:2], *self.out_shape)

    def _check_images(self, x: Tensor) -> None:
        c, size, (height, width) = self.in_channels, self.image_size, (0, 0, *x.shape)[-2:]
        fits = height == width == size if self.exact else min(height, width) >= size
        if x.ndim != 5 or 0 in x.shape or x.shape[2] != c or not fits or not x.is_floating_point():
            raise InvalidInputError(
                f"Expected `x` to be normalised floating-point images of shape (T, N, {c}, {size}, {size})"
                f"{'' if self.exact else ' or larger'}, but got {x.dtype} of shape {tuple(x.shape)}. Resize them, "
                "repeat or drop channels of grey ones, or build the backbone with other `in_channels` or `image_size`."
            )


def conv4(
    *, generator: Generator, in_channels: int = 3, image_size: int = 84, maps: bool = False, norm: Norm = "episode"
) -> ImageBackbone:
    """Four `ConvBlock`s of 64 channels: the references' Conv4, and Conv4S for images of 28 x 28.

    Details as in Chen et al., A Closer Look at Few-shot Classification, 2019, https://arxiv.org/abs/1904.04232. With
    `maps` it returns maps (T, N, 64, h', w') for RelationNet (Conv4NP: two blocks unpadded, two unpooled).
    """
    side = ((image_size - 2) // 2 - 2) // 2 if maps else image_size // 16
    if side < 1:
        raise InvalidInputError(f"Expected `image_size` to be at least {10 if maps else 16}, but got {image_size}.")
    kinds = [(0, True), (0, True), (1, False), (1, False)] if maps else [(1, True)] * 4
    block = partial(ConvBlock, n_out=64, generator=generator)
    blocks = [block(64 if i else in_channels, padding=p, pool=pool) for i, (p, pool) in enumerate(kinds)]
    out_shape = (64, side, side) if maps else (64 * side * side,)
    return ImageBackbone(nn.ModuleList(blocks), out_shape, in_channels, image_size, exact=True, norm=norm)


def resnet(*, n_blocks: int, generator: Generator, in_channels: int = 3, norm: Norm = "episode") -> ImageBackbone:
    """ResNet-10 (`n_blocks=1` in each of four stages) and ResNet-18 (2): 512 features for images of any size.

    At least 32 x 32 pixels; 84 x 84 gives a last map of 3 x 3. Blocks and stem as in Chen et al., A Closer Look at
    Few-shot Classification, 2019, https://arxiv.org/abs/1904.04232. Arguments as in `conv4`.
    """
    block = partial(ResidualBlock, generator=generator, n_convs=2, slope=0.0, pool=False)
    blocks: list[nn.Module] = [Stem(in_channels, 64, 7, generator, stride=2, padding=3, bias=False)]
    for n_in, n_out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        blocks.append(block(n_in, n_out, stride=n_out // n_in))
        blocks.extend(block(n_out, n_out, stride=1) for _ in range(n_blocks - 1))
    return ImageBackbone(nn.ModuleList(blocks), (512,), in_channels, 32, exact=False, norm=norm)


def resnet12(*, generator: Generator, in_channels: int = 3, norm: Norm = "episode") -> ImageBackbone:
    """ResNet-12: four blocks of three convolutions, leaky ReLU (0.1), max-pooling; 640 features, images of any size.

    At least 16 x 16 pixels. Lee et al., Meta-Learning with Differentiable Convex Optimization, 2019,
    https://arxiv.org/abs/1904.03758; here with the mean over the last map, without DropBlock. Arguments as in `conv4`.
    """
    block = partial(ResidualBlock, generator=generator, n_convs=3, stride=1, slope=0.1, pool=True)
    blocks = [block(n_in, n_out) for n_in, n_out in ((in_channels, 64), (64, 160), (160, 320), (320, 640))]
    return ImageBackbone(nn.ModuleList(blocks), (640,), in_channels, 16, exact=False, norm=norm)


BACKBONES: dict[str, Callable[..., Backbone]] = {
    "conv4": conv4,
    "conv4s": partial(conv4, in_channels=1, image_size=28),
    "conv4np": partial(conv4, maps=True),
    "conv4snp": partial(conv4, in_channels=1, image_size=28, maps=True),
    "resnet10": partial(resnet, n_blocks=1),
    "resnet12": resnet12,
    "resnet18": partial(resnet, n_blocks=2),
    "identity": Identity,
}


def make_backbone(name: str, **options: Any) -> Backbone:
    """Build a backbone of `BACKBONES` by name. Options are passed on; all but "identity" need a `generator`.

    Example:
        >>> import torch
        >>> backbone = make_backbone("conv4s", norm="task", generator=torch.Generator().manual_seed(0))
        >>> backbone(torch.zeros(4, 10, 1, 28, 28)).shape
        torch.Size([4, 10, 64])
    """
    if name not in BACKBONES:
        raise InvalidInputError(f"Expected `name` to be one of {', '.join(BACKBONES)}, but got {name!r}.")
    return BACKBONES[name](**options)
