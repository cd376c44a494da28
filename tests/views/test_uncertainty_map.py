import numpy as np
import pytest
from matplotlib.figure import Figure

from mirrorshot import FewShotClassifier
from mirrorshot.types import InvalidInputError
from mirrorshot.views import UncertaintyMapDisplay

X = np.array([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0], [1.1, 0.9]])
Y = np.array(["b", "b", "a", "a"])


@pytest.fixture(scope="module")
def few():
    return FewShotClassifier(kernel="rbf").fit(X, Y)


@pytest.fixture(scope="module")
def display(few):
    return UncertaintyMapDisplay.from_estimator(few, X, Y, n_points=25)


def test_maps_are_what_the_classifier_says(few, display):
    row, column = 4, 17
    point = [[display.x[column], display.y[row]]]
    np.testing.assert_allclose(display.prob[row, column], few.predict_proba(point)[0], rtol=1e-6)
    assert display.epistemic[row, column] == pytest.approx(few.uncertainty(point).epistemic[0], rel=1e-6)
    assert display.aleatoric[row, column] == pytest.approx(few.uncertainty(point).aleatoric[0], rel=1e-6)


def test_more_is_unknown_far_from_the_examples(display):
    middle = np.abs(display.x).argmin(), np.abs(display.y).argmin()
    assert display.epistemic[0, -1] > display.epistemic[middle[1], middle[0]]


def test_three_panels_have_the_examples_with_markers_of_their_class(display):
    display.plot()
    titles = [ax.get_title(loc="left") for ax in display.axes_]
    assert titles == ["predicted class", "aleatoric, nats", "epistemic, nats"]
    for ax in display.axes_:
        classes = [c for c in ax.collections if len(c.get_offsets()) == 2]
        np.testing.assert_allclose(classes[0].get_offsets(), X[2:])
        np.testing.assert_allclose(classes[1].get_offsets(), X[:2])
    assert [t.get_text() for t in display.axes_[0].get_legend().get_texts()] == ["a", "b"]


def test_many_classes_differ_and_have_no_legend_over_the_map():
    X, y = np.stack([np.arange(14.0), np.arange(14.0) % 3], 1), [f"class_{c:02d}" for c in range(14)]
    display = UncertaintyMapDisplay.from_estimator(FewShotClassifier(kernel="rbf").fit(X, y), X, y, n_points=10).plot()
    points = [c for c in display.axes_[1].collections if len(c.get_offsets()) == 1]
    looks = {(tuple(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in points}
    assert len(looks) == len(points) == 14
    assert display.axes_[0].get_legend() is None


def test_names_are_no_formulas():
    y = np.where(Y == "a", r"$\frac", "b")
    display = UncertaintyMapDisplay.from_estimator(FewShotClassifier(kernel="rbf").fit(X, y), X, y, n_points=10)
    display.plot().figure_.canvas.draw()


def test_given_axes_are_drawn_on(display):
    axes = Figure().subplots(1, 3)
    assert display.plot(axes).figure_ is axes[0].get_figure()
    with pytest.raises(InvalidInputError, match="three axes"):
        display.plot(axes[:2])


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (X[:, :1], Y, {}, r"`X` of shape \(n, 2\)"),
        (X, Y[:2], {}, "n labels"),
        (X, Y, {"n_points": 1}, "`n_points` to be at least 2"),
        (X, np.array(["b", "b", "a", "c"]), {}, "labels that `estimator` was fitted on"),
    ],
)
def test_what_cannot_be_drawn_is_explained(few, x, y, options, message):
    with pytest.raises(InvalidInputError, match=message):
        UncertaintyMapDisplay.from_estimator(few, x, y, **options)
