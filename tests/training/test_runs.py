import pytest
import torch

from mirrorshot.data import load_glyphs
from mirrorshot.data.augment import CHARACTER_MEAN, CHARACTER_STD
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.files.checkpoint import CheckpointError, CheckpointNotFoundError
from mirrorshot.files.lock import RunError
from mirrorshot.training import build_method, build_preprocess, train
from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import evaluate
from mirrorshot.training.runs import evaluate_run, load_run, load_test_data, on_features
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
    with pytest.raises(InvalidInputError, match="pictures for average_flips=true, but glyphs has embeddings"):
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
    with pytest.raises(CheckpointError, match=r"trained on .glyphs., but glyphs has pictures with 3 channels"):
        load_run(folder, dataset._replace(channels=3))


def test_test_data_have_validation_classes_where_there_are_any():
    assert load_test_data("glyphs").val.n_classes == 367
