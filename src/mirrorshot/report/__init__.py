"""Results as one HTML file that can be mailed, printed, and read on a phone."""

from mirrorshot.report.comparison import (
    Gate,
    ReportedRun,
    check_gate,
    comparison_record,
    comparison_sections,
    paired_differences,
)
from mirrorshot.report.page import Picture, Section, Table, write_report
from mirrorshot.report.rerun import rerun_command
from mirrorshot.report.sections import (
    cards_section,
    learning_section,
    reliability_of,
    reliability_section,
    risk_section,
)
from mirrorshot.report.tables import calibration_table, difference_table, evaluation_table

__all__ = [
    "ReportedRun", "comparison_sections", "comparison_record", "paired_differences", "Gate", "check_gate",
    "rerun_command",
    "write_report", "Section", "Table", "Picture",
    "evaluation_table", "difference_table", "calibration_table",
    "reliability_section", "risk_section", "learning_section", "cards_section", "reliability_of",
]  # fmt: skip
