"""What the documentation says is true: methods have their sections, examples run and print what they should."""

import importlib.util
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner

from mirrorshot.cli import main
from mirrorshot.methods import METHODS, make_method
from mirrorshot.training.config import Config
from mirrorshot.training.folder import read_config
from mirrorshot.training.overrides import read_toml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHORT_TRAINING = ["--episodes", "2", "--set", "n_validation_tasks=2", "--set", "n_tune_tasks=2", "--set", "n_query=5"]
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
    spec = importlib.util.spec_from_file_location(
        "contract_of_the_page", ROOT / "tests" / "methods" / "test_contract.py"
    )
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


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", DOCS / "library.md", DOCS / "training.md"],
    ids=lambda path: path.name,
)
def test_the_python_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = blocks(page.read_text(), "python")
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out


def test_the_example_of_the_readme_prints_what_the_readme_says(capsys):
    code, printed = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    exec(compile(code, "README.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == printed


def test_the_commands_of_the_tool_guide_run_in_its_order(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, source in {"support": "support", "query": "query", "test": "query"}.items():
        shutil.copytree(pictures / source, tmp_path / name)
    bodies = {
        "weather": ("cold rain", "warm wind", "snow at night"),
        "sport": ("a late goal", "the match", "two points"),
    }
    rows = [f"{body},{topic}" for topic, some in bodies.items() for body in some]
    (tmp_path / "texts.csv").write_text("\n".join(["body,topic", *rows]))
    (tmp_path / "new.csv").write_text("body\nsnow and rain\n")
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


def printed_examples(text):
    """Python examples with what they print, as the page has it."""
    return re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        pytest.param(*example, id=f"{name}-{i}")
        for name in ("uncertainty.md", "faq.md", "api/errors.md")
        for i, example in enumerate(printed_examples((DOCS / name).read_text()))
    ],
)
def test_an_example_prints_what_the_page_says(example, expected, capsys, no_network):
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("name", ["uncertainty.md", "faq.md", "api/errors.md"])
def test_all_examples_of_a_page_are_compared(name):
    text = (DOCS / name).read_text()
    assert [code for code, _ in printed_examples(text)] == blocks(text, "python")


@pytest.fixture
def no_network(monkeypatch):
    """Connections are refused."""

    def refuse(*args):
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


def test_the_commands_of_the_questions_run_in_their_order(pictures, tmp_path, monkeypatch, no_network):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures, tmp_path, dirs_exist_ok=True)
    commands = [line for block in blocks((DOCS / "faq.md").read_text(), "bash") for line in block.splitlines()]
    assert len(commands) == 6
    for command in commands:
        shorter = SHORT_TRAINING if " train " in command else []
        result = CliRunner().invoke(main, [*shlex.split(command)[1:], *shorter])
        assert result.exit_code == 0, (command, result.output)


def test_the_settings_file_of_the_guide_is_one(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(blocks((DOCS / "training.md").read_text(), "toml")[0])
    assert Config().replace(**read_toml(path)).method_options["objective"] == "cml"


def test_the_gallery_has_every_picture_with_its_command(tmp_path):
    text = (DOCS / "gallery.md").read_text()
    names = re.findall(r"^python docs/gallery\.py (\w+)$", text, flags=re.MULTILINE)
    assert names == gallery().NAMES
    assert re.findall(r"^!\[.+\]\(images/(\w+)\.png\)$", text, flags=re.MULTILINE) == names


def test_the_gallery_draws_what_it_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gallery.py", "uncertainty_map", "--output", str(tmp_path / "new")])
    gallery().main()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["uncertainty_map.png", "uncertainty_map.svg"]
    assert capsys.readouterr().out.count(" KiB\n") == 2


def test_the_gallery_draws_everything_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["gallery.py", "--output", str(tmp_path)])
    module = gallery()
    monkeypatch.setattr(module, "uncertainty_map", lambda: {"uncertainty_map": Figure()})
    monkeypatch.setattr(module, "of_the_demo", lambda is_quick: {name: Figure() for name in module.NAMES[1:]})
    module.main()
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == sorted(module.NAMES)


def gallery():
    """The module docs/gallery.py."""
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_examples_of_the_gallery_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in blocks((DOCS / "gallery.md").read_text(), "python"):
        exec(compile(example, "gallery.md", "exec"), {"__name__": "example"})
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["map", "reliability", "risk"]


def test_the_drawing_of_the_layers_is_current():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "layers.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_walks_of_the_architecture_name_files_that_exist_and_no_file_twice():
    text = (DOCS / "architecture.md").read_text().partition("## Five walks")[2]
    walks = text.split("\n**")[1:]
    assert len(walks) == 5
    for walk in walks:
        files = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.py)?)`", walk.partition("\n`predict_proba` goes")[0])
        assert [name for name in files if not (ROOT / "src" / "mirrorshot" / name).exists()] == []
        assert len(files) == len(set(files))
    assert sum(name.startswith("`paper/") for name in re.findall(r"`paper/[a-z0-9_]+\.py", walks[-1])) <= 8


def test_the_readme_fits_one_reader():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
