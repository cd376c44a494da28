import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch

from mirrorshot.types import InvalidInputError
from mirrorshot.views import EpisodeDisplay, ReliabilityDisplay, save_figure
from mirrorshot.views.figures import figure_svg


def draw():
    return ReliabilityDisplay.from_predictions([[0.9, 0.1], [0.3, 0.7]], [0, 0], name="two").figure_


@pytest.fixture
def figure():
    return draw()


def test_svg_is_one_well_formed_element(figure):
    assert ElementTree.fromstring(figure_svg(figure, prefix="a-", alt="x")).tag == "svg"


def test_svg_refers_to_nothing_outside(figure):
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    card = EpisodeDisplay(images, images, torch.tensor([[0.0, -1.0]] * 2), torch.tensor([0, 1]), ["a", "b"])
    for fig in (figure, card.plot().figure_):
        svg = figure_svg(fig, prefix="a-", alt="x")
        assert "http" not in svg
        assert "<style" not in svg
        assert all(target.startswith(("#a-", "data:image/png")) for target in re.findall(r'href="([^"]*)"', svg))


def test_ids_are_kept_apart_and_references_follow(figure):
    svg = figure_svg(figure, prefix="a-", alt="x")
    ids = re.findall(r' id="([^"]*)"', svg)
    assert ids
    assert all(name.startswith("a-") for name in ids)
    assert {name for pair in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg) for name in pair if name} <= set(ids)


def test_black_and_white_follow_the_page(figure):
    svg = figure_svg(figure, prefix="a-", alt="x")
    assert not re.search(r"(fill|stroke): #(000000|ffffff|222222|6e6e6e|0072b2|9bd0f0)", svg, flags=re.IGNORECASE)
    for variable in ("--ink", "--paper", "--faint"):
        assert f"var({variable})" in svg


def test_alternative_text_is_escaped(figure):
    assert 'aria-label="&lt;b&gt; &quot;x&quot;"' in figure_svg(figure, prefix="a-", alt='<b> "x"')


def test_the_same_numbers_give_the_same_svg():
    assert figure_svg(draw(), prefix="a-", alt="x") == figure_svg(draw(), prefix="a-", alt="x")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".SVG"])
def test_figure_is_written_in_the_format_of_its_name(figure, tmp_path, suffix):
    path = tmp_path / f"reliability{suffix}"
    save_figure(figure, path)
    if suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_numbers_give_the_same_file(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        save_figure(draw(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_name_without_ending_gives_both_formats(figure, tmp_path):
    files = save_figure(figure, tmp_path / "risk")
    assert [path.name for path in files] == ["risk.png", "risk.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()


def test_unknown_format_is_explained(figure, tmp_path):
    with pytest.raises(InvalidInputError, match=r"to end in .png or .svg, but got '.*reliability.pdf"):
        save_figure(figure, tmp_path / "reliability.pdf")


def test_import_does_not_touch_matplotlib():
    code = "import sys, mirrorshot.views; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_drawing_does_not_touch_pyplot(tmp_path):
    code = (
        "import sys; from mirrorshot.views import ReliabilityDisplay, save_figure;"
        "save_figure(ReliabilityDisplay.from_predictions([[0.9, 0.1]], [0]).figure_, sys.argv[1]);"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "x.png"], timeout=300).returncode == 0
