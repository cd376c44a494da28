"""Screenshots for docs/serve.md: the page with digits, on a desktop and on a phone. Needs Chromium and Playwright.

python benchmarks/_serve_screenshots.py      # writes docs/images/serve-desk.png and docs/images/serve-phone.png
"""

import io
import os
import shutil
import tempfile
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright
from sklearn.datasets import load_digits

from serve import serving

IMAGES = Path(__file__).parent.parent / "docs" / "images"
N_COLOURS = 256  # enough for a page, and a third of the bytes
SURE = 0.97
CLASSES = {3: "three", 5: "five", 8: "eight", 9: "nine"}


def digit(image: np.ndarray) -> bytes:
    """Return a digit of scikit-learn with a margin as PNG."""
    ink = np.pad(255 - 15.9 * image, 2, constant_values=255).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ink).resize((144, 144), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def teach(http: httpx.Client) -> None:
    """Add seven examples per class and images to classify, a few of them of no class; accept some answers."""
    digits = load_digits()
    rows = {label: np.flatnonzero(digits.target == label) for label in range(10)}
    http.post("/api/sessions")
    numbers = {}
    for label, name in CLASSES.items():
        number = numbers[name] = http.post("/api/classes", json={"name": name}).json()["id"]
        for i in rows[label][:7]:
            send(http, "examples", digits.images[i], f"scan-{i}.png", {"class_id": number})
    for label in (*CLASSES, 1):
        for i in rows[label][20 : 23 if label == 1 else 44]:
            send(http, "pool", digits.images[i], f"scan-{i}.png", {})
    sure = [answer for answer in http.get("/api/answers").json()["answers"] if answer["probability"] > SURE]
    changes = [{"picture_id": answer["picture_id"], "accepted_id": numbers[answer["label"]]} for answer in sure[::2]]
    http.patch("/api/pictures", json={"changes": changes}).raise_for_status()


def send(http: httpx.Client, path: str, image: np.ndarray, name: str, values: dict[str, int]) -> None:
    headers = {"content-type": "image/png"}
    http.post(f"/api/{path}", params={"name": name, **values}, content=digit(image), headers=headers).raise_for_status()


def shoot(page: Page, name: str) -> None:
    """Save a screenshot of the visible part of the page with few colours."""
    shot = Image.open(io.BytesIO(page.screenshot()))
    shot.convert("RGB").quantize(N_COLOURS, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)
    print(f"{name}: {(IMAGES / name).stat().st_size} bytes")


def main() -> None:
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)) as (url, _),
        httpx.Client(base_url=url, timeout=60) as http,
        sync_playwright() as playwright,
    ):
        teach(http)
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_path, args=options)
        cookies = [{"name": name, "value": value, "url": url} for name, value in http.cookies.items()]
        for name, size in (("serve-desk.png", (1280, 960)), ("serve-phone.png", (390, 844))):
            context = browser.new_context(viewport={"width": size[0], "height": size[1]})
            context.add_cookies(cookies)
            page = context.new_page()
            page.goto(url)
            expect(page.locator("#grid .tile.unsure").first).to_be_visible(timeout=30_000)
            page.locator("#filter-all").click()
            if size[0] < 500:
                page.locator("#ask").scroll_into_view_if_needed()
                page.evaluate("() => scrollTo(0, document.querySelector('#ask').offsetTop - 12)")
            page.wait_for_timeout(500)
            shoot(page, name)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
