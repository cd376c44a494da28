"""The temperature that follows the task: phi against its definition, the fit against made-up data, the wrapper."""

import pytest
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.methods.calibrated import CalibratedMethod, TaskTemperature, fit_task_temperature, task_shift
from mirrorshot.metrics import apply_temperature, fit_temperature
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import TaskBatch


def source():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 1, 8, generator=generator) + torch.randn(6, 12, 8, generator=generator)
    return ClassSource.from_arrays(x.reshape(-1, 8), torch.arange(6).repeat_interleave(12))


def test_phi_is_the_logarithm_of_the_ratio_of_two_distances():
    tasks, _ = EpisodeSampler(source(), 3, 2, 4, seed=0).draw(5)
    phi = task_shift(tasks.support_x, tasks.query_x, tasks)
    for t in range(5):
        cosine = torch.nn.functional.cosine_similarity
        nearest = [max(cosine(q, s, 0) for s in tasks.support_x[t]) for q in tasks.query_x[t]]
        between = [
            cosine(a, b, 0)
            for i, a in enumerate(tasks.support_x[t])
            for j, b in enumerate(tasks.support_x[t])
            if tasks.support_y[t, i] != tasks.support_y[t, j]
        ]
        expected = ((1 - torch.stack(nearest).mean()) / (1 - torch.stack(between).mean())).log()
        assert float(phi[t]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


def test_phi_leaves_padding_out():
    tasks, _ = EpisodeSampler(source(), (2, 4), (1, 3), 4, seed=0).draw(6)
    together = task_shift(tasks.support_x, tasks.query_x, tasks)
    for t in range(6):
        s, q = tasks.support_weight[t] > 0, tasks.query_weight[t] > 0
        small = TaskBatch(
            tasks.support_x[t, s][None], tasks.support_y[t, s][None], tasks.query_x[t, q][None], 4,
            torch.ones(1, int(s.sum())), torch.ones(1, int(q.sum())), tasks.class_mask[t][None],
        )  # fmt: skip
        assert torch.allclose(task_shift(small.support_x, small.query_x, small), together[t], atol=1e-5)


def made_up(a, b, n_tasks=400, n_query=40, seed=0):
    """Scores whose right temperatures are `exp(a + b phi)`."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.rand(n_tasks, generator=generator, dtype=torch.float64)
    scores = 2 * torch.randn(n_tasks, n_query, 4, generator=generator, dtype=torch.float64)
    prob = (scores / (a + b * phi).exp()[:, None, None]).softmax(-1)
    y = torch.multinomial(prob.flatten(0, 1), 1, generator=generator).view(n_tasks, n_query)
    return scores.log_softmax(-1), y, torch.ones(n_tasks, n_query), phi


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.7), (-0.3, 0.0), (0.5, -0.4)])
def test_the_fit_finds_the_rule_that_made_the_labels(a, b):
    rule = fit_task_temperature(*made_up(a, b))
    assert (rule.a, rule.b) == pytest.approx((a, b), abs=0.12)


def test_a_shift_that_says_nothing_gives_one_temperature():
    log_prob, y, weight, phi = made_up(0.4, 0.0)
    rule = fit_task_temperature(log_prob, y, weight, torch.full_like(phi, 0.3))
    expected = fit_temperature(log_prob, y)
    assert float(rule.of(torch.tensor([0.3]))) == pytest.approx(expected, rel=1e-3)


def test_beyond_the_tasks_of_the_fit_the_temperature_is_constant():
    rule = TaskTemperature(0.1, 2.0, -0.5, 0.5)
    temperatures = rule.of(torch.tensor([-9.0, -0.5, 0.0, 0.5, 9.0])).tolist()
    assert temperatures[0] == temperatures[1] < temperatures[2] < temperatures[3] == temperatures[4]


@pytest.mark.parametrize("name", ["mirror_gp", "protonet"])
def test_the_wrapper_predicts_at_the_temperature_of_each_task(name):
    method = make_method(name, make_backbone("identity", in_features=8)).eval()
    rule = TaskTemperature(0.3, 0.8, -2.0, 2.0)
    wrapped = CalibratedMethod(method, rule)
    tasks, _ = EpisodeSampler(source(), (2, 4), 2, 3, seed=0).draw(4)
    with torch.no_grad():
        plain, ours = method.predict(tasks), wrapped.predict(tasks)
        again = wrapped.on_features().predict(tasks)
    temperatures = rule.of(task_shift(tasks.support_x, tasks.query_x, tasks)).tolist()
    for t, temperature in enumerate(temperatures):
        assert torch.allclose(ours[t], apply_temperature(plain[t], temperature), atol=1e-5)
    assert torch.equal(ours, again)
