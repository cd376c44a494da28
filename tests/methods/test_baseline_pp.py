"""Baseline++: its heads against torch's weight normalisation and SGD task by task, its training layer, its scales."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

from mirrorshot.methods import make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError

D = 8


def make(n_base_classes=10, **options):
    backbone = make_backbone("identity", in_features=D)
    return make_method("baseline_pp", backbone, n_base_classes=n_base_classes, **options).double()


def unit(x):
    return x / (x.norm(dim=-1, keepdim=True) + 1e-5)


def normalised_layer(start):
    layer = torch.nn.Linear(D, len(start), bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(start[:, :D])
    return weight_norm(layer)


def logits(layer, x):
    return 2 * layer(unit(x))


@pytest.mark.parametrize("options", [{}, {"lr": 0.3, "n_passes": 8}], ids=["paper", "others"])
def test_heads_are_those_of_weight_norm_and_the_optimiser_of_torch(drawn, predictions_by_torch, options):
    tasks, _ = drawn
    method = make(**options)
    method.seed(5)
    expected = predictions_by_torch(normalised_layer, logits, tasks, seed=5, **options)
    assert torch.allclose(method.predict(tasks), expected, atol=1e-10)


def test_the_loss_of_an_item_is_its_cross_entropy_under_the_cosine_classifier(source):
    method = make()
    x, y = source.items.double(), source.labels
    with torch.no_grad():
        method.classifier.magnitude.mul_(torch.linspace(0.5, 2, 10))
    cosine = F.cosine_similarity(x[:, None], method.classifier.direction[None], dim=-1)
    expected = F.cross_entropy(2 * method.classifier.magnitude * cosine, y, reduction="none")
    assert torch.allclose(method.classification_loss(x, y), expected, atol=1e-4)  # 1e-5 added to the length of x
    method.classification_loss(x, y).sum().backward()
    assert all(p.grad.abs().max() > 0 for p in method.parameters())


def test_magnitudes_start_as_the_lengths_of_a_linear_layer():
    layer = make().classifier
    assert torch.allclose(layer.magnitude, layer.direction.norm(dim=1))
    assert layer.direction.abs().max() <= D**-0.5


@pytest.mark.parametrize(("n_base_classes", "scale"), [(200, 2.0), (201, 10.0)])
def test_the_scale_in_training_depends_on_the_number_of_classes(n_base_classes, scale):
    assert make(n_base_classes).classifier.scale == scale
    assert make(n_base_classes, scale=3.0).classifier.scale == 3.0


def test_the_length_of_features_does_not_matter(drawn):
    tasks, _ = drawn
    method = make()
    longer = tasks._replace(support_x=tasks.support_x * 3, query_x=tasks.query_x * 0.5)
    assert torch.allclose(method.predict(longer), method.predict(tasks), atol=1e-4)


def test_features_of_zeros_are_no_harm(drawn):
    tasks, query_y = drawn
    method = make()
    tasks = tasks._replace(support_x=tasks.support_x * 0, query_x=(tasks.query_x * 0).requires_grad_())
    loss = method.loss(tasks, query_y).sum()
    loss.backward()
    assert loss.isfinite()
    assert tasks.query_x.grad.isfinite().all()


def test_a_scale_that_is_not_positive_is_refused():
    with pytest.raises(InvalidInputError, match="Expected `scale` to be positive, but got"):
        make(scale=-1.0)
