import pytest
import torch

from mirrorshot.data import EpisodeSampler
from mirrorshot.data.augment import Preprocess
from mirrorshot.training.stream import ItemStream, NumberedTasks, TaskStream, turned
from mirrorshot.types import InvalidInputError

PLAIN = Preprocess(28, (0.1,), (0.5,))
DISTORTED = PLAIN._replace(distort=0.5)
AUGMENTED = PLAIN._replace(augment=True)


@pytest.fixture
def make_stream(pictures):
    def make(preprocess=PLAIN, n_way=3, n_shot=1, seed=3, source=None, **options):
        sampler = EpisodeSampler(source or pictures.train, n_way, n_shot, n_query=2, seed=seed)
        return TaskStream(sampler, preprocess, **{"groups_per_step": 4, "seed": seed, **options})

    return make


def same_blocks(one, other):
    return all(map(torch.equal, one, other))


def plain_tasks(stream, numbers):
    """Tasks as they are for tuning and validation."""
    return NumberedTasks(stream.sampler, stream.preprocess).tasks(numbers)


def test_numbered_tasks_are_the_same_every_time_augmented_or_not(make_stream):
    stream, numbers = make_stream(AUGMENTED), range(7, 10)
    plain, changed, again = (
        NumberedTasks(stream.sampler, AUGMENTED, augment=augment).tasks(numbers) for augment in (False, True, True)
    )
    assert torch.equal(changed[0].support_x, again[0].support_x)
    assert not torch.equal(changed[0].support_x, plain[0].support_x)
    assert torch.equal(changed[1], plain[1])
    assert torch.equal(NumberedTasks(stream.sampler, PLAIN, augment=True).tasks(numbers)[0].query_x, plain[0].query_x)


@pytest.mark.parametrize("preprocess", [PLAIN, AUGMENTED, DISTORTED])
def test_the_images_of_a_class_of_a_task_are_turned_alike(make_stream, preprocess):
    plain, turning = make_stream(preprocess), make_stream(preprocess, turn_classes=True)
    block = turning.block(0, 1)
    x = plain.items(block.rows[0], block.draws[0][..., :-1])
    found = turning.items(block.rows[0], block.draws[0])
    labels = turning.classes(block.rows[0], block.draws[0])
    seen = set()
    for task in range(4):
        quarters = block.draws[0, task, :, -1].int().tolist()
        for n, k in enumerate(quarters):
            assert torch.equal(found[task, n], x[task, n].rot90(k, (1, 2)))
            assert labels[task, n] == 4 * plain.source.labels[block.rows[0, task, n]] + k
        # one shot, then two queries of each of three classes
        assert quarters[3:] == [k for k in quarters[:3] for _ in range(2)]
        seen |= set(quarters)
    assert len(seen) > 2
    assert turning.n_classes == 4 * plain.n_classes


def test_turned_classes_are_the_same_for_the_same_block_and_seed(make_stream):
    block = make_stream(turn_classes=True).block(5, 3)
    assert same_blocks(make_stream(turn_classes=True).block(5, 3), block)
    assert not torch.equal(make_stream(turn_classes=True, seed=4).block(5, 3).draws, block.draws)
    assert torch.equal(make_stream().block(5, 3).rows, block.rows)


def test_padding_has_no_class(make_stream):
    stream = make_stream(turn_classes=True)
    block = stream.block(0, 1)
    rows = block.rows[0].clone()
    rows[:, 2] = -1
    assert torch.equal(stream.classes(rows, block.draws[0]) < 0, rows < 0)


def test_four_turns_are_none():
    x = torch.rand(2, 3, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    once = torch.ones(2, 3)
    assert torch.equal(turned(turned(x, once), 3 * once), x)
    assert torch.equal(turned(turned(x, once), once), turned(x, 2 * once))


def test_embeddings_cannot_be_turned(make_stream):
    with pytest.raises(InvalidInputError, match="images for turn_classes=true"):
        make_stream(None, turn_classes=True)


def test_the_tasks_of_a_step_depend_on_its_number_only(make_stream):
    stream = make_stream()
    rows = stream.block(0, 6).rows
    assert torch.equal(torch.cat([stream.block(0, 2).rows, stream.block(2, 4).rows]), rows)
    assert torch.equal(make_stream(groups_per_step=2).block(0, 12).rows.view_as(rows), rows)
    assert not torch.equal(make_stream(seed=4).block(0, 6).rows, rows)
    assert len(rows.flatten(0, 1).unique(dim=0)) == 24


def test_random_numbers_are_the_same_for_the_same_block_and_seed(make_stream):
    # they depend on where a block begins: a run and its continuation have the same blocks
    stream = make_stream(AUGMENTED)
    block = stream.block(5, 3)
    assert block.draws.shape == (3, 4, 9, AUGMENTED.n_draws)
    assert same_blocks(make_stream(AUGMENTED).block(5, 3), block)
    assert not torch.equal(make_stream(AUGMENTED, seed=4).block(5, 3).draws, block.draws)
    assert not torch.equal(stream.block(8, 3).draws, block.draws)
    assert block.draws.flatten().unique().numel() > 0.99 * block.draws.numel()


def test_a_stream_does_not_move_the_global_generator(make_stream):
    state = torch.get_rng_state()
    make_stream(AUGMENTED).block(0, 2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("preprocess", [PLAIN, AUGMENTED])
def test_the_shares_of_all_processes_are_the_block_of_one(make_stream, preprocess, world_size):
    whole = make_stream(preprocess).block(2, 3)
    shares = [make_stream(preprocess, rank=r, world_size=world_size).block(2, 3) for r in range(world_size)]
    assert {len(share.rows[0]) for share in shares} == {4 // world_size}
    assert same_blocks((torch.cat(parts, 1) for parts in zip(*shares, strict=True)), whole)


def test_assembled_pictures_are_those_of_the_sampler_prepared(make_stream):
    stream = make_stream()
    block = stream.block(2, 1)
    tasks, query_y = stream.assemble(block.rows[0], block.draws[0])
    raw, raw_y = stream.sampler.tasks(range(8, 12))
    for name in ("support_x", "query_x"):
        expected = (getattr(raw, name).float() / 255 - 0.1) / 0.5
        torch.testing.assert_close(getattr(tasks, name), expected)
    for name in ("support_y", "support_weight", "query_weight", "class_mask"):
        assert torch.equal(getattr(tasks, name), getattr(raw, name))
    assert torch.equal(query_y, raw_y)


def test_augmented_pictures_are_those_of_the_items_and_their_draws(make_stream):
    stream = make_stream(AUGMENTED)
    block = stream.block(0, 2)
    tasks, _ = stream.assemble(block.rows[1], block.draws[1])
    item, draws = stream.source.items[block.rows[1, 2, 1]], block.draws[1, 2, 1]
    torch.testing.assert_close(tasks.support_x[2, 1], AUGMENTED(item[None], draws=draws[None])[0])
    item, draws = stream.source.items[block.rows[1, 3, 3 + 4]], block.draws[1, 3, 3 + 4]
    torch.testing.assert_close(tasks.query_x[3, 4], AUGMENTED(item[None], draws=draws[None])[0])


def test_crops_use_the_shapes_of_the_originals(make_stream, pictures):
    wide = pictures.train._replace(sizes=torch.tensor([[400, 28]]).expand(pictures.train.n_items, 2))
    square, stretched = make_stream(AUGMENTED), make_stream(AUGMENTED, source=wide)
    block = square.block(0, 1)
    one, other = (stream.assemble(block.rows[0], block.draws[0])[0] for stream in (square, stretched))
    assert not torch.equal(one.support_x, other.support_x)


def test_embeddings_are_gathered_as_they_are(embeddings):
    sampler = EpisodeSampler(embeddings.train, 3, 1, n_query=2, seed=3)
    stream = TaskStream(sampler, None, 2, seed=3)
    block = stream.block(1, 1)
    tasks, query_y = stream.assemble(block.rows[0], block.draws[0])
    expected, expected_y = sampler.tasks([2, 3])
    assert block.draws.numel() == 0
    assert torch.equal(tasks.query_x, expected.query_x)
    assert torch.equal(tasks.support_x, expected.support_x)
    assert torch.equal(query_y, expected_y)


@pytest.mark.parametrize("preprocess", [PLAIN, AUGMENTED])
def test_tasks_of_different_sizes_are_padded_with_zeros(make_stream, preprocess):
    stream = make_stream(preprocess, n_way=(2, 4), n_shot=(1, 2), groups_per_step=20)
    block = stream.block(0, 1)
    tasks, query_y = stream.assemble(block.rows[0], block.draws[0])
    raw, raw_y = stream.sampler.tasks(range(20))
    assert tasks.class_mask.sum(1).unique().tolist() == [2, 3, 4]
    for name in ("support_y", "support_weight", "query_weight", "class_mask"):
        assert torch.equal(getattr(tasks, name), getattr(raw, name))
    assert torch.equal(query_y, raw_y)
    for x, weight in ((tasks.support_x, tasks.support_weight), (tasks.query_x, tasks.query_weight)):
        assert x[weight == 0].abs().sum() == 0
        assert (x[weight == 1].abs().sum((1, 2, 3)) > 0).all()
    if not preprocess.augment:
        torch.testing.assert_close(tasks.query_x[tasks.query_weight == 1], PLAIN(raw.query_x[raw.query_weight == 1]))


def test_tasks_for_tuning_are_not_augmented(make_stream):
    tasks, query_y = plain_tasks(make_stream(AUGMENTED), range(7, 10))
    plain, plain_y = plain_tasks(make_stream(), range(7, 10))
    assert tasks.n_tasks == 3
    assert torch.equal(tasks.query_x, plain.query_x)
    assert torch.equal(query_y, plain_y)
    raw, _ = make_stream().sampler.tasks(range(7, 10))
    torch.testing.assert_close(plain.support_x, (raw.support_x.float() / 255 - 0.1) / 0.5)


def test_large_pictures_are_cropped_at_random_in_training_and_centrally_otherwise(make_stream, make_pictures):
    large = make_pictures(0, size=40)
    for preprocess in (PLAIN, AUGMENTED):
        stream = make_stream(preprocess, source=large)
        block = stream.block(0, 1)
        tasks, _ = stream.assemble(block.rows[0], block.draws[0])
        assert tasks.support_x.shape == (4, 3, 1, 28, 28)
        centre = PLAIN(large.items[block.rows[0, 0, :1]])[0]
        assert torch.allclose(tasks.support_x[0, 0], centre, atol=1e-5) is not preprocess.augment


def test_pre_training_shows_every_item_once_in_an_epoch_in_a_new_order(pictures):
    sampler = EpisodeSampler(pictures.train, 2, 1, 1, seed=0)
    n = pictures.train.n_items
    stream = ItemStream(sampler, None, 5, seed=3)
    rows = stream.block(0, 2 * n).rows.flatten()
    epochs = rows.view(-1, n)
    assert all(torch.equal(epoch.sort()[0], torch.arange(n)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    parts = [ItemStream(sampler, None, 5, seed=3).block(first, 2).rows for first in (0, 2)]
    assert torch.equal(torch.cat(parts).flatten(), rows[:20])


def test_pre_training_is_shared_between_processes(pictures):
    sampler = EpisodeSampler(pictures.train, 2, 1, 1, seed=0)
    whole = ItemStream(sampler, None, 6, seed=0).block(4, 3).rows
    parts = [ItemStream(sampler, None, 6, seed=0, rank=rank, world_size=3).block(4, 3).rows for rank in range(3)]
    assert torch.equal(torch.cat(parts, 1), whole)


def test_numbered_tasks_are_distorted_only_if_they_are_augmented(make_stream):
    sampler = make_stream().sampler
    plain, tested, tuned = (
        NumberedTasks(sampler, preprocess, augment=augment).tasks(range(2))[0].support_x
        for preprocess, augment in ((PLAIN, True), (DISTORTED, False), (DISTORTED, True))
    )
    assert torch.equal(tested, plain)
    assert not torch.equal(tuned, plain)
