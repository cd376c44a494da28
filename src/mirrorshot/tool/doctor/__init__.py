"""What is wrong with a folder of pictures, and what to do about it."""

from mirrorshot.tool.doctor.checks import Finding, Severity
from mirrorshot.tool.doctor.examination import Report, examine

__all__ = ["Finding", "Report", "Severity", "examine"]
