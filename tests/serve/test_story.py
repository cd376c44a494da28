"""An afternoon with 500 images, in a browser; and what axe-core says about the page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from .test_browser import add_class, browser, is_settled, page, pytestmark, sync_api  # noqa: F401

AXE = Path(__file__).parents[2] / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
CLASSES = {1: "one", 3: "three", 5: "five", 7: "seven", 8: "eight"}
N_EXAMPLES, N_POOL = 5, 500


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Paths of examples by class, and of 500 other images, a few of which are of no class."""
    folder, data = tmp_path_factory.mktemp("scans"), load_digits()
    examples, pool = {name: [] for name in CLASSES.values()}, []
    for i, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        name = CLASSES.get(int(label), "other")
        path = folder / f"{name}-{i}.png"
        if name != "other" and len(examples[name]) < N_EXAMPLES:
            examples[name].append(str(path))
        elif len(pool) < N_POOL and (name != "other" or (label == 2 and i % 3 == 0)):
            pool.append(str(path))
        else:
            continue
        Image.fromarray((255 - 15.9 * image).clip(0, 255).astype(np.uint8)).resize((64, 64)).save(path)
    return examples, pool


def begin(page, scans, n_pool=N_POOL):  # noqa: F811
    examples, pool = scans
    for name, paths in examples.items():
        add_class(page, name)
        page.get_by_role("article", name=name).get_by_label("Add images to class").set_input_files(paths)
        card = page.get_by_role("article", name=name)
        sync_api.expect(card.get_by_role("button", name="Edit example")).to_have_count(len(paths))
    page.get_by_label("Add images to classify").set_input_files(pool[:n_pool])
    n_examples = sum(map(len, examples.values()))
    sync_api.expect(page.locator("#images-count")).to_contain_text(f"of {n_pool + n_examples} images", timeout=300_000)
    is_settled(page)


def count(page, filter_name):  # noqa: F811
    return int(re.search(r"\d+$", page.locator(f"#filter-{filter_name}").inner_text())[0])


def test_an_afternoon_with_500_images(page, scans, tmp_path):  # noqa: F811
    expect = sync_api.expect
    begin(page, scans)
    tiles = page.locator("#grid .tile")

    # previews load as one scrolls: not all of 500 are there at once
    assert page.locator("#grid img").evaluate_all("(all) => all.filter((img) => img.complete).length") < 400

    # not sure ones first, by the keyboard, a class each
    page.locator("#filter-unsure").click()
    expect(page.locator("#filter-unsure")).to_have_attribute("aria-pressed", "true")
    n_unsure, n_done = count(page, "unsure"), count(page, "done")
    assert 0 < n_unsure < N_POOL
    names = list(CLASSES.values())
    page.keyboard.press("g")
    for _ in range(3):
        focused = page.locator("#grid .tile:focus")
        expect(focused).to_have_count(1)
        kind = focused.get_attribute("title").partition("-")[0]
        page.keyboard.press(str(1 + names.index(kind)) if kind in names else "n")
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + 3))
    is_settled(page)

    # accept everything above a threshold, with a preview, then undo and do it again
    page.locator("#filter-all").click()
    page.locator("#accept").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Accept answers with a probability").fill("90")
    n_accepted = int(re.match(r"\d+", dialog.locator("strong").first.inner_text())[0])
    expect(dialog.locator(".thumbs img")).to_have_count(24)
    dialog.get_by_role("button", name="Accept them").click()
    expect(page.locator("#grid .tile.accepted")).to_have_count(n_accepted)
    page.keyboard.press("u")
    expect(page.locator("#grid .tile.accepted")).to_have_count(0)
    is_settled(page)  # answers may have changed since
    page.locator("#accept").click()
    dialog.get_by_label("Accept answers with a probability").fill("90")
    n_accepted = int(re.match(r"\d+", dialog.locator("strong").first.inner_text())[0])
    dialog.get_by_role("button", name="Accept them").click()
    expect(page.locator("#grid .tile.accepted")).to_have_count(n_accepted)
    wrong = [tile for tile in page.locator("#grid .tile.accepted").evaluate_all(
        "(all) => all.map((tile) => [tile.title.split('-')[0], tile.querySelector('.name').textContent])"
    ) if tile[0] != tile[1]]  # fmt: skip
    assert len(wrong) <= 0.2 * n_accepted

    # after a reload all is there, the steps to undo too
    is_settled(page)
    page.reload()
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + 3 + n_accepted))
    expect(page.locator("#undo")).to_be_enabled()
    page.locator("#filter-done").click()
    expect(tiles).to_have_count(n_done + 3 + n_accepted)

    # export, and import into a new session
    page.locator("#labels").click()
    with page.expect_download() as download:
        dialog.get_by_role("link", name="JSON", exact=True).click()
    download.value.save_as(tmp_path / "labels.json")
    exported = {row["digest"]: row["label"] for row in json.loads((tmp_path / "labels.json").read_text())["labels"]}
    dialog.get_by_role("button", name="Close").click()
    page.locator("#reset").click()
    dialog.get_by_role("button", name="Delete everything").click()
    expect(page.locator("#class-list .steps")).to_be_visible()
    examples, pool = scans
    everything = [*pool[: N_POOL - 25], *(path for paths in examples.values() for path in paths)]
    page.get_by_label("Add images to classify").set_input_files(everything)
    expect(page.locator("#images-count")).to_contain_text(f"of {N_POOL} images", timeout=300_000)
    page.locator("#labels").click()
    dialog.get_by_label("A CSV or JSON file").set_input_files(tmp_path / "labels.json")
    expect(page.get_by_role("article", name="three")).to_be_visible()
    is_settled(page)
    told = page.evaluate("() => fetch('api/labels').then((answer) => answer.json())")["labels"]
    assert len(told) == N_POOL
    assert all(exported[row["digest"]] == row["label"] for row in told)
    assert page.problems == []


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: npm install --no-save --prefix .axe axe-core")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, scans, width, scheme):  # noqa: F811
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    findings = serious(page)
    begin(page, scans, n_pool=40)
    findings += serious(page)
    page.locator("#filter-all").click()
    page.keyboard.press("g")
    page.keyboard.press("Shift+End")
    findings += serious(page)
    page.keyboard.press("Escape")
    for opened in ("#accept", "#labels", "#help"):
        page.locator(opened).click()
        findings += serious(page)
        page.keyboard.press("Escape")
    assert findings == []


def serious(page):  # noqa: F811
    """Serious and critical findings of axe-core on what is shown now."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("() => axe.run(document)")["violations"]
    return [
        (finding["id"], finding["nodes"][0]["html"][:200], finding["nodes"][0]["failureSummary"])
        for finding in found
        if finding["impact"] in ("serious", "critical")
    ]
