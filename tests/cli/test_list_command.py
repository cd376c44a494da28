import json

import pytest

from mirrorshot.cli.list_command import LISTS, attribute_docs
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.encoders import ENCODERS
from mirrorshot.gp.kernels import make_kernel
from mirrorshot.methods import METHODS, method_options
from mirrorshot.methods.gp import KERNEL_OPTIONS
from mirrorshot.networks.backbones import BACKBONES
from mirrorshot.training.config import Config
from mirrorshot.training.presets import PRESETS

REGISTRIES = {
    "methods": METHODS,
    "data": DATASETS,
    "presets": PRESETS,
    "backbones": BACKBONES,
    "kernels": KERNEL_OPTIONS,
    "encoders": ENCODERS,
    "settings": Config().to_dict(),
}


@pytest.mark.parametrize("topic", REGISTRIES)
def test_everything_is_listed_with_a_line_about_it(run, topic):
    rows = json.loads(run("list", topic, "--json").stdout)[topic]
    assert [row["name"] for row in rows] == list(REGISTRIES[topic])
    assert all(row["what"] for row in rows)
    table = run("list", topic)
    assert table.exit_code == 0
    assert all(name in table.stdout for name in REGISTRIES[topic])


def test_options_of_kernels_are_those_that_they_take():
    rows = {row["name"]: row["options"] for row in LISTS["kernels"]()}
    for name, options in rows.items():
        make_kernel(name, **options)
    assert rows["matern"]["nu"] == 2.5
    assert set(rows["cosine"]) == {"centre", "outputscale"}


def test_without_a_topic_everything_is_listed(run):
    assert list(LISTS) == list(REGISTRIES)
    assert json.loads(run("list", "--json").stdout).keys() == REGISTRIES.keys()


def test_methods_have_their_paper_and_options(run):
    mirror, *_ = json.loads(run("list", "methods", "--json").stdout)["methods"]
    assert "ICML 2024" in mirror["paper"]
    assert mirror["options"] == method_options("mirror_gp")
    assert "n_steps = 3" in run("list", "methods").stdout


def test_settings_have_defaults_and_meanings(run):
    rows = {row["name"]: row for row in json.loads(run("list", "settings", "--json").stdout)["settings"]}
    assert rows["n_way"]["default"] == 5
    assert "kernel" in rows["kernel_lr"]["what"]
    assert attribute_docs(Config).keys() == Config().to_dict().keys()


@pytest.mark.parametrize(
    ("files", "here"),
    [
        ([], {"glyphs"}),
        (["cub192.npz"], {"glyphs", "cub"}),
        (["CUB_200_2011/images/"], {"glyphs", "cub"}),
        (["miniimagenet84_0.npz"], {"glyphs"}),
        (
            ["cub192.npz", "miniimagenet84_0.npz", "miniimagenet84_1.npz"],
            {"glyphs", "cub", "mini_imagenet", "mini_imagenet_to_cub"},
        ),
        (["omniglot.npz"], {"glyphs", "omniglot"}),
        (["omniglot.npz", "emnist.npz"], {"glyphs", "omniglot", "omniglot_to_emnist"}),
    ],
)
def test_data_are_said_to_be_here_if_they_are(run, tmp_path, monkeypatch, files, here):
    for name in files:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    monkeypatch.setenv("MIRRORSHOT_DATA", str(tmp_path / "data"))
    rows = json.loads(run("list", "data", "--json").stdout)["data"]
    assert {row["name"] for row in rows if row["here"]} == here


def test_an_unknown_topic_is_wrong_usage(run):
    result = run("list", "colours")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: Expected TOPIC to be one of methods, data, ")
    assert result.stderr.endswith("but got 'colours'.\n")
