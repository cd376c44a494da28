import os
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from mirrorshot.types import InvalidInputError
from mirrorshot.views import Card, Gallery, Image, Section, Table, learning_curve_figure, write_report

EVIL = '<script>alert("x")</script> & more'


class Page(HTMLParser):
    """Tags with their attributes, and whether all of them are closed in order."""

    VOID = ("meta", "link", "br", "img", "hr", "input", "wbr")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def table(**change):
    return Table(
        **{
            "caption": "Accuracy",
            "columns": ["method", "accuracy", "NLL"],
            "rows": [["ours", "91.2", "0.31"], ["theirs", "88.0", "0.45"]],
            "protocol": {"test tasks": "5 × 600", "seeds": "1 to 5"},
            "best": [(0, 1), (0, 2)],
            "note": "Small print.",
            **change,
        }
    )


def image(alt="A falling curve."):
    log = [{"step": i, "loss": 1 / i} for i in range(1, 20)]
    return Image(learning_curve_figure({"a": log}), alt, "What to see.")


@pytest.fixture
def report(tmp_path):
    def write(*blocks, title="A report", intro="What it is about.", heading="Results"):
        path = tmp_path / "report.html"
        write_report(path, title=title, intro=intro, sections=[Section(heading, blocks), Section("More", [])])
        return path.read_text(encoding="utf-8")

    return write


def test_every_number_and_its_protocol_is_on_the_page(report):
    words = " ".join(Page(report(table())).words)
    for word in ("ours", "91.2", "0.31", "theirs", "88.0", "0.45", "5 × 600", "1 to 5", "Accuracy", "Small print."):
        assert word in words


def test_a_protocol_and_a_note_that_tables_share_are_shown_once(report):
    other = table(protocol={"seeds": "6"})
    page = Page(report(table(), other, table(caption="again"), other))
    assert [tag for tag, _ in page.tags].count("aside") == 2
    assert " ".join(page.words).count("Small print.") == 1


def test_page_is_well_formed(report):
    page = Page(report("Text.", table(), image(), image()))
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_all_text_is_escaped(report):
    evil = table(caption=EVIL, columns=[EVIL, "a", "b"], rows=[[EVIL] * 3], protocol={EVIL: EVIL}, note=EVIL)
    text = report(EVIL, evil, image(EVIL)._replace(caption=EVIL), title=EVIL, intro=EVIL, heading=EVIL)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; more") >= 12


def test_page_needs_nothing_else_and_runs_nothing(report):
    text = report(table(), image())
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_page_has_a_dark_mode_and_fits_a_phone(report):
    text = report(image())
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport" content="width=device-width' in text
    assert "var(--ink)" in text


def test_pictures_have_alternative_texts(report):
    images = [attributes for tag, attributes in Page(report(image())).tags if tag == "svg"]
    assert [(a["role"], a["aria-label"]) for a in images] == [("img", "A falling curve.")]


def test_tables_are_readable_by_machines(report):
    page = Page(report(table()))
    scopes = [attributes.get("scope") for tag, attributes in page.tags if tag == "th"]
    assert scopes == ["col"] * 3 + ["row"] * 2
    assert any(tag == "caption" for tag, _ in page.tags)


def test_best_values_are_marked_for_everyone(report):
    text = report(table())
    assert text.count('class="best"') == 2
    assert re.search(r'class="best"[^>]*>91\.2<span class="unseen"> \(best\)', text)


def test_empty_lines_make_paragraphs(report):
    assert "<p>one</p><p>two</p>" in report("one\n\ntwo\n\n")


def test_contents_lead_to_the_sections(report):
    text = report()
    assert '<a href="#part-1">Results</a>' in text
    assert '<section id="part-2">' in text


def test_any_figure_of_matplotlib_will_do(report):
    figure = Figure()
    figure.subplots().plot([0, 1])
    assert "<svg" in report(Image(figure, "A line."))


def test_the_same_content_gives_the_same_file(report):
    assert report(table(), image()) == report(table(), image())


def test_nothing_else_is_left_in_the_folder(report, tmp_path):
    report()
    assert os.listdir(tmp_path) == ["report.html"]


def test_numbers_without_a_protocol_are_refused(report):
    with pytest.raises(InvalidInputError, match="'Accuracy' to have a protocol"):
        report(table(protocol={}))


def test_uneven_rows_are_refused(report):
    with pytest.raises(InvalidInputError, match="rows of 3 cells in the table 'Accuracy', but got one of 2"):
        report(table(rows=[["ours", "91.2"]]))


def test_names_break_between_their_words(tmp_path):
    table = Table("t", ["class", "1"], [["1 Red_legged_Kittiwake & co", "3"]], {"file": "a/b_c.csv"})
    write_report(tmp_path / "r.html", title="t", intro="", sections=[Section("s", [table])])
    page = (tmp_path / "r.html").read_text()
    assert ">1 Red_<wbr>legged_<wbr>Kittiwake &amp; co</th>" in page
    assert "<dd>a/<wbr>b_<wbr>c<wbr>.csv</dd>" in page


def test_names_break_and_do_not_reorder_what_stands_beside_them(tmp_path):
    card = Card(None, "birds/owl_1.png", ["اسم الطائر 91%", "says a/b, 5%"])
    write_report(tmp_path / "r.html", title="t", intro="", sections=[Section("s", [Gallery("g", [card])])])
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "birds/<wbr>owl_<wbr>1<wbr>.png" in page
    assert "<bdi>اسم الطائر</bdi> 91%" in page
    assert "says a/<wbr>b, 5%" in page


def test_a_wide_figure_is_scrolled_and_not_shrunk(tmp_path):
    wide = Image(Figure(figsize=(40, 3)), "wide")
    write_report(tmp_path / "r.html", title="t", intro="", sections=[Section("s", [wide])])
    assert "min-width:2480px" in (tmp_path / "r.html").read_text()
