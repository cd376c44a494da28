import pytest
import torch

from mirrorshot.methods import make_method
from mirrorshot.metrics import PAPER_GRID
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training.evaluation import Latents, Predictions, evaluate
from mirrorshot.training.evaluation.temperatures import (
    fit_likelihood_temperature,
    fit_two_temperatures,
    latent_log_prob,
    sampled_log_prob,
)
from mirrorshot.types import InvalidInputError

SETTING = {"n_way": 4, "n_shot": 2, "n_query": 5, "n_tasks": 10, "seeds": (1, 2), "prepare": torch.Tensor.float}


def make_latents(n_tasks=20, seed=0, sharpness=1.0):
    """Latents and labels drawn from them: the likelihood temperature of the truth is the sharpness."""
    g = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(n_tasks, 30, 4, generator=g, dtype=torch.float64)
    var = 0.2 + torch.rand(n_tasks, 30, 4, generator=g, dtype=torch.float64)
    f = mean + var.sqrt() * torch.randn(mean.shape, generator=g, dtype=torch.float64)
    y = torch.multinomial(f.softmax(-1).flatten(0, 1), 1, generator=g).reshape(n_tasks, 30)
    latents = Latents(mean * sharpness, var * sharpness**2)
    return latents, Predictions(latent_log_prob(latents, 1.0), y, torch.ones(n_tasks, 30))


def test_draws_come_close_to_the_quadrature():
    latents, _ = make_latents()
    at = sampled_log_prob(latents)
    for T in (0.3, 1.0, 1.9):
        exact = latent_log_prob(latents, T).exp()
        assert float((at(T).exp() - exact).abs().mean()) < 0.006


def test_absent_classes_have_no_probability():
    latents, _ = make_latents(3)
    latents.mean[1, :, 2], latents.var[1, :, 2] = -torch.inf, 0.0
    for log_prob in (latent_log_prob(latents, 0.5), sampled_log_prob(latents)(0.5)):
        assert bool((log_prob[1, :, 2] == -torch.inf).all())
        torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(3, 30, dtype=torch.float64))


def test_the_likelihood_temperature_finds_how_sharp_the_latents_are():
    latents, predictions = make_latents(300, sharpness=2.0)
    assert fit_likelihood_temperature(latents, predictions) == pytest.approx(2.0, rel=0.15)


def test_without_latents_only_the_second_temperature_is_searched():
    _, predictions = make_latents()
    pairs = fit_two_temperatures(None, predictions)
    assert {pair.likelihood for pair in pairs} == {1.0}
    assert {pair.predictive for pair in pairs} <= set(PAPER_GRID)


def test_a_gaussian_process_has_both_temperatures_and_the_raw_numbers_stay(test_source, validation_source):
    method = make_method("mirror_gp", make_backbone("identity", in_features=5))
    plain = evaluate(method, test_source, validation=validation_source, n_validation_tasks=6, **SETTING)
    told = []
    both = evaluate(
        method, test_source, validation=validation_source, n_validation_tasks=6, two_temperatures=True,
        progress=lambda *news: told.append(news), **SETTING,
    )  # fmt: skip
    assert plain.tempered == ()
    assert both.raw.record() == plain.raw.record()
    assert [t.rule for t in both.tempered] == ["nll", "ece", "mce"]
    for t in both.tempered[1:]:
        assert t.likelihood in PAPER_GRID
        assert t.predictive in PAPER_GRID
    assert told[-1][0] == told[-1][1] == 2 * 26 + 260


def test_a_method_without_latents_has_the_second_temperature_alone(ProtoNet, test_source, validation_source):
    found = evaluate(
        ProtoNet(5.0), test_source, validation=validation_source, n_validation_tasks=20, two_temperatures=True,
        **SETTING,
    )  # fmt: skip
    assert [(t.rule, t.likelihood) for t in found.tempered] == [("ece", None), ("mce", None)]
    assert found.tempered[0].calibration.ece < found.raw.ece


def test_two_temperatures_need_validation_classes(ProtoNet, test_source):
    with pytest.raises(InvalidInputError, match="`validation` classes to choose the two temperatures on"):
        evaluate(ProtoNet(), test_source, two_temperatures=True, **SETTING)
