import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorshot.methods import METHODS
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.cells import Cell, different_settings, has_result, parse_name, read_results
from mirrorshot.paper.program import normal_tag
from mirrorshot.paper.published import all_rows
from mirrorshot.training.presets import PRESETS
from mirrorshot.types import DataError, InvalidInputError

RESULTS = Path(__file__).parents[2] / "results"

cells = st.builds(
    Cell,
    row=st.sampled_from(sorted({*all_rows(), *METHODS})),
    data=st.sampled_from(["cub", "mini_imagenet", "mini_imagenet_to_cub", "omniglot_to_emnist", "glyphs", "my-data"]),
    n_shot=st.integers(1, 20),
    preset=st.sampled_from(sorted(PRESETS)),
    budget=st.sampled_from(sorted(BUDGETS)),
    seed=st.integers(1, 99),
    tag=st.sampled_from(["", "_envelope", "_try.2", "_a_b"]),
    changes=st.just(()),
)


@given(cells)
def test_the_name_of_a_result_says_which_cell_it_is(cell):
    assert parse_name(cell.name) == cell


def test_names_are_those_that_results_have_had_from_the_beginning():
    assert Cell("mirror_gp", "cub", 1).name == "accuracy_cub_1shot_paper"
    assert Cell("protonet", "cub", 1, "default").name == "accuracy_cub_1shot_protonet_default"


def test_committed_results_are_readable_and_say_whether_they_are_those_of_their_cell():
    found = {result.path.stem: result for result in read_results(RESULTS)}
    assert found["accuracy_cub_1shot_paper"].cell == Cell("mirror_gp", "cub", 1)
    assert has_result(Cell("mirror_gp", "cub", 1), RESULTS)
    envelope = found["accuracy_omniglot_to_emnist_1shot_paper_envelope"]
    assert different_settings(envelope.cell.config(), envelope.record["config"]) == [
        "method_options.gradient = envelope (asked for: unroll)"
    ]


def test_budgets_shorten_training_and_nothing_else():
    paper, short, smoke = (Cell("mirror_gp", "cub", 1, budget=name).config() for name in ("paper", "short", "smoke"))
    assert (paper.n_episodes, short.n_episodes) == (60_000, 6_000)
    assert short == paper.replace(n_episodes=6_000)
    assert smoke.n_episodes < 100


def test_changes_of_the_command_line_win():
    cell = Cell("ove_gp_pl", "cub", 5, changes=("n_episodes=7", "method_options.n_chains=3"), tag="_x")
    config = cell.config()
    assert (config.n_episodes, config.method_options["n_chains"], config.method_options["objective"]) == (7, 3, "pl")
    assert cell.command().endswith("--method ove_gp_pl --set n_episodes=7 --set method_options.n_chains=3 --tag x")


def test_a_setting_that_is_newer_than_a_result_counts_as_its_default():
    config = Cell("mirror_gp", "cub", 1).config()
    stored = config.to_dict()
    del stored["clip"]
    stored["device"], stored["gone"] = "cuda:3", 1
    assert different_settings(config, stored) == []
    assert different_settings(config, {**stored, "lr": 0.5}) == ["lr = 0.5 (asked for: 0.001)"]


@pytest.mark.parametrize(
    ("tag", "changes", "message"),
    [
        ("", ["lr=1"], "--tag with --set lr"),
        ("a/b", [], "--tag to be letters"),
        ("seed3", [], "no seed and no budget"),
        ("short", ["lr=1"], "no seed and no budget"),
        ("try", ["data=cub"], "Expected --dataset, which the result is named after, but got --set data"),
        ("try", ["lr=1", "n_shot=5"], "Expected --shots"),
    ],
)
def test_a_tag_that_would_mislead_is_refused(tag, changes, message):
    with pytest.raises(InvalidInputError, match=message):
        normal_tag(tag, changes)


def test_settings_that_change_no_result_need_no_tag():
    assert normal_tag("", ["device=cpu", "save_every=5"]) == ""
    assert normal_tag("try", ["lr=1"]) == normal_tag("_try", []) == "_try"


def test_what_is_no_result_is_named(tmp_path):
    (tmp_path / "accuracy_cub_1shot_paper.json").write_text("{")
    with pytest.raises(DataError, match=r"accuracy_cub_1shot_paper.json to be a result of mirrorshot"):
        read_results(tmp_path)
    for content in ({"config": {}}, {"config": {}, "evaluation": {}}, {"config": 5, "evaluation": 3}):
        (tmp_path / "accuracy_cub_1shot_paper.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match="to be the result of a cell"):
            read_results(tmp_path)
        with pytest.raises(DataError, match="to be the result of a cell"):
            has_result(Cell("mirror_gp", "cub", 1), tmp_path)


@pytest.mark.parametrize("missing", ["device", "evaluation.raw.ece", "evaluation.accuracy_interval_95", "config"])
def test_a_result_without_a_part_that_tables_need_is_named_with_it(missing, tmp_path, result_of):
    result = result_of(Cell("mirror_gp", "cub", 1), 0.6)
    *outer, key = missing.split(".")
    part = result.record
    for name in outer:
        part = part[name]
    del part[key]
    (tmp_path / result.path.name).write_text(json.dumps(result.record))
    with pytest.raises(DataError, match=rf"of a cell, but it has no {missing}"):
        read_results(tmp_path)
