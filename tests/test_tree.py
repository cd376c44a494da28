"""Every module has a test file at its mirrored path, or a place in the table of tests/README.md."""

import importlib
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "mirrorshot"
README = (TESTS / "README.md").read_text("utf-8")
PYTEST = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
TABLE = [re.findall(r"`(\S+\.py)`", line) for line in README.splitlines() if line.startswith("| `")]
LISTED = {module: test for test, *modules in TABLE for module in modules}


def mirrored(module):
    """Paths of a test file of the module, and of one for its package if that is below a room."""
    path = Path(module)
    yield path.with_name(f"test_{path.name}")
    if len(path.parts) > 2:
        yield path.parent.with_name(f"test_{path.parent.name}.py")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_test_file(module):
    is_mirrored = any((TESTS / path).exists() for path in mirrored(module))
    assert is_mirrored or module in LISTED, (
        f"Expected tests/{next(mirrored(module))}, or `{module}` in the table of tests/README.md, but found neither."
    )


@pytest.mark.parametrize("module", sorted(LISTED))
def test_the_table_names_files_that_exist(module):
    assert (PACKAGE / module).is_file(), f"Remove `{module}` from the table of tests/README.md: it is gone."
    assert (TESTS / LISTED[module]).is_file()
    assert not (TESTS / next(mirrored(module))).exists(), f"Remove `{module}`: it has a file of its own."


def test_a_module_is_listed_once():
    listed = [module for _, *modules in TABLE for module in modules]
    assert sorted(listed) == sorted(set(listed))


def test_a_module_without_a_test_would_be_found():
    assert list(map(str, mirrored("gp/mirror.py"))) == [str(Path("gp/test_mirror.py"))]
    assert [path.as_posix() for path in mirrored("gp/kernels/base.py")] == [
        "gp/kernels/test_base.py",
        "gp/test_kernels.py",
    ]
    assert "gp/mirror.py" in MODULES


def test_the_markers_are_those_of_the_readme():
    markers = {text.partition(":")[0] for text in PYTEST["markers"]}
    assert markers == {"long", "slow"}
    assert PYTEST["addopts"][-2:] == ["-m", "not long and not slow"]
    for name in markers:
        assert f"`{name}` for" in README
    used = {
        name for path in TESTS.rglob("*.py") for name in re.findall(r"mark\.(long|slow)\b", path.read_text("utf-8"))
    }
    assert used == markers


@pytest.mark.parametrize("room", ["softmax", "gp", "metrics", "classifier", "networks", "data", "methods", "training"])
def test_shapes_are_checked_in(room):
    first = next(module for module in MODULES if module.startswith(f"{room}/"))
    module = importlib.import_module("mirrorshot." + first.removesuffix(".py").replace("/", "."))
    assert type(module.__loader__).__module__.startswith("jaxtyping")
