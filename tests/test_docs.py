"""What the documentation says is true: methods have their sections, links lead somewhere, examples run."""

import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mirrorshot.checkpoint import read_config
from mirrorshot.cli import main
from mirrorshot.config import Config, read_toml
from mirrorshot.methods import METHODS, make_method

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PARTS = ("**Idea.**", "**Cost.**", "**Good for**", "**Probabilities")


def sections(text):
    """Text below each heading of third level, by its name."""
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    return {name: body for name, body in zip(parts[1::2], parts[2::2], strict=True) if "**Idea.**" in body}


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_section_to_choose_it_by(name):
    text = (DOCS / "methods.md").read_text()
    section = sections(text)[name]
    assert [part for part in PARTS if part not in section] == []
    assert "](https://" in section or "as above" in section  # a citation
    assert f"| [`{name}`](#{name}) |" in text


def test_sections_are_of_methods_and_nothing_else():
    assert set(sections((DOCS / "methods.md").read_text())) == set(METHODS)


def test_idea_of_a_method_is_three_sentences():
    for name, section in sections((DOCS / "methods.md").read_text()).items():
        idea = re.search(r"\*\*Idea\.\*\* (.*?)\n\n", section, flags=re.DOTALL).group(1)
        assert len(re.findall(r"\.(?=\s|$)", idea)) == 3, name


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_between_the_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        if "://" in file:
            continue
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, target


@pytest.fixture
def page(monkeypatch, tmp_path):
    """The page about a method of one's own; afterwards the registry is as it was."""
    monkeypatch.setitem(METHODS, "nearest_neighbour", None)
    monkeypatch.chdir(tmp_path)
    return (DOCS / "adding_a_method.md").read_text()


def run_blocks(codes):
    names = {"__name__": "page"}
    for code in codes:
        exec(compile(code, "adding_a_method.md", "exec"), names)
    return names


def test_the_method_of_the_page_trains_from_python_and_from_the_shell(page, tmp_path, capsys):
    run_blocks(blocks(page, "python"))
    found = re.fullmatch(r"validation accuracy (\d\.\d+), NLL (\d\.\d+)\n", capsys.readouterr().out)
    assert float(found[1]) > 0.8
    assert float(found[2]) < 0.6
    commands = [line for block in blocks(page, "bash") for line in block.splitlines() if line.startswith("mirrorshot")]
    assert [shlex.split(command)[1] for command in commands] == ["train", "evaluate"]
    for command in commands:
        result = CliRunner().invoke(main, [*shlex.split(command)[1:], "--device", "cpu"])
        assert result.exit_code == 0, result.output
    folder = tmp_path / shlex.split(commands[1])[2]
    assert read_config(folder)["method"] == "nearest_neighbour"
    assert (folder / "evaluation.json").exists()


@pytest.fixture
def contract():
    """The module with the tests of the contract."""
    spec = importlib.util.spec_from_file_location("contract_of_the_page", ROOT / "tests" / "test_contract.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_method_of_the_page_is_short_and_keeps_the_contract(page, contract):
    code = blocks(page, "python")
    assert len(re.search(r"^class .*", code[0], flags=re.MULTILINE | re.DOTALL).group().splitlines()) <= 25
    run_blocks(code[:2])
    promises = [check for name, check in vars(contract).items() if name.startswith("test_") and is_of_variants(check)]
    assert len(promises) > 8
    for promise in promises:
        promise("nearest_neighbour", {})


def is_of_variants(check):
    return any(mark.args[0] == ("name", "options") for mark in getattr(check, "pytestmark", []))


def test_the_method_of_the_page_is_the_nearest_neighbour(page, contract):
    run_blocks(blocks(page, "python")[:2])
    tasks, _ = contract.draw()
    method = make_method("nearest_neighbour", contract.Layer(), scale=2.0).double()
    log_prob, weight = method.predict(tasks), method.backbone.weight
    for t in range(3):
        for m in range(12):
            gaps = ((tasks.query_x[t, m] - tasks.support_x[t]) @ weight).square().sum(-1)
            logits = torch.stack([-2.0 * gaps[tasks.support_y[t] == c].min() for c in range(4)])
            assert torch.allclose(log_prob[t, m], logits.log_softmax(0))


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "training.md"], ids=lambda path: path.name)
def test_the_python_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = blocks(page.read_text(), "python")
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out


def test_the_commands_of_the_tool_guide_run_in_its_order(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("support", "query"):
        shutil.copytree(pictures / name, tmp_path / name)
    text = (DOCS / "tool.md").read_text()
    commands = [line for block in blocks(text, "bash") for line in block.splitlines()]
    assert len(commands) >= 10
    for command in commands:
        first, _, piped = command.rpartition(" | ")
        listed = "\n".join(map(str, sorted(Path(".").glob(first.split()[1])))) if first else None
        result = CliRunner().invoke(main, shlex.split(piped)[1:], input=listed)
        assert result.exit_code == 0, (command, result.output)
    for example in blocks(text, "python"):
        exec(compile(example, "tool.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.count(".png") == 9


def test_the_worked_example_prints_what_the_page_says(capsys):
    text = (DOCS / "uncertainty.md").read_text()
    (example,) = blocks(text, "python")
    expected = text.split(example + "```\n\n```\n")[1].split("```")[0]
    exec(compile(example, "uncertainty.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == expected


def test_the_settings_file_of_the_guide_is_one(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(blocks((DOCS / "training.md").read_text(), "toml")[0])
    assert Config().replace(**read_toml(path)).method_options["objective"] == "cml"
