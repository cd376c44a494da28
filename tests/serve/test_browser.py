"""The page in a real browser, as a person uses it. Skipped where no browser is installed."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from mirrorshot.cli import main
from mirrorshot.serve import Settings

from .conftest import running

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on this machine"),
    # Playwright leaves a closed loop and pipes to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
WAIT = 120_000  # milliseconds that only a page that hangs needs
sync_api.expect.set_options(timeout=WAIT)
DARK, PHONE = {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=BROWSER, args=options)
        yield found
        found.close()


@pytest.fixture
def page(browser, shared):
    """The page, with every error of its scripts kept, and cut off from everything but the server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.problems = []
    page.on("console", lambda message: message.type == "error" and page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda asked: asked.url.startswith(shared.url) or page.problems.append(asked.url))
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.goto(shared.url)
    yield page
    context.close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Paths of images of threes, fives and eights."""
    folder, data = tmp_path_factory.mktemp("digits"), load_digits()
    found = {3: [], 5: [], 8: []}
    for i, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        if label in found and len(found[label]) < 8:
            path = folder / f"{label}-{i}.png"
            Image.fromarray((255 - 15.9 * image).clip(0, 255).astype(np.uint8)).resize((64, 64)).save(path)
            found[label].append(str(path))
    return found


def add_class(page, name):
    page.get_by_label("Name of a new class").fill(name)
    page.keyboard.press("Enter")
    sync_api.expect(page.get_by_role("article", name=name)).to_be_visible()


def teach(page, digits, n=4):
    for label, paths in digits.items():
        add_class(page, f"digit {label}")
        card = page.get_by_role("article", name=f"digit {label}")
        card.get_by_label("Add images to class").set_input_files(paths[:n])
        sync_api.expect(card.get_by_role("button", name="Edit example")).to_have_count(n)


def is_settled(page):
    """Wait until the answers are those of the present labels."""
    sync_api.expect(page.locator("body:not([aria-busy])")).to_have_count(1)


def add_to_pool(page, paths):
    page.get_by_label("Add images to classify").set_input_files(paths)


def test_a_person_builds_a_classifier_and_takes_it_home(page, digits, tmp_path):
    expect = sync_api.expect
    teach(page, digits)
    queries = [digits[3][5], digits[5][5], digits[8][5], digits[8][6]]
    add_to_pool(page, queries)
    tiles = page.locator("#grid .tile")
    expect(tiles).to_have_count(4)
    expect(page.locator("#grid .tile:is(.sure, .unsure, .none)")).to_have_count(4)

    # probabilities are there, and one of the images is asked about
    expect(page.locator("#question .bar")).to_have_count(3)
    expect(page.get_by_role("heading", name="Which class is this?")).to_be_visible()
    asked = page.locator("#question .name").first.inner_text()
    page.locator("#question").get_by_role("button", name=f"digit {asked[0]}").click()
    expect(tiles).to_have_count(3)
    expect(page.locator("#classes-count")).to_have_text("13 examples")
    is_settled(page)
    expect(page.get_by_role("img", name="Reliability diagram")).to_be_visible()
    expect(page.locator(".advice")).to_contain_text("of them will be right")

    # after loading again everything is as it was
    is_settled(page)
    shown = sorted(tile.text_content() for tile in tiles.all())
    page.reload()
    expect(page.locator("#grid .tile:is(.sure, .unsure, .none)")).to_have_count(3)
    assert sorted(tile.text_content() for tile in tiles.all()) == shown

    # the model predicts the same on the command line
    with page.expect_download() as download:
        page.get_by_role("link", name="Download model").click()
    download.value.save_as(tmp_path / "model.mirrorshot")
    left = [path for path in queries if not path.endswith(asked)]
    result = CliRunner().invoke(main, ["predict", str(tmp_path / "model.mirrorshot"), *left, "--json", "--quiet"])
    assert result.exit_code == 0, result.output
    told = page.evaluate("() => fetch('api/answers').then((answer) => answer.json())")
    ours = [{share["label"]: share["probability"] for share in answer["probabilities"]} for answer in told["answers"]]
    theirs = [record["probabilities"] for record in json.loads(result.stdout)]
    assert len(ours) == len(theirs) == 3
    for one in ours:
        assert any(one == pytest.approx(other, abs=1e-6) for other in theirs)
    assert page.problems == []


def test_pictures_are_dropped_labelled_edited_and_removed_with_the_keyboard(page, digits):
    expect = sync_api.expect
    teach(page, digits, n=2)
    transfer = page.evaluate_handle(
        """async () => {
            const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 40 });
            const pen = canvas.getContext("2d");
            pen.fillStyle = "white"; pen.fillRect(0, 0, 40, 40); pen.fillStyle = "black"; pen.fillRect(18, 4, 5, 32);
            const blob = await new Promise((done) => canvas.toBlob(done));
            const transfer = new DataTransfer();
            transfer.items.add(new File([blob], "<img src=x onerror=alert(1)>.png", { type: "image/png" }));
            transfer.items.add(new File(["no picture"], "notes.txt", { type: "text/plain" }));
            return transfer;
        }"""
    )
    page.locator("#pool-drop .drop").dispatch_event("drop", {"dataTransfer": transfer})
    expect(page.locator("#grid .tile")).to_have_count(1)
    expect(page.locator("#question .file")).to_have_text("<img src=x onerror=alert(1)>.png")
    expect(page.get_by_role("alert")).to_contain_text("notes.txt: Expected an image that can be read")
    page.locator("h2").first.click()
    is_settled(page)
    page.keyboard.press("1")  # answers the question
    expect(page.locator("#grid .tile")).to_have_count(0)
    card = page.get_by_role("article", name="digit 3")
    expect(card.get_by_role("button", name="Edit example")).to_have_count(3)
    card.get_by_role("button", name="Edit example").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Is this right?")).to_be_visible()
    page.keyboard.press("2")
    expect(page.get_by_role("article", name="digit 5").get_by_role("button", name="Edit example")).to_have_count(3)
    page.keyboard.press("u")
    expect(card.get_by_role("button", name="Edit example")).to_have_count(3)
    page.keyboard.press("u")
    expect(page.locator("#grid .tile")).to_have_count(1)
    page.get_by_role("button", name="Delete class digit 8").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article", name="digit 8")).to_have_count(0)
    assert [problem for problem in page.problems if "422" not in problem] == []  # the notes were refused


def test_the_grid_is_used_with_the_keyboard_alone(page, digits):
    expect = sync_api.expect
    teach(page, digits, n=4)
    add_to_pool(page, [path for paths in digits.values() for path in paths[4:]])
    tiles = page.locator("#grid .tile")
    expect(tiles).to_have_count(12)
    is_settled(page)
    page.locator("#filter-todo").focus()
    page.keyboard.press("g")
    expect(tiles.first).to_be_focused()
    page.keyboard.press("End")
    expect(tiles.last).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(tiles.nth(1)).to_be_focused()
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".tile[aria-selected=true]")).to_have_count(2)
    page.keyboard.press("n")  # both are none of these
    expect(tiles).to_have_count(10)
    expect(page.locator("#grid .tile:focus")).to_have_count(1)
    page.keyboard.press("Enter")  # accepts the answer
    expect(tiles).to_have_count(9)
    page.keyboard.press("Control+a")
    expect(page.locator(".tile[aria-selected=true]")).to_have_count(9)
    page.keyboard.press("Escape")
    expect(page.locator(".tile[aria-selected=true]")).to_have_count(0)
    page.keyboard.press("u")
    expect(tiles).to_have_count(10)
    page.keyboard.press("Control+z")
    expect(tiles).to_have_count(12)
    expect(page.locator("#undo")).to_be_disabled()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("undo, step by step")
    page.keyboard.press("Escape")
    assert page.problems == []


def test_an_answer_of_none_is_accepted_as_none_with_capitals_too(page, digits, tmp_path):
    expect = sync_api.expect
    teach(page, digits, n=4)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    add_to_pool(page, [tmp_path / "noise.png"])
    expect(page.locator("#grid .tile.open.none")).to_have_count(1)
    is_settled(page)
    page.locator("#filter-todo").focus()
    page.keyboard.press("Shift+G")
    page.keyboard.press("Shift+A")
    is_settled(page)
    assert page.evaluate("() => fetch('api/labels').then((answer) => answer.json())")["labels"][-1]["how"] == "none"
    page.keyboard.press("Control+Shift+Z")  # redo elsewhere
    expect(page.locator("#filter-todo .n")).to_have_text("0")
    page.keyboard.press("Control+z")
    expect(page.locator("#filter-todo .n")).to_have_text("1")


def test_images_are_selected_by_touch(browser, shared, digits):
    context = browser.new_context(**PHONE)
    page = context.new_page()
    page.goto(shared.url)
    add_class(page, "one")
    add_to_pool(page, digits[3][:3])
    for n in (1, 2):
        page.locator("#grid .tile").nth(n).tap()
        sync_api.expect(page.locator("#selection .n")).to_have_text(f"{n} selected")
    page.locator("#label-selected").select_option("one")
    sync_api.expect(page.locator("#classes-count")).to_have_text("2 examples")
    context.close()


def test_previews_of_another_database_are_not_taken_from_the_cache(browser, tmp_path, encoders, digits):
    context = browser.new_context()
    page, port, shown = context.new_page(), 0, []
    for kind in (3, 8):  # first images of two servers, one after the other at one address
        with running(Settings(tmp_path / str(kind)), encoders, port=port) as server:
            port = int(server.url.rpartition(":")[2])
            page.goto(server.url)
            add_to_pool(page, digits[kind][:1])
            sync_api.expect(page.locator("#grid .tile")).to_have_count(1)
            image = page.locator("#grid img")
            assert image.get_attribute("src").startswith("api/pictures/1/preview")
            image.evaluate("(image) => image.decode()")
            shown.append(image.evaluate(PIXELS))
    assert shown[0] != shown[1]
    context.close()


PIXELS = """(image) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 32, height: 32 });
    canvas.getContext("2d").drawImage(image, 0, 0, 32, 32);
    return canvas.toDataURL();
}"""


def test_copies_and_equal_names_are_told(page, digits, tmp_path):
    expect = sync_api.expect
    teach(page, digits, n=2)
    (tmp_path / "again").mkdir()
    other = shutil.copy(digits[5][6], tmp_path / "again" / os.path.basename(digits[3][6]))
    add_to_pool(page, [digits[3][6]])
    expect(page.locator("#grid .tile")).to_have_count(1)
    add_to_pool(page, [other, digits[3][6]])
    expect(page.get_by_role("alert")).to_contain_text("1 image of 2 was here already")
    tiles = page.locator("#grid .tile")
    expect(tiles).to_have_count(2)
    assert sum("(2)" in tile.get_attribute("title") for tile in tiles.all()) == 1
    wrong = page.get_by_role("article", name="digit 8")
    wrong.get_by_label("Add images to class").set_input_files(digits[3][0])
    expect(page.get_by_role("alert").last).to_contain_text("of class 'digit 3'")


def test_a_class_named_like_a_script_is_a_name(page):
    name = '<img src=x onerror="alert(1)"><b>x'
    add_class(page, name)
    assert page.locator("#class-list h3 .name").inner_text() == name
    assert page.locator("#class-list b").count() == 0
    assert page.problems == []


def test_a_token_opens_the_page_typed_or_in_the_address(browser, serve):
    token = "a-token-of-some-length"
    url = serve(token=token).url
    for typed in ("wrong", None):
        context = browser.new_context()
        page = context.new_page()
        page.goto(url if typed else f"{url}/#token={token}")
        if typed:
            page.get_by_role("dialog").get_by_role("textbox").fill(typed)
            page.keyboard.press("Enter")
            sync_api.expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Expected the token")
            page.get_by_role("dialog").get_by_role("textbox").fill(token)
            page.keyboard.press("Enter")
        add_class(page, "inside")
        assert token not in page.url
        context.clear_cookies(name=re.compile("mirrorshot_token"))  # the server has another token now
        page.get_by_label("Name of a new class").fill("again")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("textbox").fill(token)
        page.keyboard.press("Enter")
        sync_api.expect(page.get_by_role("dialog")).to_be_hidden()
        sync_api.expect(page.get_by_role("article", name="again")).to_be_visible()
        context.close()


@pytest.mark.parametrize("options", [{}, DARK, PHONE, {**DARK, **PHONE}], ids=["desk", "dark", "phone", "dark phone"])
def test_the_page_fits_and_can_be_read(browser, shared, options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(shared.url)
    add_class(page, "a class with a rather long name that has to be cut somewhere")
    width = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(CONTRAST) == []
    page.goto(f"{shared.url}/docs")
    sync_api.expect(page.locator("details").first).to_be_visible()
    assert page.locator("details").count() >= 17
    context.close()


UNNAMED = """() => [...document.querySelectorAll("button, input, select, a")]
    .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim()))
    .map((e) => e.outerHTML)"""

# texts whose contrast with what is behind them is below 4.5 (WCAG 2, AA)
CONTRAST = """() => {
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const colour = rgb(getComputedStyle(e).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const ratio = (e) => {
        const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    return [...document.querySelectorAll("body *")]
        .filter((e) => e.checkVisibility() && e.clientWidth > 1 && !e.disabled && hasText(e))
        .map((e) => [e.textContent.trim().slice(0, 40), ratio(e)])
        .filter(([, found]) => found < 4.5);
}"""
