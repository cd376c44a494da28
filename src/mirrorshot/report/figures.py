"""Figures as part of a page: SVG in the colours of the page."""

import html
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

# What a page may recolour in the dark, and under which name: black, the ink and the grey of our figures, white.
_THEMED = {"#000000": "--ink", "#222222": "--ink", "#6e6e6e": "--faint", "#ffffff": "--paper"}


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
