"""RelationNet against the network of its paper, built from torch's own layers, pair by pair."""

import pytest
import torch
from torch import nn

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.methods.relationnet import RelationNet
from mirrorshot.networks.backbones import Backbone, make_backbone
from mirrorshot.training.build import backbone_name
from mirrorshot.training.config import Config
from mirrorshot.types import InvalidInputError


class Maps(Backbone):
    """Items that are feature maps already, times a weight."""

    def __init__(self, *shape, norm="task"):
        super().__init__(shape)
        self.weight, self.norm = nn.Parameter(torch.ones(())), norm

    def forward(self, x):
        return self.weight * x


def make(side=5, norm="task", **options):
    method = RelationNet(Maps(3, side, side, norm=norm), **options).double()
    generator = torch.Generator().manual_seed(5)
    for block in method.blocks:  # as after some training
        block.norm.weight.data.uniform_(0.5, 1.5, generator=generator)
        block.norm.bias.data.normal_(0, 0.3, generator=generator)
        block.norm.running_mean.normal_(0, 0.3, generator=generator)
        block.norm.running_var.uniform_(0.5, 1.5, generator=generator)
    return method


def draw(side=5, n_way=3, n_shot=2, n_query=2, n_tasks=2):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 1, 3, side, side, generator=generator, dtype=torch.float64)
    x = centres + 0.5 * torch.randn(6, 8, 3, side, side, generator=generator, dtype=torch.float64)
    source = ClassSource.from_arrays(x.flatten(0, 1).flatten(1), torch.arange(6).repeat_interleave(8))
    tasks, query_y = EpisodeSampler(source, n_way, n_shot, n_query, seed=0).draw(n_tasks)
    support_x, query_x = (z.unflatten(2, (3, side, side)) for z in (tasks.support_x, tasks.query_x))
    return tasks._replace(support_x=support_x, query_x=query_x), query_y


def plain_network(method, side):
    """The relation network as one sequence of torch's layers on concatenated maps."""
    padding, layers, copies = int(side < 10), [], []
    for i, block in enumerate(method.blocks):
        layers += [nn.Conv2d(64 if i else 6, 64, 3, padding=padding), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
        copies += [(layers[-4], block.conv), (layers[-3], block.norm)]
    layers += [nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 1)]
    network = nn.Sequential(*layers).double().eval()
    network(torch.zeros(1, 6, side, side, dtype=torch.float64))
    for copy, layer in (*copies, (layers[-3], method.hidden), (layers[-1], method.score)):
        copy.load_state_dict(layer.state_dict())
    return network


def pairs(tasks, t):
    """Mean map of each class and map of each query of a task, on each other: (M, C, 6, h, w)."""
    means = [tasks.support_x[t][tasks.support_y[t] == c].mean(0) for c in range(tasks.n_way)]
    return torch.stack([torch.stack([torch.cat([mean, query]) for mean in means]) for query in tasks.query_x[t]])


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("side", [5, 12])
@pytest.mark.parametrize("train", [True, False])
def test_scores_are_those_of_a_plain_network_on_concatenated_maps(side, train):
    tasks, _ = draw(side)
    method = make(side).train(train)
    network = plain_network(method, side).train(train)
    for t in range(2):
        expected = network(pairs(tasks, t).flatten(0, 1)).reshape(6, 3)
        torch.testing.assert_close(method.scores(tasks.select(slice(t, t + 1)))[0], expected)


def test_the_squared_error_is_to_one_hot_labels():
    tasks, query_y = draw()
    method = make()
    target = nn.functional.one_hot(query_y, 3).double()
    expected = [nn.functional.mse_loss(method.scores(tasks)[t].sigmoid(), target[t]) for t in range(2)]
    torch.testing.assert_close(method.loss(tasks, query_y), torch.stack(expected))


def test_the_softmax_loss_is_cross_entropy_of_the_scores():
    tasks, query_y = draw()
    method = make(loss="softmax")
    expected = nn.functional.cross_entropy(method.scores(tasks).mT, query_y, reduction="none").mean(1)
    torch.testing.assert_close(method.loss(tasks, query_y), expected)
    torch.testing.assert_close(method.predict(tasks).exp(), method.scores(tasks).softmax(-1))


def test_probabilities_are_relation_scores_over_their_sum():
    tasks, _ = draw()
    method = make()
    relation = method.scores(tasks).sigmoid()
    torch.testing.assert_close(method.predict(tasks).exp(), relation / relation.sum(-1, keepdim=True))


@pytest.mark.parametrize("norm", ["episode", "task"])
def test_in_eval_mode_a_batch_of_tasks_is_its_tasks_one_by_one(norm):
    tasks, query_y = draw(n_tasks=3)
    method = make(norm=norm).eval()
    single = [tasks.select(slice(i, i + 1)) for i in range(3)]
    torch.testing.assert_close(method.predict(tasks), torch.cat([method.predict(task) for task in single]))
    losses = torch.cat([method.loss(task, query_y[i : i + 1]) for i, task in enumerate(single)])
    torch.testing.assert_close(method.loss(tasks, query_y), losses)


def test_the_relation_network_normalises_like_the_backbone():
    tasks, _ = draw(n_tasks=2)
    episode, task = (make(norm=norm).train().scores(tasks) for norm in ("episode", "task"))
    single = [make().train().scores(tasks.select(slice(i, i + 1))) for i in range(2)]
    torch.testing.assert_close(task, torch.cat(single))
    assert (episode - task).abs().max() > 1e-3


def test_padded_points_and_absent_classes_change_nothing_in_eval_mode(pad):
    tasks, query_y = draw()
    padded, padded_y = pad(tasks, query_y, 7.0)
    for loss in ("mse", "softmax"):
        method = make(loss=loss).eval()
        log_prob = method.predict(padded)
        torch.testing.assert_close(log_prob[:, :6, :3], method.predict(tasks))
        assert (log_prob[..., 3] == -torch.inf).all()
        torch.testing.assert_close(method.loss(padded, padded_y), method.loss(tasks, query_y))
        method.loss(padded, padded_y).sum().backward()
        assert all(p.grad.isfinite().all() for p in method.parameters())


def test_running_statistics_move_with_the_momentum():
    tasks, _ = draw(n_tasks=1)
    method = make(momentum=1.0).train()
    maps = nn.functional.conv2d(
        pairs(tasks, 0).flatten(0, 1), method.blocks[0].conv.weight, method.blocks[0].conv.bias, padding=1
    )
    method.scores(tasks)
    torch.testing.assert_close(method.blocks[0].norm.running_mean, maps.mean((0, 2, 3)))


def test_training_learns_to_tell_classes_apart():
    method = make(loss="mse")
    adam = torch.optim.Adam(method.parameters(), 0.003)
    tasks, query_y = draw(n_tasks=4)
    first = method.loss(tasks, query_y).mean().item()
    for _ in range(30):
        adam.zero_grad()
        method.loss(tasks, query_y).mean().backward()
        adam.step()
    assert method.loss(tasks, query_y).mean().item() < 0.3 * first
    assert (method.predict(tasks).argmax(-1) == query_y).double().mean() > 0.9


def test_half_precision_is_close_to_full_and_scores_are_single(assert_half_precision_is_close):
    generator = torch.Generator().manual_seed(0)
    method = RelationNet(make_backbone("conv4snp", generator=generator))
    x = torch.randn(1, 6, 1, 28, 28, generator=generator)
    tasks = draw(n_tasks=1, n_shot=2, n_query=2)[0]._replace(support_x=x, query_x=x)
    assert_half_precision_is_close(method, tasks, atol=0.02)


def test_weights_come_from_the_seed_alone():
    state = torch.get_rng_state()
    one, same, other = (RelationNet(Maps(3, 5, 5), seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["hidden.weight"], other["hidden.weight"])
    assert not torch.equal(one["blocks.0.conv.weight"], other["blocks.0.conv.weight"])


def test_backbones_without_maps_are_refused_with_those_that_have_them():
    for backbone in (make_backbone("identity", in_features=8), make_backbone("conv4s", generator=torch.Generator())):
        with pytest.raises(InvalidInputError, match=r"feature maps .*conv4np, or conv4snp .* dkt or mirror_gp"):
            RelationNet(backbone)


def test_maps_that_are_too_small_are_refused():
    with pytest.raises(InvalidInputError, match=r"at least 4 x 4, but got 3 x 3.*22 x 22"):
        RelationNet(make_backbone("conv4np", image_size=21, generator=torch.Generator()))
    RelationNet(make_backbone("conv4np", image_size=22, generator=torch.Generator()))


@pytest.mark.usefixtures("as_for_users")
def test_options_that_make_no_sense_are_explained():
    for options, message in (
        ({"loss": "hinge"}, "'mse' or 'softmax', but got 'hinge'"),
        ({"momentum": 0.0}, "above 0 and at most 1, but got 0.0"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            RelationNet(Maps(3, 5, 5), **options)


@pytest.mark.parametrize(("size", "expected"), [(28, "conv4snp"), (84, "conv4np"), (0, "identity")])
def test_the_automatic_backbone_is_one_with_maps(size, expected):
    dataset = Dataset("made up", None, None, None, size, 3, False, (), ())
    assert backbone_name(Config(method="relationnet"), dataset) == expected
    assert backbone_name(Config(method="relationnet", backbone="conv4"), dataset) == "conv4"
