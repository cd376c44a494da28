from mirrorshot.cli import completion
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.encoders import ENCODERS
from mirrorshot.methods import METHODS
from mirrorshot.training.presets import PRESETS


def test_completed_names_are_those_of_the_registries():
    assert completion.complete_method("") == list(METHODS)
    assert set(completion.DATA) == set(DATASETS)
    assert completion.complete_preset("") == list(PRESETS)
    assert completion.complete_target("tab") == ["table1", "table2", "table3", "table4", "tables"]
    assert completion.complete_budget("s") == ["smoke", "short"]
    assert completion.complete_topic("k") == ["kernels"]
    by_name = {name.split(":")[0]: name for name in ENCODERS if name not in ("FOLDER", "module:function")}
    assert tuple(f"{short}:" if ":" in name else name for short, name in by_name.items()) == completion.ENCODERS


def test_data_are_completed_by_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cub-images").mkdir()
    (tmp_path / "cubes.npz").touch()
    assert completion.complete_data("cub") == ["cub", "cub-images/", "cubes.npz"]
    assert completion.complete_encoder("cub") == ["cub-images/"]


def test_settings_are_completed_up_to_their_value():
    assert completion.complete_setting("n_s") == ["n_shot="]
    assert completion.complete_setting("method_") == ["method_options."]
