import json

import pytest

import mirrorshot

IMAGES = ("fit", "predict", "add", "remove", "suggest", "explain", "doctor", "export")
COMMANDS = ("demo", "train", "evaluate", "report", "reproduce", "list")


def test_version_is_that_of_the_package(run):
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"mirrorshot {mirrorshot.__version__}\n")


def test_help_teaches_by_example(run):
    result = run("--help")
    assert result.exit_code == 0
    assert "probabilities that mean what they say" in result.stdout
    assert "FewShotClassifier" in result.stdout
    assert all(f"mirrorshot {command}" in result.stdout for command in COMMANDS)
    assert "--install-completion" in result.stdout
    assert "Exit codes" in result.stdout
    assert all(command in result.stdout for command in IMAGES)


@pytest.mark.parametrize("command", COMMANDS + IMAGES)
def test_help_of_a_command_has_examples(run, command):
    result = run(command, "-h")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    assert f"mirrorshot {command} " in result.stdout


@pytest.mark.parametrize("command", COMMANDS + IMAGES)
def test_help_fits_a_narrow_terminal(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    text = run(command, "-h").stdout
    assert "…" not in text  # no name of an option or an encoder is cut


def test_help_fills_a_wide_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "220")
    assert "both are shares of the largest possible uncertainty." in run("predict", "-h").stdout


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS + IMAGES)])
def test_no_help_waits_for_heavy_imports(in_subprocess, command):
    code = (
        "import sys\n"
        "from mirrorshot.cli import main\n"
        f"main([*{command}, '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'sklearn', 'numpy', 'scipy', 'matplotlib', 'PIL', 'fastapi', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = in_subprocess("-c", code)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_commands_for_models_import_only_what_they_need(in_subprocess, pictures):
    support, query = pictures / "support", pictures / "query"
    lines = [
        ["fit", support, "-o", "m"],
        ["predict", "m", query / "bar" / "0.png"],
        ["add", "m", f"bar={query / 'bar' / '0.png'}"],
        ["remove", "m", query / "bar" / "0.png"],
        ["suggest", "m", query],
        ["explain", "m", query / "ring" / "0.png"],
        ["evaluate", "m", query],
        ["doctor", support],
    ]
    heavy = {"torch", "sklearn", "scipy.stats", "scipy.optimize", "scipy.sparse", "pandas", "matplotlib", "fastapi"}
    code = (
        "import json, sys\n"
        "from mirrorshot.cli import main\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    assert main(line, standalone_mode=False) in (None, 0, 3), line\n"
        f"    assert not {heavy} & set(sys.modules), (line, {heavy} & set(sys.modules))\n"
    )
    done = in_subprocess("-c", code, json.dumps([list(map(str, line)) for line in lines]))
    assert done.returncode == 0, done.stderr


def test_users_of_models_find_their_evaluation(run):
    text = " ".join(run("--help").stdout.split())
    assert "Evaluate a model on labelled images, or trained runs" in text
    assert "mirrorshot evaluate model.mirrorshot test/" in text


def test_package_runs_as_a_module(in_subprocess):
    assert in_subprocess("-m", "mirrorshot", "--version").stdout == f"mirrorshot {mirrorshot.__version__}\n"
    assert "Usage: mirrorshot" in in_subprocess("-m", "mirrorshot", "--help").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mirrorshot train --method proto", "protonet"),
        ("mirrorshot train --data omni", "omniglot_to_emnist"),
        ("mirrorshot train --preset pa", "paper"),
        ("mirrorshot train --set validate", "validate_every="),
        ("mirrorshot list back", "backbones"),
        ("mirrorshot ev", "evaluate"),
        ("mirrorshot fi", "fit"),
        ("mirrorshot fit --encoder gl", "glyphs"),
        ("mirrorshot doctor -e sent", "sentence-transformers:"),
    ],
)
def test_a_shell_completes_names_without_torch(in_subprocess, words, expected):
    code = (
        "import sys\n"
        "from mirrorshot.cli import main\n"
        "try:\n"
        "    main(prog_name='mirrorshot')\n"
        "finally:\n"
        "    sys.stderr.write(str('torch' in sys.modules))\n"
    )
    completion = {"_MIRRORSHOT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = in_subprocess("-c", code, env=completion)
    assert expected in done.stdout
    assert done.stderr.endswith("False")
