import pytest

import mirrorshot.methods
from mirrorshot.cli.completion import complete_method
from mirrorshot.cli.list_command import LISTS
from mirrorshot.methods import METHODS, make_method, method_options
from mirrorshot.methods.recipe import Case, Recipe
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training.config import Config
from mirrorshot.training.presets import PRESETS, preset_settings
from mirrorshot.types import InvalidInputError

# docs of the references: thousands of episodes at 1 and 5 shots, kernel
PAPER = {
    "cub": (60, 40, "cosine"),
    "mini_imagenet": (60, 80, "cosine"),
    "mini_imagenet_to_cub": (80, 40, "cosine"),
    "omniglot_to_emnist": (60, 40, "rbf"),
}


@pytest.mark.parametrize(("data", "one", "five", "kernel"), [(name, *row) for name, row in PAPER.items()])
def test_the_paper_trains_this_long_with_this_kernel(data, one, five, kernel):
    for n_shot, thousands in ((1, one), (5, five)):
        settings = preset_settings("paper", data, n_shot)
        assert settings["n_episodes"] == 1000 * thousands
        assert settings["method_options"]["kernel"] == kernel


def test_the_paper_has_these_settings():
    config = Config().replace(**preset_settings("paper", "cub", 1))
    assert (config.method, config.tasks_per_step, config.lr, config.kernel_lr) == ("mirror_gp", 1, 1e-3, 1e-4)
    assert (config.schedule, config.ema, config.clip) == ("constant", 0.0, 0.0)
    assert (config.n_way, config.n_query, config.n_validation_tasks, config.validate_every) == (5, 16, 100, 100)
    method = make_method(config.method, make_backbone("identity", in_features=4), **config.method_options)
    assert (method.n_steps, method.step_size, method.start, method.objective) == (3, 1.0, "prior", "ml")


def test_the_paper_fits_no_temperature_in_training():
    assert preset_settings("paper", "cub", 1)["method_options"]["temperature"] is False
    assert preset_settings("default", "cub", 1)["method_options"]["temperature"] is True


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("data", [*PAPER, "omniglot", "glyphs", "own/folder"])
def test_every_preset_makes_settings_and_a_method(name, data):
    config = Config(data=data).replace(**preset_settings(name, data, 5))
    make_method(config.method, make_backbone("identity", in_features=4), **config.method_options)


def test_photographs_are_learned_with_muon_where_that_was_measured_and_not_in_the_paper():
    def optimizer(name, data, method):
        config = Config(data=data).replace(**preset_settings(name, data, 1, method))
        return config.optimizer, config.tasks_per_step, config.lr, config.crop_area, config.n_episodes

    for method in ("mirror_gp", "dkt"):
        assert optimizer("default", "cub", method) == ("muon", 4, 4e-3, 0.3, 60_000)
        assert optimizer("paper", "cub", method) == ("adam", 1, 1e-3, 0.08, 60_000)
        assert optimizer("default", "omniglot_to_emnist", method) == ("adam", 1, 1e-3, 0.08, 10_000)
    assert optimizer("default", "cub", "maml") == ("muon", 4, 4e-3, 0.3, 60_000)
    assert optimizer("paper", "cub", "maml") == ("adam", 4, 1e-3, 0.08, 240_000)
    assert optimizer("default", "cub", "bayesian_maml") == ("adam", 4, 1e-3, 0.3, 240_000)
    assert optimizer("default", "cub", "baseline_pp") == ("adam", 1, 1e-3, 0.3, 60_000)


@pytest.mark.parametrize(("name", "data", "is_averaged"), [
    ("default", "cub", True), ("default", "mini_imagenet_to_cub", True), ("default", "omniglot", False),
    ("default", "own/folder", False), ("paper", "cub", False),
])  # fmt: skip
def test_both_sides_of_photographs_count_in_our_preset(name, data, is_averaged):
    assert Config(data=data).replace(**preset_settings(name, data, 1)).average_flips is is_averaged


@pytest.mark.parametrize(("name", "data", "batch_size"), [
    ("default", "cub", 64), ("default", "own/folder", 16), ("default", "omniglot_to_emnist", 16), ("paper", "cub", 16),
])  # fmt: skip
def test_pre_training_on_the_photographs_of_the_benchmarks_takes_larger_batches(name, data, batch_size):
    assert Config(data=data).replace(**preset_settings(name, data, 5, "baseline_pp")).batch_size == batch_size


def test_bayesian_maml_learns_characters_at_one_shot_from_one_task_a_step():
    tasks = {n: preset_settings("default", "omniglot_to_emnist", n, "bayesian_maml")["tasks_per_step"] for n in (1, 5)}
    assert tasks == {1: 1, 5: 4}


@pytest.mark.parametrize("data", ["omniglot_to_emnist", "glyphs"])
def test_mirror_gp_learns_characters_at_one_shot_from_tasks_of_five(data):
    one, five = (preset_settings("default", data, n_shot) for n_shot in (1, 5))
    assert (one["train_shot"], one["train_query"]) == (5, 15)
    assert "train_shot" not in five
    assert one["method_options"] == five["method_options"]
    assert one["distort"] == five["distort"] == 0.5
    assert "train_shot" not in preset_settings("default", data, 1, "protonet")


def test_presets_do_not_share_their_options():
    preset_settings("paper", "cub", 1)["method_options"]["n_steps"] = 99
    assert preset_settings("paper", "cub", 1)["method_options"]["n_steps"] == 3


METHOD = """
import torch
from mirrorshot.methods.base import FewShotMethod, query_nll
from mirrorshot.methods.recipe import Recipe


class Farthest(FewShotMethod):
    recipes = (Recipe({"lr": 7e-3}, kind="photographs"), Recipe({"method_options": {"scale": 3.0}}, n_shot=5))

    def __init__(self, backbone, *, scale=1.0):
        super().__init__(backbone)
        self.scale = torch.nn.Parameter(torch.tensor(scale))

    def loss(self, tasks, query_y):
        return query_nll(self.predict(tasks), tasks, query_y)

    def predict(self, tasks):
        support, query = self.features(tasks)
        return (self.scale * query @ support.mT)[..., : tasks.n_way].log_softmax(-1)
"""


def test_a_new_method_is_one_file_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "farthest.py").write_text(METHOD)
    monkeypatch.setattr(mirrorshot.methods, "__path__", [*mirrorshot.methods.__path__, str(tmp_path)])
    monkeypatch.setitem(METHODS.data, "farthest", "farthest.Farthest")

    assert complete_method("far") == ["farthest"]
    assert method_options("farthest") == {"scale": 1.0}
    assert preset_settings("default", "cub", 1, "farthest")["lr"] == 7e-3
    assert preset_settings("paper", "omniglot", 5, "farthest")["method_options"] == {"scale": 3.0}
    assert make_method("farthest", make_backbone("identity", in_features=4), scale=2.0).scale == 2.0
    assert [row for row in LISTS["methods"]() if row["name"] == "farthest"]
    assert Config(method="farthest").method == "farthest"


@pytest.mark.parametrize("case", [
    Case("default", "characters", True, 1), Case("paper", "photographs", True, 1),
    Case("default", "photographs", True, 5),
])  # fmt: skip
def test_a_recipe_applies_only_where_all_its_conditions_hold(case):
    assert not Recipe({}, preset="default", kind="photographs", n_shot=1).applies(case)
    assert Recipe({}, is_benchmark=True).applies(case)


def test_an_unknown_preset_is_explained():
    with pytest.raises(InvalidInputError, match="`preset` to be one of default, paper, but got 'papre'"):
        preset_settings("papre", "cub", 1)


def test_published_settings_of_other_methods_are_those_of_the_paper_and_ours_are_better():
    assert "start" not in preset_settings("paper", "cub", 1, "logistic_softmax_gp")["method_options"]
    ours = preset_settings("default", "cub", 1, "logistic_softmax_gp")["method_options"]
    assert ours["start"] == "labels"
    make_method("logistic_softmax_gp", make_backbone("identity", in_features=4), **ours, inference="gibbs")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("data", ["cub", "omniglot_to_emnist"])
def test_every_method_takes_the_options_of_every_preset(name, data, method):
    config = Config(data=data).replace(**preset_settings(name, data, 1, method))
    assert config.method == method
    assert set(config.method_options) <= set(method_options(method))


def test_abml_steps_further_after_training_on_the_benchmarks_of_characters_only():
    long, short = (preset_settings("default", data, 5, "abml") for data in ("omniglot_to_emnist", "glyphs"))
    assert long["method_options"]["n_test_steps"] == 10
    assert "n_test_steps" not in short["method_options"]
    assert "n_test_steps" not in preset_settings("paper", "omniglot_to_emnist", 5, "abml")["method_options"]


def test_validation_on_photographs_is_no_more_frequent_than_the_method_asks_for():
    methods = {"maml": 2000, "relationnet": 1000, "mirror_gp": 1000}
    for method, every in methods.items():
        assert preset_settings("default", "cub", 1, method)["validate_every"] == every
    own = preset_settings("default", "folder", 1, "maml")
    assert (own["n_episodes"], own["validate_every"]) == (60_000, 1000)
