"""Draw the layers of the package from its imports, into docs/architecture.md.

    python scripts/layers.py            # rewrite the drawing in docs/architecture.md
    python scripts/layers.py --check    # exit code 1 if the drawing is out of date

An arrow goes from a room (a name at the root of the package) to every room that it imports. Rooms are ordered so that
all arrows point down; `tests/test_imports.py` holds that order. A room needs torch if one of its modules imports it
outside of functions.
"""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "mirrorshot"
PAGE = ROOT / "docs" / "architecture.md"
MARK = re.compile(r"(<!-- layers -->\n).*?(<!-- /layers -->)", re.DOTALL)


def room_of(path: Path) -> str:
    """Return the name at the root of the package under which a module lives."""
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


def draw() -> str:
    """Return the drawing: a Mermaid graph, and a table of the rooms from the top down."""
    arrows, torch = read_rooms()
    height = levels(arrows)
    order = sorted(arrows, key=lambda room: (-height[room], room))
    graph = ["```mermaid", "graph TD"]
    graph += [f"  {room} --> {other}" for room in order for other in sorted(direct(room, arrows))]
    table = ["```", "", "| layer | room | imports | torch | about |", "|---|---|---|---|---|"]
    table += [
        f"| {height[room]} | `{room}` | {', '.join(sorted(arrows[room])) or '-'} | "
        f"{'yes' if room in torch else 'no'} | {about(room)} |"
        for room in order
    ]
    return "\n".join([*graph, *table]) + "\n"


def direct(room: str, arrows: dict[str, set[str]]) -> set[str]:
    """Return the imports of a room that it has not also through another one, so that the graph stays readable."""
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
    new = MARK.sub(lambda found: f"{found[1]}{draw()}{found[2]}", text)
    if check and new != text:
        raise SystemExit(f"{PAGE.name} is out of date: run `python scripts/layers.py`.")
    if not check:
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
