"""HTML pages of text, tables and images, in one self-contained file.

Design note: pages have no scripts and no external resources, which their security policy enforces. Figures are SVG in
the colours of the page, so that they follow it into dark mode. Rejected: a template engine, for four kinds of blocks.
"""

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mirrorshot.files.writing import write_atomically
from mirrorshot.types import InvalidInputError
from mirrorshot.views.figures import figure_svg

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

_RIGHT = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]"  # letters of Hebrew, Arabic and their relatives
_FROM_RIGHT = re.compile(f"{_RIGHT}(?:[^<>&;,()%]*{_RIGHT})?")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Table(NamedTuple):
    """A table of numbers with its protocol.

    Attributes:
        caption: title of the table.
        columns: headings; the first column names the rows.
        rows: cells as text.
        protocol: how the numbers were made, name and value; must not be empty.
        best: (row, column) of the cells to mark as best.
        note: text below the table.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    protocol: Mapping[str, str]
    best: Collection[tuple[int, int]] = ()
    note: str = ""


class Image(NamedTuple):
    """A matplotlib figure with its alternative text and caption."""

    figure: "matplotlib.figure.Figure"
    alt: str
    caption: str = ""


class Card(NamedTuple):
    """An item: content of a PNG or JPEG file (None: no image), name, and lines of text."""

    picture: bytes | None
    name: str
    lines: Sequence[str]


class Gallery(NamedTuple):
    """Cards side by side, as many as the width allows."""

    label: str
    cards: Sequence[Card]


Block = str | Table | Image | Gallery


class Section(NamedTuple):
    """A heading with paragraphs, tables, figures and galleries."""

    title: str
    blocks: Sequence[Block]


def write_report(path: Path, *, title: str, intro: str, sections: Sequence[Section]) -> None:
    """Write a report as one HTML file. The same content gives the same file.

    Args:
        path: output file.
        title: heading of the report.
        intro: first paragraphs. In all texts, an empty line begins a new paragraph, `$ ` begins a command line, and
            markup is escaped.
        sections: parts of the report. Equal protocols or notes of several tables are shown once, with the first.

    Example:
        >>> import tempfile
        >>> table = Table("Accuracy", ["method", "accuracy"], [["ours", "91.2"]], {"tasks": "600"}, best=[(0, 1)])
        >>> path = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_report(path, title="Digits", intro="Two methods.", sections=[Section("Results", [table])])
        >>> "91.2" in path.read_text()
        True
    """
    shown: set[str] = set()
    body = "\n".join(_section(section, number, shown) for number, section in enumerate(sections, start=1))
    contents = "".join(
        f'<li><a href="#part-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(sections, start=1)
    )
    style = (files("mirrorshot.views") / "page.css").read_text("utf-8")
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="over">mirrorshot report</p>
<h1>{escape(title)}</h1>
<div class="intro">{_paragraphs(intro)}</div>
{f'<nav aria-label="Contents"><ol>{contents}</ol></nav>' if len(sections) > 1 else ""}
</header>
<main>
{body}
</main>
<footer>Made with mirrorshot {version("mirrorshot")}. This file is complete: it loads nothing and runs nothing.</footer>
</body>
</html>
"""
    write_atomically(Path(path), page.encode())


def _section(section: Section, number: int, shown: set[str]) -> str:
    blocks = "\n".join(_block(block, f"f{number}-{i}-", shown) for i, block in enumerate(section.blocks))
    return f'<section id="part-{number}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block, prefix: str, shown: set[str]) -> str:
    if isinstance(block, str):
        return f'<div class="text">{_paragraphs(block)}</div>'
    if isinstance(block, Gallery):
        cards = "\n".join(_card(card) for card in block.cards)
        return f'<ul class="gallery" aria-label="{escape(block.label)}">\n{cards}\n</ul>'
    return _table(block, shown) if isinstance(block, Table) else _image(block, prefix)


def _card(card: Card) -> str:
    kind = "png" if card.picture is not None and card.picture.startswith(b"\x89PNG") else "jpeg"
    data = base64.b64encode(card.picture or b"").decode()
    image = f'<img alt="" src="data:image/{kind};base64,{data}">' if card.picture is not None else ""
    first, *others = card.lines
    lines = f"<p><strong>{_name(first)}</strong></p>" + "".join(f"<p>{_name(line)}</p>" for line in others)
    return f'<li>{image}<div>{lines}<p class="file" title="{escape(card.name)}">{_name(card.name)}</p></div></li>'


def _once(html: str, shown: set[str]) -> str:
    is_new = html not in shown
    shown.add(html)
    return html if is_new else ""


def _paragraphs(text: str) -> str:
    return "".join(_paragraph(part.strip()) for part in text.split("\n\n") if part.strip())


def _paragraph(text: str) -> str:
    if text.startswith("$ "):
        return f'<pre class="command"><code>{escape(text[2:])}</code></pre>'
    return f"<p>{escape(text).replace(' %', '&nbsp;%')}</p>"


def _image(image: Image, prefix: str) -> str:
    caption = f"<figcaption>{escape(image.caption)}</figcaption>" if image.caption else ""
    svg = figure_svg(image.figure, prefix=prefix, alt=image.alt)
    inches = image.figure.get_size_inches()[0]
    # a narrow window scrolls the figure; a shrunk figure would be illegible
    scroll = f'<div class="scroll" tabindex="0"><div style="min-width:{inches * 62:.0f}px">{svg}</div></div>'
    return f'<figure class="image" style="max-width:{inches * 92 + 48:.0f}px">{scroll}{caption}</figure>'


def _table(table: Table, shown: set[str]) -> str:
    _check_table(table)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "\n".join(_row(row, {c for r, c in table.best if r == i}) for i, row in enumerate(table.rows))
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{_name(v)}</dd>" for k, v in table.protocol.items())
    aside = _once(f'<aside aria-label="Protocol"><h3>Protocol</h3><dl>{facts}</dl></aside>', shown)
    note = _once(f'<p class="note">{escape(table.note)}</p>', shown) if table.note else ""
    return f"""<div class="result{"" if aside else " wide"}">
<div class="numbers"><div class="scroll" tabindex="0" role="group" aria-label="{escape(table.caption)}"><table>
<caption>{escape(table.caption)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>{note}</div>
{aside}
</div>"""


def _row(cells: Sequence[str], best: Collection[int]) -> str:
    mark = '<span class="best" title="best">{}<span class="unseen"> (best)</span></span>'
    shown = [mark.format(escape(cell)) if c in best else escape(cell) for c, cell in enumerate(cells)]
    values = "".join(f"<td>{cell}</td>" for cell in shown[1:])
    return f'<tr><th scope="row">{_name(cells[0])}</th>{values}</tr>'


def _name(text: str) -> str:
    """Escape a name, allow line breaks after _ and / and before a suffix, and isolate right-to-left text."""
    breaking = re.sub(r"(?<=[_/])|(?=\.[a-z])", "<wbr>", escape(text))
    return _FROM_RIGHT.sub(r"<bdi>\g<0></bdi>", breaking)


def _check_table(table: Table) -> None:
    if not table.protocol:
        raise InvalidInputError(f"Expected the table {table.caption!r} to have a protocol, but got an empty one.")
    wrong = [len(row) for row in table.rows if len(row) != len(table.columns)]
    if wrong:
        raise InvalidInputError(
            f"Expected rows of {len(table.columns)} cells in the table {table.caption!r}, but got one of {wrong[0]}."
        )
