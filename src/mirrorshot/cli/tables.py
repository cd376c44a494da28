"""Tables and paragraphs on the terminal.

This module imports rich, which takes longer than a shell waits for completion: commands import it when they print.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box, table
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from mirrorshot.files.texts import harmless

if TYPE_CHECKING:
    from mirrorshot.views import Table


class HarmlessConsole(Console):
    """A console that writes control characters as escapes, so that names cannot steer the terminal.

    Arguments as of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        self.push_render_hook(_Hook())


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Make everything harmless that is drawn."""
        return [_Harmless(renderable) for renderable in renderables]


class _Harmless:
    """The same drawing with escapes in its text; colours and movements of the cursor that rich makes are no text."""

    def __init__(self, content: ConsoleRenderable) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    numbers: Sequence[int] = (),
    width: int | None = None,
) -> None:
    """Print a table of texts; columns of `numbers` are flush right."""
    console, drawn = HarmlessConsole(width=width), _empty_table("", columns, numbers)
    for row in rows:
        drawn.add_row(*map(Text, row))
    if title:
        console.print(Text(title, style="bold"))
    console.print(drawn)


def print_text(text: str, style: str = "") -> None:
    """Print a paragraph, wrapped between words, and an empty line."""
    HarmlessConsole().print(Padding(text, (0, 0, 1, 1)), style=style, markup=False)


def print_tables(tables: Sequence["Table"]) -> None:
    """Print tables of a report, each with its protocol, unless the table before has the same."""
    console = HarmlessConsole()
    protocol: dict[str, str] = {}
    for shown in tables:
        console.print(_as_rich(shown))
        if shown.protocol != protocol:
            protocol = dict(shown.protocol)
            print_text(f"Protocol: {', '.join(f'{name} {value}' for name, value in protocol.items())}.", "dim")
    marked = {shown.note for shown in tables if shown.best}
    for note in dict.fromkeys(shown.note for shown in tables if shown.note):
        print_text(f"{'*: best of its column. ' if note in marked else ''}{note}", "dim")


def _as_rich(shown: "Table") -> table.Table:
    drawn = _empty_table(shown.caption, shown.columns, range(1, len(shown.columns)))
    above = ""
    for i, (name, *cells) in enumerate(shown.rows):
        # a second row of a method repeats nothing of its name
        label = f"  {name[len(above) + 2 :]}" if above and name.startswith(f"{above}, ") else name
        drawn.add_row(label, *(_mark(cell, (i, c) in shown.best) for c, cell in enumerate(cells, start=1)))
        above = name
    return drawn


def _empty_table(title: str, columns: Sequence[str], numbers: Sequence[int]) -> table.Table:
    drawn = table.Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for c, name in enumerate(columns):
        drawn.add_column(name, justify="right" if c in numbers else "left", overflow="fold")
    return drawn


def _mark(cell: str, is_best: bool) -> str:
    return f"[bold green]{escape(cell)}*[/bold green]" if is_best else f"{escape(cell)} "
