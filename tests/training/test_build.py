"""From settings to a method that is ready to train."""

import pytest
import torch

from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.methods import METHODS, make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training import train
from mirrorshot.training.build import (
    build_method,
    build_preprocess,
    place_method,
    resolve_options,
    training_preprocess,
    training_sampler,
    tuning_sampler,
)
from mirrorshot.training.config import Config
from mirrorshot.types import InvalidInputError

CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "dtype"), [("auto", None), ("float32", None), ("bfloat16", torch.bfloat16)])
def test_networks_for_pictures_have_channels_last_and_the_type_that_is_asked_for(precision, dtype):
    backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    method = place_method(make_method("protonet", backbone), Config(precision=precision), CPU)
    assert method.network_dtype is dtype
    weight = method.backbone.blocks[1].conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_embeddings_have_no_layout():
    method = make_method("dkt", make_backbone("identity", in_features=4))
    assert place_method(method, Config(), CPU) is method


def fresh_weights(name, seed, pictures, make_config, options=None):
    config = resolve_options(make_config(method=name, seed=seed, method_options=options or {}), pictures)
    return dict(build_method(config, pictures).named_parameters())


@pytest.mark.parametrize("name", METHODS)
def test_all_initial_weights_follow_the_seed_of_the_run(name, pictures, make_config):
    one, again, other = (fresh_weights(name, seed, pictures, make_config) for seed in (1, 1, 2))
    assert all(torch.equal(one[key], again[key]) for key in one)
    drawn = {key for key, weight in one.items() if not torch.equal(weight, weight.flatten()[0].expand_as(weight))}
    assert {key for key in one if not torch.equal(one[key], other[key])} >= drawn
    own = {key for key in drawn if not key.startswith("backbone.")}
    has_own = name not in ("mirror_gp", "gd_gp", "protonet", "dkt", "logistic_softmax_gp", "ove_gp")
    assert bool(own) == has_own


def test_a_seed_among_the_options_of_a_method_is_kept(pictures, make_config):
    heads = [fresh_weights("maml", seed, pictures, make_config, {"seed": 5})["head.weight"] for seed in (1, 2)]
    assert torch.equal(*heads)


def test_training_tasks_may_have_other_sizes_than_those_of_validation(embeddings, make_config):
    config = make_config(train_way=5, train_shot=2, train_query=1)
    training, tuning = (make(config, embeddings.train).index([0]) for make in (training_sampler, tuning_sampler))
    assert (training.support.shape, training.query.shape) == ((1, 10), (1, 5))
    assert (tuning.support.shape, tuning.query.shape) == ((1, 3), (1, 6))


def test_a_run_with_larger_training_tasks_is_tuned_to_those_of_validation(embeddings, make_config, tmp_path):
    changes = ({}, {"train_way": 3}, {"train_way": 5}, {"train_shot": 3})
    runs = [make_config(**change, n_episodes=4, lr=0.0, kernel_lr=0.0) for change in changes]
    temperatures = []
    for i, config in enumerate(runs):
        train(config, tmp_path / str(i), dataset=embeddings)
        tensors, _ = load_checkpoint(tmp_path / str(i) / "best.safetensors")
        temperatures.append(float(tensors["method.log_temperature"]))
    assert temperatures[1] == temperatures[0]
    assert temperatures[2:] == [pytest.approx(temperatures[0])] * 2


@pytest.mark.parametrize("name", ["maml", "bayesian_maml"])
def test_a_method_with_an_output_for_each_class_refuses_larger_training_tasks(name, pictures, make_config):
    with pytest.raises(InvalidInputError, match="train_way=3 or 0 for"):
        resolve_options(make_config(method=name, train_way=5), pictures)
    assert resolve_options(make_config(method=name, train_way=3), pictures).train_way == 3


def test_dkt_takes_larger_training_tasks_unless_each_class_has_a_prior_mean(pictures, make_config):
    config = make_config(method="dkt", train_way=5)
    assert resolve_options(config, pictures).train_way == 5
    with pytest.raises(InvalidInputError, match="train_way=3 or 0 for dkt"):
        resolve_options(config.replace(method_options={"per_class_mean": True}), pictures)


@pytest.mark.parametrize("changes", [{"train_way": 5}, {"train_shot": 2}, {"train_query": 1}])
def test_a_pretrained_method_has_no_training_tasks(pictures, make_config, changes):
    ((name, size),) = changes.items()
    with pytest.raises(InvalidInputError, match=f"no size of training tasks for ncm_cosine.*got {name}={size}"):
        resolve_options(make_config(method="ncm_cosine", **changes), pictures)


def test_more_training_ways_than_classes_are_refused_by_name(pictures, make_config):
    with pytest.raises(InvalidInputError, match="train_way to be at most 5"):
        resolve_options(make_config(train_way=6), pictures)


def test_embeddings_cannot_be_distorted(embeddings, pictures, make_config):
    config = make_config(distort=0.5)
    assert training_preprocess(config, pictures).distort == 0.5
    assert build_preprocess(pictures).distort == 0.0
    with pytest.raises(InvalidInputError, match=r"images for distort=0\.5"):
        training_preprocess(config, embeddings)
