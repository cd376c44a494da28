"""Tables and paragraphs on the terminal.

This module imports rich, which is too slow for shell completion: commands import it when they print.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box, table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from mirrorshot.files.texts import harmless

if TYPE_CHECKING:
    from mirrorshot.views import Table


_LEAST, _MOST = 14, 24  # least width of a column that is cut; most width reserved for each other column


class HarmlessConsole(Console):
    """A console that escapes control characters, so that names cannot control the terminal.

    Arguments as of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        self.push_render_hook(_Hook())


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap each renderable to escape its text."""
        return [_Harmless(renderable) for renderable in renderables]


class _Harmless:
    """A renderable with control characters in its text escaped; control segments of rich itself stay."""

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
    shorten: int | None = None,
) -> None:
    """Print a table; the columns `numbers` are right-aligned, the column `shorten` is cut if there is no room."""
    console, drawn = HarmlessConsole(width=width), _empty_table("", columns, numbers)
    cells = [[_encodable(cell, console.encoding) for cell in row] for row in rows]
    if shorten is not None:
        _shorten(columns, cells, shorten, console.width)
    for c in numbers:
        if c < len(columns):
            drawn.columns[c].no_wrap = True
    for row in cells:
        drawn.add_row(*map(Text, row))
    if title:
        console.print(Text(title, style="bold"))
    console.print(drawn)


def terminal_width() -> int:
    """Return the width of the terminal in columns."""
    return HarmlessConsole().width


def _encodable(text: str, encoding: str) -> str:
    """Escape characters that the terminal cannot encode, before rich measures the columns."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.replace("≤", "<=").replace("…", "...")
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _shorten(columns: Sequence[str], rows: list[list[str]], place: int, width: int) -> None:
    """Cut the beginnings of long texts in column `place`; ends tell paths apart."""
    natural = [max(map(cell_len, texts)) for texts in zip(columns, *rows, strict=True)]
    others = sum(min(size, _MOST) for c, size in enumerate(natural) if c != place) + 3 * len(columns)
    room = max(_LEAST, width - others)
    for row in rows:
        if cell_len(row[place]) > room:
            row[place] = f"…{row[place][-(room - 1) :]}"


def print_text(text: str, style: str = "") -> None:
    """Print a wrapped paragraph and an empty line."""
    HarmlessConsole().print(Padding(text, (0, 0, 1, 1)), style=style, markup=False)


def print_tables(tables: Sequence["Table"]) -> None:
    """Print tables of a report with their protocols; a protocol equal to the previous one is omitted."""
    console = HarmlessConsole()
    protocol: dict[str, str] = {}
    for shown in tables:
        console.print(_as_rich(shown) if _fits(shown, console.width) else _stacked(shown))
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
        # the second row of a method omits its name
        label = f"  {name[len(above) + 2 :]}" if above and name.startswith(f"{above}, ") else name
        drawn.add_row(label, *(_mark(cell, (i, c) in shown.best) for c, cell in enumerate(cells, start=1)))
        above = name
    return drawn


def _fits(shown: "Table", width: int) -> bool:
    """Return whether the table fits without breaking words."""
    texts = [[column, *(row[c] for row in shown.rows)] for c, column in enumerate(shown.columns)]
    words = [max(cell_len(word) for text in part for word in (text or " ").split(" ")) for part in texts]
    return sum(words) + 4 * len(words) <= width


def _stacked(shown: "Table") -> table.Table:
    """Draw a table with a line for each cell, for narrow terminals."""
    drawn = _empty_table(shown.caption, ["", ""], (1,))
    for i, (name, *cells) in enumerate(shown.rows):
        drawn.add_row(Text(name, style="bold"), "")
        for c, cell in enumerate(cells, start=1):
            drawn.add_row(Text(f"  {shown.columns[c]}"), _mark(cell, (i, c) in shown.best))
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
