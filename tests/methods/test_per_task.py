"""Tasks side by side, as a GPU takes them, and one after the other."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method, per_task
from mirrorshot.methods.per_task import ItemConv, _replace_layers, side_by_side
from mirrorshot.networks.backbones import ImageBackbone, make_backbone
from mirrorshot.networks.blocks import ConvBlock


def drawn():
    """Two 3-way tasks of images."""
    images = torch.randn(30, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    source = ClassSource(images, torch.arange(30) % 6, tuple("abcdef"))
    return EpisodeSampler(source, n_way=3, n_shot=2, n_query=2, seed=0).draw(2)


def made(name, options, network="conv4s"):
    generator = torch.Generator().manual_seed(1)
    if network == "one block":
        blocks = nn.ModuleList([ConvBlock(1, 2, padding=1, pool=True, generator=generator)])
        backbone = ImageBackbone(blocks, (2 * 14 * 14,), 1, 28, exact=True, norm="episode")
    else:
        backbone = make_backbone(network, generator=generator)
    return make_method(name, backbone, n_way=3, n_steps=2, **options).double()


def losses_and_gradients(method, labelled=None):
    method.seed(0)
    tasks, query_y = labelled or drawn()
    loss = method.loss(tasks, query_y)
    loss.sum().backward()
    return loss.detach(), [p.grad for p in method.parameters()]


@torch.no_grad()
def predictions(method):
    method.seed(0)
    return method.predict(drawn()[0])


def assert_alike(found, expected):
    torch.testing.assert_close(found[0], expected[0])
    for a, b in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(("name", "options"), [("maml", {}), ("abml", {"n_samples": 2})])
def test_vmap_gives_the_losses_gradients_and_predictions_of_a_loop(name, options, first_order, monkeypatch):
    options = {**options, "first_order": first_order}
    learned, predicted = losses_and_gradients(made(name, options)), predictions(made(name, options))
    monkeypatch.setattr(per_task, "_is_eager_cpu", lambda tensor: False)
    assert_alike(losses_and_gradients(made(name, options)), learned)
    torch.testing.assert_close(predictions(made(name, options)), predicted)


@pytest.mark.parametrize(
    ("name", "options", "network"),
    [
        ("maml", {}, "one block"),
        pytest.param("maml", {}, "conv4s", marks=pytest.mark.long),
        pytest.param("maml", {"first_order": True, "transductive": False}, "conv4s", marks=pytest.mark.long),
        pytest.param("abml", {"n_samples": 1}, "conv4s", marks=pytest.mark.long),
        pytest.param("abml", {"n_samples": 2, "first_order": True}, "conv4s", marks=pytest.mark.long),
    ],
)
def test_compiled_steps_give_the_same_losses_and_gradients(name, options, network):
    # in a process without the run-time checks of shapes, which cannot be compiled
    call = [sys.executable, "-c", f"import test_per_task as t; t.compare_compiled({name!r}, {options}, {network!r})"]
    done = subprocess.run(call, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def compare_compiled(name, options, network):
    """All that the compiler does but for machine code, which would take minutes on a CPU."""
    torch.set_num_threads(1)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    aot_eager = torch._dynamo.lookup_backend("aot_eager")
    torch.compile = functools.partial(torch.compile, backend=backend, fullgraph=True)
    tasks, query_y = drawn()
    support_weight, query_weight = tasks.support_weight.clone(), tasks.query_weight.clone()
    support_weight[0, 0] = query_weight[0, 1] = 0.0
    padded = tasks._replace(support_weight=support_weight, query_weight=query_weight), query_y
    expected = losses_and_gradients(made(name, options, network), padded)
    method = made(name, options, network)
    method.to(memory_format=torch.channels_last)
    predicted = predictions(method)
    method.accelerate()
    assert_alike(losses_and_gradients(method, padded), expected)
    assert len(graphs) == 2  # the step, whatever its number, and the queries
    assert torch.equal(predictions(method.eval()), predicted)
    assert len(graphs) == 2


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 1, 1), (3, 1, 0), (3, 2, 1), (7, 2, 3), (1, 1, 0), (1, 2, 0)]
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("side", [11, 14])
def test_the_product_of_matrices_is_the_convolution(size, stride, padding, bias, side, monkeypatch):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, size, stride=stride, padding=padding, bias=bias).double()
    x = torch.randn(4, 3, side, side, dtype=torch.float64)
    replaced = ItemConv(conv)
    assert torch.equal(replaced(x), conv(x))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(replaced(x), conv(x))


def test_only_plain_convolutions_are_replaced():
    plain = {"stride": 2, "padding": 1}
    odd = [{"dilation": 2}, {"groups": 3}, {"padding_mode": "reflect", "padding": 1}, {"padding": "same"}]
    odd += [{"stride": (1, 2)}, {"padding": (1, 0)}, {"kernel_size": (3, 1)}]
    layers = [nn.Conv2d(3, 6, **{"kernel_size": 3} | options) for options in (plain, *odd)]

    class Own(nn.Conv2d):
        def forward(self, input):
            return -super().forward(input)

    network = nn.Sequential(*layers, Own(3, 6, 3))
    _replace_layers(network, "")
    assert [isinstance(layer, ItemConv) for layer in network] == [True] + [False] * 8


def test_slices_of_different_numbers_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        side_by_side(torch.add, torch.zeros(3), torch.zeros(2))
