"""`mirrorshot serve` while one session sends hostile images in a loop.

    python benchmarks/serve_hostile.py                    # about two minutes, writes results/serve_hostile.json
    python benchmarks/serve_hostile.py --seconds 10       # a short attack

One session sends all images of `tests/files/imaging/hostile_images.py`, and images that are as slow to decode as the
limits allow, over several connections. Another session predicts digits one after the other. Reported are its latency
with and without the attack, the peak memory of the server with its worker processes, and the seconds from SIGTERM to
the end of the server during the attack.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import io
import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from _common import save, table
from serve import N_CLASSES, N_SHOT, PNG, digit_files, serving

SEED = 0
BOUNDS = {"p95_s": 1.0, "memory_mib": 3072.0, "stop_s": 5.0}
_GENERATOR = Path(__file__).parents[1] / "tests" / "files" / "imaging" / "hostile_images.py"


def hostile_files() -> list[bytes]:
    """Return the images of the tests, with slow images between them."""
    spec = importlib.util.spec_from_file_location("hostile_images", _GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = [content for _, content in module.hostile_images(SEED)]
    slow = itertools.cycle(slow_files())
    return [content for i, file in enumerate(files) for content in ([file, next(slow)] if i % 20 == 0 else [file])]


def slow_files() -> list[bytes]:
    """Return slow files within all limits: 33 million pixels, or many scans."""

    def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
        file = io.BytesIO()
        image.save(file, form, **options)
        return file.getvalue()

    soft = encoded(Image.new("L", (2800, 2800), 99), "JPEG", progressive=True)
    scans = soft[:-2] + soft[soft.rfind(b"\xff\xda") : -2] * 110 + b"\xff\xd9"
    return [
        encoded(Image.new("RGBA", (8192, 4096), (1, 2, 3, 4)), "PNG", compress_level=1),
        encoded(Image.new("RGBA", (8192, 4096), (1, 2, 3, 4)), "WEBP", lossless=True, method=0, quality=0),
        scans,
    ]


def memory(process: subprocess.Popen[str]) -> float:
    """Return the resident MiB of the server and its descendants."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            pages[int(folder.name)] = int((folder / "statm").read_text().split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, queue = 0, [process.pid]
    while queue:
        pid = queue.pop()
        found += pages.get(pid, 0)
        queue += children.get(pid, [])
    return found * os.sysconf("SC_PAGE_SIZE") / 2**20


async def teach(http: httpx.AsyncClient, files: dict[int, list[bytes]]) -> None:
    """Begin a session with a classifier."""
    (await http.post("/api/sessions")).raise_for_status()
    for c in range(N_CLASSES):
        number = (await http.post("/api/classes", json={"name": str(c)})).json()["id"]
        for i in range(N_SHOT):
            answer = await http.post("/api/examples", params={"class_id": number}, content=files[c][i], headers=PNG)
            answer.raise_for_status()
    (await http.post("/api/predict", content=files[0][20], headers=PNG)).raise_for_status()


async def attack(http: httpx.AsyncClient, contents: Any, codes: Counter[int | str]) -> None:
    """Send one image after the other until cancelled."""
    for content in contents:
        try:
            answer = await http.post("/api/predict", content=content, headers=PNG)
            codes[answer.status_code] += 1
        except httpx.HTTPError as error:
            codes[type(error).__name__] += 1
            await asyncio.sleep(0.05)


async def predictions(http: httpx.AsyncClient, files: dict[int, list[bytes]], seconds: float) -> dict[str, Any]:
    """Predict for some seconds; return latency and failures."""
    times: list[float] = []
    codes: Counter[str] = Counter()
    until = time.perf_counter() + seconds
    for i in itertools.count():
        if time.perf_counter() > until:
            break
        began = time.perf_counter()
        answer = await http.post("/api/predict", content=files[i % N_CLASSES][20 + i % 40], headers=PNG)
        times.append(time.perf_counter() - began)
        codes[str(answer.status_code)] += 1
        await asyncio.sleep(0.05)
    return {
        "n": len(times),
        "codes": dict(codes),
        "median_s": round(float(np.median(times)), 3),
        "p95_s": round(float(np.quantile(times, 0.95)), 3),
        "max_s": round(max(times), 3),
    }


async def watch(process: subprocess.Popen[str], seen: list[float]) -> None:
    """Record the memory repeatedly."""
    while True:
        seen.append(await asyncio.to_thread(memory, process))
        await asyncio.sleep(0.2)


async def stop(process: subprocess.Popen[str]) -> float | None:
    """Return the seconds from SIGTERM to the end; None if it takes longer than a minute."""
    began = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    while process.poll() is None and time.perf_counter() - began < 60:
        await asyncio.sleep(0.02)
    return None if process.poll() is None else round(time.perf_counter() - began, 2)


async def measure(url: str, process: subprocess.Popen[str], seconds: float, connections: int) -> dict[str, Any]:
    """Measure latency without and with the attack, memory, and the stop during the attack."""
    files, hostile = digit_files(), hostile_files()
    limits = httpx.Limits(max_connections=connections)
    codes: Counter[int | str] = Counter()
    seen: list[float] = []
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as other,
        httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as one,
    ):
        await teach(other, files)
        await teach(one, files)
        found: dict[str, Any] = {"alone": await predictions(other, files, seconds / 4)}
        contents = itertools.cycle(hostile)
        tasks = [asyncio.create_task(attack(one, contents, codes)) for _ in range(connections)]
        tasks.append(asyncio.create_task(watch(process, seen)))
        await asyncio.sleep(2.0)
        found["under_attack"] = await predictions(other, files, seconds)
        found["hostile_images"] = len(hostile)
        found["hostile_codes"] = {str(code): n for code, n in codes.items()}
        found["stop_s"] = await stop(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found | {"memory_mib": round(max(seen), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the attack")
    parser.add_argument("--connections", type=int, default=4, help="of the session that attacks")
    options = parser.parse_args()
    result: dict[str, Any] = {"cores": os.cpu_count(), "load_average_before": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as name, serving(Path(name) / "data") as (url, process):
        result |= asyncio.run(measure(url, process, options.seconds, options.connections))
    result |= {"connections": options.connections, "bounds": BOUNDS}
    result["load_average_after"] = round(os.getloadavg()[0], 1)
    stop_s = result["stop_s"]
    rows = [
        ["95 % of predictions of another session, s", result["under_attack"]["p95_s"], BOUNDS["p95_s"]],
        ["memory of server and workers, MiB", result["memory_mib"], BOUNDS["memory_mib"]],
        ["SIGTERM to the end, s", "more than 60" if stop_s is None else stop_s, BOUNDS["stop_s"]],
    ]
    print(table(["", "measured", "bound"], [[str(cell) for cell in row] for row in rows]))
    print({key: result[key] for key in ("alone", "under_attack", "hostile_codes", "load_average_before")})
    save("serve_hostile", result, seed=SEED)


if __name__ == "__main__":
    main()
