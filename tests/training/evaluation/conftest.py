import numpy as np
import pytest
import torch

from mirrorshot.data import ClassSource
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.networks.backbones import make_backbone


class ProtoNet(FewShotMethod):
    """Softmax of the negative squared distances to the class means, times a sharpness."""

    def __init__(self, sharpness=1.0, in_features=5):
        super().__init__(make_backbone("identity", in_features=in_features))
        self.sharpness = torch.nn.Parameter(torch.tensor(sharpness))
        self.dropout = torch.nn.Dropout(0.9)  # for what eval mode switches off

    def loss(self, tasks, query_y):
        return -self.predict(tasks).gather(-1, query_y[..., None])[..., 0].mean(-1)

    def predict(self, tasks):
        support, query = map(self.dropout, self.features(tasks))
        member = torch.nn.functional.one_hot(tasks.support_y, tasks.n_way) * tasks.support_weight[..., None]
        member = member.to(support.dtype)
        means = member.mT @ support / member.sum(1)[..., None].clamp(min=1)
        scores = -self.sharpness * (query[:, :, None] - means[:, None]).square().sum(-1)
        return scores.masked_fill(~tasks.class_mask[:, None], -torch.inf).log_softmax(-1)


def make_source(seed, n_classes=8, n_per_class=30, spread=1.5):
    """Classes as clouds in five dimensions."""
    rng = np.random.default_rng(seed)
    centres = spread * rng.normal(size=(n_classes, 1, 5))
    X = (centres + rng.normal(size=(n_classes, n_per_class, 5))).reshape(-1, 5)
    return ClassSource.from_arrays(X, np.arange(n_classes).repeat(n_per_class))


@pytest.fixture(name="ProtoNet")
def _protonet():
    """The method, for tests to make and to derive from."""
    return ProtoNet


@pytest.fixture
def test_source():
    return make_source(0)


@pytest.fixture
def validation_source():
    return make_source(1)
