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
SAME_SAMPLE = "() => { let s = 1; Math.random = () => (s = (s * 16807) % 2147483647) / 2147483647; }"


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Paths of examples by class, of many writers, and of 500 other images, a few of which are of no class."""
    folder, data = tmp_path_factory.mktemp("scans"), load_digits()
    examples, pool = {name: [] for name in CLASSES.values()}, []
    chosen = {i for label in CLASSES for i in np.flatnonzero(data.target == label)[:: 170 // N_EXAMPLES][:N_EXAMPLES]}
    for i, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        name = CLASSES.get(int(label), "other")
        path = folder / f"{name}-{i}.png"
        if i in chosen:
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


def labels(page):  # noqa: F811
    """The labels as the page exports them."""
    return page.evaluate("() => fetch('api/labels').then((answer) => answer.json())")["labels"]


def n_wrong(page, known):  # noqa: F811
    """Number of wrong labels, but for those of images that are known."""
    is_settled(page)
    return sum(
        truth(row["name"]) != row["label"] for row in labels(page) if row["label"] and row["digest"] not in known
    )


def truth(name):
    return name.partition("-")[0]


def label_focused(page):  # noqa: F811
    """Say what the image under the focus is, by its key."""
    names = list(CLASSES.values())
    focused = page.locator("#grid .tile:focus")
    sync_api.expect(focused).to_have_count(1)
    kind = truth(focused.get_attribute("title"))
    page.keyboard.press(str(1 + names.index(kind)) if kind in names else "n")


def accept_above(page, percent):  # noqa: F811
    """Accept all answers above a threshold; return how many, and the interval of the number of wrong ones."""
    is_settled(page)
    page.locator("#accept").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Accept answers with a probability").fill(str(percent))
    n, _, least, most = map(int, re.findall(r"\d+", dialog.locator("#expected").inner_text())[:4])
    dialog.get_by_role("button", name="Accept them").click()
    sync_api.expect(page.locator("#filter-all")).to_be_visible()
    return n, least, most


def test_an_afternoon_with_500_images(page, scans, tmp_path):  # noqa: F811
    expect = sync_api.expect
    begin(page, scans)
    dialog = page.get_by_role("dialog")

    # only the rows near the screen are in the document, and others follow as one scrolls
    tiles = page.locator("#grid .tile")
    assert tiles.count() < 200
    assert tiles.first.get_attribute("aria-setsize") == str(N_POOL)
    page.locator("#filter-todo").click()
    page.keyboard.press("g")
    page.keyboard.press("End")
    expect(page.locator("#grid .tile:focus")).to_have_attribute("aria-posinset", str(N_POOL))
    page.keyboard.press("Home")
    expect(page.locator("#grid .tile:focus")).to_have_attribute("aria-posinset", "1")

    # not sure ones first, by the keyboard, a class each
    page.locator("#filter-unsure").click()
    expect(page.locator("#filter-unsure")).to_have_attribute("aria-pressed", "true")
    n_unsure, n_done = count(page, "unsure"), count(page, "done")
    assert 0 < n_unsure < N_POOL
    page.keyboard.press("g")
    for _ in range(3):
        label_focused(page)
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + 3))

    # accept everything above a threshold, with a preview, and undo it
    is_settled(page)
    known = {row["digest"] for row in labels(page) if row["label"]}
    n_accepted, least, most = accept_above(page, 90)
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + 3 + n_accepted))
    assert least <= n_wrong(page, known) <= most
    page.keyboard.press("u")
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + 3))

    # a random sample tells how many answers are wrong
    is_settled(page)
    page.evaluate(SAME_SAMPLE)
    page.locator("#accept").click()
    dialog.get_by_label("Accept answers with a probability").fill("90")
    dialog.get_by_role("button", name="at random").click()
    expect(page.locator("#filter-sample .n")).to_have_text("20")
    for left in range(20, 0, -1):
        expect(page.locator("#filter-sample .n")).to_have_text(str(left))
        label_focused(page)
    n_done += 23
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done))
    is_settled(page)
    known = {row["digest"] for row in labels(page) if row["label"]}
    n_accepted, least, most = accept_above(page, 90)
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + n_accepted))
    assert least <= n_wrong(page, known) <= most
    assert n_wrong(page, known) <= 0.1 * n_accepted

    # after a reload all is there, the steps to undo too
    page.reload()
    expect(page.locator("#filter-done .n")).to_have_text(str(n_done + n_accepted))
    expect(page.locator("#undo")).to_be_enabled()
    page.locator("#filter-done").click()
    expect(page.locator("#images-count")).to_contain_text(f"{n_done + n_accepted} of ")

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
    told = labels(page)
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
    for opened in ("#accept", "#encoder", "#labels", "#help"):
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
