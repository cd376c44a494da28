"""From settings to a method that is ready to train."""

import pytest
import torch

from mirrorshot.backbones import make_backbone
from mirrorshot.config import Config
from mirrorshot.methods import make_method
from mirrorshot.training.build import place_method

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
