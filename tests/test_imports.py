"""Imports go one way. The order is that of CONTRIBUTING.md; a new module has to take a place in it."""

import ast
from pathlib import Path

import pytest

import mirrorshot

ROOT = Path(mirrorshot.__file__).parent

LAYERS = (
    "types",
    "files",
    "softmax",
    "gp",
    "metrics",
    "classifier",
    "networks",
    "data",
    "methods",
    "training",
    "views",
    "encoders",
    "tool",
    "serve",
    "paper",
    "cli",
    "__main__",
)
LEVEL = {name: level for level, name in enumerate(LAYERS)}
STRANGERS = {("methods", "data")}  # they meet in TaskBatch

# Rooms that need torch, and modules of other rooms that do; everything else is imported without it.
TORCH_ROOMS = {"networks", "data", "methods", "training", "paper"}
TORCH_MODULES = {
    "softmax.autograd", "softmax.logistic",
    "gp.bound", "gp.fused", "gp.gradient", "gp.kernels.trainable", "gp.logistic_softmax",
    "gp.one_vs_each", "gp.polya_gamma", "gp.predictive", "gp.regression", "gp.steps",
    "views.comparison", "views.episode", "views.tables", "views.training_command",
    "cli.results", "cli.settings",
}  # fmt: skip

NEEDS_NO_TORCH = {"data.decoding", "data.cache", "paper.BUDGETS", "paper.TARGETS"}  # modules and names in those rooms

PURE = {"types", "softmax", "gp", "metrics"}
MODULES_OF_PARAMETERS = {"gp.kernels"}
IMPURE = ("torch.nn", "sklearn", "matplotlib", "typer", "rich")


def module_name(path):
    """Dotted name below the package; empty for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def imported_names(source, module=""):
    """Absolute dotted names of everything a module imports, also inside functions and for type checkers."""
    package = ["mirrorshot", *module.split(".")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imported_at_once(source, module=""):
    """Absolute dotted names of what a module imports when it is imported itself: not in functions, not for types."""
    waiting = list(ast.parse(source).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported_names(ast.unparse(node), module)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def needs_torch(source, module):
    """Imports that bring torch along."""
    for name in imported_at_once(source, module):
        package, *rest = name.split(".")
        names = {".".join(rest[: i + 1]) for i in range(len(rest))}
        is_ours = package == "mirrorshot" and not names & NEEDS_NO_TORCH
        if package == "torch" or (is_ours and names & (TORCH_ROOMS | TORCH_MODULES)):
            yield name


def is_light(module):
    is_free = module.split(".")[0] not in TORCH_ROOMS and module not in TORCH_MODULES
    return is_free or module in NEEDS_NO_TORCH


def wrong_imports(source, module):
    """Imports from within the package that go against the order."""
    home = module.split(".")[0]
    for name in imported_names(source, module):
        package, *rest = name.split(".")
        if package != "mirrorshot":
            continue
        other = rest[0] if rest else ""
        if other == home:
            continue
        if other not in LEVEL or LEVEL[other] >= LEVEL[home] or (home, other) in STRANGERS:
            yield name


def impurities(source, module):
    """What the pure core must not contain."""
    for name in imported_names(source, module):
        if any(name == banned or name.startswith(banned + ".") for banned in IMPURE):
            yield name
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "open"):
            yield node.func.id
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.nn", "torch.manual_seed"):
            yield ast.unparse(node)


def is_pure(module):
    def is_in(rooms):
        return any(module == name or module.startswith(name + ".") for name in rooms)

    return is_in(PURE) and not is_in(MODULES_OF_PARAMETERS)


def test_every_module_has_its_place_in_the_order():
    homes = {module.split(".")[0] for module in MODULES} - {""}
    assert homes - set(LEVEL) == set()
    assert homes == set(LEVEL)  # the search finds modules, and the order has no room that is gone


def test_the_root_has_at_most_sixteen_names():
    assert len(set(LEVEL) - {"__main__"}) <= 16


@pytest.mark.parametrize("module", sorted(set(MODULES) - {""}))
def test_a_module_imports_only_what_comes_before_it(module):
    if module.split(".")[0] in LEVEL:
        assert list(wrong_imports(MODULES[module], module)) == []


@pytest.mark.parametrize("module", sorted(filter(is_pure, MODULES)))
def test_the_pure_core_is_pure(module):
    assert list(impurities(MODULES[module], module)) == []


@pytest.mark.parametrize("module", sorted(filter(is_light, MODULES)))
def test_a_module_for_models_is_imported_without_torch(module):
    assert list(needs_torch(MODULES[module], module)) == []


@pytest.mark.parametrize("module", sorted(TORCH_MODULES))
def test_the_modules_that_need_torch_are_those_that_are_listed(module):
    assert list(needs_torch(MODULES[module], module)), f"Remove {module} from TORCH_MODULES: it needs no torch."


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("import torch", 1),
        ("from torch import Tensor", 1),
        ("try:\n    import torch\nexcept ImportError:\n    pass", 1),
        ("from mirrorshot.training import train", 1),
        ("from mirrorshot.gp.gradient import gradient_descent", 1),
        ("from mirrorshot.gp.gaussian import condition", 0),
        ("def f():\n    import torch", 0),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", 0),
    ],
)
def test_an_import_of_torch_is_found(source, n):
    assert len(list(needs_torch(source, "tool.model"))) == n


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("softmax.moments", "from mirrorshot.gp import elbo"),
        ("files.lock", "from mirrorshot.softmax.moments import softmax_moments"),
        ("softmax", "import mirrorshot.gp.mirror"),
        ("types", "from mirrorshot import gp"),
        ("gp.mirror", "def f():\n    from mirrorshot.methods import base"),
        ("gp.mirror", "from ..methods import base"),
        ("methods.base", "from mirrorshot.data.episodes import sample"),
        ("classifier", "from mirrorshot import cli"),
        ("classifier", "import mirrorshot"),
        ("classifier", "from mirrorshot.unheard_of import x"),
    ],
)
def test_an_import_against_the_order_is_found(module, source):
    assert len(list(wrong_imports(source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gp.gaussian", "from mirrorshot.gp.linalg import cholesky_of_shifted"),
        ("gp.bound", "from mirrorshot import softmax"),
        ("gp.mirror", "from mirrorshot.gp.objective import elbo"),
        ("gp.mirror", "from .objective import elbo"),
        ("gp.mirror", "from ..softmax import softmax_moments"),
        ("cli", "import torch\nfrom mirrorshot.classifier import FewShotClassifier"),
    ],
)
def test_an_import_in_the_order_is_accepted(module, source):
    assert list(wrong_imports(source, module)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch.nn",
        "import torch.nn.functional as F",
        "from torch import nn",
        "import torch\ntorch.nn.Module",
        "from sklearn.base import clone",
        "import matplotlib.pyplot as plt",
        "import typer",
        "from rich.console import Console",
        "print('hello')",
        "open('file')",
        "import torch\ntorch.manual_seed(0)",
    ],
)
def test_an_impurity_is_found(source):
    assert len(list(impurities(source, "gp.gaussian"))) == 1
