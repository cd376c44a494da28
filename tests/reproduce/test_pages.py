"""The page of results: what a reader sees first, what stands below, and that nothing is invented."""

import json
import re

import pytest

from mirrorshot.reproduce.cells import Cell
from mirrorshot.reproduce.overview import accuracy_overview, calibration_overview, chosen
from mirrorshot.reproduce.pages import write_results_page
from mirrorshot.reproduce.published import DATA, DATA_TITLES, ROWS
from mirrorshot.reproduce.tables import grouped

BINS = {"counts": [0.0, 4.0, 6.0], "confidence_sum": [0.0, 2.0, 5.4], "correct_sum": [0.0, 3.0, 5.0]}
WITH_BINS = {"ece": 0.1, "mce": 0.2, "bins": BINS}
PAPER, OURS = Cell("mirror_gp", "cub", 1), Cell("mirror_gp", "cub", 1, "default")
FIVE = OURS._replace(n_shot=5)


@pytest.fixture
def page_of(tmp_path):
    """Writes results into a folder and makes the page of them."""

    def make(*results):
        (tmp_path / "results").mkdir()
        for result in results:
            (tmp_path / "results" / result.path.name).write_text(json.dumps(result.record))
        page, *pictures = write_results_page(tmp_path / "results", tmp_path / "docs/results.md")
        return page.read_text().replace("\N{NO-BREAK SPACE}", " "), pictures

    return make


def section(page, head):
    """The text below a heading of the second level."""
    return page.split(f"\n## {head}\n")[1].split("\n## ")[0]


def overview_of(results, make=accuracy_overview):
    """Lines of the matrix by title, and the notes."""
    sheet = make(grouped([result.cell for result in results], results))
    return {title: dict(zip(sheet.columns[1:], cells, strict=True)) for title, *cells in sheet.rows}, sheet.notes


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
    rows, notes = overview_of([result_of(PAPER, 0.61), result_of(OURS, 0.6551)])
    assert list(rows) == [row.title for row in ROWS.values()]
    assert rows["MD-BFSC"]["CUB, 1 shot"] == "65.51 (65.45)"
    assert list(rows["MD-BFSC"].values())[1:] == ["-"] * 5
    assert "preset `default`" in notes[0]
    assert "one trained model, mean of 5 x 600 test tasks" in notes[0]
    assert len(notes) == 1


def test_a_number_with_other_settings_is_marked_with_them(result_of):
    tagged = [OURS._replace(row=row, tag="_60k") for row in ("mirror_gp", "dkt")]
    results = [result_of(cell, 0.4, config={"n_episodes": 7}) for cell in tagged]
    results.append(result_of(PAPER._replace(row="protonet"), 0.5))
    rows, notes = overview_of(results)
    shown = [rows[title]["CUB, 1 shot"] for title in ("ProtoNet", "DKT", "MD-BFSC")]
    assert shown == ["50.00 (52.52)<sup>1</sup>", "40.00 (63.37)<sup>2</sup>", "40.00 (65.45)<sup>2</sup>"]
    assert notes[1:] == ["<sup>1</sup> preset paper.", "<sup>2</sup> n_episodes = 7 (preset: 60000)."]


def test_methods_that_the_paper_does_not_have_are_last_and_without_its_number(result_of):
    rows, _ = overview_of([result_of(OURS._replace(row="simpleshot"), 0.5), result_of(OURS, 0.6)])
    assert list(rows)[-2:] == ["MD-BFSC", "simpleshot"]
    assert rows["simpleshot"]["CUB, 1 shot"] == "50.00"


def test_calibration_at_a_glance_has_the_papers_where_its_protocol_is_closest(result_of):
    results = [result_of(FIVE._replace(row=row), 0.5) for row in ("mirror_gp", "dkt", "simpleshot")]
    rows, _ = overview_of(results, calibration_overview)
    shown = {title: [cells["CUB, raw"], cells["CUB, one temperature"]] for title, cells in rows.items()}
    assert shown == {
        "DKT": ["0.300 / 0.400 (0.187 / 0.250)", "0.020 / 0.060"],
        "MD-BFSC": ["0.300 / 0.400", "0.020 / 0.060 (0.005 / 0.067)"],
        "simpleshot": ["0.300 / 0.400", "0.020 / 0.060"],
    }


def test_without_results_there_is_no_overview():
    assert accuracy_overview([]) is None
    assert calibration_overview([]) is None


def test_the_page_begins_with_the_overview_and_has_all_of_the_paper(page_of, result_of):
    page, _ = page_of(result_of(OURS, 0.6))
    heads = re.findall(r"^## (.+?)(?::.*)?$", page, flags=re.MULTILINE)
    assert heads == [
        "At a glance", "Table 1", "Table 2", "Table 3", "Table 4", "Figure 2", "Figure 3", "Figure 4", "Result files"
    ]  # fmt: skip


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
    page, pictures = page_of(
        result_of(OURS, 0.6, **bins),
        result_of(FIVE, 0.7, **bins),
        result_of(FIVE._replace(tag="_fast"), 0.7, **bins),
        result_of(FIVE._replace(data="omniglot_to_emnist"), 0.7),
        result_of(OURS._replace(data="omniglot_to_emnist"), 0.7, **bins),
        result_of(PAPER, 0.7),
    )
    assert [path.name for path in pictures] == ["figure2_default.svg"]
    text = section(page, "Figure 2: reliability diagrams")
    assert "](figures/figure2_default.svg)" in text
    assert re.findall(r"`(accuracy.+?)\.json`", text) == [FIVE.name, "accuracy_omniglot_to_emnist_1shot_default"]


def test_rows_of_table_3_are_not_in_table_1(page_of, result_of):
    study = Cell("mirror_gp_rbf", "cub", 1)
    page, _ = page_of(result_of(PAPER, 0.6), result_of(study, 0.5), result_of(study._replace(tag="_fast"), 0.4))
    assert "50.00" not in section(page, "At a glance") + section(page, "Table 1: accuracy")
    text = section(page, "Table 3: step size, kernel, number of steps")
    assert "| RBF | paper | 62.75 ± 0.39 | 50.00 ± 0.50 | -12.75 | below |" in text
    assert "| MD-BFSC, kernel RBF | paper | fast | nothing | 40.00" in text


def test_smoke_runs_are_not_on_the_page(page_of, result_of):
    page, _ = page_of(result_of(OURS, 0.6), result_of(FIVE._replace(budget="smoke"), 0.71))
    assert "71.00" not in page
    assert "smoke" not in page


def test_numbers_are_not_broken_over_lines(tmp_path, page_of, result_of):
    page_of(result_of(FIVE, 0.7931))
    page = (tmp_path / "docs/results.md").read_text()
    for text in ("79.31 (78.38)", "78.38 ± 0.21", "0.020 / 0.060"):
        assert text.replace(" ", "\N{NO-BREAK SPACE}") in page
        assert text not in page
