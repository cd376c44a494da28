"""Style of figures; export to files and inline SVG."""

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mirrorshot.files.lazy import need
from mirrorshot.files.texts import cut
from mirrorshot.softmax.arrays import is_tensor
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.axes
    import matplotlib.figure

FORMATS = (".png", ".svg")

SKY, BLUE, VERMILION, INK, GREY = "#9BD0F0", "#0072B2", "#D55E00", "#222222", "#6E6E6E"
GREEN, ORANGE, PURPLE = "#009E73", "#E69F00", "#CC79A7"
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, INK)
_MAX_NAME = 40
_MARKERS = ("o", "s", "^", "D", "v", "P")
BOX = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": GREY, "alpha": 0.92}
# A shade and a hatch are two patches: in one patch, SVG would make the hatch as faint as the shade.
GAP = (
    {"facecolor": VERMILION + "33", "linewidth": 0.0},
    {"facecolor": "none", "edgecolor": VERMILION, "hatch": "////", "linewidth": 0.8},
)

# Colours that follow the theme of a page, with their CSS variables.
_THEMED = {
    "#000000": "--ink",
    "#222222": "--ink",
    "#6e6e6e": "--faint",
    "#ffffff": "--paper",
    BLUE: "--blue",
    SKY: "--bar",
}


def look(i: int, colours: Sequence[str] = LINES) -> dict[str, str]:
    """Return the colour and marker of line or class `i`; the first 36 pairs differ."""
    return {"color": colours[i % len(colours)], "marker": _MARKERS[(i + i // len(colours)) % len(_MARKERS)]}


def short(name: str) -> str:
    """Cut each line of a name to fit a legend or the title of a panel."""
    return "\n".join(cut(line, _MAX_NAME) for line in name.splitlines())


def axes_to_draw_on(
    ax: "matplotlib.axes.Axes | None",
    size: tuple[float, float],
    layout: Literal["constrained", "compressed"] = "constrained",
) -> "matplotlib.axes.Axes":
    """Return `ax` or, if it is None, axes on a new figure of that size in inches."""
    Figure = need("matplotlib.figure").Figure

    return Figure(figsize=size, layout=layout).subplots() if ax is None else ax


def hide_frame(ax: Any, *sides: str) -> None:
    """Hide the top and right sides of the frame, and the given `sides`."""
    ax.spines[["top", "right", *sides]].set_visible(False)


def draw_grid(ax: Any) -> None:
    """Draw faint horizontal lines."""
    ax.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)


def set_panel_title(ax: Any, title: str) -> None:
    """Set the title of one panel of several."""
    ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")


def to_array(data: Any) -> NDArray[Any]:
    """Return a list, an array or a tensor of any device as a NumPy array."""
    return np.asarray(data.numpy(force=True) if is_tensor(data) else data)


def save_figure(fig: "matplotlib.figure.Figure", path: str | Path, *, dpi: int = 150) -> list[Path]:
    """Write a figure as PNG or SVG, or both if `path` has no ending; return the paths of the files.

    The files have no date, so that the same figure gives the same file.
    """
    from matplotlib import rc_context

    suffix = Path(path).suffix
    if suffix and suffix.lower() not in FORMATS:
        raise InvalidInputError(f"Expected `path` to end in {' or '.join(FORMATS)}, but got {str(path)!r}.")
    paths = [Path(path)] if suffix else [Path(f"{path}{ending}") for ending in FORMATS]
    with rc_context({"svg.hashsalt": "mirrorshot"}):
        for name in paths:
            undated = {"Date": None} if name.suffix.lower() == ".svg" else None
            fig.savefig(name, dpi=dpi, format=name.suffix[1:].lower(), metadata=undated)
    return paths


def figure_svg(fig: "matplotlib.figure.Figure", *, prefix: str, alt: str) -> str:
    """Return a figure as an SVG element for a page, without external references.

    Black, white, grey and the blues become the CSS variables `--ink`, `--paper`, `--faint`, `--blue` and `--bar`, so
    that the figure follows the page into dark mode. `prefix` makes ids unique among the figures of a page.

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
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")  # HTML does not need them
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
    for colour, variable in _THEMED.items():
        svg = re.sub(rf"(fill|stroke): {colour}\b", rf"\1: var({variable})", svg, flags=re.IGNORECASE)
    begin = f'<svg role="img" aria-label="{html.escape(alt)}" stroke-linejoin="round" stroke-linecap="butt" '
    return svg.replace("<svg ", begin, 1)
