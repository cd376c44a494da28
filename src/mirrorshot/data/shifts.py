"""Simulated domain shifts: blur, thickness or contrast, low resolution, noise, cut-outs and warps of images.

All images of a task share the strengths of the shifts; the details are random per image. All operations are tensor
operations on the device of the images.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

N_SHIFTS = 6
"""Number of shifts: blur, thickness or contrast, low resolution, noise, cut-outs, warps."""
_CHANCE = 0.4  # probability of each shift in a task
_BLUR = 0.06  # standard deviation relative to the image's side, at full strength
_CONTRAST, _COARSE, _NOISE, _CUT = 0.7, 0.7, 0.25, 0.4
_WARP = 0.3  # maximum change of an entry of the affine map, and twice the maximum amplitude of the wave


def draw_strengths(n_tasks: int, generator: torch.Generator) -> Float[Tensor, "T 6"]:
    """Draw the strength of each shift, between 0 and 1; most are zero.

    Example:
        >>> draw_strengths(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 6])
    """
    chance, strength = torch.rand(2, n_tasks, N_SHIFTS, generator=generator, device=generator.device)
    return torch.where(chance < _CHANCE, strength, 0.0)


def shift_images(
    x: Float[Tensor, "T P c s s"], strengths: Float[Tensor, "T 6"], generator: torch.Generator
) -> Float[Tensor, "T P c s s"]:
    """Shift the images of each task, with pixels in [0, 1]; strengths of zero change nothing.

    Images with one channel are treated as characters, white on black: they become thicker or thinner, and the
    background stays black.
    """
    is_character = x.shape[2] == 1
    blur, thickness, coarse, noise, cut, warp = (s[:, None, None, None, None] for s in strengths.to(x.dtype).unbind(1))
    x = _warped(x, warp, generator, "zeros" if is_character else "border")
    x = _thickened(x, thickness, generator) if is_character else _flattened(x, thickness)
    x = _along_sides(x, _blur_matrix(blur[:, 0, 0, 0], x.shape[-1]))
    x = _along_sides(x, _coarse_matrix(coarse[:, 0, 0, 0], x.shape[-1]))
    x = x + _NOISE * noise * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    ground = 0.0 if is_character else x.mean((-3, -2, -1), keepdim=True)
    return torch.where(_holes(x, cut, generator), ground, x).clamp(0.0, 1.0)


def _uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype) - 1


def _along_sides(x: Tensor, matrix: Float[Tensor, "T s s"]) -> Tensor:
    matrix = matrix[:, None, None]
    return matrix @ x @ matrix.mT


def _blur_matrix(strength: Float[Tensor, "T 1"], side: int) -> Float[Tensor, "T s s"]:
    place = torch.arange(side, device=strength.device, dtype=strength.dtype)
    # the smallest sigma gives the identity
    sigma = (_BLUR * side * strength).clamp(min=0.05)[..., None]
    weights = (-0.5 * ((place[:, None] - place) / sigma).square()).exp()
    return weights / weights.sum(-1, keepdim=True)


def _coarse_matrix(strength: Float[Tensor, "T 1"], side: int) -> Float[Tensor, "T s s"]:
    """Return the map to means over cells, whose number falls with the strength."""
    n_cells = (side * (1 - _COARSE * strength)).ceil()
    cell = ((torch.arange(side, device=strength.device) + 0.5) * n_cells / side).floor()
    same = (cell[:, :, None] == cell[:, None, :]).to(strength.dtype)
    return same / same.sum(-1, keepdim=True)


def _thickened(x: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    is_thicker = (_uniform((len(x), 1, 1, 1, 1), x, generator) > 0).expand(*x.shape[:2], 1, 1, 1)
    strength = strength.expand(*x.shape[:2], 1, 1, 1)
    return thicken(*(part.flatten(0, 1) for part in (x, strength, is_thicker))).view_as(x)


def thicken(
    x: Float[Tensor, "n c s s"], strength: Float[Tensor, "n 1 1 1"], is_thicker: Bool[Tensor, "n 1 1 1"]
) -> Float[Tensor, "n c s s"]:
    """Interpolate each image towards the maximum (thicker light strokes) or the minimum of neighbouring pixels."""
    size = max(3, 2 * (x.shape[-1] // 28) + 1)
    largest, smallest = (sign * functional.max_pool2d(sign * x, size, 1, size // 2) for sign in (1, -1))
    return torch.lerp(x, torch.where(is_thicker, largest, smallest), strength)


def _flattened(x: Tensor, strength: Tensor) -> Tensor:
    return torch.lerp(x, x.mean((-3, -2, -1), keepdim=True), _CONTRAST * strength)


def _holes(x: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    """Return a mask of one rectangle per image, with sides of up to `_CUT`."""
    T, P, side = *x.shape[:2], x.shape[-1]
    place = torch.arange(side, device=x.device, dtype=x.dtype) / side
    centre = 0.5 + 0.5 * _uniform((2, T, P, 1), x, generator)
    inside = (place - centre).abs() < 0.5 * _CUT * strength[:, :, 0, 0]
    return (inside[0][..., :, None] & inside[1][..., None, :])[:, :, None]


def _warped(x: Tensor, strength: Tensor, generator: torch.Generator, padding: str) -> Tensor:
    T, P = x.shape[:2]
    affine = _uniform((T, P, 2, 3), x, generator).flatten(0, 1)
    phase = _uniform((T * P, 1, 1), x, generator)
    strength = strength.expand(T, P, 1, 1, 1).reshape(-1, 1, 1)
    return warp(x.flatten(0, 1), strength, affine, phase, padding).view_as(x)


def warp(
    x: Float[Tensor, "n c s s"],
    strength: Float[Tensor, "n 1 1"],
    affine: Float[Tensor, "n 2 3"],
    phase: Float[Tensor, "n 1 1"],
    padding: str = "border",
) -> Float[Tensor, "n c s s"]:
    """Apply an affine map to each image, and a wave along its columns; `affine` and `phase` are from -1 to 1."""
    maps = torch.eye(2, 3, device=x.device, dtype=x.dtype) + _WARP * strength * affine
    grid = functional.affine_grid(maps, list(x.shape), align_corners=False)
    wave = torch.sin(2 * math.pi * grid[..., 1] + math.pi * phase) * (0.5 * _WARP * strength)
    grid = torch.stack([grid[..., 0] + wave, grid[..., 1]], -1)
    # without resampling where the strength is zero, so these images stay exactly the same
    moved = functional.grid_sample(x, grid, padding_mode=padding, align_corners=False)
    return torch.where(strength[..., None] > 0, moved, x)


DISTORTION_DRAWS = 12
"""Random numbers of `distort` per image: chances and strengths of both changes, affine map, phase, direction."""


def distort(x: Float[Tensor, "n c s s"], chance: float, draws: Float[Tensor, "n 12"]) -> Float[Tensor, "n c s s"]:
    """Warp a share `chance` of images of characters, and make the strokes of as many thicker or thinner.

    `draws` are uniform random numbers. Unlike in `shift_images`, every image has its own strengths.
    """
    changes = torch.where(draws[:, :2] < chance, draws[:, 2:4], 0.0)
    affine, phase = 2 * draws[:, 4:10].reshape(-1, 2, 3) - 1, 2 * draws[:, 10, None, None] - 1
    warped = warp(x, changes[:, 0, None, None], affine, phase)
    return thicken(warped, changes[:, 1, None, None, None], draws[:, 11, None, None, None] < 0.5)
