"""Plots and reports.

A display computes its numbers once and draws them with `plot(ax=None)`; functions named `*_figure` return a figure.
Figures are instances of `matplotlib.figure.Figure`: no pyplot, no global state, no window. The colours are those of
Okabe and Ito, and no meaning depends on colour alone. A report is one HTML file of text, tables and figures.
Names are imported on first use; only those for runs and episodes need torch.
"""

from typing import TYPE_CHECKING

from mirrorshot.files.lazy import lazy_exports

if TYPE_CHECKING:
    from mirrorshot.views.comparison import (
        Gate,
        ReportedRun,
        check_gate,
        comparison_record,
        comparison_sections,
        paired_differences,
    )
    from mirrorshot.views.episode import EpisodeDisplay
    from mirrorshot.views.figures import save_figure
    from mirrorshot.views.learning import learning_curve_figure, with_elbo
    from mirrorshot.views.model_report import ModelResults, model_sections
    from mirrorshot.views.page import Card, Gallery, Image, Section, Table, write_report
    from mirrorshot.views.reliability import ReliabilityDisplay, reliability_figure
    from mirrorshot.views.risk_coverage import RiskCoverageDisplay, risk_coverage_figure
    from mirrorshot.views.sections import cards_section, learning_section, reliability_section, risk_section
    from mirrorshot.views.tables import calibration_table, difference_table, evaluation_table
    from mirrorshot.views.uncertainty_map import UncertaintyMapDisplay

__all__ = [
    "ReliabilityDisplay", "reliability_figure",
    "RiskCoverageDisplay", "risk_coverage_figure",
    "learning_curve_figure", "with_elbo",
    "EpisodeDisplay",
    "UncertaintyMapDisplay",
    "save_figure",
    "write_report", "Section", "Table", "Image", "Card", "Gallery",
    "ModelResults", "model_sections",
    "evaluation_table", "difference_table", "calibration_table",
    "reliability_section", "risk_section", "learning_section", "cards_section",
    "ReportedRun", "comparison_sections", "comparison_record", "paired_differences", "Gate", "check_gate",
]  # fmt: skip

__getattr__ = lazy_exports(
    __name__,
    {
        "comparison": "Gate ReportedRun check_gate comparison_record comparison_sections paired_differences",
        "episode": "EpisodeDisplay",
        "figures": "save_figure",
        "learning": "learning_curve_figure with_elbo",
        "model_report": "ModelResults model_sections",
        "page": "Card Gallery Image Section Table write_report",
        "reliability": "ReliabilityDisplay reliability_figure",
        "risk_coverage": "RiskCoverageDisplay risk_coverage_figure",
        "sections": "cards_section learning_section reliability_section risk_section",
        "tables": "calibration_table difference_table evaluation_table",
        "uncertainty_map": "UncertaintyMapDisplay",
    },
)
