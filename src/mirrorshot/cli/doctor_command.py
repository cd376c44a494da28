"""`mirrorshot doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.options import Encoding, examples
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import FINDINGS, say_json, short_work, shown
from mirrorshot.files.texts import count

if TYPE_CHECKING:
    from mirrorshot.tool.doctor import Report

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


@examples(
    {
        "mirrorshot doctor support/": "Damaged and tiny images, copies, wrong labels, classes that look alike.",
        "mirrorshot doctor texts.csv --text-column body --label-column topic": "Copies, near-copies and wrong labels.",
        "mirrorshot doctor support/ --against test/ --json": "Also images that are in both folders, as JSON.",
    },
    "[bold]Exit codes[/bold]: 0 no errors (there may be warnings), 1 failed, 2 wrong usage, 3 errors were found.",
)
def doctor(
    folder: Annotated[
        Path, typer.Argument(help="Folder of class folders, of images, or a table.", metavar="FOLDER", readable=False)
    ],
    given: Encoding,
    against: Annotated[
        Path | None,
        typer.Option(help="Another one, whose items should not be in the first.", metavar="PATH"),
    ] = None,
) -> None:
    """Find damaged images, copies, wrong labels and classes that look alike; every finding says what to do."""
    with short_work():
        from mirrorshot.tool.doctor import examine

        options = given._asdict()
        del options["quiet"], options["as_json"]
        with progress_bar(quiet=given.quiet) as stage:
            report = examine(folder, against, **options, progress=stage("Examining"))
    if given.as_json:
        say_json({**report._asdict(), "findings": [finding._asdict() for finding in report.findings]})
    else:
        _print(report)
    if report.has_errors:
        raise typer.Exit(FINDINGS)


def _print(report: "Report") -> None:
    from rich.text import Text

    from mirrorshot.cli.tables import HarmlessConsole

    console = HarmlessConsole()
    classes = f"of {count(report.n_classes, 'classes')}" if report.n_classes else "without labels"
    console.print(f"{count(report.n_pictures, 'items')} {classes}, compared by {report.encoder}.", markup=False)
    for finding in report.findings:
        head = Text(f"{finding.severity}: ", style=_STYLES[finding.severity])
        console.print(head + Text(f"{shown(finding.message)} {finding.advice}", style=""))
    if not report.findings:
        console.print("Nothing was found.")
