"""The change of the encoder on the page: choose, watch, cancel, change back, fail, and the warning that leads to it."""

import threading

import numpy as np
import pytest
from PIL import Image

from mirrorshot.types import DataError

from .test_browser import add_class, add_to_pool, browser, digits, is_settled, page, pytestmark, sync_api, teach  # noqa: F401
from .test_story import AXE, serious


@pytest.fixture
def gate(encoders, monkeypatch):
    """Encoding with pixels waits for permits (`release`), or fails with `gate.problem`."""
    permits, encode = threading.Semaphore(0), encoders.encode
    permits.problem = None

    def waiting(encoder, image):
        if encoder.startswith("pixels"):
            assert permits.acquire(timeout=300)
            if permits.problem:
                raise DataError(permits.problem)
        return encode(encoder, image)

    monkeypatch.setattr(encoders, "encode", waiting)
    yield permits
    permits.problem = None
    permits.release(10_000)


def choose(page, title):  # noqa: F811
    page.locator("#encoder").click()
    page.get_by_role("dialog").get_by_role("radio", name=title).check()
    page.get_by_role("dialog").get_by_role("button", name="Use this encoder").click()


def answers(page):  # noqa: F811
    found = page.evaluate("() => fetch('api/answers').then((answer) => answer.json())")["answers"]
    return [{share["label"]: share["probability"] for share in answer["probabilities"]} for answer in found]


def begin(page, digits):  # noqa: F811
    teach(page, digits, n=2)
    add_to_pool(page, [digits[3][5], digits[8][5]])
    sync_api.expect(page.locator("#images-count")).to_contain_text("of 8 images")
    is_settled(page)


def test_an_encoder_is_changed_with_a_progress_bar_and_changed_back(page, digits, gate):  # noqa: F811
    expect = sync_api.expect
    begin(page, digits)
    before, panel = answers(page), page.locator("#encoder-change")
    expect(page.locator("#encoder")).to_have_text("Encoder: Characters")
    choose(page, "Images taken alike")
    expect(panel).to_contain_text("0 of 8 images encoded")
    gate.release(5)
    expect(panel).to_contain_text("5 of 8 images encoded, about")
    expect(panel.get_by_role("progressbar")).to_have_js_property("value", 5)
    expect(panel).to_contain_text("answers come from “Characters”")

    # labels go on, a reload finds the change, and the rest is encoded
    page.locator("#question").get_by_role("button", name="digit 3").click()
    expect(page.locator("#classes-count")).to_have_text("7 examples")
    is_settled(page)
    page.reload()
    expect(panel).to_contain_text("5 of 8 images encoded")
    gate.release(3)
    expect(page.locator("#encoder")).to_have_text("Encoder: Images taken alike")
    expect(page.locator("#classes-count")).to_have_text("7 examples")
    is_settled(page)
    assert answers(page) != before

    # back, which takes no encoding
    panel.get_by_role("button", name="Change back to: Characters").click()
    expect(page.locator("#encoder")).to_have_text("Encoder: Characters")
    is_settled(page)
    page.locator("#undo").click()
    expect(page.locator("#classes-count")).to_have_text("6 examples")
    is_settled(page)
    assert answers(page) == [pytest.approx(shares, abs=1e-6) for shares in before]
    panel.get_by_role("button", name="Dismiss").click()
    expect(panel).to_be_hidden()
    assert page.problems == []


def test_a_change_is_cancelled(page, digits, gate):  # noqa: F811
    begin(page, digits)
    before = answers(page)
    choose(page, "Images taken alike")
    gate.release(2)
    panel = page.locator("#encoder-change")
    sync_api.expect(panel).to_contain_text("2 of 8")
    panel.get_by_role("button", name="Cancel").click()
    sync_api.expect(panel).to_be_hidden()
    sync_api.expect(page.locator("#encoder")).to_have_text("Encoder: Characters")
    assert answers(page) == before
    assert page.problems == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_failure_is_shown_with_ways_on(page, digits, gate, width, caplog):  # noqa: F811
    expect = sync_api.expect
    page.set_viewport_size({"width": width, "height": 900})
    begin(page, digits)
    gate.problem = "Expected weights, but the file is gone."
    choose(page, "Images taken alike")
    gate.release(1)
    panel = page.locator("#encoder-change")
    expect(panel.get_by_role("alert")).to_contain_text("the file is gone. Your images and answers are as before.")
    assert not AXE.exists() or serious(page) == []
    gate.problem = None
    panel.get_by_role("button", name="Try again").click()
    expect(panel.get_by_role("progressbar")).to_be_visible()
    assert not AXE.exists() or serious(page) == []
    gate.release(8)
    expect(page.locator("#encoder")).to_have_text("Encoder: Images taken alike")
    assert page.problems == []


def test_images_that_the_encoder_is_not_made_for_lead_to_another(page, digits, tmp_path):  # noqa: F811
    expect = sync_api.expect
    begin(page, digits)
    rng, paths = np.random.default_rng(0), []
    for i in range(5):  # colours in all places: no characters
        colours = rng.integers(0, 255, (6, 6, 3)).astype(np.uint8)
        path = tmp_path / f"scene-{i}.png"
        Image.fromarray(colours).resize((96, 96), Image.Resampling.BICUBIC).save(path)
        paths.append(str(path))
    add_to_pool(page, paths)
    warning = page.get_by_role("note").filter(has_text="do not look like what the encoder “Characters” is made for")
    expect(warning).to_contain_text("5 images")
    warning.get_by_role("button", name="Choose the encoder").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("radio", name="Images taken alike")).to_be_checked()
    expect(dialog).to_contain_text("Your 13 images are encoded anew")
    dialog.get_by_role("button", name="Use this encoder").click()
    expect(page.locator("#encoder")).to_have_text("Encoder: Images taken alike")
    expect(warning).to_have_count(0)


def test_an_empty_session_chooses_at_once(page):  # noqa: F811
    expect = sync_api.expect
    expect(page.locator("#encoder")).to_have_text("Encoder: Detect")
    choose(page, "Images taken alike")
    expect(page.locator("#encoder")).to_have_text("Encoder: Images taken alike")
    expect(page.locator("#encoder-change")).to_be_hidden()
    add_class(page, "one")
    choose(page, "Detect")
    expect(page.locator("#encoder")).to_have_text("Encoder: Detect")
    assert page.problems == []
