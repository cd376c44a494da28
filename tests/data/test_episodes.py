import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.gp import mirror_descent
from mirrorshot.types import DataError, InvalidInputError, TaskBatch


def make_source(counts, seed=0):
    """Each item is (its number, its class), both counted from 1, in random order."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    items = np.stack([np.arange(len(labels)) + 1.0, labels + 1.0], axis=1)
    return ClassSource.from_arrays(items, labels, [f"class {i}" for i in range(len(counts))])


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))


def join(batches):
    """Concatenate (tasks, query_y) along the tasks."""
    fields = [torch.cat(f) if torch.is_tensor(f[0]) else f[0] for f in zip(*(b for b, _ in batches), strict=True)]
    return TaskBatch(*fields), torch.cat([y for _, y in batches])


@st.composite
def settings_of_samplers(draw):
    """Sizes of classes, ways, shots, queries and a seed; objects are made in the tests, where checks may be random."""
    ways, shots = (tuple(sorted(draw(st.tuples(st.integers(low, 5), st.integers(low, 5))))) for low in (2, 1))
    n_query = draw(st.integers(1, 4))
    enough = st.integers(shots[1] + n_query, shots[1] + n_query + 4)
    counts = draw(st.lists(enough, min_size=ways[1], max_size=ways[1] + 4))
    return counts, ways, shots, n_query, draw(st.integers(0, 2**63 - 1))


def make_sampler(counts, ways, shots, n_query, seed):
    return EpisodeSampler(make_source(counts), ways, shots, n_query, seed=seed)


@given(settings_of_samplers(), st.integers(1, 5))
def test_every_task_is_an_episode(drawn, n_tasks):
    sampler, (_, ways, shots, *_) = make_sampler(*drawn), drawn
    tasks, query_y = sampler.draw(n_tasks)
    assert tasks.n_tasks == n_tasks
    assert tasks.n_way == ways[1]
    for t in range(n_tasks):
        real, real_query = tasks.support_weight[t] > 0, tasks.query_weight[t] > 0
        (numbers, classes), (query_numbers, query_classes) = tasks.support_x[t, real].T, tasks.query_x[t, real_query].T
        # items without replacement, support and query disjoint
        assert len({*numbers.tolist(), *query_numbers.tolist()}) == int(real.sum() + real_query.sum())
        # labels and items agree, one label for each class
        pairs = {*zip(tasks.support_y[t, real].tolist(), classes.tolist(), strict=True)}
        assert pairs == {*zip(query_y[t, real_query].tolist(), query_classes.tolist(), strict=True)}
        way = int(tasks.class_mask[t].sum())
        assert len({c for _, c in pairs}) == len(pairs) == way
        assert {y for y, _ in pairs} == set(range(way))
        assert ways[0] <= way <= ways[1]
        # as many of each class, in class-major order
        shot = torch.bincount(tasks.support_y[t, real]).unique().tolist()
        assert len(shot) == 1
        assert shots[0] <= shot[0] <= shots[1]
        assert torch.bincount(query_y[t, real_query]).tolist() == [sampler.n_query] * way
        assert tasks.support_y[t, real].tolist() == sorted(tasks.support_y[t, real].tolist())


@given(settings_of_samplers())
def test_padding_is_blank(drawn):
    sampler = make_sampler(*drawn)
    tasks, query_y = sampler.draw(4)
    assert tasks.support_x.shape[1] == sampler.n_way * sampler.n_shot
    assert tasks.query_x.shape[1] == sampler.n_way * sampler.n_query
    for x, y, weight in (
        (tasks.support_x, tasks.support_y, tasks.support_weight),
        (tasks.query_x, query_y, tasks.query_weight),
    ):
        assert set(weight.unique().tolist()) <= {0.0, 1.0}
        assert not x[weight == 0].any()
        assert not y[weight == 0].any()
        assert x[weight > 0].all()  # items are counted from 1


@given(settings_of_samplers(), st.integers(1, 4))
def test_episodes_do_not_depend_on_batches(drawn, n_first):
    sampler = make_sampler(*drawn)
    whole, whole_y = sampler.draw(5)
    sampler.position = 0
    parts, parts_y = join([sampler.draw(n_first), *(sampler.draw(1) for _ in range(5 - n_first))])
    assert_same(whole, parts)
    assert torch.equal(whole_y, parts_y)
    assert_same(sampler.tasks([3, 1])[0], whole.select(torch.tensor([3, 1])))
    assert sampler.position == 5


def test_the_same_seed_gives_the_same_episodes_and_another_one_others():
    source = make_source([20] * 30)
    draws = [EpisodeSampler(source, 5, 1, 4, seed=seed).draw(8)[0] for seed in (3, 3, 4)]
    assert_same(draws[0], draws[1])
    assert not torch.equal(draws[0].support_x, draws[2].support_x)


def test_a_generator_gives_the_seed():
    source = make_source([20] * 30)
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    draws = [EpisodeSampler(source, 5, 1, 4, seed=g).draw(2)[0].support_x for g in generators]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_episodes_are_pinned():
    """The episodes of a seed are part of every published result; a change of them must be meant."""
    tasks, _ = EpisodeSampler(make_source([8] * 6), 3, 1, 1, seed=0).draw(2)
    assert torch.cat([tasks.support_x, tasks.query_x], 1)[..., 0].tolist() == PINNED


def test_no_global_random_state_is_used():
    sampler = EpisodeSampler(make_source([20] * 6), 3, 1, 1, seed=0)
    before = torch.get_rng_state()
    sampler.draw(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_all_ordered_choices_are_equally_frequent():
    sampler = EpisodeSampler(make_source([3, 4, 5]), 2, 1, 1, seed=0)
    tasks, _ = sampler.draw(12000)
    classes = tasks.support_x[..., 1].long()
    for pair in itertools.permutations((1, 2, 3), 2):
        share = (classes == torch.tensor(pair)).all(1).float().mean()
        assert abs(share - 1 / 6) < 0.015  # four standard deviations
    numbers = torch.cat([tasks.support_x, tasks.query_x], 1)
    for c, count in ((1, 3), (2, 4), (3, 5)):
        drawn = numbers[numbers[..., 1] == c][:, 0].unique(return_counts=True)[1]
        assert len(drawn) == count
        assert (drawn / drawn.sum() - 1 / count).abs().max() < 0.02


def test_ranges_reach_both_ends_independently():
    tasks, _ = EpisodeSampler(make_source([9] * 8), (2, 4), (1, 3), 1, seed=0).draw(600)
    ways = tasks.class_mask.sum(1)
    shots = tasks.support_weight.sum(1).long() // ways
    pairs, counts = torch.stack([ways, shots], 1).unique(dim=0, return_counts=True)
    assert pairs.tolist() == [[w, s] for w in (2, 3, 4) for s in (1, 2, 3)]
    assert counts.min() > 35


def test_pictures_stay_bytes():
    pictures = np.arange(1, 41, dtype=np.uint8)[:, None, None, None] * np.ones((3, 2, 2), np.uint8)
    source = ClassSource.from_arrays(pictures, np.arange(40) // 10)
    tasks, _ = EpisodeSampler(source, (2, 4), 1, 2, seed=0).draw(6)
    assert tasks.support_x.shape == (6, 4, 3, 2, 2)
    assert tasks.support_x.dtype == tasks.query_x.dtype == torch.uint8
    assert not tasks.query_x[tasks.query_weight == 0].any()


def test_a_padded_batch_is_inferred_like_its_tasks():
    source = ClassSource.from_arrays(np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) // 10)
    tasks, _ = EpisodeSampler(source, (2, 4), (1, 3), 1, seed=1).draw(3)
    K = tasks.support_x @ tasks.support_x.mT + torch.eye(12, dtype=torch.float64)
    batch, _ = mirror_descent(
        K[:, None],
        tasks.support_y,
        n_way=tasks.n_way,
        weight=tasks.support_weight.double(),
        class_mask=tasks.class_mask,
    )
    for t in range(3):
        real, way = tasks.support_weight[t] > 0, int(tasks.class_mask[t].sum())
        single, _ = mirror_descent(K[t][real][:, real][None, None], tasks.support_y[t : t + 1, real], n_way=way)
        torch.testing.assert_close(batch.mean[t, :way][:, real], single.mean[0], rtol=1e-4, atol=1e-5)


def test_tasks_can_be_selected_and_moved():
    tasks, _ = EpisodeSampler(make_source([9] * 8), 3, 1, 1, seed=0).draw(4)
    assert_same(tasks.select(slice(1, 3)), tasks.select(torch.tensor([False, True, True, False])))
    moved = tasks.to("meta")
    assert moved.n_way == 3
    assert all(f.device.type == "meta" for f in moved if torch.is_tensor(f))


def test_too_few_classes_are_counted():
    with pytest.raises(DataError, match=r"but got 4 classes for n_way = 5\. Lower `n_way` or add classes"):
        EpisodeSampler(make_source([5] * 4), (2, 5), 1, 1, seed=0)


def test_small_classes_are_named_with_what_to_do():
    counts = [20, 3, 20, 2, *[3] * 6]
    with pytest.raises(DataError) as error:
        EpisodeSampler(make_source(counts), 5, 1, 15, seed=0)
    assert str(error.value) == (
        "Expected every class to have at least 16 items for n_shot = 1 and n_query = 15, but 8 of 10 have fewer: "
        "'class 1 (3)', 'class 3 (2)', 'class 4 (3)', 'class 5 (3)', 'class 6 (3)' and 3 more. "
        "Lower `n_query` to 1 (option --n-query), pass on_small_class='fewer_queries' or leave these classes out."
    )


@pytest.mark.parametrize("on_small_class", ["error", "fewer_queries"])
def test_a_class_without_a_query_is_an_error_in_any_case(on_small_class):
    with pytest.raises(DataError, match=r"'class 1 \(5\)'. Lower `n_shot` or leave these classes out"):
        EpisodeSampler(make_source([20, 5]), 2, (1, 5), 3, seed=0, on_small_class=on_small_class)


def test_queries_are_lowered_loudly():
    with pytest.warns(UserWarning, match=r"from 16 to 15 in ALL episodes: 1 of 6 classes .* = 21 items: 'class 0'"):
        sampler = EpisodeSampler(make_source([20, *[30] * 5]), 5, 5, 16, seed=0, on_small_class="fewer_queries")
    assert sampler.n_query == 15
    assert sampler.draw(2)[1].shape == (2, 75)


def test_queries_are_not_lowered_without_need():
    assert EpisodeSampler(make_source([6] * 5), 5, 1, 5, seed=0, on_small_class="fewer_queries").n_query == 5


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_way": 1}, "`n_way` to be at least 2 and in order, but got 1"),
        ({"n_way": (4, 2)}, r"`n_way` to be at least 2 and in order, but got \(4, 2\)"),
        ({"n_way": 2.5}, "`n_way` to be an integer or a pair of them, but got 2.5"),
        ({"n_shot": (1, 2, 3)}, "`n_shot` to be an integer or a pair"),
        ({"n_shot": 0}, "`n_shot` to be at least 1"),
        ({"n_query": 0}, "`n_query` to be at least 1"),
        ({"seed": -1}, r"`seed` to be between 0 and 2\*\*63 - 1, but got -1"),
        ({"on_small_class": "ignore"}, "'error' or 'fewer_queries', but got 'ignore'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        EpisodeSampler(make_source([9] * 5), **{"n_way": 2, "n_shot": 1, "n_query": 1, "seed": 0, **arguments})


def test_at_least_one_task_is_drawn():
    with pytest.raises(InvalidInputError, match="`n_tasks` to be at least 1, but got 0"):
        EpisodeSampler(make_source([9] * 5), 2, 1, 1, seed=0).draw(0)


PINNED = [[9, 40, 41, 42, 6, 45], [43, 44, 40, 24, 23, 31]]  # three of the support, three of the query
