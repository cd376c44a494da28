"""Pictures: compute, then draw. A display holds the numbers and has `plot(ax=None)`; a function returns a figure.

Everything is drawn on `matplotlib.figure.Figure` directly: no pyplot, no global state, no window. Colours are
those of Okabe and Ito, which people with any colour vision can tell apart; no meaning rests on colour alone.
"""

from mirrorshot.plotting.episode import episode_figure
from mirrorshot.plotting.learning import learning_curve_figure
from mirrorshot.plotting.reliability import ReliabilityDisplay, reliability_figure, wilson_interval
from mirrorshot.plotting.style import FORMATS, save_figure

__all__ = [
    "ReliabilityDisplay", "reliability_figure", "wilson_interval",
    "learning_curve_figure",
    "episode_figure",
    "save_figure", "FORMATS",
]  # fmt: skip
