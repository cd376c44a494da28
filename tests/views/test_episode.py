import pytest
import torch

from mirrorshot.classifier.decisions import Uncertainty, uncertainty
from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import InvalidInputError
from mirrorshot.views import EpisodeDisplay, save_figure

NAMES = ["cat", "dog", "cow"]


def episode(n_shot=2, n_query=2, channels=1, **change):
    """Three classes; every query is given to the first class with 70 %."""
    generator = torch.Generator().manual_seed(0)
    picture = {"size": (3 * n_shot, channels, 6, 8), "dtype": torch.uint8, "generator": generator}
    support = torch.randint(256, **picture)
    query = torch.randint(256, **picture | {"size": (3 * n_query, channels, 6, 8)})
    log_prob = torch.tensor([0.7, 0.298, 0.002]).log().expand(3 * n_query, 3)
    arguments = {"support": support, "query": query, "log_prob": log_prob, "y": torch.arange(3 * n_query) // n_query}
    return {**arguments, "class_names": NAMES, **change}


def drawn(n_queries=6, **change):
    return EpisodeDisplay(**episode(**change)).plot(n_queries=n_queries).figure_


def cells(figure):
    """The axes with bars, row by row."""
    bars = [ax for ax in figure.axes if ax.containers]
    return [bars[i : i + 3] for i in range(0, len(bars), 3)]


def framed(ax):
    return ax.spines["left"].get_visible()


def test_long_names_and_formulas_do_not_overlap():
    figure = drawn(class_names=[r"$\frac_of_a_long_name_1", "A_rather_long_bird_name_2", "A_rather_long_bird_name_3"])
    figure.canvas.draw()
    boxes = [ax.title.get_window_extent() for ax in figure.axes if ax.get_title()]
    assert len(boxes) == 3
    assert boxes[0].x1 < boxes[1].x0
    assert boxes[1].x1 < boxes[2].x0


def test_classes_head_their_columns():
    figure = drawn()
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == NAMES


def test_bars_are_as_long_as_the_probabilities():
    for row in cells(drawn()):
        assert [ax.containers[0][0].get_width() for ax in row] == pytest.approx([0.7, 0.298, 0.002])
        assert [ax.texts[0].get_text() for ax in row] == ["70%", "30%", "<1%"]


def test_the_right_class_is_framed_and_bold():
    rows = cells(drawn())
    for y, row in zip([0, 0, 1, 1, 2, 2], rows, strict=True):
        assert [framed(ax) for ax in row] == [c == y for c in range(3)]
        assert [ax.texts[0].get_fontweight() == "bold" for ax in row] == [c == y for c in range(3)]


def test_a_wrong_prediction_is_hatched_and_said_in_words():
    rows = cells(drawn())
    hatched = [any(bar.get_hatch() for container in row[0].containers for bar in container) for row in rows]
    assert hatched == [False, False, True, True, True, True]
    assert [row[-1].texts[-1].get_text() for row in rows] == ["right"] * 2 + ["wrong"] * 4


def test_few_queries_are_chosen_evenly():
    rows = cells(drawn(n_queries=3, n_query=5))
    assert [[framed(ax) for ax in row].index(True) for row in rows] == [0, 1, 2]


def test_pictures_may_be_colour_or_floats():
    first = drawn(channels=3)
    support, query = (episode(channels=3)[name].float() / 255 for name in ("support", "query"))
    second = drawn(channels=3, support=support, query=query)
    for a, b in zip(first.axes, second.axes, strict=True):
        if a.images:
            assert abs(a.images[0].get_array() - b.images[0].get_array()).max() < 1e-6


@pytest.mark.parametrize("n_shot", [1, 4, 9])
def test_many_support_pictures_are_shown_in_part(n_shot, tmp_path):
    figure = drawn(n_shot=n_shot)
    words = [text.get_text() for text in figure.texts]
    assert ("learned from\n(6 of 9)" in words) == (n_shot == 9)
    save_figure(figure, tmp_path / "episode.png")


def test_long_names_are_shortened():
    names = ["a name that nobody could read here", "dog", "cow"]
    figure = drawn(class_names=names)
    assert figure.axes[0].get_title() == "a name …ad here"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"support": torch.zeros(6, 8)}, r"`support` to be images .* but got shape \(6, 8\)"),
        ({"query": torch.zeros(6, 2, 8, 8)}, "`query` to be images"),
        ({"y": torch.zeros(5, dtype=torch.int64)}, r"`y` of shape \(6,\).* but got \(6, 3\) and \(5,\)"),
        ({"class_names": NAMES[:2]}, r"`log_prob` of shape \(6, 2\).* but got \(6, 3\)"),
        ({"support": torch.zeros(7, 1, 8, 8)}, "as many images of each of 3 classes, but got 7"),
    ],
)
def test_what_is_no_episode_is_explained(change, message):
    with pytest.raises(InvalidInputError, match=message):
        drawn(**change)


def test_uncertainty_has_a_bar_of_two_parts_for_each_query():
    parts = Uncertainty(*(torch.linspace(low, 1.0, 6) for low in (0.2, 0.1, 0.1)))
    display = EpisodeDisplay(**episode(), uncertainty=parts).plot()
    (ax,) = [ax for ax in display.figure_.axes if ax.get_label() == "uncertainty"]
    _, aleatoric, epistemic = ax.containers
    assert [bar.get_width() for bar in aleatoric] == pytest.approx(parts.aleatoric.tolist())
    assert [bar.get_x() for bar in epistemic] == pytest.approx(parts.aleatoric.tolist())
    assert ax.texts[0].get_text() == "0.10 + 0.10"
    assert display.figure_.legends[0].get_title().get_text() == "uncertainty, nats"


def test_a_method_with_latents_is_drawn_with_the_parts_of_its_uncertainty():
    images = torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = ClassSource.from_arrays(images, torch.arange(40) % 4)
    sampler = EpisodeSampler(source, n_way=3, n_shot=2, n_query=2, seed=0)
    method = make_method("mirror_gp", make_backbone("identity", in_features=16))
    card, _ = EpisodeDisplay.from_method(method, sampler, [3, 5], prepare=lambda x: x.flatten(1).float() / 255)
    tasks, y = sampler.tasks([3])
    torch.testing.assert_close(card.query, tasks.query_x[0])
    assert torch.equal(card.y, y[0])
    flat = tasks._replace(support_x=tasks.support_x.flatten(2) / 255, query_x=tasks.query_x.flatten(2) / 255)
    mean, var = method.predict_latent(flat)
    torch.testing.assert_close(card.uncertainty.total, torch.special.entr(card.log_prob.double().exp()).sum(-1))
    expected = uncertainty(mean[0].double(), var[0].double(), card.log_prob.double())
    torch.testing.assert_close(card.uncertainty.epistemic, expected.epistemic)
    classes = source.labels[sampler.index([3]).support[0]].tolist()
    assert list(card.class_names) == [source.class_names[c] for c in classes[::2]]
    assert 0 <= card.accuracy <= 1
