"""Names of encoders from a stranger's model file: no code runs, neither of a folder nor of the working folder."""

import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mirrorshot
from mirrorshot.encoders import EncoderError, make_encoder, restore_encoder
from mirrorshot.encoders.guards import without_pickled_code
from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.files.sealed import save_sealed
from mirrorshot.tool import Items, Model

SOURCE = str(Path(mirrorshot.__file__).parents[1])


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Stand-ins for the packages, which record how they are called, in an empty working folder."""
    found = []

    class SentenceTransformer:
        def __init__(self, name, **options):
            found.append((name, options))

        def encode(self, texts, convert_to_tensor):
            return torch.ones(len(texts), 2)

    class Hub:
        @staticmethod
        def from_pretrained(name, **options):
            found.append((name, options))
            return torch.nn.Identity()

    def create(*arguments, **options):
        found.append((arguments, options))
        return torch.nn.Identity(), None, None

    def create_one(*arguments, **options):
        return create(*arguments, **options)[0]

    no_data = types.SimpleNamespace(resolve_model_data_config=lambda _: {}, create_transform=lambda **_: None)
    packages = {
        "sentence_transformers": {"SentenceTransformer": SentenceTransformer},
        "transformers": {"AutoModel": Hub, "AutoImageProcessor": Hub},
        "open_clip": {"create_model_and_transforms": create},
        "timm": {"create_model": create_one, "data": no_data},
    }
    for name, content in packages.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("name", ["transformers:owner/net@v1", "sentence-transformers:enc"])
def test_code_of_a_hub_is_refused_and_weights_are_never_pickled(calls, name, download):
    restore_encoder(name, {}, {}, download=download)
    for _, options in calls:
        assert options["trust_remote_code"] is False
        assert options["local_files_only"] is not download
    weights = calls[-1][1].get("model_kwargs", calls[-1][1])
    assert weights["use_safetensors"] is True


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("sentence-transformers:enc", "enc"),
        ("sentence-transformers:enc", "sentence-transformers/enc"),
        ("sentence-transformers:owner/enc", "owner/enc"),
        ("transformers:owner/net@v1", "owner/net"),
        ("open_clip:ViT-B-32/weights.pt", "weights.pt"),
        ("open_clip:ViT-B-32", "ViT-B-32"),
        ("timm:net", "net"),
    ],
)
@pytest.mark.parametrize("trust_encoder", [False, True])
def test_a_name_that_is_a_folder_here_is_refused(calls, name, place, trust_encoder):
    Path(place).mkdir(parents=True)
    with pytest.raises(EncoderError, match=r"exists and would be used instead"):
        restore_encoder(name, {}, {}, trust_encoder=trust_encoder)
    with pytest.raises(EncoderError, match="function of your own"):
        make_encoder(name)
    assert calls == []


def test_a_package_that_is_too_old_for_the_switch_is_refused(calls, monkeypatch):
    monkeypatch.setattr(sys.modules["sentence_transformers"], "SentenceTransformer", lambda name, device: None)
    with pytest.raises(EncoderError, match="pip install -U sentence-transformers"):
        make_encoder("sentence-transformers:enc")


def test_pickled_code_is_refused_whatever_a_package_asks_for(tmp_path):
    torch.save(Path("not weights"), tmp_path / "weights.pt")
    with without_pickled_code(), pytest.raises(Exception, match=r"[Ww]eights.only"):
        torch.load(tmp_path / "weights.pt", weights_only=False)
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_package_in_the_working_folder_is_not_imported(tmp_path, monkeypatch, is_folder):
    place = tmp_path / "timm" / "__init__.py" if is_folder else tmp_path / "timm.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(EncoderError, match="in the working folder"):
        restore_encoder("timm:resnet18", {}, {})


@pytest.fixture
def trap(tmp_path):
    """A folder with a model that names a network of timm, and files that note that they were imported."""
    X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]])
    Model.fit(Items("embedding", ["a0", "a1", "b0", "b1"], X, ["a", "a", "b", "b"])).save(tmp_path / "model")
    tensors, info = load_checkpoint(tmp_path / "model")
    info = {name: info[name] for name in ("names", "labels", "head")}
    info["encoder"] = {"name": "timm:resnet18", "settings": {}, "kind": "picture"}
    save_sealed(tmp_path / "model", tensors, info, kind="model", version=1)
    for name in ("timm", "typing", "threading", "typer", "torch"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').write(__name__ + ' ')\n")
    Image.new("L", (30, 30), 255).save(tmp_path / "query.png")
    return tmp_path


MODULE = ["-m", "mirrorshot"]
SCRIPT = ["-c", "import sys; sys.path.pop(0); from mirrorshot.__main__ import run; run()"]


@pytest.mark.parametrize(
    ("start", "import_path"),
    [(MODULE, SOURCE), (SCRIPT, SOURCE), (SCRIPT, f"{SOURCE}{os.pathsep}")],
    ids=["python -m", "console script", "empty entry of PYTHONPATH"],
)
def test_the_command_imports_nothing_from_the_working_folder(trap, start, import_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *start, "predict", "model", "query.png"],
        cwd=trap,
        env={**environment, "PYTHONPATH": import_path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (trap / "imported").exists(), (trap / "imported").read_text()
    assert done.returncode == 1
    assert "pip install timm" in done.stderr


def test_a_folder_that_pythonpath_names_stays(tmp_path):
    (tmp_path / "mine.py").write_text("")
    code = "import sys; sys.path.pop(0); import mirrorshot.__main__; import mine; print('found')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, "", str(tmp_path)])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "found\n"
