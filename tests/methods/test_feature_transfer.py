"""Feature Transfer: its heads against torch.optim.SGD task by task, its pre-training, padding, options."""

import pytest
import torch
import torch.nn.functional as F

from mirrorshot.data import EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError, TaskBatch

D = 8


def make(backbone=None, **options):
    backbone = backbone or make_backbone("identity", in_features=D)
    return make_method("feature_transfer", backbone, n_base_classes=10, **options).double()


def layer_from(start):
    layer = torch.nn.Linear(D, len(start)).double()
    with torch.no_grad():
        layer.weight.copy_(start[:, :D])
        layer.bias.copy_(start[:, D])
    return layer


@pytest.mark.parametrize("options", [{}, {"lr": 0.2, "batch_size": 3, "n_passes": 7}], ids=["paper", "others"])
def test_heads_are_those_of_the_optimiser_of_torch_task_by_task(drawn, predictions_by_torch, options):
    tasks, _ = drawn
    method = make(**options)
    method.seed(5)
    expected = predictions_by_torch(layer_from, torch.nn.Linear.forward, tasks, seed=5, **options)
    assert torch.allclose(method.predict(tasks), expected, atol=1e-10)


def test_the_loss_of_an_item_is_its_cross_entropy_among_all_training_classes(source):
    method = make()
    weight, bias = method.classifier.weight, method.classifier.bias
    expected = F.cross_entropy(source.items.double() @ weight.T + bias, source.labels, reduction="none")
    assert torch.allclose(method.classification_loss(source.items.double(), source.labels), expected)
    assert weight.shape == (10, D)
    assert (bias == 0).all()


def test_pre_training_moves_network_and_layer():
    backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    method = make_method("feature_transfer", backbone, n_base_classes=4)
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(4).repeat(4)
    x = torch.randn(4, 1, 28, 28, generator=generator)[y] + 0.1 * torch.randn(16, 1, 28, 28, generator=generator)
    adam = torch.optim.Adam(method.parameters(), 1e-3)
    losses = []
    for _ in range(10):
        adam.zero_grad()
        loss = method.classification_loss(x, y).mean()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad.abs().max() > 0 for p in method.parameters())


def test_building_a_method_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    first, second = make(), make()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.classifier.weight, second.classifier.weight)


def test_predictions_depend_on_the_seed_and_nothing_that_came_before(drawn):
    tasks, _ = drawn
    method = make()
    method.seed(1)
    first, again = method.predict(tasks), method.predict(tasks)
    method.seed(2)
    other = method.predict(tasks)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-4)


def test_tasks_of_fewer_shots_and_classes_are_as_if_alone(source):
    """Padding within the support, not only at its end."""
    small, _ = EpisodeSampler(source, n_way=3, n_shot=1, n_query=4, seed=0).draw(2)
    points = torch.tensor([0, 2, 4])  # places of the only shot of each class among two
    x = torch.full((2, 10, D), 9.0, dtype=torch.float64)
    y, weight = torch.zeros(2, 10, dtype=torch.int64), torch.zeros(2, 10)
    x[:, points], y[:, points], weight[:, points] = small.support_x.double(), small.support_y, torch.ones(2, 3)
    padded = small._replace(
        support_x=x, support_y=y, support_weight=weight, n_way=5,
        class_mask=torch.tensor([[True, True, True, False, False]] * 2),
    )  # fmt: skip
    method = make()
    log_prob = method.predict(padded)
    assert torch.allclose(log_prob[..., :3], method.predict(small), atol=1e-12)
    assert (log_prob[..., 3:] == -torch.inf).all()


def test_feature_maps_are_flattened():
    backbone = make_backbone("conv4snp", generator=torch.Generator().manual_seed(0))
    method = make_method("feature_transfer", backbone, n_base_classes=4, n_passes=2)
    generator = torch.Generator().manual_seed(0)
    y, ones = torch.tensor([[0, 1]] * 3), torch.ones(3, 2)
    x = torch.randn(3, 4, 1, 28, 28, generator=generator)
    tasks = TaskBatch(x[:, :2], y, x[:, 2:], 2, ones, ones, ones.bool())
    assert method.predict(tasks).shape == (3, 2, 2)
    assert method.classification_loss(x[0], torch.arange(4)).shape == (4,)


def test_a_head_needs_no_gradients_to_be_allowed(drawn):
    tasks, query_y = drawn
    method = make()
    with torch.inference_mode():
        log_prob = method.predict(tasks)
    assert torch.equal(log_prob, method.predict(tasks))
    assert (log_prob.argmax(-1) == query_y).double().mean() > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_passes": 0}, "`n_passes` to be at least 1, but got 0"),
        ({"batch_size": 0}, "`batch_size` to be at least 1, but got 0"),
        ({"lr": 0.0}, "`lr` to be positive, but got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)


def test_labels_of_training_classes_are_needed():
    with pytest.raises(InvalidInputError, match="use an episodic method, for instance protonet"):
        make_method("feature_transfer", make_backbone("identity", in_features=D))
