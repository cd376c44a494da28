"""The temperature that follows the task: its signs by definition, the fit on made-up data, the wrapper."""

import numpy as np
import pytest
import scipy.optimize
import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.methods.calibrated import (
    CalibratedMethod,
    TaskTemperature,
    fit_task_temperature,
    task_shift,
    task_signs,
)
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


def test_psi_is_the_logit_of_the_mean_confidence():
    tasks, _ = EpisodeSampler(source(), (2, 4), 1, 3, seed=0).draw(6)
    log_prob = torch.randn(6, tasks.query_x.shape[1], 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    signs = task_signs(tasks.support_x, tasks.query_x, log_prob, tasks)
    for t in range(6):
        real = tasks.query_weight[t] > 0
        confidence = log_prob[t, real].exp().max(-1).values.mean()
        assert float(signs[t, 1]) == pytest.approx(float(torch.logit(confidence)), rel=1e-4)
    assert torch.equal(signs[:, 0], task_shift(tasks.support_x, tasks.query_x, tasks))


def made_up(rule, n_tasks=400, n_query=40, seed=0):
    """Scores whose right temperatures are those of a rule; signs are anything between -1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    signs = 2 * torch.rand(n_tasks, 2, generator=generator, dtype=torch.float64) - 1
    scores = 2 * torch.randn(n_tasks, n_query, 4, generator=generator, dtype=torch.float64)
    prob = (scores / rule.of(signs)[:, None, None]).softmax(-1)
    y = torch.multinomial(prob.flatten(0, 1), 1, generator=generator).view(n_tasks, n_query)
    return scores.log_softmax(-1), y, torch.ones(n_tasks, n_query), signs


RANGES = (-1.0, 1.0, -1.0, 1.0)
GRID = torch.tensor([[phi, psi] for phi in (-0.8, 0.0, 0.8) for psi in (-0.8, 0.0, 0.8)])


@pytest.mark.parametrize("polynomial", [(0.2, 0.7, 0.0, 0.0), (-0.3, 0.0, -0.5, 0.4), (0.1, -0.4, 0.6, -0.3)])
def test_the_fit_finds_the_rule_that_made_the_labels(polynomial):
    truth = TaskTemperature(*polynomial, *RANGES)
    found = fit_task_temperature(*made_up(truth))
    assert torch.allclose(found.of(GRID).log(), truth.of(GRID).log(), atol=0.12)


def test_tasks_count_by_the_weight_of_their_queries():
    one, other = (made_up(TaskTemperature.constant(T), seed=seed) for T, seed in ((0.5, 1), (2.0, 2)))
    parts = [torch.cat(pair) for pair in zip(one, other, strict=True)]
    parts[3] = torch.zeros_like(parts[3])
    for weights in ((1.0, 0.0), (0.0, 1.0)):
        parts[2] = torch.cat([w * part[2] for w, part in zip(weights, (one, other), strict=True)])
        log_prob, y = (one if weights[0] else other)[:2]
        expected = fit_temperature(log_prob, y)
        assert float(fit_task_temperature(*parts).of(torch.zeros(1, 2))) == pytest.approx(expected, rel=1e-3)


def test_the_fit_is_the_minimum_that_scipy_finds():
    log_prob, y, weight, signs = made_up(TaskTemperature(0.3, 0.5, -0.6, 0.4, *RANGES), n_tasks=60)
    weight[::3] = 2.5
    found = fit_task_temperature(log_prob, y, weight, signs)
    low, high = np.quantile(signs, [0.02, 0.98], axis=0)
    phi, psi = np.clip(signs.numpy(), low, high).T
    right, counts = np.eye(4)[y.numpy()], weight.numpy()

    def nll(a, b, c, d):
        scores = log_prob.numpy() / np.exp(a + b * phi + c * psi + d * psi**2)[:, None, None]
        return (counts * (np.logaddexp.reduce(scores, -1) - (right * scores).sum(-1))).sum() / counts.sum()

    def objective(rule):
        a, b, c, d = rule
        slopes = b, c + 2 * d * psi.mean(), d  # of the polynomial around the mean of the signs
        return nll(a, b, c, d) + 1e-3 * np.square(slopes).sum()

    best = scipy.optimize.minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(found[:4], best.x, atol=2e-4)
    np.testing.assert_allclose(found[4:], [low[0], high[0], low[1], high[1]], rtol=1e-12)
    assert objective(found[:4]) <= best.fun + 1e-9


def test_a_query_whose_class_is_excluded_is_left_out_of_the_fit():
    log_prob, y, weight, signs = made_up(TaskTemperature(0.2, 0.7, -0.3, 0.2, *RANGES), n_tasks=200, n_query=20, seed=3)
    log_prob[0, 0] = torch.tensor([-torch.inf, 0.0, -1.0, -2.0])
    y[0, 0] = 0
    found = fit_task_temperature(log_prob, y, weight, signs)
    weight[0, 0] = 0.0
    assert found == pytest.approx(fit_task_temperature(log_prob, y, weight, signs), abs=1e-9)


def test_signs_that_say_nothing_give_one_temperature():
    log_prob, y, weight, signs = made_up(TaskTemperature.constant(1.5))
    rule = fit_task_temperature(log_prob, y, weight, torch.full_like(signs, 0.3))
    assert float(rule.of(torch.tensor([[0.3, 0.3]]))) == pytest.approx(fit_temperature(log_prob, y), rel=1e-3)


def test_beyond_the_tasks_of_the_fit_the_temperature_is_constant():
    rule = TaskTemperature(0.1, 2.0, -1.0, 0.3, -0.5, 0.5, 0.0, 1.0)
    for sign in (0, 1):
        signs = torch.full((5, 2), 0.5)
        signs[:, sign] = torch.tensor([-9.0, (-0.5, 0.0)[sign], 0.2, (0.5, 1.0)[sign], 9.0])
        t = rule.of(signs).tolist()
        assert t[0] == t[1] != t[2] != t[3] == t[4]


@pytest.mark.parametrize("name", ["mirror_gp", "protonet"])
def test_the_wrapper_predicts_at_the_temperature_of_each_task(name):
    method = make_method(name, make_backbone("identity", in_features=8)).eval()
    rule = TaskTemperature(0.3, 0.8, -0.2, 0.1, -2.0, 2.0, -2.0, 2.0)
    wrapped = CalibratedMethod(method, rule)
    tasks, _ = EpisodeSampler(source(), (2, 4), 2, 3, seed=0).draw(4)
    with torch.no_grad():
        plain, ours = method.predict(tasks), wrapped.predict(tasks)
        again = wrapped.on_features().predict(tasks)
    temperatures = rule.of(task_signs(tasks.support_x, tasks.query_x, plain, tasks)).tolist()
    for t, temperature in enumerate(temperatures):
        assert torch.allclose(ours[t], apply_temperature(plain[t], temperature), atol=1e-5)
    assert torch.equal(ours, again)


def test_the_wrapper_computes_features_once():
    backbone = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    method = make_method("mirror_gp", backbone).eval()
    wrapped = CalibratedMethod(method, TaskTemperature(0.3, 0.8, -0.2, 0.1, -2.0, 2.0, -2.0, 2.0)).eval()
    x = torch.rand(2, 16, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    y, ones = torch.arange(4).expand(2, 4), torch.ones(2, 16)
    tasks = TaskBatch(x[:, :4], y, x[:, 4:], 4, ones[:, :4], ones[:, 4:], torch.ones(2, 4, dtype=torch.bool))
    seen = []
    method.listener = lambda z: seen.append(z.shape[1])
    with torch.no_grad():
        log_prob = wrapped.predict(tasks)
        assert seen == [16]
        plain = method.predict(tasks)
        temperature = wrapped.rule.of(task_signs(*method.features(tasks), plain, tasks))
    expected = torch.log_softmax(plain / temperature[:, None, None], -1)
    torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-4)
