"""Checks of a folder of images, with advice on what to do."""

from mirrorshot.tool.doctor.checks import Finding, Severity
from mirrorshot.tool.doctor.examination import Report, examine

__all__ = ["Finding", "Report", "Severity", "examine"]
