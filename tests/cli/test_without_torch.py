"""Commands where torch cannot be imported: those for models work, the others name the extra to install."""

import json

import pytest

# Not sys.modules["torch"] = None, which SciPy takes for torch.
BLOCK = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
"""
PROGRAM = (
    BLOCK
    + """
import json
from typer.testing import CliRunner
from mirrorshot.cli import main

done = {}
for line in json.loads(sys.argv[1]):
    found = CliRunner().invoke(main, line)
    done[" ".join(line)] = [found.exit_code, found.output[-2000:], repr(found.exception)]
print(json.dumps([done, sorted({"matplotlib", "torch"} & set(sys.modules))]))
"""
)


@pytest.fixture
def invoke(in_subprocess):
    def start(*lines):
        done = in_subprocess("-c", PROGRAM, json.dumps([list(map(str, line)) for line in lines]))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return start


def test_the_commands_for_models_work(invoke, pictures):
    support, query = pictures / "support", pictures / "query"
    done, imported = invoke(
        ["fit", support, "-o", "m", "--quiet"],
        ["predict", "m", query, "--json"],
        ["predict", "m", query / "bar" / "0.png"],
        ["add", "m", f"bar={query / 'bar' / '0.png'}"],
        ["remove", "m", query / "bar" / "0.png", "-o", "m2"],
        ["suggest", "m", query],
        ["explain", "m", query / "ring" / "0.png"],
        ["evaluate", "m", query],
        ["doctor", support],
        ["list", "encoders"],
        ["list"],
    )
    failed = {line: found for line, found in done.items() if found[0] not in (0, 3)}
    assert failed == {}
    assert imported == []
    assert "pip install 'mirrorshot[train]'" in done["list"][1]


def test_export_writes_onnx(invoke, pictures):
    pytest.importorskip("onnx")
    done, _ = invoke(["fit", pictures / "support", "-o", "m", "--quiet"], ["export", "m", "-o", "head.onnx"])
    assert [code for code, *_ in done.values()] == [0, 0]


def test_the_server_can_be_made(in_subprocess, tmp_path):
    pytest.importorskip("fastapi")
    code = f"""{BLOCK}
import mirrorshot.serve.running, mirrorshot.views.page, mirrorshot.views.reliability
from mirrorshot.serve import Settings
from mirrorshot.serve.app import make_app
"""
    done = in_subprocess("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        ["train", "--episodes", "1"],
        ["demo", "--quick"],
        ["reproduce", "table1", "--budget", "smoke"],
        ["evaluate", "some-run"],
        ["report", "some-run"],
        ["list", "kernels"],
    ],
    ids=" ".join,
)
def test_the_commands_for_training_name_the_extra(invoke, tmp_path, line):
    (tmp_path / "some-run").mkdir()
    (tmp_path / "some-run" / "config.json").write_text("{}")
    (done, _) = invoke(line)
    code, output, _ = done[" ".join(line)]
    assert code == 1, output
    assert "Expected torch to be installed" in output
    assert "pip install 'mirrorshot[train]'" in output
