import pytest
import torch
from torch import nn

from mirrorshot.data import load_glyphs
from mirrorshot.data.augment import CHARACTER_MEAN, CHARACTER_STD
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.files.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointNotFoundError,
    load_checkpoint,
    save_checkpoint,
)
from mirrorshot.files.lock import RunError
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training import build_method, build_preprocess, train
from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import evaluate
from mirrorshot.training.runs import evaluate_run, load_method_state, load_run, load_test_data, on_features
from mirrorshot.types import DataError, InvalidInputError

SIZES = {"n_query": 3, "n_tasks": 3, "seeds": (1, 2), "n_validation_tasks": 4}


@pytest.fixture(scope="module")
def dataset():
    train_part, val = load_glyphs("train", n_classes=40), load_glyphs("val", n_classes=10)
    return Dataset("glyphs", train_part, val, load_glyphs("test"), 28, 1, False, CHARACTER_MEAN, CHARACTER_STD)


@pytest.fixture(scope="module")
def folder(dataset, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "gp"
    config = Config(
        n_query=3, n_episodes=4, validate_every=2, n_validation_tasks=2, n_tune_tasks=2, ema=0.5, device="cpu"
    )
    train(config, path, dataset=dataset)
    return path


def test_a_run_is_evaluated_as_its_method_on_pictures(folder, dataset):
    run = load_run(folder, dataset)
    by_features = evaluate_run(run, dataset, **SIZES)
    direct = evaluate(
        run.method, dataset.test, n_way=5, n_shot=1, prepare=build_preprocess(dataset, augment=False),
        validation=dataset.val, **SIZES,
    )  # fmt: skip
    assert by_features.protocol == direct.protocol
    torch.testing.assert_close(by_features.task_accuracy, direct.task_accuracy)
    torch.testing.assert_close(by_features.task_nll, direct.task_nll, atol=1e-4, rtol=1e-4)
    assert by_features.temperature == pytest.approx(direct.temperature, rel=1e-3)


def test_features_are_computed_once(folder, dataset):
    run, features = on_features(load_run(folder, dataset), dataset)
    assert features.test.items.shape == (1797, 64)
    assert features.test.class_names == dataset.test.class_names
    assert on_features(run, features) == (run, features)


def test_a_method_that_needs_more_than_features_gets_pictures(folder, dataset, monkeypatch):
    run = load_run(folder, dataset)
    expected = evaluate_run(run, dataset, **SIZES)
    monkeypatch.setattr(type(run.method), "is_by_features", False)
    assert on_features(run, dataset) == (run, dataset)
    found = evaluate_run(run, dataset, **SIZES)
    torch.testing.assert_close(found.task_nll, expected.task_nll, atol=1e-4, rtol=1e-4)


def test_the_last_checkpoint_is_that_of_the_averaged_weights(folder, dataset):
    best, last = (load_run(folder, dataset, checkpoint=name) for name in ("best", "last"))
    assert last.info["step"] == 4
    assert best.info["step"] in (2, 4)
    if best.info["step"] == 4:
        for one, other in zip(best.method.parameters(), last.method.parameters(), strict=True):
            torch.testing.assert_close(one, other)


def test_flips_are_averaged_as_in_training_unless_asked_for(folder, dataset):
    plain, averaged = (load_run(folder, dataset, average_flips=flips) for flips in (None, True))
    assert (plain.config.average_flips, averaged.config.average_flips) == (False, True)
    pictures = dataset._replace(
        val=None, test=dataset.test._replace(items=dataset.test.items[:20], labels=dataset.test.labels[:20])
    )
    mirrored = pictures._replace(test=pictures.test._replace(items=pictures.test.items.flip(-1)))
    one, other, both = (
        on_features(run, data)[1].test.items
        for run, data in ((plain, pictures), (plain, mirrored), (averaged, pictures))
    )
    torch.testing.assert_close(both, (one + other) / 2, atol=1e-5, rtol=1e-4)


def test_embeddings_have_no_mirror_images(dataset):
    items = torch.zeros(10, 4)
    embeddings = dataset._replace(test=dataset.test._replace(items=items, sizes=None), train=None, val=None,
                                  image_size=0, channels=0)  # fmt: skip
    with pytest.raises(InvalidInputError, match="images for average_flips=true, but glyphs has embeddings"):
        build_method(Config(average_flips=True), embeddings)


def test_what_is_missing_is_said(as_for_users, folder, dataset, tmp_path):
    with pytest.raises(RunError, match=r"no config\.json there"):
        load_run(tmp_path, dataset)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointNotFoundError, match=r"has none yet.*mirrorshot train --resume"):
        load_run(tmp_path, dataset)
    with pytest.raises(InvalidInputError, match="'best' or 'last', but got 'first'"):
        load_run(folder, dataset, checkpoint="first")
    with pytest.raises(DataError, match="test classes of glyphs"):
        evaluate_run(load_run(folder, dataset), dataset._replace(test=None))


def test_pictures_of_other_colours_are_refused(folder, dataset):
    with pytest.raises(CheckpointError, match=r"trained on .glyphs., but glyphs has images with 3 channels"):
        load_run(folder, dataset._replace(channels=3))


def test_test_data_have_validation_classes_where_there_are_any():
    assert load_test_data("glyphs").val.n_classes == 367


def packed(method):
    """Tensors of a method as a checkpoint names them."""
    return {f"method.{name}": tensor for name, tensor in method.state_dict().items()}


def network(seed=0, width=4):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(2, 1, 5, 5))
    return net.to(memory_format=torch.channels_last)


def take_steps(net, optimizer, n_steps):
    x = torch.randn(8, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    for _ in range(n_steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def adam(net, **options):
    first, *others = net.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others}]
    return torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.99), **options)


def assert_same_state(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)


def through_file(tmp_path, tensors, info):
    save_checkpoint(tmp_path / "c.safetensors", tensors, info)
    return load_checkpoint(tmp_path / "c.safetensors")


def test_buffers_and_counters_come_back():
    net = network()
    take_steps(net, adam(net), 2)
    other = network(seed=3)
    load_method_state(other, Checkpoint(packed(net), {"method": "net"}), method_name="net")
    assert_same_state(net.state_dict(), other.state_dict())
    assert int(other[1].num_batches_tracked) == 3


def test_another_method_is_refused():
    with pytest.raises(CheckpointError, match="of the method 'dkt', but got one of 'protonet'"):
        load_method_state(network(), Checkpoint({}, {"method": "protonet"}), method_name="dkt")


def test_wrong_shapes_are_named_with_both_sides():
    wide = Checkpoint(packed(network(width=6)), {"method": "net"})
    with pytest.raises(
        CheckpointError, match=r"0\.weight: \(6, 1, 3, 3\) in the checkpoint, \(4, 1, 3, 3\) in the method"
    ):
        load_method_state(network(), wide, method_name="net")


def test_missing_and_unexpected_tensors_are_named():
    net = network()
    tensors = packed(net)
    tensors["method.extra"] = tensors.pop("method.0.bias")
    with pytest.raises(CheckpointError, match=r"2 differ: 0.bias: only in the method; extra: only in the checkpoint"):
        load_method_state(net, Checkpoint(tensors, {"method": "net"}), method_name="net")


def test_a_refused_checkpoint_changes_nothing():
    net = network()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"11 differ: .* and 7 more"):
        load_method_state(net, Checkpoint(packed(nn.Linear(1, 1)), {"method": "net"}), method_name="net")
    assert_same_state(before, net.state_dict())


def test_the_backbones_round_trip(tmp_path):
    generator = torch.Generator().manual_seed(0)
    conv, other = (make_backbone("conv4s", generator=generator) for _ in range(2))
    checkpoint = through_file(tmp_path, packed(conv.to(memory_format=torch.channels_last)), {"method": "conv"})
    load_method_state(other, checkpoint, method_name="conv")
    assert_same_state(conv.state_dict(), other.state_dict())
