from pathlib import Path

import pytest

from mirrorshot.cli.settings import check_names, compose, run_folder
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings
from mirrorshot.types import InvalidInputError


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return write


def test_what_comes_later_wins(toml):
    file = toml("lr = 0.5\nseed = 7\nclip = 2.0\n[method_options]\nn_steps = 9\nobjective = 'cml'")
    config = compose("paper", file, {"seed": 8, "n_way": None}, ["clip=3", "method_options.n_steps=4"])
    paper = preset_settings("paper", "glyphs", 1)
    assert config.n_way == Config.n_way  # default
    assert config.kernel_lr == paper["kernel_lr"]  # preset
    assert config.method_options["start"] == paper["method_options"]["start"]
    assert (config.lr, config.method_options["objective"]) == (0.5, "cml")  # file
    assert (config.seed, config.clip, config.method_options["n_steps"]) == (8, 3.0, 4)  # command line


def test_the_preset_is_that_of_the_data_and_the_shots(toml):
    file = toml("data = 'mini_imagenet'")
    assert compose("paper", file, {"n_shot": 5}, []).n_episodes == 80_000
    assert compose("paper", file, {}, ["n_shot=1"]).n_episodes == 60_000
    assert compose("paper", None, {"data": "glyphs"}, []).method_options["kernel"] == "rbf"
    assert compose("paper", None, {"data": "cub"}, []).method_options["kernel"] == "cosine"


def test_another_method_takes_only_options_it_has():
    assert compose("default", None, {"method": "protonet"}, []).method_options == {}
    gd = compose("default", None, {"method": "gd_gp"}, []).method_options
    assert gd == {"kernel": "rbf", "temperature": True}
    check_names(compose("paper", None, {"method": "gd_gp"}, []))


def test_settings_that_depend_on_one_another_may_come_in_any_order():
    config = compose("default", None, {}, ["tasks_per_step=8", "validate_every=96"])
    assert (config.tasks_per_step, config.validate_every) == (8, 96)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "mirror"}, "one of mirror_gp, gd_gp, protonet.* but got 'mirror'"),
        ({"backbone": "vgg"}, "`backbone` to be auto, conv4.*but got 'vgg'"),
        ({"method_options": {"steps": 3}}, "options of 'mirror_gp' to be among .*n_steps.*but got steps"),
        ({"method_options": {"kernel": "round"}}, "`kernel` to be one of cosine"),
    ],
)
def test_names_that_do_not_exist_are_refused(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        check_names(Config(**changes))


@pytest.mark.parametrize(
    ("data", "folder"),
    [("glyphs", "glyphs-mirror_gp-1shot"), ("/a/b c/", "b c-mirror_gp-1shot"), ("x/set.npz", "set-mirror_gp-1shot")],
)
def test_runs_are_named_after_what_they_are(data, folder):
    assert run_folder(Config(data=data)) == Path("runs") / folder
