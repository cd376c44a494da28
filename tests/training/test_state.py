import pytest
import torch
from torch import nn

from mirrorshot.files.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training.state import load_method_state, pack_method


def network(seed=0, width=4):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(2, 1, 5, 5))
    return net.to(memory_format=torch.channels_last)


def train(net, optimizer, n_steps):
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
    train(net, adam(net), 2)
    other = network(seed=3)
    load_method_state(other, Checkpoint(pack_method(net), {"method": "net"}), method_name="net")
    assert_same_state(net.state_dict(), other.state_dict())
    assert int(other[1].num_batches_tracked) == 3


def test_another_method_is_refused():
    with pytest.raises(CheckpointError, match="of the method 'dkt', but got one of 'protonet'"):
        load_method_state(network(), Checkpoint({}, {"method": "protonet"}), method_name="dkt")


def test_wrong_shapes_are_named_with_both_sides():
    wide = Checkpoint(pack_method(network(width=6)), {"method": "net"})
    with pytest.raises(
        CheckpointError, match=r"0\.weight: \(6, 1, 3, 3\) in the checkpoint, \(4, 1, 3, 3\) in the method"
    ):
        load_method_state(network(), wide, method_name="net")


def test_missing_and_unexpected_tensors_are_named():
    net = network()
    tensors = pack_method(net)
    tensors["method.extra"] = tensors.pop("method.0.bias")
    with pytest.raises(CheckpointError, match=r"2 differ: 0.bias: only in the method; extra: only in the checkpoint"):
        load_method_state(net, Checkpoint(tensors, {"method": "net"}), method_name="net")


def test_a_refused_checkpoint_changes_nothing():
    net = network()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"11 differ: .* and 7 more"):
        load_method_state(net, Checkpoint(pack_method(nn.Linear(1, 1)), {"method": "net"}), method_name="net")
    assert_same_state(before, net.state_dict())


def test_the_backbones_round_trip(tmp_path):
    generator = torch.Generator().manual_seed(0)
    conv, other = (make_backbone("conv4s", generator=generator) for _ in range(2))
    checkpoint = through_file(tmp_path, pack_method(conv.to(memory_format=torch.channels_last)), {"method": "conv"})
    load_method_state(other, checkpoint, method_name="conv")
    assert_same_state(conv.state_dict(), other.state_dict())
