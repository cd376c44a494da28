"""Draw the layers of the package from its imports: docs/images/layers.svg and the table in docs/architecture.md.

    python scripts/layers.py            # rewrite the drawing and the table
    python scripts/layers.py --check    # exit code 1 if they are out of date

An arrow points from a room (a module or package at the root of mirrorshot) to every room that it imports. Rooms are
ordered so that all arrows point down; `tests/test_imports.py` checks the order, and which rooms run without torch. A
room needs torch in part if some of its modules import it outside of functions and others do not.
"""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "mirrorshot"
PAGE = ROOT / "docs" / "architecture.md"
IMAGE = ROOT / "docs" / "images" / "layers.svg"
LIGHT = ("types", "files", "softmax", "gp", "metrics", "classifier", "encoders", "tool", "views", "serve", "cli")
_WIDTH, _STEP = 720, 84  # pixels: width of the drawing, distance of the layers
MARK = re.compile(r"(<!-- layers -->\n).*?(<!-- /layers -->)", re.DOTALL)


def room_of(path: Path) -> str:
    """Return the room of a module."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Return the rooms that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mirrorshot":
            parts = (node.module or "").split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
    return found


def needs_torch(tree: ast.Module) -> bool:
    """Return whether a module imports torch outside of functions and of blocks for type checkers."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.split(".")[0] == "torch" for name in names)


def read_rooms() -> tuple[dict[str, set[str]], set[str]]:
    """Return the imports of each room, and the rooms that need torch."""
    arrows: dict[str, set[str]] = {}
    torch = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        if room.startswith("__"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        arrows.setdefault(room, set()).update(imported(tree) - {room})
        if needs_torch(tree):
            torch.add(room)
    known = set(arrows)
    return {room: others & known for room, others in arrows.items()}, torch


def levels(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Return the length of the longest chain of imports below each room."""
    found: dict[str, int] = {}

    def level(room: str, above: tuple[str, ...] = ()) -> int:
        if room in above:
            raise SystemExit(f"Expected imports to go one way, but {' -> '.join([*above, room])} is a cycle.")
        if room not in found:
            found[room] = 1 + max((level(other, (*above, room)) for other in arrows[room]), default=-1)
        return found[room]

    for room in arrows:
        level(room)
    return found


def draw_table() -> str:
    """Return the rooms as a table, from the top down."""
    arrows, torch = read_rooms()
    height = levels(arrows)
    rows = [
        f"| {height[room]} | `{room}` | {', '.join(sorted(arrows[room])) or '-'} | "
        f"{_torch(room, torch)} | {about(room)} |"
        for room in sorted(arrows, key=lambda room: (-height[room], room))
    ]
    return "\n".join(["| layer | room | imports | torch | about |", "|---|---|---|---|---|", *rows]) + "\n"


def _torch(room: str, torch: set[str]) -> str:
    return "no" if room not in torch else "in part" if room in LIGHT else "yes"


def draw_svg() -> str:
    """Return the drawing: a row of boxes for each layer, and arrows to the rooms below."""
    arrows, _ = read_rooms()
    height = levels(arrows)
    rows = [sorted(room for room in arrows if height[room] == h) for h in range(max(height.values()), -1, -1)]
    place = {
        room: (_WIDTH * (i + 1) // (len(row) + 1), 40 + _STEP * k)
        for k, row in enumerate(rows)
        for i, room in enumerate(row)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_STEP * len(rows)}" font-family="sans-serif">',
        "<title>Rooms of the package; an arrow is an import</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#6E6E6E"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{_STEP * len(rows)}" fill="#fff"/>',
    ]
    for room, (x, y) in place.items():
        for other in sorted(direct(room, arrows)):
            (x2, y2) = place[other]
            parts.append(
                f'<line x1="{x}" y1="{y + 16}" x2="{x2}" y2="{y2 - 18}" stroke="#6E6E6E" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in place.items():
        fill = "#E8E8E8" if room in LIGHT else "#9BD0F0"
        parts.append(f'<rect x="{x - 48}" y="{y - 16}" width="96" height="32" rx="6" fill="{fill}" stroke="#222"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-size="14" fill="#222">{room}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def direct(room: str, arrows: dict[str, set[str]]) -> set[str]:
    """Return the imports of a room that it has not also through another room, for a readable graph."""
    return {other for other in arrows[room] if not any(other in below(third, arrows) for third in arrows[room])}


def below(room: str, arrows: dict[str, set[str]]) -> set[str]:
    """Return all rooms that a room imports, directly or not."""
    return set().union(*({other} | below(other, arrows) for other in arrows[room]))


def about(room: str) -> str:
    """Return the first line of the docstring of a room."""
    path = PACKAGE / f"{room}.py"
    text = (path if path.exists() else PACKAGE / room / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]


def main() -> None:
    """Draw, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    page = MARK.sub(lambda found: f"{found[1]}{draw_table()}{found[2]}", text)
    for path, new in ((PAGE, page), (IMAGE, draw_svg())):
        if check and (not path.exists() or path.read_text(encoding="utf-8") != new):
            raise SystemExit(f"{path.name} is out of date: run `python scripts/layers.py`.")
        if not check:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
