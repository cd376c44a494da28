from mirrorshot.cli import names
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.methods import METHODS
from mirrorshot.training.presets import PRESETS


def test_completed_names_are_those_of_the_registries():
    assert names.complete_method("") == list(METHODS)
    assert set(names.DATA) == set(DATASETS)
    assert names.complete_preset("") == list(PRESETS)


def test_data_are_completed_by_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cub-pictures").mkdir()
    (tmp_path / "cubes.npz").touch()
    assert names.complete_data("cub") == ["cub", "cub-pictures/", "cubes.npz"]


def test_settings_are_completed_up_to_their_value():
    assert names.complete_setting("n_s") == ["n_shot="]
    assert names.complete_setting("method_") == ["method_options."]
