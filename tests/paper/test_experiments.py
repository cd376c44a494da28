import pytest
import torch
from torch.testing import assert_close

from mirrorshot.gp import gradient_descent
from mirrorshot.methods.gp import Covariances
from mirrorshot.paper import departures
from mirrorshot.paper.episodes import N_WAY, Laboratory
from mirrorshot.paper.figure3 import FAIR, MIRROR, PLAIN, inner_loop_sheet, measure_inner_loop
from mirrorshot.paper.figure4 import INNER, gradient_predictions, measure_outer_loop, outer_loop_sheet
from mirrorshot.paper.table4 import measure_times, timing_sheet
from mirrorshot.paper.tables import markdown


@pytest.fixture(scope="module")
def laboratory():
    return Laboratory("glyphs", 1)


def test_the_fixed_episode_is_the_second_block_of_the_first_classes(laboratory):
    tasks, query_y = laboratory.fixed()
    source = laboratory.dataset.train
    own = (source.labels == 1).nonzero()[:, 0]
    n_query = tasks.query_x.shape[1] // N_WAY
    block = own[17:34] if len(own) >= 34 else own
    expected = laboratory._prepared(source.items[block[:1]])
    assert_close(tasks.support_x[0, :1], expected)
    assert query_y[0].tolist() == [c for c in range(N_WAY) for _ in range(n_query)]


def test_fresh_tasks_are_the_same_however_they_are_drawn(laboratory):
    both, alone = laboratory.fresh(2), laboratory.fresh(1, first=1)
    assert_close(both.tasks.support_x[1:], alone.tasks.support_x)
    assert_close(both.tasks.query_x[1:], alone.tasks.query_x)


@pytest.fixture(scope="module")
def inner():
    return measure_inner_loop("glyphs", 1, n_steps=4, n_fresh=1, n_known=4, n_repeats=1)


def test_mirror_descent_is_above_plain_gradient_descent_at_every_step(inner):
    assert inner["mirror_above"][PLAIN] == {"fixed": True, "share_of_fresh": 1.0}


def test_it_is_not_above_a_fair_one(inner):
    assert inner["mirror_above"][FAIR]["fixed"] is False


def test_natural_gradient_is_mirror_descent_on_the_episode_of_the_figure(inner):
    natural = next(curve for name, curve in inner["curves"].items() if name.startswith("natural"))
    assert natural["elbo"] == pytest.approx(inner["curves"][MIRROR]["elbo"], rel=1e-6)


def test_no_inner_loop_is_above_the_optimum_and_all_begin_at_the_prior_but_one(inner):
    starts = {round(curve["elbo"][0], 6) for name, curve in inner["curves"].items() if "amortised" not in name}
    assert len(starts) == 1
    assert max(max(curve["elbo"]) for curve in inner["curves"].values()) <= inner["optimum"] + 1e-6


def test_the_safeguarded_loop_is_at_the_optimum_within_four_steps(inner):
    assert inner["curves"]["MD, safeguarded"]["steps_to_optimum"] <= 4
    text = markdown(inner_loop_sheet(inner))
    assert f"{MIRROR} is above {PLAIN} at every step: yes on the fixed episode" in text
    assert f"| {MIRROR} |" in text
    assert "more than 4" in text


def test_unrolled_gradient_steps_are_those_of_gradient_descent():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 12, 6, generator=generator, dtype=torch.float64)
    whole = torch.exp(-(torch.cdist(x, x) ** 2) / 8)[:, None]
    K, cross = whole[..., :10, :10], whole[..., :10, 10:]
    y = torch.arange(10).expand(2, -1) % N_WAY
    prior_var = torch.ones(2, 1, 2, dtype=torch.float64)
    mean, var = gradient_predictions(Covariances(K, cross, prior_var), y, n_steps=2, rho=0.02)
    q, info = gradient_descent(K, y, n_way=N_WAY, max_steps=2, step_size=0.02)
    assert not info.failed.any()
    pull = torch.linalg.solve(K, cross)
    assert_close(mean, (pull.mT @ q.mean[..., None])[..., 0])
    expected = prior_var - (pull * cross).sum(-2) + (pull * (q.covariance @ pull)).sum(-2)
    assert_close(var, expected)


def test_every_inner_loop_learns_the_fixed_episode():
    record = measure_outer_loop("glyphs", 1, n_iterations=2, n_fresh=1, n_held_out=1)
    assert tuple(record["curves"]) == INNER
    for curve in record["curves"].values():
        assert curve["fixed"][-1] < curve["fixed"][0]
        assert curve["fresh_iterations"] == [0, 1]
    assert "of 2 iterations" in markdown(outer_loop_sheet(record))


def test_times_are_those_of_all_methods_of_the_table():
    record = {**measure_times("glyphs", 1, n_tasks=1), "device": "CPU"}
    assert all(0 < part["inner"] < part["epoch"] for part in record["times"].values())
    text = markdown(timing_sheet(record))
    assert "| CDKT (PL) | NA |" in text
    assert "release" not in text


def test_times_on_an_h200_stand_beside_those_of_the_release():
    ours = {"inner": 0.0131 / 20, "outer": 0.0796 / 10, "epoch": 0.5}
    times = {"times": dict.fromkeys(("MD", "GD", "CDKT (ML)", "CDKT (PL)"), ours), "n_tasks": 1, "n_inner_steps": 3}
    text = markdown(timing_sheet({**times, "device": "NVIDIA H200", "data": "cub", "n_shot": 1}))
    assert "Ours is 20 times faster in the inner loop, and 10 times in the outer one" in text


def found(name):
    return list(departures.DEPARTURES[name].measure().values())


def test_the_released_bound_is_no_bound():
    evidence, derived, released = found("bound of CDKT")[:3]
    assert derived < evidence < released


def test_the_bound_of_cdkt_prefers_features_only_a_few_steps_from_the_labels(monkeypatch):
    eight = departures.synthetic_tasks
    monkeypatch.setattr(departures, "synthetic_tasks", lambda *sizes: tuple(x[:2] for x in eight(*sizes)))
    prior, released, prior_optimum, labels, labels_released, labels_optimum = found("what the bound of CDKT prefers")
    assert prior < 0
    assert released < 0
    assert prior_optimum == pytest.approx(labels_optimum, abs=1e-3)
    assert prior_optimum < 0
    assert labels > 0.1
    assert labels_released < 0


def test_a_kernel_for_each_class_slot_depends_on_the_order_of_the_classes():
    per_slot, shared = found("kernel of each class")
    assert per_slot > 0.05
    assert shared < 1e-10


def test_inverses_lose_digits_that_the_package_keeps():
    _, by_inverses, asymmetry, ours = found("inverse of K, float32")
    assert min(by_inverses, asymmetry) > 1e-3
    assert ours < 1e-5


def test_half_steps_are_worse_for_one_shot_and_better_where_full_steps_overshoot():
    small_full, small_half, _, _, large_full, large_half = found("step size in training")
    assert small_full < small_half
    assert large_half < large_full
