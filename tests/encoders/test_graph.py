import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

from mirrorshot.encoders.backbones import GRAPHS, new_graph
from mirrorshot.encoders.base import EncoderError
from mirrorshot.encoders.graph import Graph, fold_norm
from mirrorshot.encoders.runtime import Network
from mirrorshot.networks.backbones import make_backbone


def small_graph():
    graph = Graph([("x", np.float32, ("n", 3, "h", "w"))])
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 3, 3, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    found = graph.node("LeakyRelu", graph.conv("x", weight, bias, strides=[2, 2], pads=[1] * 4), alpha=0.25)
    total = graph.node("ReduceSum", found, graph.constant(np.array([2, 3])), keepdims=0)
    return graph.encoded(graph.node("Mul", total, graph.constant(-2.0))), weight, bias


def test_what_is_written_is_a_valid_onnx_file():
    model = onnx.load_model_from_string(small_graph()[0])
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Conv", "LeakyRelu", "ReduceSum", "Mul"]


def test_a_graph_computes_what_torch_computes():
    encoded, weight, bias = small_graph()
    x = np.random.default_rng(1).normal(size=(2, 3, 9, 7)).astype(np.float32)
    maps = F.conv2d(torch.from_numpy(x), torch.from_numpy(weight), torch.from_numpy(bias), stride=2, padding=1)
    expected = -2.0 * F.leaky_relu(maps, 0.25).sum((2, 3))
    assert np.allclose(Network(encoded, "test")({"x": x}), expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_backbones_have_the_features_that_torch_gives(name):
    generator = torch.Generator().manual_seed(0)
    size = 28 if name == "conv4s" else 36
    options = {"image_size": size} if name.startswith("conv4") else {}
    backbone = make_backbone(name, generator=generator, in_channels=3, **options)
    for part in backbone.modules():  # statistics as after training
        if isinstance(part, torch.nn.BatchNorm2d):
            for tensor, low in (
                (part.running_mean, -0.5),
                (part.running_var, 0.5),
                (part.weight, 0.5),
                (part.bias, -1),
            ):
                with torch.no_grad():
                    tensor.uniform_(low, low + 1, generator=generator)
    x = torch.randn(3, 3, size, size, generator=generator)
    with torch.no_grad():
        expected = backbone.eval()(x[None])[0].numpy()
    graph = new_graph(3, size)
    weights = {key: tensor.numpy() for key, tensor in backbone.state_dict().items()}
    found = Network(graph.encoded(GRAPHS[name](graph, "x", weights)), name)({"x": x.numpy()})
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("content", [b"", b"not a network", small_graph()[0][:-200], b"\x08\x08"])
def test_a_file_that_is_no_network_is_told(content):
    with pytest.raises(EncoderError, match="Expected the network of encoder 'mine' to be an ONNX file"):
        Network(content, "mine")


def test_a_network_tells_wrong_inputs():
    with pytest.raises(EncoderError, match="to run"):
        Network(small_graph()[0], "mine")({"x": np.zeros((1, 5, 9, 9), np.float32)})


@pytest.mark.parametrize("given", ["none", "0", "-2", "1.5", ""])
def test_a_wrong_number_of_threads_is_told(monkeypatch, given):
    monkeypatch.setenv("MIRRORSHOT_THREADS", given)
    with pytest.raises(EncoderError, match="MIRRORSHOT_THREADS"):
        Network(small_graph()[0], "mine")


def test_a_normalisation_that_does_not_fit_is_refused():
    ones = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="does not fit"):
        fold_norm(np.ones((4, 3, 3, 3), np.float32), None, [ones, ones, ones, -ones], 1e-5)
    with pytest.raises(ValueError, match="does not fit"):
        fold_norm(np.ones((4, 3, 3, 3), np.float32), None, [ones, ones, ones, ones[:3]], 1e-5)
