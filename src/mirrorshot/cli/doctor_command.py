"""`mirrorshot doctor`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.model_options import AsJson, Download, EncoderName, Quiet, end_with_findings, shown, work
from mirrorshot.cli.terminal import make_console, progress_bar, say

if TYPE_CHECKING:
    from mirrorshot.tool.doctor import Report

DOCTOR_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot doctor support/[/cyan]
Damaged and tiny pictures, copies, wrong labels, classes that look alike.

[cyan]mirrorshot doctor support/ --against test/ --json[/cyan]
Also pictures that are in both folders, as JSON.

[bold]Exit codes[/bold]: 0 no errors (there may be warnings), 1 failed, 2 wrong usage, 3 errors were found.
"""

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    folder: Annotated[Path, typer.Argument(help="Folder of class folders, or of pictures.", readable=False)],
    against: Annotated[
        Path | None, typer.Option(help="Another folder, whose pictures should not be in the first.", metavar="FOLDER")
    ] = None,
    encoder: EncoderName = "auto",
    download: Download = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find what makes results bad before you wonder about them; every finding says what to do."""
    with work():
        from mirrorshot.tool.doctor import examine

        with progress_bar(quiet=quiet) as stage:
            report = examine(folder, against, encoder=encoder, download=download, progress=stage("Examining"))
    if as_json:
        findings = [finding._asdict() for finding in report.findings]
        say(json.dumps({**report._asdict(), "findings": findings}, indent=2))
    else:
        _print(report)
    if report.has_errors:
        end_with_findings()


def _print(report: "Report") -> None:
    from rich.text import Text

    console = make_console()
    console.print(
        f"{report.n_pictures} pictures of {report.n_classes} classes, compared by {report.encoder}.", markup=False
    )
    for finding in report.findings:
        head = Text(f"{finding.severity}: ", style=_STYLES[finding.severity])
        console.print(head + Text(f"{shown(finding.message)} {finding.advice}", style=""))
    if not report.findings:
        console.print("Nothing was found.")
