"""`mirrorshot serve` on this machine: latency for one user, load by many, and labels after the server is killed.

    python benchmarks/serve.py                    # about two minutes, writes results/serve.json
    python benchmarks/serve.py --seconds 10       # a short load

The server is a separate process, reached by HTTP on loopback. Images are the digits of scikit-learn. The load of the
machine is recorded, because latencies depend on other programs.
"""

import argparse
import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from _common import save, table

PNG = {"content-type": "image/png"}
N_CLASSES, N_SHOT = 5, 5
SEED = 0


def digit_files() -> dict[int, list[bytes]]:
    """Return PNG files of digits by class."""
    digits = load_digits()
    found: dict[int, list[bytes]] = {c: [] for c in range(N_CLASSES)}
    for image, label in zip(digits.images, digits.target, strict=True):
        if label < N_CLASSES and len(found[label]) < 60:
            file = io.BytesIO()
            pixels = (255 - 15.9 * image).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(file, "PNG")
            found[label].append(file.getvalue())
    return found


@contextlib.contextmanager
def serving(folder: Path, source: Path | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the server in a process, optionally from another source folder; yield its address and the process."""
    environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
    command = [sys.executable, "-m", "mirrorshot", "serve", "--port", "0", "--data-folder", str(folder)]
    process = subprocess.Popen(
        [*command, "--sessions-per-minute", "10000"], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1].rstrip("/"), process
    finally:
        process.kill()
        process.wait()


def resident(process: subprocess.Popen[str]) -> float:
    """Return the resident memory of the server in MiB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def milliseconds(call: Callable[[int], Any], n: int) -> dict[str, float]:
    times = []
    for i in range(n):
        began = time.perf_counter()
        call(i)
        times.append(1e3 * (time.perf_counter() - began))
    return {"n": n, "median_ms": round(float(np.median(times)), 1), "p95_ms": round(float(np.quantile(times, 0.95)), 1)}


def latency(url: str, files: dict[int, list[bytes]], n: int) -> dict[str, dict[str, float]]:
    """Measure one user with 5 examples of each of 5 classes, one request after the other."""
    with httpx.Client(base_url=url, timeout=60) as http:

        def ok(answer: httpx.Response) -> Any:
            answer.raise_for_status()
            return answer.json()

        def add(c: int, i: int) -> int:
            answer = http.post(
                "/api/examples", params={"class_id": classes[c], "copies": True}, content=files[c][i], headers=PNG
            )
            return int(ok(answer)["id"])

        def predict(i: int) -> Any:
            return ok(http.post("/api/predict", content=files[i % N_CLASSES][20 + i % 40], headers=PNG))

        def label(i: int) -> None:
            ok(http.patch(f"/api/pictures/{pool}", json={"class_id": classes[i % N_CLASSES]}))

        ok(http.post("/api/sessions"))
        classes = [ok(http.post("/api/classes", json={"name": str(c)}))["id"] for c in range(N_CLASSES)]
        for i in range(N_SHOT):
            for c in range(N_CLASSES):
                add(c, i)
        pool = ok(http.post("/api/pool", params={"copies": True}, content=files[0][50], headers=PNG))["id"]
        predict(0)
        found = {"warm prediction": milliseconds(predict, n)}
        found["label a picture that is there"] = milliseconds(label, n)
        ids: list[int] = []
        found["add a labelled picture"] = milliseconds(lambda i: ids.append(add(i % N_CLASSES, 10 + i % 10)), n // 4)
        for number in ids:
            ok(http.delete(f"/api/pictures/{number}"))
        times = []
        for i in range(max(3, n // 10)):
            began = time.perf_counter()
            number = add(i % N_CLASSES, 10 + i % 10)
            predict(i)
            times.append(1e3 * (time.perf_counter() - began))
            ok(http.delete(f"/api/pictures/{number}"))
        found["add one, then predict"] = {
            "n": len(times),
            "median_ms": round(float(np.median(times)), 1),
            "p95_ms": round(float(np.quantile(times, 0.95)), 1),
        }
        return found


class Visitor:
    """A simulated user: reads and writes at random, and remembers the labels that the server must have."""

    def __init__(self, url: str, number: int, files: dict[int, list[bytes]], times: dict[str, list[float]]) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=120)
        self.rng, self.number, self.files, self.times = np.random.default_rng([SEED, number]), number, files, times
        self.labels: dict[int, int | None] = {}
        self.classes: dict[str, int] = {}
        self.codes: Counter[int | str] = Counter()
        self.n_strange = 0

    async def ask(self, kind: str, method: str, path: str, **options: Any) -> Any:
        """Send one request and record its time; return None if it failed."""
        began = time.perf_counter()
        try:
            answer = await self.http.request(method, path, **options)
        except httpx.HTTPError as error:
            self.codes[type(error).__name__] += 1
            return None
        self.times.setdefault(kind, []).append(1e3 * (time.perf_counter() - began))
        self.codes[answer.status_code] += 1
        return answer.json() if answer.status_code < 300 else None

    async def begin(self) -> None:
        """Add three classes of four images each, and predict once to fit the classifier."""
        await self.ask("begin", "POST", "/api/sessions")
        for c in range(3):
            name = f"{c} of {self.number}"
            self.classes[name] = (await self.ask("class", "POST", "/api/classes", json={"name": name}))["id"]
            for _ in range(4):
                await self.add(list(self.classes.values())[-1], c)
        await self.ask("first prediction", "POST", "/api/predict", content=self.files[0][0], headers=PNG)

    async def add(self, class_id: int | None, c: int) -> None:
        """Add an image of digit `c`; without a class, it goes to the pool."""
        picture = self.files[c][self.rng.integers(60)]
        path, values = ("/api/pool", {}) if class_id is None else ("/api/examples", {"class_id": class_id})
        values |= {"copies": True}
        answer = await self.ask("add", "POST", path, params=values, content=picture, headers=PNG)
        if answer is not None:
            self.labels[answer["id"]] = class_id

    async def visit(self, until: float) -> None:
        """Do random steps until a time."""
        while time.perf_counter() < until:
            await self.step(self.rng.random())
            await asyncio.sleep(float(self.rng.exponential(0.2)))  # time between clicks

    async def step(self, dice: float) -> None:
        """Do the step that a random number chooses."""
        c = int(self.rng.integers(3))
        some = int(self.rng.choice(list(self.labels)))
        if dice < 0.5:
            picture = self.files[c][self.rng.integers(60)]
            answer = await self.ask("predict", "POST", "/api/predict", content=picture, headers=PNG)
            self.n_strange += (
                answer is not None and {s["label"] for s in answer["probabilities"]} - set(self.classes) != set()
            )
        elif dice < 0.70:
            answer = await self.ask("overview", "GET", "/api/session")
            self.n_strange += answer is not None and {p["id"]: p["class_id"] for p in answer["pictures"]} != self.labels
        elif dice < 0.78 and len(self.labels) < 30:
            await self.add(list(self.classes.values())[c], c)
        elif dice < 0.82 and len(self.labels) < 30:
            await self.add(None, c)
        elif dice < 0.86:
            new = list(self.classes.values())[c]
            if await self.ask("label", "PATCH", f"/api/pictures/{some}", json={"class_id": new}):
                self.labels[some] = new
        elif dice < 0.98 and len(self.labels) > 12:
            if await self.ask("remove", "DELETE", f"/api/pictures/{some}"):
                del self.labels[some]
        else:
            await self.ask("answers", "GET", "/api/answers")


async def load(url: str, process: subprocess.Popen[str], files: dict[int, list[bytes]], n: int, seconds: float) -> Any:
    """Simulate `n` users at once."""
    times: dict[str, list[float]] = {}
    memory = [resident(process)]
    users = [Visitor(url, number, files, times) for number in range(n)]
    await asyncio.gather(*(user.begin() for user in users))
    memory.append(resident(process))
    until = time.perf_counter() + seconds
    visits = asyncio.gather(*(user.visit(until) for user in users))
    while not visits.done():
        await asyncio.wait([visits], timeout=seconds / 6)
        memory.append(resident(process))
    await visits
    lost = 0
    for user in users:
        found = await user.ask("overview", "GET", "/api/session")
        lost += {p["id"]: p["class_id"] for p in found["pictures"]} != user.labels
        await user.http.aclose()
    codes = sum((user.codes for user in users), Counter())
    return {
        "clients": n,
        "seconds": seconds,
        "requests": sum(codes.values()),
        "codes": {str(code): count for code, count in codes.items()},
        "errors": sum(count for code, count in codes.items() if not isinstance(code, int) or code >= 300),
        "users_with_a_lost_label": lost,
        "answers_with_something_of_others": sum(user.n_strange for user in users),
        "pictures_at_end": sum(len(user.labels) for user in users),
        "memory_mib": {"start": memory[0], "after_arrival": memory[1], "during": memory[2:], "end": memory[-1]},
        "median_ms": {kind: round(float(np.median(found)), 1) for kind, found in times.items()},
        "p95_ms": {kind: round(float(np.quantile(found, 0.95)), 1) for kind, found in times.items()},
    }


async def write_until(http: httpx.AsyncClient, files: dict[int, list[bytes]], kept: dict[str, dict[int, int]]) -> None:
    """Add labelled images until the server is gone; keep the acknowledged labels."""
    session = (await http.post("/api/sessions")).json()["session"]
    auth = {"Authorization": f"Bearer {session}"}
    known = kept.setdefault(session, {})
    number = (await http.post("/api/classes", json={"name": "a"}, headers=auth)).json()["id"]
    while True:
        answer = await http.post(
            "/api/examples",
            params={"class_id": number, "copies": True},
            content=files[0][len(known) % 60],
            headers={**PNG, **auth},
        )
        known[answer.json()["id"]] = number


async def kill(folder: Path, files: dict[int, list[bytes]], seconds: float) -> tuple[int, int]:
    """Kill the server during writes of 20 users; return the numbers of acknowledged and of lost labels."""
    kept: dict[str, dict[int, int]] = {}
    with serving(folder) as (url, process):
        clients = [httpx.AsyncClient(base_url=url, timeout=60) for _ in range(20)]
        writers = [asyncio.create_task(write_until(http, files, kept)) for http in clients]
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        await asyncio.gather(*writers, return_exceptions=True)
        for http in clients:
            await http.aclose()
    lost = 0
    with serving(folder) as (url, _), httpx.Client(base_url=url, timeout=60) as http:
        for session, known in kept.items():
            found = http.get("/api/session", headers={"Authorization": f"Bearer {session}"}).json()
            there = {p["id"]: p["class_id"] for p in found["pictures"]}
            lost += sum(there.get(number) != label for number, label in known.items())
    return sum(map(len, kept.values())), lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the load")
    parser.add_argument("--clients", type=int, default=50, help="of the load")
    parser.add_argument("--requests", type=int, default=200, help="of the latencies")
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    files = digit_files()
    result: dict[str, Any] = {"cores": os.cpu_count(), "load_average_before": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as name:
        with serving(Path(name) / "data") as (url, process):
            result["latency"] = latency(url, files, options.requests)
            rows = [[what, f"{t['median_ms']:.1f}", f"{t['p95_ms']:.1f}"] for what, t in result["latency"].items()]
            print(table(["one user", "median ms", "95 % ms"], rows))
            result["load_average_middle"] = round(os.getloadavg()[0], 1)
            result["load"] = asyncio.run(load(url, process, files, options.clients, options.seconds))
            print(result["load"])
        kills = [asyncio.run(kill(Path(name) / f"kill{i}", files, 3.0 + 0.37 * i)) for i in range(options.kills)]
    acknowledged, lost = (sum(column) for column in zip(*kills, strict=True)) if kills else (0, 0)
    result["kills"] = {"n": len(kills), "acknowledged_labels": acknowledged, "lost_labels": lost}
    print(f"{len(kills)} kills: {acknowledged} acknowledged labels, {lost} lost")
    result["load_average_after"] = round(os.getloadavg()[0], 1)
    save("serve", result, seed=SEED)


if __name__ == "__main__":
    main()
