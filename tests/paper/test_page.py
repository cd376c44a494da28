"""Pages of results: the overview, the details, that nothing is invented, and that the committed pages are current."""

import json
import re
from pathlib import Path

import pytest

from mirrorshot.paper.cells import Cell
from mirrorshot.paper.page import (
    accuracy_overview,
    calibration_overview,
    chosen,
    chosen_results,
    results_pages,
    write_results,
)
from mirrorshot.paper.published import DATA, DATA_TITLES, ROWS
from mirrorshot.paper.tables import grouped

ROOT = Path(__file__).parents[2]
BINS = {"counts": [0.0, 4.0, 6.0], "confidence_sum": [0.0, 2.0, 5.4], "correct_sum": [0.0, 3.0, 5.0]}
WITH_BINS = {"ece": 0.1, "mce": 0.2, "bins": BINS}
PAPER, OURS = Cell("mirror_gp", "cub", 1), Cell("mirror_gp", "cub", 1, "default")
FIVE = OURS._replace(n_shot=5)


@pytest.fixture
def page_of(tmp_path):
    """Writes results into a folder and makes the pages of them; both as one text, and the figures."""

    def make(*results):
        (tmp_path / "results").mkdir()
        for result in results:
            (tmp_path / "results" / result.path.name).write_text(json.dumps(result.record))
        page, details, *figures = write_results(tmp_path / "results", tmp_path / "docs/results.md")
        text = page.read_text() + details.read_text()
        return text.replace("\N{NO-BREAK SPACE}", " "), figures

    return make


def section(page, head):
    """The text below a heading of the second level."""
    return page.split(f"\n## {head}\n")[1].split("\n## ")[0]


def overview_of(results, make=accuracy_overview):
    """Lines of the matrix by title, and the texts of its marks."""
    footnotes = []
    sheet = make(chosen_results(grouped([result.cell for result in results], results)), footnotes)
    return {title: dict(zip(sheet.columns[1:], cells, strict=True)) for title, *cells in sheet.rows}, footnotes


@pytest.mark.parametrize(
    ("presets_and_tags", "expected"),
    [
        (["paper", "default", "default_a"], "default"),
        (["paper", "paper_a", "default_a"], "default_a"),
        (["paper", "paper_a"], "paper"),
        (["default_longer", "default_ab", "paper_ab"], "default_ab"),
        (["default_short"], None),
        ([], None),
    ],
)
def test_the_result_that_stands_for_a_row(result_of, presets_and_tags, expected):
    cells = []
    for text in presets_and_tags:
        preset, _, tag = text.partition("_")
        is_short = tag == "short"
        cells.append(PAPER._replace(preset=preset, **({"budget": tag} if is_short else {"tag": f"_{tag}" * bool(tag)})))
    found = chosen(grouped(cells, [result_of(cell, 0.5) for cell in cells]))
    assert (found and found.cell.preset + found.cell.tag) == expected


def test_of_tagged_results_the_one_with_fewest_other_settings_is_chosen(result_of):
    changed = {"_a": {"n_episodes": 7, "lr": 0.5}, "_b": {"n_episodes": 7}}
    results = [result_of(OURS._replace(tag=tag), 0.5, config=config) for tag, config in changed.items()]
    assert chosen(grouped([result.cell for result in results], results)).cell.tag == "_b"


def test_the_overview_has_ours_with_the_papers_in_brackets(result_of):
    rows, marks = overview_of([result_of(PAPER, 0.61), result_of(OURS, 0.6551)])
    assert list(rows) == ["MD-BFSC"]
    assert list(rows["MD-BFSC"].values()) == ["65.51 (65.45)"] + ["-"] * 5
    assert marks == []


def test_a_number_with_other_settings_is_marked_with_them(result_of):
    tagged = [OURS._replace(row=row, tag="_60k") for row in ("mirror_gp", "dkt")]
    results = [result_of(cell, 0.4, config={"n_episodes": 7}) for cell in tagged]
    results.append(result_of(PAPER._replace(row="protonet"), 0.5))
    rows, marks = overview_of(results)
    shown = [rows[title]["CUB, 1 shot"] for title in ("ProtoNet", "DKT", "MD-BFSC")]
    assert shown == ["50.00 (52.52)<sup>1</sup>", "40.00 (63.37)<sup>2</sup>", "40.00 (65.45)<sup>2</sup>"]
    assert marks == ["preset paper", "n_episodes = 7 (preset: 60000)"]


def test_both_tables_of_the_overview_share_their_marks_which_the_details_list(page_of, result_of):
    page, _ = page_of(result_of(FIVE._replace(tag="_a"), 0.6, config={"n_episodes": 7}))
    assert page.count("<sup>1</sup>") == 3  # accuracy, raw and at one temperature
    assert "<sup>2</sup>" not in page
    assert section(page, "Settings of marked numbers") == "\n1. n_episodes = 7 (preset: 40000).\n"


def test_methods_that_the_paper_does_not_have_are_in_the_details(page_of, result_of):
    page, _ = page_of(result_of(OURS._replace(row="simpleshot"), 0.5), result_of(OURS, 0.6))
    assert "simpleshot" not in section(page, "Table 1: accuracy, %")
    assert "| simpleshot | default | - | 50.00 ± 0.50 |" in section(page, "Table 1: accuracy")


def test_the_overview_names_the_rows_that_were_not_run(page_of, result_of):
    cells = [OURS._replace(row=row) for row in ROWS if row != "dkt"]
    page, _ = page_of(*(result_of(cell, 0.6) for cell in cells))
    assert "\nNot run: DKT.\n" in section(page, "Table 1: accuracy, %")


def test_calibration_at_a_glance_has_the_papers_where_its_protocol_is_closest(result_of):
    results = [result_of(FIVE._replace(row=row), 0.5) for row in ("mirror_gp", "dkt", "maml")]
    rows, _ = overview_of(results, calibration_overview)
    shown = {title: [cells["CUB, raw"], cells["CUB, one temperature"]] for title, cells in rows.items()}
    assert shown == {"DKT": ["0.300 (0.187)", "0.020"], "MD-BFSC": ["0.300", "0.020 (0.005)"]}


def test_the_pages_have_all_of_the_paper(page_of, result_of):
    page, _ = page_of(result_of(OURS, 0.6))
    heads = re.findall(r"^## (.+?)(?::.*)?$", page, flags=re.MULTILINE)
    assert heads == [
        "Table 1", "Table 2", "Rerun",
        "Table 1", "Table 2", "Table 3", "Table 4", "Figure 2", "Figure 3", "Figure 4", "Result files",
    ]  # fmt: skip


def test_the_committed_pages_are_those_of_the_committed_results():
    pages, figures = results_pages(ROOT / "results", ROOT / "docs/results.md")
    for path, text in pages.items():
        assert path.read_text() == text, f"{path} is out of date. Run: make results"
    assert all((ROOT / "docs/figures" / name).exists() for name in figures)


def test_the_overview_fits_on_a_screen():
    lines = (ROOT / "docs/results.md").read_text().splitlines()
    assert sum(map(bool, lines)) <= 55


def test_nothing_is_filled_in_from_the_paper(page_of, result_of):
    """Rows and data sets that were not run have no numbers at all; the others only in brackets and in its column."""
    page, _ = page_of(result_of(OURS, 0.6))
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    run = [cells for cells in rows if re.search(r"\d\d\.\d\d", " ".join(cells))]
    assert {cells[0] for cells in run} == {"MD-BFSC"}
    assert [re.findall(r"6\d\.\d\d", " ".join(cells)) for cells in run] == [["60.00", "65.45"], ["65.45", "60.00"]]
    for data in DATA[1:]:
        assert "|" not in page.split(f"### Accuracy, %: {DATA_TITLES[data]}, 1 shot")[1].split("###")[0]


def test_a_variant_stands_below_the_table_with_its_changes(page_of, result_of):
    tagged = OURS._replace(tag="_fast")
    page, _ = page_of(result_of(OURS, 0.6), result_of(tagged, 0.7, config={"lr": 0.5}))
    main, other = section(page, "Table 1: accuracy").split("#### Other settings, accuracy: CUB, 1 shot")
    assert "| MD-BFSC | default | 65.45 ± 0.42 | 60.00 ± 0.50 | -5.45 | below |" in main
    assert "fast" not in main
    assert "| MD-BFSC | default | fast | lr = 0.5 (preset: 0.004) | 70.00 ± 0.50 | ± 0.40 | +4.55 | - |" in other


def test_what_holds_for_all_tables_is_said_once(page_of, result_of):
    page, _ = page_of(result_of(OURS, 0.6), result_of(PAPER, 0.6), result_of(FIVE, 0.7))
    assert page.count("Inside: whether") == page.count("192 x 192") == 1


def test_results_with_the_same_note_are_listed_together_at_the_end(page_of, result_of):
    note = "Two runs shared the GPU."
    page, _ = page_of(result_of(OURS, 0.6, note=note), result_of(PAPER, 0.6), result_of(FIVE, 0.7, note=note))
    listed = section(page, "Result files")
    plain, noted = listed.split(note)
    assert re.findall(r"`(.+?)\.json`: a machine, 0123456, 4 s", plain) == [PAPER.name]
    assert re.findall(r"`(.+?)\.json`: a machine, 0123456, 4 s", noted) == [OURS.name, FIVE.name]
    assert page.count(note) == 1


def test_figure_2_is_of_five_shots_or_of_one_where_there_is_only_that(page_of, result_of):
    bins = {"raw": WITH_BINS, "calibrated": WITH_BINS}
    page, figures = page_of(
        result_of(OURS, 0.6, **bins),
        result_of(FIVE, 0.7, **bins),
        result_of(FIVE._replace(tag="_fast"), 0.7, **bins),
        result_of(FIVE._replace(data="omniglot_to_emnist"), 0.7),
        result_of(OURS._replace(data="omniglot_to_emnist"), 0.7, **bins),
        result_of(PAPER, 0.7),
    )
    assert [path.name for path in figures] == ["figure2_default.svg"]
    text = section(page, "Figure 2: reliability diagrams")
    assert "](figures/figure2_default.svg)" in text
    assert re.findall(r"`(accuracy.+?)\.json`", text) == [FIVE.name, "accuracy_omniglot_to_emnist_1shot_default"]


def test_rows_of_table_3_are_not_in_table_1(page_of, result_of):
    study = Cell("mirror_gp_rbf", "cub", 1)
    page, _ = page_of(result_of(PAPER, 0.6), result_of(study, 0.5), result_of(study._replace(tag="_fast"), 0.4))
    assert "50.00" not in section(page, "Table 1: accuracy, %") + section(page, "Table 1: accuracy")
    text = section(page, "Table 3: step size, kernel, number of steps")
    assert "| RBF | paper | 62.75 ± 0.39 | 50.00 ± 0.50 | -12.75 | below |" in text
    assert "| MD-BFSC, kernel RBF | paper | fast | nothing | 40.00" in text


def test_smoke_runs_are_not_on_the_page(page_of, result_of):
    page, _ = page_of(result_of(OURS, 0.6), result_of(FIVE._replace(budget="smoke"), 0.71))
    assert "71.00" not in page
    assert "smoke" not in page


def test_numbers_are_not_broken_over_lines(tmp_path, page_of, result_of):
    page_of(result_of(FIVE, 0.7931))
    page = "".join((tmp_path / f"docs/{name}.md").read_text() for name in ("results", "results_details"))
    for text in ("79.31 (78.38)", "0.020 (0.005)", "78.38 ± 0.21", "0.020 / 0.060"):
        assert text.replace(" ", "\N{NO-BREAK SPACE}") in page
        assert text not in page
