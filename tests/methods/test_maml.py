"""MAML against a plain loop over tasks and steps with `torch.autograd.grad`, and its gradients against differences."""

import pytest
import torch
import torch.nn.functional as F

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods.maml import MAML, _step
from mirrorshot.methods.per_task import LabelledItems
from mirrorshot.networks.backbones import Backbone, make_backbone
from mirrorshot.networks.blocks import ConvBlock
from mirrorshot.types import InvalidInputError

SIDE, WIDTH = 6, 3


class OneBlock(Backbone):
    """A convolution of three channels with batch normalisation."""

    def __init__(self):
        super().__init__((WIDTH * (SIDE // 2) ** 2,))
        self.block = ConvBlock(1, WIDTH, padding=1, pool=True, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        return self.block(x.flatten(0, 1), 1).reshape(*x.shape[:2], -1)


def make(**options):
    method = MAML(OneBlock(), **{"n_way": 3, "n_steps": 2, "step_size": 0.3, **options}).double()
    generator = torch.Generator().manual_seed(4)
    norm = method.backbone.block.norm
    norm.weight.data.uniform_(0.5, 1.5, generator=generator)
    norm.bias.data.normal_(0, 0.3, generator=generator)
    return method


def draw(n_tasks=2, n_way=3, n_shot=2, n_query=2, side=SIDE):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 1, side * side, generator=generator, dtype=torch.float64)
    x = centres + 0.7 * torch.randn(6, 8, side * side, generator=generator, dtype=torch.float64)
    source = ClassSource.from_arrays(x.flatten(0, 1), torch.arange(6).repeat_interleave(8))
    tasks, query_y = EpisodeSampler(source, n_way, n_shot, n_query, seed=0).draw(n_tasks)
    support_x, query_x = (z.unflatten(2, (1, side, side)) for z in (tasks.support_x, tasks.query_x))
    return tasks._replace(support_x=support_x, query_x=query_x), query_y


def logits(weights, x, by=None):
    """The network of `make` from torch's functions; `by`: items whose statistics normalise."""
    conv_weight, conv_bias, scale, shift, head_weight, head_bias = weights
    maps = F.conv2d(x, conv_weight, conv_bias, padding=1)
    if by is None:
        maps = F.batch_norm(maps, None, None, scale, shift, training=True)
    else:
        of = F.conv2d(by, conv_weight, conv_bias, padding=1).detach()
        maps = F.batch_norm(maps, of.mean((0, 2, 3)), of.var((0, 2, 3), correction=0), scale, shift)
    maps = F.max_pool2d(F.relu(maps), 2)
    return maps.flatten(1) @ head_weight.T + head_bias


def ordered(method):
    """Its parameters as `logits` takes them."""
    block = method.backbone.block
    return [block.conv.weight, block.conv.bias, block.norm.weight, block.norm.bias, *method.head.parameters()]


def adapt(method, tasks, t, n_steps=2):
    """Weights of one task after gradient descent, in a plain loop."""
    weights = ordered(method)
    for _ in range(n_steps):
        loss = F.cross_entropy(logits(weights, tasks.support_x[t]), tasks.support_y[t])
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        weights = [w - 0.3 * slope for w, slope in zip(weights, slopes, strict=True)]
    return weights


def looped_loss(method, tasks, query_y):
    losses = [
        F.cross_entropy(logits(adapt(method, tasks, t), tasks.query_x[t]), query_y[t]) for t in range(tasks.n_tasks)
    ]
    return torch.stack(losses)


def test_predictions_are_those_of_a_loop_over_tasks_and_steps():
    tasks, _ = draw()
    method = make()
    for t in range(2):
        expected = logits(adapt(method, tasks, t), tasks.query_x[t]).log_softmax(-1)
        torch.testing.assert_close(method.predict(tasks)[t], expected)


def test_loss_and_meta_gradient_are_those_of_a_loop():
    tasks, query_y = draw()
    method = make()
    loss, expected = method.loss(tasks, query_y), looped_loss(method, tasks, query_y)
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(value.sum(), ordered(method)) for value in (loss, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("transductive", [True, False])
def test_the_meta_gradient_is_that_of_finite_differences(transductive):
    tasks, query_y = draw()
    method = make(transductive=transductive)
    parameters = [p for name, p in method.named_parameters() if not name.endswith("conv.bias")]  # without influence
    gradients = torch.autograd.grad(method.loss(tasks, query_y).sum(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        place = gradient.abs().argmax()
        values = []
        for shift in (1e-6, -2e-6):
            parameter.data.view(-1)[place] += shift
            values.append(method.loss(tasks, query_y).sum().item())
        parameter.data.view(-1)[place] += 1e-6
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(gradient.view(-1)[place].item(), rel=1e-5)


def test_the_first_order_gradient_is_that_of_the_queries_at_the_adapted_weights():
    tasks, query_y = draw()
    method = make(first_order=True)
    torch.testing.assert_close(method.loss(tasks, query_y), make().loss(tasks, query_y))
    gradients = torch.autograd.grad(method.loss(tasks, query_y).sum(), ordered(method))
    expected = [torch.zeros_like(p) for p in gradients]
    for t in range(2):
        weights = [w.detach().requires_grad_() for w in adapt(method, tasks, t)]
        loss = F.cross_entropy(logits(weights, tasks.query_x[t]), query_y[t])
        expected = [e + g for e, g in zip(expected, torch.autograd.grad(loss, weights), strict=True)]
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)
    second = torch.autograd.grad(looped_loss(method, tasks, query_y).sum(), ordered(method))
    assert max((one - other).abs().max() for one, other in zip(gradients, second, strict=True)) > 1e-3


@pytest.mark.parametrize("name", ["conv4s", "resnet12"])
def test_a_batch_of_tasks_through_a_real_network_is_its_tasks_one_by_one(name):
    tasks, query_y = draw(n_tasks=2, n_shot=1, side=28 if name == "conv4s" else 16)
    backbone = make_backbone(name, in_channels=1, generator=torch.Generator().manual_seed(0))
    method = MAML(backbone, n_way=3, n_steps=1).double()
    single = [method.loss(tasks.select(slice(i, i + 1)), query_y[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(method.loss(tasks, query_y), torch.cat(single))


def test_adaptation_lowers_the_loss_of_the_support():
    tasks, _ = draw()
    own = tasks._replace(query_x=tasks.support_x, query_weight=tasks.support_weight)
    losses = torch.stack([make(n_steps=n, step_size=0.05).loss(own, tasks.support_y) for n in (0, 1, 5, 20)])
    assert (losses.diff(dim=0) < 0).all()


def test_every_parameter_adapts():
    tasks, _ = draw(n_tasks=1)
    method = make()
    x, y, weight, mask = tasks.support_x[0], tasks.support_y[0], tasks.support_weight[0], tasks.class_mask[0]
    adapted = _step(method, dict(method.named_parameters()), LabelledItems(x, y, weight), mask)
    for name, parameter in method.named_parameters():
        if not name.endswith("conv.bias"):  # batch normalisation takes it away
            assert (adapted[name] - parameter).abs().max() > 1e-5, name


def test_queries_are_normalised_together_or_by_the_support():
    tasks, _ = draw()
    method = make(transductive=False)
    first = tasks._replace(query_x=tasks.query_x[:, :1], query_weight=tasks.query_weight[:, :1])
    torch.testing.assert_close(method.predict(first), method.predict(tasks)[:, :1])
    for t in range(2):
        expected = logits(adapt(method, tasks, t), tasks.query_x[t], by=tasks.support_x[t]).log_softmax(-1)
        torch.testing.assert_close(method.predict(tasks)[t], expected)
    together = make(transductive=True)
    assert (together.predict(first) - together.predict(tasks)[:, :1]).abs().max() > 1e-2


@pytest.mark.parametrize("transductive", [True, False])
def test_padding_changes_nothing(transductive, pad):
    """A task of two classes for a head of three, against a head of two."""
    tasks, query_y = draw(n_way=2)
    narrow, wide = make(n_way=2, transductive=transductive), make(n_way=3, transductive=transductive)
    with torch.no_grad():
        for one, other in zip(narrow.head.parameters(), wide.head.parameters(), strict=True):
            one.copy_(other[:2])
    padded, padded_y = pad(tasks, query_y, 5.0)
    log_prob = wide.predict(padded)
    torch.testing.assert_close(log_prob[:, :4, :2], narrow.predict(tasks))
    assert (log_prob[..., 2] == -torch.inf).all()
    losses = wide.loss(padded, padded_y), narrow.loss(tasks, query_y)
    torch.testing.assert_close(*losses)
    gradients = [
        torch.autograd.grad(loss.sum(), ordered(m)[:4]) for loss, m in zip(losses, (wide, narrow), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_tasks_of_another_way_are_refused_before_any_work():
    tasks, query_y = draw(n_way=2)
    with pytest.raises(InvalidInputError, match=r"tasks of 3 classes, .* but got 2\. Train with n_way=2, .*protonet"):
        make().loss(tasks._replace(support_x=None), query_y)


def test_modes_and_recording_of_gradients_change_nothing():
    tasks, _ = draw()
    method = make()
    expected = method.predict(tasks)
    method.eval().requires_grad_(False)
    torch.testing.assert_close(method.predict(tasks), expected)
    with torch.no_grad():
        torch.testing.assert_close(method.predict(tasks), expected)
    with torch.inference_mode():
        torch.testing.assert_close(method.predict(tasks), expected)


def test_predictions_leave_the_method_as_it_was():
    tasks, _ = draw()
    method = make()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.predict(tasks)
    assert before.keys() == {name for name, _ in method.named_parameters()}  # no statistics that run
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def test_predictions_may_take_other_steps_than_training():
    tasks, query_y = draw()
    method = make(n_test_steps=7)
    torch.testing.assert_close(method.predict(tasks), make(n_steps=7).predict(tasks))
    torch.testing.assert_close(method.loss(tasks, query_y), make().loss(tasks, query_y))


def test_renaming_the_classes_changes_predictions():
    tasks, _ = draw()
    order = torch.tensor([2, 0, 1])
    method = make()
    renamed = method.predict(tasks._replace(support_y=order[tasks.support_y]))[..., order]
    assert (renamed - method.predict(tasks)).abs().max() > 1e-2


def test_meta_training_makes_one_step_better():
    tasks, query_y = draw(n_tasks=4)
    method = make(n_steps=1)
    adam = torch.optim.Adam(method.parameters(), 0.02)
    losses = []
    for _ in range(30):
        adam.zero_grad()
        losses.append(method.loss(tasks, query_y).mean())
        losses[-1].backward()
        adam.step()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("first_order", [True, False])
def test_half_precision_is_close_to_full(assert_half_precision_is_close, first_order):
    tasks, query_y = draw(n_shot=2, side=28)
    tasks = tasks._replace(support_x=tasks.support_x.float(), query_x=tasks.query_x.float())
    backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    method = MAML(backbone, n_way=3, first_order=first_order)
    assert_half_precision_is_close(method, tasks, atol=0.1)
    method.loss(tasks, query_y).sum().backward()
    assert all(p.grad.isfinite().all() for p in method.parameters())


def test_embeddings_have_an_adapted_head_alone():
    tasks, _ = draw()
    flat = tasks._replace(support_x=tasks.support_x.flatten(2), query_x=tasks.query_x.flatten(2))
    method = MAML(make_backbone("identity", in_features=SIDE**2), n_way=3, n_steps=1, step_size=0.1).double()
    x, y = flat.support_x[0], F.one_hot(flat.support_y[0], 3).double()
    error = method.head(x).softmax(-1) - y
    weight, bias = method.head.weight - 0.1 * error.T @ x / 6, method.head.bias - 0.1 * error.mean(0)
    torch.testing.assert_close(method.predict(flat)[0], (flat.query_x[0] @ weight.T + bias).log_softmax(-1))


def test_the_head_comes_from_the_seed_alone():
    state = torch.get_rng_state()
    one, same, other = (MAML(make_backbone("identity", in_features=8), seed=seed).head for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.weight.abs().max() <= 8**-0.5
    assert (one.bias == 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_way": 1}, "`n_way` to be at least 2, but got 1"),
        ({"n_steps": -1}, "`n_steps` to be at least 0, but got -1"),
        ({"n_test_steps": -2}, "`n_test_steps` to be at least 0, but got -2"),
        ({"step_size": 0.0}, "`step_size` to be positive, but got 0.0"),
    ],
)
def test_options_that_make_no_sense_are_explained(options, message):
    with pytest.raises(InvalidInputError, match=message):
        MAML(make_backbone("identity", in_features=8), **options)
