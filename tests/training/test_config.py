import datetime
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorshot.training.config import Config, field_types, from_dict
from mirrorshot.training.overrides import parse_override
from mirrorshot.types import InvalidInputError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_setting_is_documented_and_has_a_default():
    Config()
    documented = Config.__doc__.split("Attributes:")[1]
    assert [name for name in field_types() if name not in documented] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr=fast", "`lr` to be a finite number, but got 'fast'"),
        ("lr=NaN", "`lr` to be a finite number, but got nan"),
        ("lr=true", "`lr` to be a finite number, but got True"),
        ("lr=11", "`lr` to be between 0.0 and 10.0, but got 11"),
        ("lr=-1", "`lr` to be between"),
        ("clip=Infinity", "`clip` to be a finite number, but got inf"),
        ("save_every=Infinity", "`save_every` to be a finite number"),
        ("clip=2e9", "`clip` to be between 0.0 and 1000000000.0"),
        ("n_way=2.5", "`n_way` to be an integer, but got 2.5"),
        ("n_way=true", "`n_way` to be an integer, but got True"),
        ("n_way=1", "`n_way` to be between 2 and 1000, but got 1"),
        ("train_way=1", "`train_way` to be 0 or at least 2, but got 1"),
        ("n_query=0", "`n_query`"),
        ("n_episodes=0", "`n_episodes`"),
        ("tasks_per_step=0", "`tasks_per_step`"),
        ("ema=1", "`ema` to be between 0.0 and 0.999999, but got 1"),
        ("seed=-1", "`seed`"),
        ("schedule=linear", "`schedule` to be 'constant' or 'cosine', but got 'linear'"),
        ("schedule=null", "`schedule`"),
        ("augment=1", "`augment` to be true or false or 'auto', but got 1"),
        ("tensorboard=1", "`tensorboard` to be true or false, but got 1"),
        ("method_options=5", "`method_options` to be a table, but got 5"),
        ("method_options.x=NaN", "`method_options` to hold only what JSON can"),
        ("tasks_per_step=7", "`validate_every` to be a multiple of `tasks_per_step`, but got 100 and 7"),
    ],
)
def test_a_setting_of_a_wrong_type_or_size_is_explained(text, message):
    with pytest.raises(InvalidInputError, match=message):
        Config().replace(**parse_override(text))


def test_a_name_that_does_not_exist_is_explained_wherever_it_comes_from():
    for attempt in (lambda: from_dict({"n_shots": 1}), lambda: Config().replace(n_shots=1)):
        with pytest.raises(InvalidInputError, match=r"settings that exist, but got `n_shots`\. Did you mean"):
            attempt()


def test_options_that_json_cannot_hold_are_refused_before_a_run_begins():
    for value in (datetime.date(2024, 1, 1), math.nan, {1, 2}):
        with pytest.raises(InvalidInputError, match="`method_options` to hold only what JSON can"):
            Config(method_options={"kernel": value})


def test_settings_survive_json():
    config = Config(
        data="cub", lr=1, augment=False, ema=0.99, method_options={"kernel": "rbf", "kernel_options": {"power": 2}}
    )
    document = json.loads(json.dumps(config.to_dict()))
    assert from_dict(document) == config
    assert set(document) == set(field_types())


def test_settings_do_not_share_their_options():
    config = Config(method_options={"kernel_options": {"power": 2}})
    config.to_dict()["method_options"]["kernel_options"]["power"] = 3
    config.replace(method_options={"kernel_options": {"power": 4}})
    assert config.method_options == {"kernel_options": {"power": 2}}


def test_options_of_several_sources_are_merged_at_every_depth():
    config = Config(method_options={"kernel": "rbf", "kernel_options": {"lengthscale": 0.5}})
    for text in ("method_options.kernel_options.normalise=false", "method_options.n_steps=2"):
        config = config.replace(**parse_override(text))
    options = {"kernel": "rbf", "kernel_options": {"lengthscale": 0.5, "normalise": False}, "n_steps": 2}
    assert config.method_options == options
    config = config.replace(**parse_override("method_options.kernel_options=null"))
    assert config.method_options == {**options, "kernel_options": None}


@pytest.mark.parametrize(
    ("n_episodes", "tasks_per_step", "n_steps", "per_validation"), [(100, 1, 100, 20), (101, 4, 26, 5), (1, 20, 1, 1)]
)
def test_steps_are_counted_in_tasks(n_episodes, tasks_per_step, n_steps, per_validation):
    config = Config(n_episodes=n_episodes, tasks_per_step=tasks_per_step, validate_every=20)
    assert (config.n_steps, config.steps_per_validation) == (n_steps, per_validation)


def test_the_settings_need_no_torch():
    code = "import sys, mirrorshot.training.config, mirrorshot.training.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_python_3_10_gets_a_reader_of_toml():
    assert "\"tomli>=2; python_version < '3.11'\"" in PYPROJECT.read_text()
