import math

import pytest
import torch

from mirrorshot.training.build import build_method, build_preprocess, training_sampler
from mirrorshot.training.learner import Learner, NotFiniteError
from mirrorshot.training.stream import Block, NumberedTasks, TaskStream
from mirrorshot.types import InvalidInputError


@pytest.fixture
def make_learner(pictures, make_config):
    def make(dataset=pictures, **changes):
        config = make_config(**{"norm": "task", "schedule": "constant", **changes})
        stream = TaskStream(
            training_sampler(config, dataset.train), build_preprocess(dataset, augment=False), config.tasks_per_step,
            seed=config.seed,
        )  # fmt: skip
        return Learner(build_method(config, dataset).train(), config, stream)

    return make


def plain_tasks(stream, number):
    """One task as it is without augmentation."""
    return NumberedTasks(stream.sampler, stream.preprocess).tasks(range(number, number + 1))


def hand_written(learner, dataset, n_steps, *, scales=None, clip=None):
    """The parameters after some steps of plain torch: an own copy of the method, tasks one by one, its own Adam."""
    config = learner.config
    method = build_method(config, dataset).train()
    groups = [
        {"params": list(method.backbone.parameters()), "lr": config.lr},
        {"params": list(method.kernel.parameters()), "lr": config.kernel_lr},
    ]
    adam = torch.optim.Adam(groups, lr=1.0)
    history = []
    for step in range(n_steps):
        adam.zero_grad()
        T = config.tasks_per_step
        for number in range(step * T, (step + 1) * T):
            tasks, query_y = plain_tasks(learner.stream, number)
            (method.loss(tasks, query_y)[0] / T).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(method.parameters(), clip)
        for group, lr in zip(adam.param_groups, (config.lr, config.kernel_lr), strict=True):
            group["lr"] = lr * (scales[step] if scales else 1.0)
        adam.step()
        history.append({name: p.detach().clone() for name, p in method.named_parameters()})
    return history


def take(learner, n_steps, first_step=0):
    return learner.run(learner.stream.block(first_step, n_steps), first_step)


def assert_parameters(learner, expected):
    for name, p in learner.method.named_parameters():
        if not name.endswith("conv.bias"):  # normalised away: gradients are rounding errors
            torch.testing.assert_close(p.detach(), expected[name], rtol=1e-4, atol=5e-5)  # a step is 0.01


def test_steps_are_those_of_adam(make_learner, pictures):
    learner = make_learner(lr=0.01, kernel_lr=0.1)
    start = {name: p.detach().clone() for name, p in learner.method.named_parameters()}
    expected = hand_written(learner, pictures, 2)[-1]
    take(learner, 2)
    assert_parameters(learner, expected)
    moved = {name: float((expected[name] - start[name]).abs().max()) for name in start}
    assert moved["kernel.log_outputscale"] > 0.1  # the kernel has its own rate
    assert 0.01 < max(length for name, length in moved.items() if "backbone" in name) < 0.03


def test_the_gradient_of_a_step_is_that_of_the_mean_loss_of_its_tasks(make_learner, pictures):
    learner = make_learner(tasks_per_step=4)
    method = build_method(learner.config, pictures).train()
    losses = torch.cat([method.loss(*plain_tasks(learner.stream, number)) for number in range(4)])
    losses.mean().backward()
    stats = take(learner, 1)
    torch.testing.assert_close(stats.loss, losses.mean().detach())
    learned = {name: p for name, p in method.named_parameters() if p.requires_grad}
    for name, p in learned.items():  # of which Adam's first moment is a tenth
        torch.testing.assert_close(learner.tensors()[f"adam.{name}.exp_avg"], 0.1 * p.grad, rtol=1e-3, atol=1e-7)
    norm = torch.cat([p.grad.flatten() for p in learned.values()]).norm()
    torch.testing.assert_close(stats.norm, norm)


def test_the_cosine_schedule_falls_from_one_to_zero(make_learner, pictures):
    learner = make_learner(schedule="cosine", lr=0.01, n_episodes=4)
    scales = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert scales[0] == 1.0
    expected = hand_written(learner, pictures, 4, scales=scales)[-1]
    take(learner, 4)
    assert_parameters(learner, expected)
    assert learner.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01 * scales[-1], rel=1e-6)


def test_the_schedule_does_not_depend_on_blocks(make_learner, same_tensors):
    one, two = (make_learner(schedule="cosine", ema=0.5) for _ in range(2))
    take(one, 3)
    take(two, 2)
    take(two, 1, first_step=2)
    assert same_tensors(one.tensors(), two.tensors())


def test_long_gradients_are_shortened_and_short_ones_are_not(make_learner, pictures):
    plain, loose, tight = (make_learner(lr=0.01, clip=clip) for clip in (0.0, 1e3, 1e-4))
    norms = [float(take(learner, 1).norm) for learner in (plain, loose, tight)]
    assert norms[0] == norms[1] == norms[2] > 1e-3  # reported as it was
    moment = {name: t for name, t in plain.tensors().items() if name.endswith("exp_avg")}
    for name, expected in moment.items():
        assert torch.equal(loose.tensors()[name], expected)
        torch.testing.assert_close(tight.tensors()[name], expected * 1e-4 / norms[0], rtol=1e-4, atol=1e-12)
    expected = hand_written(tight, pictures, 1, clip=1e-4)[-1]
    assert_parameters(tight, expected)


def test_loss_and_gradient_of_a_block_are_means_over_its_steps(make_learner):
    learner, twin = make_learner(), make_learner()
    stats = take(learner, 3)
    each = [take(twin, 1, first_step=step) for step in range(3)]
    torch.testing.assert_close(stats.loss, torch.stack([s.loss for s in each]).mean())
    torch.testing.assert_close(stats.norm, torch.stack([s.norm for s in each]).mean())
    assert int(stats.first_bad) == -1


def test_the_average_leans_on_the_latest_weights_at_first_and_then_decays_as_asked(make_learner, pictures):
    learner = make_learner(lr=0.01, ema=0.2)
    history = hand_written(learner, pictures, 6)
    take(learner, 6)
    average = {name: torch.zeros_like(p) for name, p in history[0].items()}
    for step, weights in enumerate(history):
        newest = max(0.8, 10 / (step + 10))
        average = {name: (1 - newest) * average[name] + newest * weights[name] for name in average}
    for name, expected in average.items():
        torch.testing.assert_close(learner.average[name], expected, rtol=1e-4, atol=5e-5)
    weights = learner.weights()
    assert torch.equal(weights["kernel.log_outputscale"], learner.average["kernel.log_outputscale"])
    name = next(name for name in weights if name.endswith("running_mean"))
    assert torch.equal(weights[name], learner.method.state_dict()[name])


def test_without_an_average_the_weights_are_those_of_the_method(make_learner, same_tensors):
    learner = make_learner(ema=0.0)
    take(learner, 1)
    assert learner.average is None
    assert same_tensors(learner.weights(), learner.method.state_dict())


def test_a_restored_learner_goes_on_bit_for_bit(make_learner, same_tensors):
    learner, fresh = make_learner(ema=0.9), make_learner(ema=0.9, seed=1)
    take(learner, 2)
    middle = learner.snapshot()
    take(learner, 2, first_step=2)
    assert not same_tensors(learner.tensors(), middle)
    fresh.restore(middle)
    assert same_tensors(fresh.tensors(), middle)
    take(fresh, 2, first_step=2)
    assert same_tensors(fresh.tensors(), learner.tensors())
    assert {name.split(".")[0] for name in middle} == {"method", "average", "adam"}
    assert "adam.kernel.log_outputscale.step" in middle


def test_muon_moves_the_convolutions_and_adam_the_rest(make_learner, same_tensors):
    learner, twin = make_learner(optimizer="muon", lr=0.01), make_learner(optimizer="adam", lr=0.01)
    take(learner, 1)
    take(twin, 1)
    ours, theirs = learner.tensors(), twin.tensors()
    convolutions = {name for name, p in learner.method.named_parameters() if name.endswith("conv.weight")}
    assert {name.removeprefix("muon.").removesuffix(".momentum") for name in ours if "muon" in name} == convolutions
    assert not any(f"adam.{name}.step" in ours for name in convolutions)
    for name, _ in learner.method.named_parameters():
        is_same = torch.equal(ours[f"method.{name}"], theirs[f"method.{name}"])
        assert is_same == (name not in convolutions)


def test_a_learner_with_muon_goes_on_bit_for_bit(make_learner, same_tensors):
    learner, fresh = make_learner(optimizer="muon"), make_learner(optimizer="muon", seed=1)
    take(learner, 2)
    fresh.restore(learner.snapshot())
    for each in (learner, fresh):
        take(each, 2, first_step=2)
    assert same_tensors(fresh.tensors(), learner.tensors())


def test_embeddings_leave_the_kernel_to_be_learned(make_learner, embeddings):
    learner = make_learner(embeddings, kernel_lr=0.1)
    before = learner.snapshot()["method.kernel.log_outputscale"]
    take(learner, 3)
    assert [name for name, _ in learner.method.named_parameters()] == ["kernel.log_outputscale"]
    assert abs(float(learner.tensors()["method.kernel.log_outputscale"] - before)) > 0.01


def test_a_method_without_parameters_is_refused(make_learner, embeddings):
    with pytest.raises(InvalidInputError, match=r"parameters to train, but \w+ on embeddings has no parameters"):
        make_learner(embeddings, method="protonet")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_step(make_learner, monkeypatch, value):
    learner = make_learner()
    loss, calls = learner.method.loss, []

    def breaking(tasks, query_y):
        calls.append(1)
        return loss(tasks, query_y) * (value if len(calls) == 3 else 1.0)

    monkeypatch.setattr(learner.method, "loss", breaking)
    with pytest.raises(NotFiniteError, match=r"loss (nan|inf)") as caught:
        take(learner, 4)
    assert caught.value.step == 2
    assert float(learner.tensors()["adam.kernel.log_outputscale.step"]) == 2
    assert all(p.isfinite().all() for p in learner.method.parameters())


def test_a_failure_is_found_again_step_by_step(make_learner, monkeypatch):
    learner = make_learner()
    block = learner.stream.block(0, 3)
    assert learner.find_failure(block, 0) == -1
    gradients, calls = learner._gradients, []

    def breaking(*arguments):
        calls.append(1)
        result = gradients(*arguments)
        return (result[0], result[1] * math.inf) if len(calls) == 2 else result

    monkeypatch.setattr(learner, "_gradients", breaking)
    assert learner.find_failure(Block(*block), 3) == 1
