"""Page of `mirrorshot serve` with 500 images and three people at once: time to the first answer and of interactions.

    python benchmarks/serve_afternoon.py          # about two minutes, writes results/serve_afternoon.json

Three browser contexts label digits of scikit-learn at the same time, on the machine of the server. The first answer is
timed in the page, from the drop of 100 images to the first tile with an answer. The browser times interactions (Event
Timing: from the key or click to the next frame; those below 16 ms are not listed).
"""

import argparse
import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.async_api import Browser, Page, async_playwright
from sklearn.datasets import load_digits

from _common import save, table
from _serve_screenshots import digit
from serve import serving

CLASSES = (1, 3, 5, 7, 8)
N_SHOT, N_FIRST, N_POOL, N_PEOPLE = 5, 100, 480, 3
WATCH = """() => {
    window.events = [];
    const keep = ({ name, duration }) => window.events.push([name, duration]);
    const watcher = new PerformanceObserver((list) => list.getEntries().forEach(keep));
    watcher.observe({ type: "event", durationThreshold: 16 });
    let dropped = null;
    document.addEventListener("change", ({ target }) => {
        if (target.id === "pool-files") dropped ??= performance.now();
    }, true);
    window.firstAnswer = new Promise((done) => {
        const look = () => dropped !== null && document.querySelector("#grid .tile:is(.sure, .unsure, .open.none)")
            ? done(performance.now() - dropped) : requestAnimationFrame(look);
        look();
    });
}"""
KEYS = ("keydown", "click", "pointerup", "change")


def digits() -> tuple[dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return files of examples by class, and of other digits of these classes, for Playwright."""
    data = load_digits()
    examples: dict[int, list[dict[str, Any]]] = {label: [] for label in CLASSES}
    pool: list[dict[str, Any]] = []
    for i, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        if label in examples:
            file = {"name": f"scan-{i}.png", "mimeType": "image/png", "buffer": digit(image)}
            (examples[label] if len(examples[label]) < N_SHOT else pool).append(file)
    return examples, pool[:N_POOL]


async def teach(page: Page, examples: dict[int, list[dict[str, Any]]]) -> None:
    for label, files in examples.items():
        await page.get_by_label("Name of a new class").fill(str(label))
        await page.keyboard.press("Enter")
        card = page.locator("article", has=page.get_by_role("heading", name=str(label)))
        await card.get_by_label("Add images to class").set_input_files(files)
        await card.get_by_role("button", name="Edit example").nth(len(files) - 1).wait_for()
    await page.wait_for_timeout(1000)


async def label_many(page: Page) -> None:
    """Move, label, accept, filter, sort and undo, as fast as an experienced user."""
    await page.locator("#filter-todo").click()
    await page.keyboard.press("g")
    for i in range(60):
        await page.keyboard.press(("ArrowRight", "ArrowDown", "a", "ArrowLeft", str(1 + i % 5), "n")[i % 6])
        await page.wait_for_timeout(150)
    for name in ("unsure", "sure", "done", "all", "todo"):
        await page.locator(f"#filter-{name}").click()
        await page.wait_for_timeout(150)
    for order in ("probability", "name", "doubt"):
        await page.locator("#sort").select_option(order)
    for _ in range(10):
        await page.keyboard.press("u")
        await page.wait_for_timeout(150)


async def afternoon(browser: Browser, url: str, ready: asyncio.Barrier) -> dict[str, Any]:
    examples, pool = digits()
    page = await (await browser.new_context(viewport={"width": 1280, "height": 900})).new_page()
    await page.goto(url)
    await page.locator("#new-name:not([disabled])").wait_for()
    await teach(page, examples)
    await page.evaluate(WATCH)
    await ready.wait()
    await page.get_by_label("Add images to classify").set_input_files(pool[:N_FIRST])
    first = await page.evaluate("() => window.firstAnswer")
    await page.locator("#images-count", has_text=f"of {N_FIRST + 25} images").wait_for(timeout=120_000)
    await page.get_by_label("Add images to classify").set_input_files(pool[N_FIRST:])
    await page.locator("#images-count", has_text=f"of {N_POOL + 25} images").wait_for(timeout=300_000)
    await page.evaluate("() => { window.events.length = 0; }")
    await ready.wait()
    await label_many(page)
    events = [took for name, took in await page.evaluate("() => window.events") if name in KEYS]
    return {"first_answer_ms": round(first, 1), "interactions_ms": sorted(events)}


async def measure(n_people: int) -> list[dict[str, Any]]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (url, _):
        async with async_playwright() as playwright:
            options = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = await playwright.chromium.launch(executable_path=path, args=options)
            ready = asyncio.Barrier(n_people)
            found = await asyncio.gather(*(afternoon(browser, url, ready) for _ in range(n_people)))
            await browser.close()
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=N_PEOPLE)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    found = asyncio.run(measure(arguments.people))
    for i, person in enumerate(found, start=1):
        took = person.pop("interactions_ms")
        person |= {"n_slow_frames": len(took), "p95_ms": float(np.quantile(took, 0.95)), "longest_ms": max(took)}
        rows.append([str(i), *(f"{person[name]:.0f}" for name in ("first_answer_ms", "p95_ms", "longest_ms"))])
    print(table(["person", "first answer, ms", "interaction, 95 %, ms", "longest, ms"], rows))
    result = {"people": found, "n_images": N_POOL + 5 * N_SHOT, "load_before": load, "load_after": os.getloadavg()[0]}
    save("serve_afternoon", result, seed=0)


if __name__ == "__main__":
    main()
