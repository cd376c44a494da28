import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import mirrorshot
from mirrorshot import demo as demo_module
from mirrorshot.cli import main
from mirrorshot.types import NumericalError


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """The demo sets the number of threads for its process; here it is set already, and put back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run():
    def invoke(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def quick_demo(run, tmp_path):
    def invoke(*arguments):
        return run("demo", "--episodes", 1, "--output", tmp_path / "out", *arguments)

    return invoke


def in_subprocess(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_version_is_that_of_the_package(run):
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"mirrorshot {mirrorshot.__version__}\n"


def test_help_teaches_by_example(run):
    result = run("--help")
    assert result.exit_code == 0
    assert "probabilities that mean what they say" in result.stdout
    assert "mirrorshot demo" in result.stdout
    assert "FewShotClassifier" in result.stdout
    assert "--shots" in run("demo", "-h").stdout


def test_help_does_not_wait_for_heavy_imports():
    code = (
        "import sys\n"
        "from mirrorshot.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'sklearn', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = in_subprocess("-c", code)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_package_runs_as_a_module():
    done = in_subprocess("-m", "mirrorshot", "--version")
    assert done.stdout == f"mirrorshot {mirrorshot.__version__}\n"
    assert "Usage: mirrorshot" in in_subprocess("-m", "mirrorshot", "--help").stdout


def test_completion_is_offered(run):
    assert "--install-completion" in run("--help").stdout


def test_demo_prints_tables_and_writes_its_results(quick_demo, tmp_path):
    result = quick_demo("--shots", 1, "--shots", 5, "--seed", 2)
    assert result.exit_code == 0, result.output
    for text in (
        "1 example per class", "5 examples per class", "mirrorshot", "LogisticRegression(C=1000)",
        "GaussianProcessClassifier", "needs 5 examples per class", "accuracy", "NLL", "ECE", "ms",
    ):  # fmt: skip
        assert text in result.stdout
    assert "only by looking at the labels" in " ".join(result.stdout.split())
    assert str(tmp_path / "out" / "reliability.png") in result.stdout
    assert (tmp_path / "out" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "demo.json").read_text())["seed"] == 2


def test_demo_marks_the_best_of_each_column(quick_demo):
    lines = quick_demo("--shots", 1).stdout.splitlines()
    table = [line.split() for line in lines if line.strip().startswith(("mirrorshot", "Logistic", "Gaussian"))]
    for column, better in ((2, max), (3, min), (4, min), (5, min)):
        values = {row[0]: row[column] for row in table}
        numbers = {name: float(value.rstrip("*%")) for name, value in values.items()}
        best = better(numbers.values())
        starred = {name for name, value in values.items() if value.endswith("*")}
        assert starred == {name for name, number in numbers.items() if number == best}


def test_demo_prints_nothing_but_json_if_asked(quick_demo, tmp_path):
    result = quick_demo("--shots", 1, "--json")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert document == json.loads((tmp_path / "out" / "demo.json").read_text())
    assert document["n_way"] == 5
    assert document["rows"][0]["method"] == "mirrorshot"
    assert document["version"] == mirrorshot.__version__


def test_demo_is_silent_on_stderr_when_it_is_no_terminal(quick_demo):
    assert quick_demo("--shots", 1).stderr == ""
    assert quick_demo("--shots", 1, "--quiet").stderr == ""


def test_demo_runs_repeated_shots_once(quick_demo):
    rows = json.loads(quick_demo("--shots", 1, "--shots", 1, "--json").stdout)["rows"]
    assert len(rows) == len({row["method"] for row in rows})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--episodes", 0), "Error: Expected --episodes to be at least 1, but got 0.\n"),
        (("--shots", 5, "--shots", 0), "Error: Expected --shots to be at least 1, but got 0.\n"),
        (("--seed", -1), "Error: Expected --seed not to be negative, but got -1.\n"),
    ],
)
def test_wrong_options_get_one_line_and_exit_code_2(run, tmp_path, arguments, message):
    result = run("demo", "--output", tmp_path, *arguments)
    assert (result.exit_code, result.stderr, result.stdout) == (2, message, "")


def test_a_folder_that_cannot_be_made_is_explained_before_the_work(run, tmp_path):
    (tmp_path / "file").touch()
    result = run("demo", "--output", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: Expected --output to be a folder that can be written, but got")
    assert result.stderr.count("\n") == 1


def test_a_folder_without_permission_is_explained(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # also for root, who may write anywhere
    result = run("demo", "--output", tmp_path)
    assert result.exit_code == 2
    assert "no permission" in result.stderr


def test_too_many_examples_are_explained_without_a_traceback(quick_demo):
    result = quick_demo("--shots", 500)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Expected `n_shots`")
    assert result.stdout == ""


def test_an_error_of_mirrorshot_is_a_message_and_exit_code_1(quick_demo, monkeypatch):
    def fail(**_):
        raise NumericalError("out of range")

    monkeypatch.setattr(demo_module, "run_demo", fail)
    result = quick_demo("--shots", 1)
    assert (result.exit_code, result.stderr) == (1, "Error: out of range\n")


def test_a_picture_that_cannot_be_written_is_a_message(quick_demo, tmp_path):
    (tmp_path / "out" / "reliability.png").mkdir(parents=True)
    result = quick_demo("--shots", 1)
    assert result.exit_code == 1
    assert "reliability.png" in result.stderr
    assert result.stderr.count("\n") == 1
