"""Results as one HTML file that can be mailed, printed, and read on a phone."""

from mirrorshot.report.page import Picture, Section, Table, write_report
from mirrorshot.report.tables import calibration_table, difference_table, evaluation_table

__all__ = ["write_report", "Section", "Table", "Picture", "evaluation_table", "difference_table", "calibration_table"]
