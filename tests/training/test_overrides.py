"""Settings as texts: TOML files and `name=value`."""

import pytest

from mirrorshot.training.config import Config
from mirrorshot.training.overrides import parse_override, read_toml
from mirrorshot.types import InvalidInputError


@pytest.fixture
def toml(tmp_path):
    """Writes a TOML file."""

    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


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
