import shlex

import pytest

from mirrorshot.cli.settings import compose
from mirrorshot.methods import method_options
from mirrorshot.training.config import Config
from mirrorshot.views.training_command import training_command


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        compose("default", None, {"n_shot": 5}, []),
        compose("paper", None, {"data": "cub"}, ["lr=0.002"]),
        compose("default", None, {"method": "dkt"}, ["method_options.noise=0.3", "n_query=7"]),
        Config(method="mirror_gp", method_options={"kernel": "rbf"}, ema=0.98, data="some folder"),
    ],
)
def test_the_command_makes_the_same_settings(config):
    words = shlex.split(training_command(config))
    assert words[:2] == ["mirrorshot", "train"]
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    flags = {name[2:].replace("-", "_"): v for name, v in pairs if name not in ("--set", "--preset")}
    flags = {name: int(v) if v.isdigit() else v for name, v in flags.items()}
    preset = dict(pairs).get("--preset", "default")
    made = compose(preset, None, flags, [v for name, v in pairs if name == "--set"])
    defaults = method_options(config.method)
    assert made.replace(method_options={}).to_dict() | {"method_options": 0} == config.to_dict() | {"method_options": 0}
    assert defaults | made.method_options == defaults | config.method_options
