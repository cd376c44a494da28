import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.training.evaluation import predict_tasks
from mirrorshot.types import InvalidInputError


def identity(x):
    return x


@pytest.fixture
def sampler(test_source):
    return EpisodeSampler(test_source, n_way=4, n_shot=2, n_query=3, seed=0)


def test_predictions_are_those_of_a_plain_loop(ProtoNet, sampler):
    method = ProtoNet()
    method.eval()
    log_prob, y, weight = predict_tasks(method, sampler, range(7), prepare=identity, batch_size=3)
    for number in range(7):
        tasks, query_y = sampler.tasks([number])
        torch.testing.assert_close(log_prob[number], method.predict(tasks)[0].detach())
        assert y[number].tolist() == query_y[0].tolist()
    assert weight.shape == (7, 12)
    assert bool((weight == 1).all())


def test_numbers_choose_the_tasks(ProtoNet, sampler):
    everything = predict_tasks(ProtoNet(), sampler, range(6), prepare=identity, batch_size=6)
    some = predict_tasks(ProtoNet(), sampler, [4, 1], prepare=identity, batch_size=6)
    torch.testing.assert_close(some.log_prob, everything.log_prob[[4, 1]])


def test_method_predicts_in_eval_mode_without_gradients_and_gets_its_modes_back(ProtoNet, sampler):
    method = ProtoNet()
    method.train()
    method.backbone.eval()
    first, second = (predict_tasks(method, sampler, range(3), prepare=identity, batch_size=3) for _ in range(2))
    torch.testing.assert_close(first.log_prob, second.log_prob)  # no dropout
    assert not first.log_prob.requires_grad
    assert method.training
    assert method.dropout.training
    assert not method.backbone.training


def test_modes_come_back_after_an_error(ProtoNet, sampler):
    method = ProtoNet(in_features=3)
    with pytest.raises(InvalidInputError, match="embeddings of shape"):
        predict_tasks(method, sampler, [0], prepare=identity, batch_size=1)
    assert method.training


def test_pictures_are_prepared_as_one_batch_of_items(ProtoNet):
    pictures = torch.arange(40, dtype=torch.uint8)[:, None, None, None].expand(40, 1, 2, 2)
    sampler = EpisodeSampler(ClassSource.from_arrays(pictures, torch.arange(40) // 10), 2, 1, 3, seed=0)
    seen = []

    def prepare(items):
        seen.append((items.shape, items.dtype))
        return items.flatten(1).float() / 255

    predict_tasks(ProtoNet(in_features=4), sampler, range(5), prepare=prepare, batch_size=5)
    assert seen == [((10, 1, 2, 2), torch.uint8), ((30, 1, 2, 2), torch.uint8)]


def test_padding_stays_zero_and_has_no_weight(ProtoNet, test_source):
    sampler = EpisodeSampler(test_source, n_way=(2, 4), n_shot=(1, 3), n_query=3, seed=0)
    seen = []

    class Watched(ProtoNet):
        def predict(self, tasks):
            seen.append(tasks)
            return super().predict(tasks)

    predictions = predict_tasks(Watched(), sampler, range(20), prepare=lambda x: x + 1, batch_size=20)
    (tasks,) = seen
    assert bool((tasks.support_x[tasks.support_weight == 0] == 0).all())
    assert bool((tasks.query_x[tasks.query_weight == 0] == 0).all())
    assert 0 < int((predictions.weight == 0).sum()) < predictions.weight.numel()
    assert bool((predictions.log_prob[predictions.weight > 0].exp().sum(-1) - 1 < 1e-5).all())


def test_progress_is_told(ProtoNet, sampler):
    told = []
    predict_tasks(
        ProtoNet(), sampler, range(5), prepare=identity, batch_size=2, progress=lambda *news: told.append(news)
    )
    assert told == [(2, 5, "tasks"), (4, 5, "tasks"), (5, 5, "tasks")]


def test_wrong_arguments_are_explained(ProtoNet, sampler):
    class Wrong(ProtoNet):
        def predict(self, tasks):
            return super().predict(tasks)[:, :5]

    for numbers, batch_size, message in (([0], 0, "got 0 and 1"), ([], 2, "got 2 and 0")):
        with pytest.raises(InvalidInputError, match=f"`batch_size` and the number of tasks .* {message}"):
            predict_tasks(ProtoNet(), sampler, numbers, prepare=identity, batch_size=batch_size)
    with pytest.raises(InvalidInputError, match=r"Wrong to return shape \(1, 12, 4\), but got \(1, 5, 4\)"):
        predict_tasks(Wrong(), sampler, [0], prepare=identity, batch_size=1)
    with pytest.raises(InvalidInputError, match="`prepare` to return 8 items, as many as it got, but got 1"):
        predict_tasks(ProtoNet(), sampler, [0], prepare=lambda x: x[:1], batch_size=1)
