import pytest
import torch

from mirrorshot.training.evaluation import Evaluation, Predictions, Protocol, calibration_of
from mirrorshot.views import EpisodeDisplay, cards_section, learning_section, reliability_section, risk_section
from mirrorshot.views.sections import reliability_image


@pytest.fixture(scope="module")
def found():
    g = torch.Generator().manual_seed(0)
    log_prob = torch.randn(8, 15, 5, generator=g, dtype=torch.float64).log_softmax(-1)
    raw = calibration_of(Predictions(log_prob, torch.randint(5, (8, 15), generator=g), torch.ones(8, 15)))
    protocol = Protocol(5, 1, 3, 8, (1,), 10, 100, 0, 0, "abc")
    tasks = torch.rand(1, 8, generator=g, dtype=torch.float64)
    plain = Evaluation(protocol, 0.5, 0.0, 0.0, raw, None, None, tasks, tasks)
    return {"a": plain, "b": plain._replace(temperature=2.0, calibrated=raw)}


def test_reliability_is_drawn_raw_and_at_the_temperatures_there_are(found):
    image = reliability_image(found)
    titles = [ax.get_title() for ax in image.figure.axes if ax.get_title()]
    assert titles == ["a\nas it is", "b\nas it is", "b\nat T = 2"]
    assert reliability_section(image).blocks[1] is image


def test_risk_has_a_curve_for_each_method(found):
    image = risk_section(found).blocks[1]
    assert len(image.figure.axes[0].lines) == 2
    assert image.alt == "Error rate over coverage of a, b."


def test_learning_is_shown_for_runs_with_a_log():
    (section,) = learning_section({"a": [{"step": 1, "loss": 1.0}], "b": []}, "Some words.")
    assert section.blocks[0] == "Some words."
    assert "of a over" in section.blocks[1].alt
    assert learning_section({"b": []}) == []


def test_cards_say_how_many_queries_are_right():
    images, log_prob = torch.zeros(2, 1, 4, 4), torch.tensor([[0.9, 0.1]] * 2).log()
    card = EpisodeDisplay(images, images, log_prob, torch.tensor([0, 1]), ["x", "y"])
    (section,) = cards_section({"a": [card], "b": []})
    assert section.blocks[1].caption == "a: 50% of 2 queries are right."
    assert cards_section({"a": []}) == []
