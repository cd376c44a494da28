"""The report on a model: everything in one file, the mistakes as images."""

import io
import re

import numpy as np
from PIL import Image

from mirrorshot.views import Card, ModelResults, model_sections, write_report


def png():
    file = io.BytesIO()
    Image.new("L", (4, 4), 9).save(file, "PNG")
    return file.getvalue()


def results(n_classes=3, n_mistakes=1):
    rng = np.random.default_rng(0)
    prob = rng.dirichlet(np.ones(n_classes), 40)
    y = prob.argmax(1)
    y[:n_mistakes] = (y[:n_mistakes] + 1) % n_classes
    confusion = np.zeros((n_classes, n_classes), dtype=int)
    np.add.at(confusion, (y, prob.argmax(1)), 1)
    classes = [f"class <{c}>" for c in range(n_classes)]
    cards = [Card(png(), "a/<b>.png", ["class <0>", "says class <1>, 90% sure"])] * n_mistakes
    return ModelResults(
        [["accuracy", "97%", "87% to 100%"]], ["A note."], {"model": "m"}, classes, confusion.tolist(), prob, y,
        cards, n_mistakes, [Card(None, "a text", ["perhaps class <2>"])], "Label these.",
    )  # fmt: skip


def page(tmp_path, found):
    write_report(tmp_path / "page.html", title="A model", intro="Right in 97 %.", sections=model_sections(found))
    return (tmp_path / "page.html").read_text()


def test_the_page_shows_mistakes_and_suggestions_as_text_and_images(tmp_path):
    html = page(tmp_path, results())
    assert html.count('src="data:image/png;base64,') == 1
    assert "says class &lt;1&gt;, 90% sure" in html
    assert "<b>.png" not in html
    assert html.index("Right in 97&nbsp;%") < html.index("Where it is wrong") < html.index("What to label next")
    assert html.count("<h3>Protocol</h3>") == 1


def test_no_mistakes_make_no_gallery(tmp_path):
    html = page(tmp_path, results(n_mistakes=0))
    assert "Nothing was wrong" in html
    assert "data:image" not in html


def test_short_names_head_the_columns_of_the_matrix(tmp_path):
    told = results(n_classes=4, n_mistakes=3)
    digits = page(tmp_path, told._replace(classes=["3", "5", "7", "8"]))
    assert re.findall(r'<th scope="col">(.*?)</th>', digits)[-6:] == ["class", "3", "5", "7", "8", "right"]
    long = page(tmp_path, told._replace(classes=[f"a class with a long name {i}" for i in range(4)]))
    assert re.findall(r'<th scope="col">(.*?)</th>', long)[-6:] == ["class", "(1)", "(2)", "(3)", "(4)", "right"]
    assert "(2) a class with a long name 1" in long


def test_many_classes_have_a_list_in_place_of_a_matrix(tmp_path):
    html = page(tmp_path, results(n_classes=40, n_mistakes=3))
    assert "Most frequent mistakes" in html
    assert "Confusion matrix" not in html
