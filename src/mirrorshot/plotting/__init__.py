"""Pictures: compute, then draw. A display holds the numbers and has `plot(ax=None)`; a function returns a figure.

Everything is drawn on `matplotlib.figure.Figure` directly: no pyplot, no global state, no window. Colours are
those of Okabe and Ito, which people with any colour vision can tell apart; no meaning rests on colour alone.
"""

from mirrorshot.plotting.episode import EpisodeDisplay, episode_figure
from mirrorshot.plotting.learning import learning_curve_figure, with_elbo
from mirrorshot.plotting.reliability import ReliabilityDisplay, reliability_figure, wilson_interval
from mirrorshot.plotting.risk_coverage import RiskCoverageDisplay, risk_coverage_figure
from mirrorshot.plotting.style import FORMATS, save_figure, save_pictures
from mirrorshot.plotting.uncertainty_map import UncertaintyMapDisplay

__all__ = [
    "ReliabilityDisplay", "reliability_figure", "wilson_interval",
    "RiskCoverageDisplay", "risk_coverage_figure",
    "learning_curve_figure", "with_elbo",
    "EpisodeDisplay", "episode_figure",
    "UncertaintyMapDisplay",
    "save_figure", "save_pictures", "FORMATS",
]  # fmt: skip
