"""Colours, and figures as files."""

from pathlib import Path
from typing import TYPE_CHECKING

from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

FORMATS = (".png", ".svg")

SKY, BLUE, VERMILION, INK, GREY = "#9BD0F0", "#0072B2", "#D55E00", "#222222", "#6E6E6E"
GREEN, ORANGE, PURPLE = "#009E73", "#E69F00", "#CC79A7"
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, INK)
BOX = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": GREY, "alpha": 0.92}
# A shade and a hatch, drawn one upon the other: in one, SVG would make the hatch as faint as the shade.
GAP = (
    {"facecolor": VERMILION + "33", "linewidth": 0.0},
    {"facecolor": "none", "edgecolor": VERMILION, "hatch": "////", "linewidth": 0.8},
)


def save_figure(fig: "matplotlib.figure.Figure", path: str | Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG or SVG, as the name says. The file holds no date: the same numbers give the same file.

    Args:
        fig: the figure.
        path: a file name that ends in .png or .svg, in a folder that exists.
        dpi: dots per inch of a PNG.
    """
    from matplotlib import rc_context

    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInputError(f"Expected `path` to end in {' or '.join(FORMATS)}, but got {str(path)!r}.")
    undated = {"Date": None} if suffix == ".svg" else None
    with rc_context({"svg.hashsalt": "mirrorshot"}):
        fig.savefig(path, dpi=dpi, format=suffix[1:], metadata=undated)


def save_pictures(fig: "matplotlib.figure.Figure", stem: str | Path, *, dpi: int = 150) -> list[Path]:
    """Write a figure as SVG and as PNG, side by side.

    Args:
        fig: the figure.
        stem: file name without its ending, in a folder that exists.
        dpi: dots per inch of the PNG.

    Returns:
        The two files.
    """
    paths = [Path(f"{stem}{suffix}") for suffix in FORMATS]
    for path in paths:
        save_figure(fig, path, dpi=dpi)
    return paths
