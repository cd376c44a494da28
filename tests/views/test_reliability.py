import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import binomtest

from mirrorshot.metrics import calibration_bins, expected_calibration_error, maximum_calibration_error, wilson_interval
from mirrorshot.types import InvalidInputError
from mirrorshot.views import ReliabilityDisplay, reliability_figure, save_figure


@pytest.fixture
def predictions():
    """Probabilities (300, 4) and labels drawn from them."""
    rng = np.random.default_rng(0)
    prob = rng.dirichlet(np.full(4, 0.7), size=300)
    return prob, np.array([rng.choice(4, p=p) for p in prob])


@pytest.fixture
def display(predictions):
    return ReliabilityDisplay.from_predictions(*predictions, name="drawn from their own probabilities")


def bar_heights(ax, container):
    return [bar.get_height() for bar in ax.containers[container]]


def texts(ax):
    return " ".join(text.get_text() for text in ax.texts)


def test_display_holds_the_bins_and_their_errors(display, predictions):
    bins = calibration_bins(*predictions)
    np.testing.assert_array_equal(display.bins.counts, bins.counts)
    assert display.ece == float(expected_calibration_error(bins))
    assert display.mce == float(maximum_calibration_error(bins))


def test_bars_show_accuracy_gap_and_counts(display):
    filled = display.bins.counts > 0
    accuracy, confidence = display.bins.accuracy[filled], display.bins.confidence[filled]
    np.testing.assert_allclose(bar_heights(display.ax_, 0), accuracy)
    np.testing.assert_allclose(bar_heights(display.ax_, 1), confidence - accuracy)
    np.testing.assert_allclose(bar_heights(display.share_ax_, 0), display.bins.counts[filled])


def test_picture_names_its_numbers(display):
    assert f"ECE {display.ece:.3f}" in texts(display.ax_)
    assert f"MCE {display.mce:.3f}" in texts(display.ax_)
    assert display.ax_.get_title() == "drawn from their own probabilities"
    assert display.share_ax_.get_xlabel() == "confidence (300 predictions)"


def test_legend_names_every_part(display):
    labels = {text.get_text() for text in display.ax_.get_legend().get_texts()}
    assert labels == {"accuracy", "gap to confidence", "95 % interval", "calibrated"}


def test_display_draws_on_given_axes(predictions):
    ax = Figure().subplots()
    display = ReliabilityDisplay.from_predictions(*predictions, ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure


def test_display_can_be_drawn_again_elsewhere(display):
    first = display.figure_
    assert display.plot().figure_ is not first


def test_lists_and_tensors_are_accepted():
    prob, y = [[0.9, 0.1], [0.3, 0.7]], [0, 0]
    from_lists = ReliabilityDisplay.from_predictions(prob, y)
    from_tensors = ReliabilityDisplay.from_predictions(torch.tensor(prob, requires_grad=True), torch.tensor(y))
    assert from_lists.ece == pytest.approx(from_tensors.ece, abs=1e-6)


def test_wrong_predictions_are_explained():
    with pytest.raises(InvalidInputError, match="to sum to 1"):
        ReliabilityDisplay.from_predictions([[0.9, 0.9]], [0])


@pytest.mark.parametrize(("right", "n"), [(0, 1), (0, 7), (3, 7), (10, 10), (450, 900)])
def test_wilson_interval_agrees_with_scipy(right, n):
    expected = binomtest(right, n).proportion_ci(0.95, method="wilson")
    low, high = wilson_interval(np.array([right / n]), np.array([float(n)]))
    np.testing.assert_allclose([low[0], high[0]], [expected.low, expected.high], atol=1e-12)


def test_several_diagrams_share_one_figure(display):
    figure = reliability_figure([[display, display], [display]])
    drawn = [ax for ax in figure.axes if ax.get_ylabel() == "accuracy"]
    assert len(drawn) == 3
    assert len(figure.legends) == 1
    assert all(ax.get_legend() is None for ax in drawn)


@pytest.mark.parametrize("displays", [[], [[]]])
def test_a_figure_without_diagrams_is_refused(displays):
    with pytest.raises(InvalidInputError, match="at least one display"):
        reliability_figure(displays)


def test_no_part_of_the_picture_is_cut_off_or_overlaps(display, tmp_path):
    figure = reliability_figure([[display, display]])
    save_figure(figure, tmp_path / "two.png")  # lays it out
    boxes = [ax.get_tightbbox() for ax in figure.axes]
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    assert boxes[0].x1 <= boxes[1].x0


def test_intervals_are_bootstrapped_over_tasks_where_there_are_tasks():
    g = torch.Generator().manual_seed(0)
    prob = torch.tensor([0.72, 0.28]).expand(80, 20, 2)
    level = (torch.rand(80, 1, generator=g) > 0.5).double()  # tasks are easy or hard as a whole
    y = (torch.rand(80, 20, generator=g) < 0.5 * level).long()
    clustered = ReliabilityDisplay.from_predictions(prob, y)
    pooled = ReliabilityDisplay.from_predictions(prob.flatten(0, 1), y.flatten())
    (wide,), (narrow,) = (
        [s[:, 1] for c in d.ax_.collections if c.get_label() == "95 % interval" for s in c.get_segments()]
        for d in (clustered, pooled)
    )
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])
    assert pooled.intervals is None
