"""Preprocessing and augmentation of batches of images: crop, resize, colour, flip, normalise.

The steps are those of Chen et al. (A Closer Look at Few-shot Classification, 2019, https://arxiv.org/abs/1904.04232):
torchvision's RandomResizedCrop, Pillow's ImageEnhance, a horizontal flip; without rounding to bytes between them.

Design note: all steps are tensor operations on the device of the images, with random numbers as an argument, so a CUDA
graph can record them. Crop and resize are one linear map of the rows and one of the columns. As with Pillow's
`resize(box=...)`, pixels just outside the box contribute at its border; cropping first would exclude them.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from mirrorshot.data.shifts import DISTORTION_DRAWS, distort
from mirrorshot.data.source import ClassSource
from mirrorshot.types import InvalidInputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CHARACTER_MEAN, CHARACTER_STD = (0.0,), (1.0,)

_TRIES = 10  # of RandomResizedCrop
CROP_AREA = 0.08
_RATIO = (3 / 4, 4 / 3)
_JITTER = 0.4
_ENLARGE = 1.15  # evaluation: side of the resized image, relative to its central crop
_GREY = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # Pillow's weights of red, green and blue
# Random numbers per image, in order: areas and ratios of all tries, left, top, three colour factors, flip.
_N_DRAWS = 2 * _TRIES + 6
_CHUNK = 256  # images per batch


class Preprocess(NamedTuple):
    """Preprocessing of stored images for a backbone, with or without augmentation.

    Without augmentation, images of another size are resized to `int(1.15 * size)` squared, ignoring the aspect ratio,
    and cropped at the centre; images of that size are only normalised.

    Example:
        >>> preprocess = Preprocess(84, IMAGENET_MEAN, IMAGENET_STD, augment=True)
        >>> images = torch.full((2, 3, 192, 192), 128, dtype=torch.uint8)
        >>> draws = preprocess.draw((2,), torch.Generator().manual_seed(0))
        >>> preprocess(images, draws=draws).shape
        torch.Size([2, 3, 84, 84])
    """

    size: int  # `s`, pixels of a side of the result
    mean: tuple[float, ...]  # of each channel, for pixels in [0, 1]
    std: tuple[float, ...]
    augment: bool = False
    crop_area: float = CROP_AREA  # smallest area of a random crop, relative to the image
    distort: float = 0.0  # share of images that are warped, and of those with thicker or thinner strokes

    @property
    def n_draws(self) -> int:
        """Number of random numbers per image; 0 without augmentation."""
        return (_N_DRAWS if self.augment else 0) + (DISTORTION_DRAWS if self.distort else 0)

    @property
    def plain(self) -> "Preprocess":
        """The same preprocessing without random changes."""
        return self._replace(augment=False, distort=0.0)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "*shape n_draws"]:
        """Return uniform random numbers for images of this batch shape, on the generator's device."""
        return torch.rand((*shape, self.n_draws), generator=generator, device=generator.device)

    def __call__(
        self,
        images: UInt8[Tensor, "n c h w"],
        sizes: Int[Tensor, "n 2"] | None = None,
        draws: Float[Tensor, "n n_draws"] | None = None,
    ) -> Float[Tensor, "n c s s"]:
        """Preprocess stored images; augmentation needs random numbers from `draw`.

        `sizes` are width and height of the original images, for the geometry of random crops; None: those of `images`.
        """
        _check_images(images, sizes, self)
        numbers = _check_draws(draws, len(images), self.n_draws)
        if self.augment:
            changed = _augment(images, sizes, numbers[:, :_N_DRAWS], self.size, self.crop_area)
        else:
            changed = evaluation_crop(images, self.size)
        changed = changed / 255
        if self.distort:
            changed = distort(changed, self.distort, numbers[:, -DISTORTION_DRAWS:])
        return (changed - _per_channel(self.mean, changed)) / _per_channel(self.std, changed)


def _augment(
    images: UInt8[Tensor, "n c h w"],
    sizes: Int[Tensor, "n 2"] | None,
    draws: Float[Tensor, "n d"],
    size: int,
    crop_area: float,
) -> Float[Tensor, "n c s s"]:
    """Apply random crop, colours and flip; values stay in [0, 255]."""
    height, width = images.shape[-2:]
    left_top, factors, flip = draws[:, -6:-4], draws[:, -4:-1], draws[:, -1] < 0.5
    stored = torch.stack([draws.new_full((), width), draws.new_full((), height)]).expand(len(draws), 2)
    original = stored if sizes is None else sizes.to(draws.dtype)
    boxes = crop_boxes(original, draws[:, :_TRIES], draws[:, _TRIES : 2 * _TRIES], left_top, crop_area)
    boxes = boxes * (stored / original).repeat(1, 2)
    # swapping left and right mirrors the image
    left, top, right, bottom = boxes.unbind(1)
    boxes = torch.stack([torch.where(flip, right, left), top, torch.where(flip, left, right), bottom], 1)
    return enhance(crop_resize(images, boxes, size), 1 + _JITTER * (2 * factors - 1))


def crop_boxes(
    sizes: Float[Tensor, "n 2"],
    areas: Float[Tensor, "n tries"],
    ratios: Float[Tensor, "n tries"],
    left_top: Float[Tensor, "n 2"],
    crop_area: float = CROP_AREA,
) -> Float[Tensor, "n 4"]:
    """Return boxes (left, top, right, bottom) as torchvision's RandomResizedCrop draws them.

    Each try draws an area and an aspect ratio; the first box that fits is used. If none fits, the box is the largest
    central one with an allowed ratio. `areas`, `ratios` and `left_top` are uniform random numbers; `left_top` sets the
    position of the box. `sizes` are width and height of the images.

    Example:
        >>> half = torch.full((1, 10), 0.5)
        >>> crop_boxes(torch.tensor([[100.0, 60.0]]), half, half, torch.zeros(1, 2)).tolist()
        [[0.0, 0.0, 57.0, 57.0]]
    """
    low, high = map(math.log, _RATIO)
    area = sizes.prod(1, keepdim=True) * (crop_area + (1 - crop_area) * areas)
    ratio = (low + (high - low) * ratios).exp()
    tries = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], -1).round()  # (n, tries, 2)
    fits = ((tries > 0) & (tries <= sizes[:, None])).all(-1)
    # width at most 4/3 of the height, height at most 4/3 of the width
    central = torch.minimum(sizes, (sizes.flip(1) * _RATIO[1]).round())
    number = torch.arange(areas.shape[1], device=areas.device)
    first = torch.where(fits, number, areas.shape[1]).amin(1)  # (n,)
    chosen = torch.cat([tries, central[:, None]], 1).take_along_dim(first[:, None, None], 1)[:, 0]
    space = sizes - chosen
    random = torch.minimum((left_top * (space + 1)).floor(), space)
    start = torch.where((first < areas.shape[1])[:, None], random, (space / 2).floor())
    return torch.cat([start, start + chosen], 1)


def crop_resize(images: UInt8[Tensor, "n c h w"], boxes: Float[Tensor, "b 4"], size: int) -> Float[Tensor, "n c s s"]:
    """Crop and resize with Pillow's antialiasing: out = Wy x Wxᵀ.

    `boxes` has one box per image, or one for all: left, top, right and bottom in pixels; swapped sides mirror the
    image.
    """
    height, width = images.shape[-2:]
    rows = _weights(boxes[:, 1], boxes[:, 3], height, size)
    columns = _weights(boxes[:, 0], boxes[:, 2], width, size)
    # half precision: bytes are exact, weights accurate to a tenth of a grey level
    kind = torch.float16 if images.device.type == "cuda" else rows.dtype
    resized: Tensor = rows[:, None].to(kind) @ images.to(kind) @ columns[:, None].mT.to(kind)
    return resized.to(rows.dtype)


def _weights(start: Float[Tensor, " b"], end: Float[Tensor, " b"], n_in: int, n_out: int) -> Float[Tensor, "b o i"]:
    """Return the weights of the input pixels: a triangle filter around each output pixel, with its width."""
    scale = ((end - start) / n_out)[:, None, None]
    place = torch.arange(max(n_in, n_out), device=start.device, dtype=start.dtype) + 0.5
    centre = start[:, None, None] + place[:n_out, None] * scale  # (b, o, 1)
    # w = max(0, 1 - |x - centre| / max(scale, 1)), normalised
    weights = (1 - (place[:n_in] - centre).abs() / scale.abs().clamp(min=1)).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)


def enhance(images: Float[Tensor, "n c h w"], factors: Float[Tensor, "n 3"]) -> Float[Tensor, "n c h w"]:
    """Change brightness, contrast and colour by factors, as PIL.ImageEnhance does. Values are in [0, 255]."""
    brightness, contrast, colour = (f[:, None, None, None] for f in factors.unbind(1))
    x = (brightness * images).clamp(0, 255)
    # contrast blends with the rounded mean grey, colour with the grey image
    mean = (_grey(x).mean((1, 2, 3), keepdim=True) + 0.5).floor()
    x = (mean + contrast * (x - mean)).clamp(0, 255)
    grey = _grey(x)
    return (grey + colour * (x - grey)).clamp(0, 255)


def _grey(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 1 h w"]:
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    return (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue)[:, None]


def evaluation_crop(images: UInt8[Tensor, "n c h w"], size: int) -> Float[Tensor, "n c s s"]:
    """Resize images and crop them at the centre for evaluation; images that already have the size are only cast."""
    height, width = images.shape[-2:]
    if height == width == size:
        return images.float()
    large = int(_ENLARGE * size)
    start = round((large - size) / 2)
    sides = (start * width, start * height, (start + size) * width, (start + size) * height)
    box = torch.stack([torch.full((), side / large, device=images.device) for side in sides])
    return crop_resize(images, box[None], size)


def evaluation_pictures(source: ClassSource, size: int) -> ClassSource:
    """Apply the resize and crop of the evaluation to all images once, rounded to bytes.

    Example:
        >>> source = ClassSource.from_arrays(torch.zeros(4, 3, 20, 30, dtype=torch.uint8), [0, 0, 1, 1])
        >>> evaluation_pictures(source, 8).items.shape
        torch.Size([4, 3, 8, 8])
    """
    if source.items.shape[-2:] == (size, size):
        return source
    chunks = [evaluation_crop(chunk, size).round().to(torch.uint8) for chunk in source.items.split(_CHUNK)]
    return source._replace(items=torch.cat(chunks), sizes=None)


def _per_channel(values: tuple[float, ...], like: Tensor) -> Float[Tensor, "c 1 1"]:
    """Return the values as a tensor, filled on the device: CUDA graphs cannot record copies from the host."""
    return torch.stack([like.new_full((1, 1), value) for value in values])


def _check_images(images: Tensor, sizes: Tensor | None, preprocess: Preprocess) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InvalidInputError(
            "Expected `images` to be (n, channels, height, width) as uint8 with 1 or 3 channels, "
            f"but got shape {tuple(images.shape)} of {images.dtype}."
        )
    if sizes is not None and sizes.shape != (len(images), 2):
        raise InvalidInputError(
            f"Expected `sizes` to be ({len(images)}, 2), width and height of each image, but got {tuple(sizes.shape)}."
        )
    if not len(preprocess.mean) == len(preprocess.std) == images.shape[1]:
        raise InvalidInputError(
            f"Expected `mean` and `std` to have a value for each of {images.shape[1]} channels, "
            f"but got {len(preprocess.mean)} and {len(preprocess.std)}."
        )


def _check_draws(draws: Tensor | None, n: int, n_draws: int) -> Tensor:
    if draws is None:
        if n_draws:
            raise InvalidInputError("Expected `draws` for augmentation, but got None; make them with `draw`.")
        return torch.empty(n, 0)
    if draws.shape != (n, n_draws):
        raise InvalidInputError(
            f"Expected `draws` to be {(n, n_draws)}, random numbers of each image, but got {tuple(draws.shape)}."
        )
    return draws
