"""Dependencies and the workflow that tests them: lower bounds, the tested set, and the platforms agree."""

import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import mirrorshot

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = SETTINGS["project"]
SAFE = {"torch": "2.10", "pillow": "12.2", "starlette": "1.3", "h11": "0.16", "onnx": "1.21", "jinja2": "3.1.6"}


def requirements():
    """All direct dependencies but the package itself, which the development extra names."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    found = [Requirement(text) for texts in lists for text in texts]
    return [requirement for requirement in found if requirement.name != PROJECT["name"]]


def pins():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name: Version(next(iter(pin.specifier)).version) for pin in found}


def lower_bound(requirement):
    (specifier,) = requirement.specifier
    assert specifier.operator == ">=", f"Expected a lower bound only, but got {requirement}."
    return Version(specifier.version)


def workflow(name="ci"):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8"))


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_the_tested_version_is_not_below_the_lower_bound(requirement):
    if requirement.name in {"tomli", "tensorboard"}:  # not part of the tested set
        assert requirement.name not in pins()
    else:
        assert lower_bound(requirement) <= pins()[requirement.name]


@pytest.mark.parametrize(("name", "version"), SAFE.items())
def test_versions_with_known_vulnerabilities_are_excluded(name, version):
    (found,) = (requirement for requirement in requirements() if requirement.name == name)
    assert lower_bound(found) >= Version(version)


def test_the_workflow_runs_the_tests_on_all_platforms_and_pythons():
    matrix = workflow()["jobs"]["test"]["strategy"]["matrix"]
    left_out = {(case["os"], case["python"]) for case in matrix["exclude"]}
    pythons = {os: [p for p in matrix["python"] if (os, p) not in left_out] for os in matrix["os"]}
    assert pythons == {
        "ubuntu": ["3.10", "3.11", "3.12", "3.13", "3.14"],
        "macos": ["3.10", "3.12", "3.14"],
        "windows": ["3.10", "3.12", "3.14"],
    }
    assert all(python in SpecifierSet(PROJECT["requires-python"]) for python in matrix["python"])
    named = {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if " :: Python :: 3." in text}
    assert named == set(matrix["python"])


def test_the_workflow_audits_what_it_has_installed():
    commands = "\n".join(step.get("run", "") for step in workflow()["jobs"]["test"]["steps"])
    assert "pip install -c constraints.txt" in commands
    assert "python -m pytest" in commands
    assert "pip-audit" in commands


def test_wheels_are_built_on_all_platforms_and_published_for_tags_only():
    jobs = workflow("wheels")["jobs"]
    systems = {os.split("-")[0] for os in jobs["wheels"]["strategy"]["matrix"]["os"]}
    assert systems == {"ubuntu", "macos", "windows"}
    assert "startsWith(github.ref, 'refs/tags/')" in jobs["publish"]["if"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}  # trusted publishing: no secret
    assert set(jobs["publish"]["needs"]) == {"sdist", "wheels"}


def test_the_sdist_has_what_its_tests_and_its_documentation_read():
    included = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    read = {f"/{name}" for name in ("docs", "tests", "benchmarks", "examples", "results", "scripts", ".github")}
    assert read <= set(included)
    assert [path for path in included if not (ROOT / path[1:]).exists()] == []


def test_the_version_has_one_place():
    assert "version" in PROJECT["dynamic"]
    assert f"version: {mirrorshot.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"The version is {mirrorshot.__version__}" in (ROOT / "README.md").read_text("utf-8")
