"""The auxiliary classification loss: its value, its gradient, and runs with it, resumed and shared."""

import pytest
import torch

from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.training import train
from mirrorshot.training.auxiliary import listening
from mirrorshot.training.build import build_method, build_preprocess, build_stream, training_sampler
from mirrorshot.training.learner import Learner
from mirrorshot.training.stream import TaskStream
from mirrorshot.types import InvalidInputError

AUXILIARY = {"auxiliary_weight": 0.7, "ema": 0.9, "augment": True, "n_episodes": 14}


@pytest.fixture
def make_learner(pictures, make_config):
    def make(**changes):
        config = make_config(**changes)
        sampler = training_sampler(config, pictures.train)
        stream = TaskStream(sampler, build_preprocess(pictures, augment=False), config.tasks_per_step, seed=1)
        return Learner(build_method(config, pictures).train(), config, stream)

    return make


def by_hand(learner, block, *, smoothing=0.0):
    """The cross-entropy of a step's items from their labels in the source, item by item."""
    rows = block.rows[0]
    with listening(learner.method) as heard, torch.no_grad():
        learner.stream.loss(learner.method, rows, block.draws[0])
    classifier = learner.auxiliary.classifier
    losses = []
    for item, row in zip(heard[0].flatten(0, 1), rows.flatten(), strict=True):
        cosine = torch.cosine_similarity(item[None], classifier.direction)
        log_prob = torch.log_softmax(10 * classifier.magnitude * cosine, 0)
        own = log_prob[learner.stream.source.labels[row]]
        losses.append(-(1 - smoothing) * own - smoothing * log_prob.mean())
    return torch.stack(losses).mean().detach()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_weighted_cross_entropy_over_all_training_classes(make_learner, smoothing):
    options = {"tasks_per_step": 2, "schedule": "constant", "auxiliary_smoothing": smoothing}
    plain, joint = make_learner(**options), make_learner(**options, auxiliary_weight=0.7)
    block = joint.stream.block(0, 1)
    added = by_hand(joint, block, smoothing=smoothing)
    expected = plain.run(block, 0).loss + 0.7 * added
    assert float(joint.run(block, 0).loss) == pytest.approx(float(expected), rel=1e-4)


def test_tasks_of_different_sizes_count_alike_and_padding_not_at_all(make_learner):
    learner = make_learner(tasks_per_step=2, auxiliary_weight=1.0)
    block = learner.stream.block(0, 1)
    rows, draws = block.rows[0].clone(), block.draws[0]
    rows[1, 3:] = -1
    z = torch.randn(*rows.shape, learner.method.backbone.out_features, generator=torch.Generator().manual_seed(0))
    classifier = learner.auxiliary.classifier
    means = []
    for task, items in zip(rows, z, strict=True):
        losses = []
        for row, item in zip(task[task >= 0], items[task >= 0], strict=True):
            direction = classifier.direction / classifier.direction.norm(dim=1, keepdim=True)
            logits = 10 * classifier.magnitude * (direction @ (item / item.norm()))
            losses.append(logits.logsumexp(0) - logits[learner.stream.source.labels[row]])
        means.append(torch.stack(losses).mean())
    found = learner.auxiliary([z], rows, draws).detach()
    assert float(found) == pytest.approx(float(torch.stack(means).mean().detach()), rel=1e-4)
    z[1, 3:] = 9.0
    assert float(learner.auxiliary([z], rows, draws).detach()) == pytest.approx(float(found), rel=1e-6)


def test_its_gradient_reaches_the_network_and_the_classifier(make_learner):
    learner = make_learner(auxiliary_weight=1.0)
    rows, draws = learner.stream.block(0, 1).rows[0], learner.stream.block(0, 1).draws[0]
    learner.auxiliary([learner.method.embed(learner.stream.items(rows, draws))], rows, draws).backward()
    assert all(float(p.grad.abs().max()) > 0 for p in learner.auxiliary.parameters())
    assert all(float(p.grad.abs().max()) > 0 for p in learner.method.backbone.parameters() if p.requires_grad)


def test_turned_classes_are_classes_of_their_own(pictures, make_config):
    config = make_config(auxiliary_weight=1.0, turn_classes=True)
    sampler = training_sampler(config, pictures.train)
    stream = build_stream(config, pictures, sampler, rank=0, world_size=1)
    learner = Learner(build_method(config, pictures).train(), config, stream)
    assert len(learner.auxiliary.classifier.direction) == 4 * pictures.train.n_classes
    block = stream.block(0, 1)
    rows, draws = block.rows[0], block.draws[0]
    with torch.no_grad():
        z = learner.method.embed(stream.items(rows, draws))
        found = learner.auxiliary([z], rows, draws)
        logits = learner.auxiliary.classifier(z.flatten(0, 1))
    own = 4 * stream.source.labels[rows] + draws[..., -1].long()
    assert float(found) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, own.flatten())), rel=1e-5)


def test_a_pretrained_method_has_no_classes_to_turn(pictures, make_config):
    config = make_config(method="baseline_pp", turn_classes=True)
    with pytest.raises(InvalidInputError, match="turn_classes=false for baseline_pp"):
        build_stream(config, pictures, training_sampler(config, pictures.train), rank=0, world_size=1)


def test_embeddings_have_no_network_that_it_could_train(embeddings, make_config, tmp_path):
    results = [
        train(make_config(auxiliary_weight=weight), tmp_path / str(weight), dataset=embeddings).best
        for weight in (0.0, 3.0)
    ]
    assert all(results[0][key] == results[1][key] for key in ("loss", "gradient", "val_nll"))


def test_weight_zero_changes_nothing_bit_for_bit(pictures, make_config, run_content, tmp_path):
    for name, settings in (("without", {}), ("zero", {"auxiliary_weight": 0.0, "auxiliary_smoothing": 0.1})):
        train(make_config(ema=0.9, **settings), tmp_path / name, dataset=pictures)
    contents = [run_content(tmp_path / name) for name in ("without", "zero")]
    for key in ("log", "best", "last"):
        assert contents[0][key] == contents[1][key]


def test_a_weight_that_falls_is_zero_in_the_end(make_learner):
    learner = make_learner(auxiliary_weight=0.6, auxiliary_schedule="cosine", n_episodes=10)
    weights = [learner._plan(step)[2] for step in (0, 5, 10)]
    assert weights == pytest.approx([0.6, 0.3, 0.0])


@pytest.mark.parametrize("n_blocks", [1, 2, 3])
def test_a_run_with_it_is_resumed_bit_for_bit(pictures, make_config, run_content, tmp_path, n_blocks):
    config = make_config(**AUXILIARY)
    train(config, tmp_path / "whole", dataset=pictures)
    calls = []

    def stop(*_):
        calls.append(1)
        if len(calls) == n_blocks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", dataset=pictures, progress=stop)
    train(None, tmp_path / "run", resume=True, dataset=pictures)
    assert run_content(tmp_path / "run") == run_content(tmp_path / "whole")


def test_the_classifier_is_in_the_last_checkpoint_and_not_in_the_best(pictures, make_config, tmp_path):
    train(make_config(**AUXILIARY), tmp_path, dataset=pictures)
    last, best = (load_checkpoint(tmp_path / f"{name}.safetensors").tensors for name in ("last", "best"))
    assert last["auxiliary.classifier.direction"].shape[0] == pictures.train.n_classes
    assert last["adam.auxiliary.classifier.direction.exp_avg"].abs().max() > 0
    assert not any("auxiliary" in name for name in best)


@pytest.mark.parametrize("method", ["protonet", "dkt", "matchingnet", "relationnet", "ove_gp", "logistic_softmax_gp"])
def test_other_episodic_methods_can_have_it(make_learner, method):
    learner = make_learner(method=method, **AUXILIARY)
    before = learner.auxiliary.classifier.direction.clone()
    assert learner.run(learner.stream.block(0, 2), 0).loss.isfinite()
    assert not torch.equal(before, learner.auxiliary.classifier.direction)


def test_a_method_that_adapts_its_network_is_refused(make_learner):
    learner = make_learner(method="maml", method_options={"n_way": 3}, auxiliary_weight=1.0)
    with pytest.raises(InvalidInputError, match="auxiliary_weight=0 for maml, which does not compute the features"):
        learner.run(learner.stream.block(0, 1), 0)


def test_a_pretrained_method_is_refused(make_learner):
    with pytest.raises(InvalidInputError, match="auxiliary_weight=0 for baseline_pp, which learns to classify"):
        make_learner(method="baseline_pp", method_options={"n_base_classes": 5}, auxiliary_weight=1.0)
