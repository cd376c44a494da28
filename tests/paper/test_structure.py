"""Imports within `mirrorshot.paper`: no cycles, and names and budgets of the targets without torch."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import mirrorshot.paper

MODULES = {path.stem: path for path in Path(mirrorshot.paper.__file__).parent.glob("*.py")}


def imported(path):
    """Modules of the package that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "mirrorshot.paper":
            yield from (alias.name if alias.name in MODULES else "__init__" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mirrorshot.paper."):
            yield node.module.split(".")[2]


def test_modules_do_not_import_each_other_in_a_circle():
    order = graphlib.TopologicalSorter({name: set(imported(path)) for name, path in MODULES.items()}).static_order()
    assert set(order) == set(MODULES)  # static_order raises CycleError for a cycle


def test_targets_and_budgets_are_known_without_torch():
    code = "import sys, mirrorshot.paper as p; assert p.TARGETS and p.BUDGETS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
