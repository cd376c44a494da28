import datetime
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorshot.training.config import Config, field_types, from_dict, parse_override, read_toml
from mirrorshot.types import InvalidInputError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def toml(tmp_path):
    """Writes a TOML file."""

    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_setting_is_documented_and_has_a_default():
    Config()
    documented = Config.__doc__.split("Attributes:")[1]
    assert [name for name in field_types() if name not in documented] == []


def test_settings_of_a_file(toml):
    path = toml('data = "cub"\nlr = 3e-4\nn_episodes = 60_000\naugment = false\n[method_options]\nkernel = "rbf"\n')
    settings = read_toml(path)
    assert settings == {
        "data": "cub", "lr": 3e-4, "n_episodes": 60_000, "augment": False, "method_options": {"kernel": "rbf"}
    }  # fmt: skip
    config = Config().replace(**settings)
    assert (config.data, config.lr, config.method_options) == ("cub", 3e-4, {"kernel": "rbf"})
    assert config.n_way == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = ", "to be TOML, but got"),
        ("leraning_rate = 1", "`leraning_rate` in .*settings.toml"),
        ("n_ways = 5", "Did you mean `n_way`"),
        ("[lr]\nvalue = 1", "`lr` to be a finite number"),
    ],
)
def test_a_wrong_file_is_explained(toml, text, message):
    with pytest.raises(InvalidInputError, match=message):
        Config().replace(**read_toml(toml(text)))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"TOML file of settings, but .*nothing\.toml cannot be read"):
        read_toml(tmp_path / "nothing.toml")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_toml(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match=r"bytes\.toml"):
        read_toml(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=3e-4", {"lr": 3e-4}),
        (" n_way = 20 ", {"n_way": 20}),
        ("augment=auto", {"augment": "auto"}),
        ("augment=false", {"augment": False}),
        ("data=5", {"data": "5"}),
        ("data=a=b", {"data": "a=b"}),
        ("data=null", {"data": "null"}),
        ("device=cuda:1", {"device": "cuda:1"}),
        ("schedule=cosine", {"schedule": "cosine"}),
        ("method_options.kernel=rbf", {"method_options": {"kernel": "rbf"}}),
        ("method_options.temperature=false", {"method_options": {"temperature": False}}),
        ("method_options.kernel_options.power=2", {"method_options": {"kernel_options": {"power": 2}}}),
        ('method_options={"n_steps": 2}', {"method_options": {"n_steps": 2}}),
    ],
)
def test_overrides_are_parsed(text, expected):
    assert parse_override(text) == expected
    Config().replace(**parse_override(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "name=value, for instance lr=3e-4, but got 'lr'"),
        ("=3", "name=value"),
        ("lrr=3", "Did you mean `lr`"),
        ("zzz=3", "Settings are: method, "),
        ("n_steps=3", "an option of the method: `method_options.n_steps`"),
        ("lr.x=3", "a dot only in method_options.name, but got 'lr.x'"),
        ("lr.=3", "a dot only in method_options.name, but got 'lr.'"),
        ("method_options.=3", "a name after each dot, but got 'method_options.'"),
        ("method_options.a..b=3", "a name after each dot"),
    ],
)
def test_a_wrong_override_is_explained(text, message):
    with pytest.raises(InvalidInputError, match=message):
        parse_override(text)


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
