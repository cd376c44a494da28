"""Latency, memory and refusals of `mirrorshot serve` for a user while another user overloads the server.

    python benchmarks/serve_fairness.py   # about three minutes, writes results/serve_fairness.json
    python benchmarks/serve_fairness.py --against ../other/src   # the same for another source tree, in turns
    python benchmarks/serve_fairness.py --cases load --seconds 30   # only 50 users at once, reads and writes mixed

The server is a separate process, reached by HTTP on loopback. Images are the digits of scikit-learn, and noise.
"""

import argparse
import asyncio
import io
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from _common import save, table
from serve import PNG, SEED, digit_files, load, serving

Case = dict[str, Any]
Files = dict[int, list[bytes]]


def begin(url: str, files: Files, n_classes: int, n_examples: int, n_pool: int) -> httpx.Client:
    """Return a user with examples and a fitted classifier."""
    http = httpx.Client(base_url=url, timeout=300)
    http.headers["Authorization"] = f"Bearer {http.post('/api/sessions').json()['session']}"
    for c in range(n_classes):
        number = http.post("/api/classes", json={"name": str(c)}).json()["id"]
        for i in range(n_examples):
            http.post("/api/examples", params={"class_id": number}, content=files[c][i], headers=PNG).raise_for_status()
    for i in range(n_pool):
        http.post(
            "/api/pool", params={"copies": True}, content=files[i % n_classes][i // n_classes], headers=PNG
        ).raise_for_status()
    http.post("/api/predict", content=files[0][0], headers=PNG).raise_for_status()
    return http


def seconds(http: httpx.Client, method: str, path: str, **options: Any) -> tuple[float, int]:
    began = time.perf_counter()
    status = http.request(method, path, **options).status_code
    return time.perf_counter() - began, status


def milliseconds(times: list[float]) -> dict[str, float]:
    found = {"median_ms": np.median(times), "p95_ms": np.quantile(times, 0.95), "max_ms": max(times)}
    return {"n": len(times)} | {name: round(1e3 * float(value), 1) for name, value in found.items()}


def peak_memory(process: Any) -> int:
    """Return the peak memory of the server in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


async def all_at_once(http: httpx.Client, n: int, method: str, path: str, **options: Any) -> Counter[str]:
    """Send the same request `n` times at once; count the statuses."""
    limits = httpx.Limits(max_connections=n)
    async with httpx.AsyncClient(base_url=http.base_url, headers=http.headers, timeout=600, limits=limits) as many:

        async def one() -> str:
            try:
                return str((await many.request(method, path, **options)).status_code)
            except httpx.HTTPError as error:
                return type(error).__name__

        return Counter(await asyncio.gather(*(one() for _ in range(n))))


async def meanwhile(flood: Any, ask: Callable[[], tuple[float, int]]) -> tuple[Any, list[float], Counter[str]]:
    """Send requests one after another until the flood ends; return its result, their times and statuses."""
    task = asyncio.create_task(flood)
    await asyncio.sleep(0.5)
    times, codes = [], Counter[str]()
    while not task.done():
        took, status = await asyncio.to_thread(ask)
        times.append(took)
        codes[str(status)] += 1
        await asyncio.sleep(0.05)
    return await task, times, codes


def answers(url: str, process: Any, files: Files, _: Any) -> Case:
    """60 requests for all answers of one user at once; another user predicts."""
    busy, other = begin(url, files, 5, 40, 100), begin(url, files, 2, 3, 0)
    predict = lambda: seconds(other, "POST", "/api/predict", content=files[1][5], headers=PNG)  # noqa: E731
    alone = [predict()[0] for _ in range(40)]
    theirs, times, codes = asyncio.run(meanwhile(all_at_once(busy, 60, "GET", "/api/answers"), predict))
    return {"alone": milliseconds(alone), "beside": milliseconds(times), "codes": codes, "codes_of_the_60": theirs}


def uploads(url: str, process: Any, files: Files, _: Any) -> Case:
    """100 images of nearly 16 MiB at once from one user; another user predicts."""
    noise = np.random.default_rng(SEED).integers(0, 256, (2350, 2350, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG", compress_level=0)
    large = file.getvalue()
    assert 15 * 2**20 < len(large) < 16 * 2**20
    busy, other = begin(url, files, 2, 3, 0), begin(url, files, 2, 3, 0)
    before = peak_memory(process)
    predict = lambda: seconds(other, "POST", "/api/predict", content=files[1][5], headers=PNG)  # noqa: E731
    flood = all_at_once(busy, 100, "POST", "/api/predict", content=large, headers=PNG)
    theirs, times, codes = asyncio.run(meanwhile(flood, predict))
    peak = {"before_mib": before, "peak_mib": peak_memory(process)}
    return peak | {"beside": milliseconds(times), "codes": codes, "codes_of_the_100": theirs}


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def slow(url: str, process: Any, files: Files, _: Any) -> Case:
    """16 uploads without a session that send one byte and no more; another user adds an image."""
    other = begin(url, files, 2, 3, 0)
    open_ = [connect(url) for _ in range(16)]
    for connection in open_:
        connection.sendall(b"POST /api/pool HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx")
    time.sleep(0.5)
    took, status = seconds(other, "POST", "/api/pool", content=files[0][1], headers=PNG)
    got = Counter(connection.recv(4096).split(b" ")[1].decode() for connection in open_)
    for connection in open_:
        connection.close()
    return {"seconds_of_another_user": round(took, 3), "code": status, "codes_of_the_16": got}


def idle(url: str, process: Any, files: Files, _: Any) -> Case:
    """520 idle connections; another client sends requests."""
    open_ = [connect(url) for _ in range(520)]
    time.sleep(0.5)
    with httpx.Client(base_url=url, timeout=60) as http:
        took, status = seconds(http, "GET", "/api/health")
    for connection in open_:
        connection.close()
    return {"seconds_of_another_client": round(took, 3), "code": status}


def crowd(url: str, process: Any, files: Files, options: Any) -> Case:
    """Many users at once, reads and writes mixed."""
    return dict(asyncio.run(load(url, process, files, options.clients, options.seconds)))


CASES = {"answers": answers, "uploads": uploads, "slow": slow, "idle": idle, "load": crowd}


def one_line(case: str, found: Case) -> str:
    if case == "load":
        kinds = ("predict", "overview", "label", "add", "answers")
        times = ", ".join(f"{kind} {found['median_ms'][kind]}/{found['p95_ms'][kind]} ms" for kind in kinds)
        return (
            f"{found['requests']} requests, {found['errors']} errors, {found['users_with_a_lost_label']} lost; {times}"
        )
    return ", ".join(f"{name}: {dict(value) if isinstance(value, dict) else value}" for name, value in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="source folder of another version")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[name for name in CASES if name != "load"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clients", type=int, default=50, help="of the load")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the load")
    options = parser.parse_args()
    files = digit_files()
    trees = ([("other", options.against.resolve())] if options.against else []) + [("this", None)]
    result: dict[str, Any] = {"cores": os.cpu_count(), "runs": []}
    rows = []
    for i in range(options.rounds):
        for case in options.cases:
            for name, source in trees if i % 2 == 0 else trees[::-1]:
                with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", source) as (url, process):
                    found = CASES[case](url, process, files, options)
                result["runs"].append(
                    {"case": case, "tree": name, "load_average": round(os.getloadavg()[0], 1)} | found
                )
                rows.append([case, name, one_line(case, found)])
                print(" | ".join(rows[-1]), flush=True)
    print(table(["case", "tree", "found"], rows))
    save("serve_fairness", result, seed=SEED)


if __name__ == "__main__":
    main()
