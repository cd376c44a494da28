"""Colours of figures, and figures as files and as inline SVG."""

import html
import io
import re
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

# Colours that follow the theme of a page, and the CSS variables that hold them there.
_THEMED = {"#000000": "--ink", "#222222": "--ink", "#6e6e6e": "--faint", "#ffffff": "--paper"}


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


def figure_svg(fig: "matplotlib.figure.Figure", *, prefix: str, alt: str) -> str:
    """A figure as an SVG element to put into a page, in the colours of the page.

    Black, white and grey become the CSS variables `--ink`, `--paper` and `--faint`, so that the figure follows the page
    into the dark. Nothing in it refers to anything outside.

    Args:
        fig: the figure.
        prefix: put before every id in it, to keep the ids of several figures on a page apart.
        alt: what the figure shows, for those who cannot see it.

    Example:
        >>> from matplotlib.figure import Figure
        >>> figure_svg(Figure(), prefix="first-", alt="Nothing at all.")[:44]
        '<svg role="img" aria-label="Nothing at all."'
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.hashsalt": "mirrorshot", "svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    svg = buffer.getvalue()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg ") :].strip(), flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")  # HTML knows them
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    for colour, variable in _THEMED.items():
        svg = re.sub(rf"(fill|stroke): {colour}\b", rf"\1: var({variable})", svg, flags=re.IGNORECASE)
    begin = f'<svg role="img" aria-label="{html.escape(alt)}" stroke-linejoin="round" stroke-linecap="butt" '
    return svg.replace("<svg ", begin, 1)
