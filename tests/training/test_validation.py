"""The score of a method during training."""

import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.augment import Preprocess
from mirrorshot.methods import make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training.stream import NumberedTasks
from mirrorshot.training.validation import Validator
from mirrorshot.training.world import World

PREPROCESS = Preprocess(28, (0.0,), (1.0,))
WORLD = World(0, 1, torch.device("cpu"))


@pytest.fixture
def tasks() -> NumberedTasks:
    """Three-way tasks from 6 classes of 9 noisy pictures each."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randint(256, (6, 1, 1, 28, 28), generator=generator)
    noise = torch.randint(-60, 60, (6, 9, 1, 28, 28), generator=generator)
    pictures = (means + noise).clamp(0, 255).to(torch.uint8).flatten(0, 1)
    source = ClassSource.from_arrays(pictures, [i // 9 for i in range(54)])
    return NumberedTasks(EpisodeSampler(source, 3, 1, 5, seed=0), PREPROCESS)


@pytest.mark.parametrize("name", ["protonet", "mirror_gp"])
def test_the_score_on_features_computed_once_is_that_on_pictures(name, tasks, monkeypatch):
    method = make_method(name, make_backbone("conv4s", generator=torch.Generator().manual_seed(1)))
    validator = Validator(method, tasks, tasks, WORLD)
    many = validator.read(validator.weigh(20))
    monkeypatch.setattr(validator, "_head", None)
    one_by_one = validator.read(validator.weigh(20))
    assert many.accuracy == pytest.approx(one_by_one.accuracy)
    assert many.nll == pytest.approx(one_by_one.nll, abs=1e-5)
    assert 1 / 3 < many.accuracy < 1


def test_features_follow_the_weights_of_the_moment(tasks):
    method = make_method("protonet", make_backbone("conv4s", generator=torch.Generator().manual_seed(1)))
    other = make_method("protonet", make_backbone("conv4s", generator=torch.Generator().manual_seed(2)))
    validator = Validator(method, tasks, tasks, WORLD)
    first = validator.read(validator.weigh(20))
    validator.tune(other.state_dict(), 1)
    assert validator.read(validator.weigh(20)).nll != first.nll
    validator.tune(method.state_dict(), 1)
    assert validator.read(validator.weigh(20)) == first


def test_chunks_hold_every_item_once_and_repeat_only_the_last(tasks):
    chunks = list(tasks.chunks(20))
    assert [chunk.shape[:2] for chunk in chunks] == [(1, 18), (1, 18), (1, 18)]
    uneven = torch.cat([chunk[0] for chunk in tasks.chunks(40)])
    assert len(uneven) == 54
    whole = next(tasks.chunks(100))[0]
    assert torch.equal(torch.cat([chunk[0] for chunk in chunks]), whole)
    assert torch.equal(torch.cat([chunk[0] for chunk in tasks.chunks(52)])[:54], whole)


def test_a_method_that_needs_maps_has_no_form_on_features():
    backbone = make_backbone("conv4snp", generator=torch.Generator().manual_seed(1))
    assert make_method("relationnet", backbone).on_features() is None
