import numpy as np
import pytest
import torch

from mirrorshot.metrics import aurc, risk_coverage
from mirrorshot.training.evaluation import Predictions, calibration_of
from mirrorshot.types import InvalidInputError
from mirrorshot.views import RiskCoverageDisplay, risk_coverage_figure


@pytest.fixture
def predictions():
    g = torch.Generator().manual_seed(0)
    prob = (2 * torch.randn(4, 50, 5, generator=g, dtype=torch.float64)).softmax(-1)
    return prob, torch.multinomial(prob.flatten(0, 1), 1, generator=g).reshape(4, 50)


def test_the_curve_is_that_of_sorted_predictions(predictions):
    prob, y = predictions
    confidence, wrong = prob.max(-1).values.flatten().numpy(), (prob.argmax(-1) != y).flatten().numpy()
    errors = wrong[np.argsort(-confidence)].cumsum()
    curve = risk_coverage(prob, y, n_points=200)
    np.testing.assert_allclose(curve.risk, errors / np.arange(1, 201), atol=1e-12)
    assert float(curve.risk.mean()) == pytest.approx(float(aurc(prob, y)), abs=1e-12)


def test_equal_confidences_share_their_errors():
    prob = torch.tensor([[0.7, 0.3]] * 4)
    curve = risk_coverage(prob, torch.tensor([0, 0, 1, 1]), n_points=4)
    np.testing.assert_allclose(curve.risk, 0.5)


def test_a_display_draws_its_curve_and_its_area(predictions):
    display = RiskCoverageDisplay.from_predictions(*predictions, name="ours")
    line = display.ax_.lines[0]
    np.testing.assert_allclose(line.get_ydata(), display.curve.risk)
    labels = display.ax_.get_legend_handles_labels()[1]
    assert labels == [f"ours, AURC {display.area:.3f}", "in random order", "best order"]


def test_a_stored_curve_is_the_same(predictions):
    made = RiskCoverageDisplay.from_predictions(*predictions)
    prob, y = predictions
    found = calibration_of(Predictions(prob.log(), y, torch.ones_like(y, dtype=torch.float64)))
    stored = RiskCoverageDisplay.from_calibration(found)
    np.testing.assert_allclose(stored.curve, made.curve)
    assert stored.area == made.area
    with pytest.raises(InvalidInputError, match="risk-coverage curve, but it has none"):
        RiskCoverageDisplay.from_calibration(found._replace(risk=None))


def test_several_curves_differ_in_more_than_colour(predictions):
    displays = [RiskCoverageDisplay.from_predictions(*predictions, name=name) for name in "abc"]
    figure = risk_coverage_figure(displays)
    assert len({line.get_linestyle() for line in figure.axes[0].lines}) == 3


def test_no_curve_is_refused(predictions):
    with pytest.raises(InvalidInputError, match="at least one display"):
        risk_coverage_figure([])
    with pytest.raises(InvalidInputError, match="`n_points` to be at least 1"):
        risk_coverage(*predictions, n_points=0)
