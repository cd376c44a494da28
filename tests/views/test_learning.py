import numpy as np
import pytest

from mirrorshot.types import InvalidInputError
from mirrorshot.views import learning_curve_figure, save_figure, with_elbo
from mirrorshot.views.learning import smooth


def history(n=200, every=20, **more):
    rng = np.random.default_rng(0)
    records = [{"step": i, "episodes": 4 * i, "loss": 1 + rng.normal(), **more} for i in range(1, n + 1)]
    for record in records[every - 1 :: every]:
        record |= {"val_accuracy": 0.5 + record["step"] / (2 * n), "val_nll": 1.0}
    return records


def titles(figure):
    return [ax.get_title(loc="left") for ax in figure.axes]


def test_every_logged_quantity_has_its_panel():
    figure = learning_curve_figure({"a": history()})
    assert titles(figure) == [
        "training loss, nats per point",
        "validation accuracy",
        "validation NLL, nats per query",
    ]
    assert titles(learning_curve_figure({"a": [{"step": 1, "val_accuracy": 0.5}]})) == ["validation accuracy"]


def test_validation_is_drawn_where_it_was_logged():
    line = learning_curve_figure({"a": history()}).axes[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), 4 * np.arange(20, 201, 20))
    np.testing.assert_allclose(line.get_ydata(), 0.5 + np.arange(20, 201, 20) / 400)


def test_long_training_losses_are_shown_as_they_are_and_smoothed():
    raw, smoothed = learning_curve_figure({"a": history()}).axes[0].lines
    losses = np.array([record["loss"] for record in history()])
    np.testing.assert_allclose(raw.get_ydata(), losses)
    np.testing.assert_allclose(smoothed.get_ydata(), smooth(losses, 10))
    assert np.std(smoothed.get_ydata()) < 0.6 * np.std(losses)


def test_smoothing_is_the_mean_of_a_window():
    values = np.random.default_rng(0).normal(size=30)
    expected = [values[max(0, i - 3) : i + 4].mean() for i in range(30)]
    np.testing.assert_allclose(smooth(values, 7), expected, atol=1e-12)
    np.testing.assert_allclose(smooth(values, 1), values, atol=1e-12)


def test_the_axis_is_episodes_only_if_all_runs_count_them():
    counted, uncounted = history(), [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
    assert learning_curve_figure({"a": counted}).axes[0].get_xlabel() == "training episodes"
    assert learning_curve_figure({"a": counted, "b": uncounted}).axes[0].get_xlabel() == "training steps"


def test_runs_are_told_apart_by_more_than_colour():
    figure = learning_curve_figure({name: history() for name in "abc"})
    lines = figure.axes[1].lines
    assert len({line.get_marker() for line in lines}) == 3
    assert len({line.get_color() for line in lines}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]


def test_missing_numbers_are_passed_over():
    records = [{"step": 1, "loss": None}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": 1.0}, {"step": 4}]
    (line,) = learning_curve_figure({"a": records}).axes[0].lines
    assert line.get_xdata().tolist() == [3.0]


def test_accuracy_is_in_percent(tmp_path):
    figure = learning_curve_figure({"a": history()})
    save_figure(figure, tmp_path / "curve.png")
    assert "80%" in [text.get_text() for text in figure.axes[1].get_yticklabels()]


@pytest.mark.parametrize("histories", [{}, {"a": []}, {"a": [{"step": 1}]}])
def test_nothing_to_draw_is_explained(histories):
    with pytest.raises(InvalidInputError, match=f"but {len(histories)} histories have none"):
        learning_curve_figure(histories)


def test_a_bound_has_a_panel_of_its_own_beside_the_loss_of_others():
    figure = learning_curve_figure({"gp": with_elbo(history()), "other": history()})
    assert titles(figure)[:2] == ["ELBO of training tasks, nats per point", "training loss, nats per point"]
    assert len(figure.axes[0].lines) == len(figure.axes[1].lines)
    assert with_elbo([{"step": 1, "loss": None}]) == [{"step": 1, "elbo": None}]


def test_runs_with_long_names_differ_and_their_legend_fits():
    figure = learning_curve_figure({f"{'long-name-' * 8}{i}": history() for i in range(8)})
    assert len({(line.get_color(), line.get_marker()) for line in figure.axes[1].get_lines()}) == 8
    figure.canvas.draw()
    (legend,) = figure.legends
    assert figure.bbox.x0 <= legend.get_window_extent().x0 < legend.get_window_extent().x1 <= figure.bbox.x1
