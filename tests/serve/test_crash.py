"""A server that is ended in the middle of writes: what it has acknowledged is there."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest

PNG = {"content-type": "image/png"}


@contextlib.contextmanager
def serving(folder, program=("-m", "mirrorshot")):
    """`mirrorshot serve` as a process of its own; its address, and the process."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "--port", "0", "--data-folder", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        line = process.stderr.readline()
        assert line.startswith("mirrorshot serve: http"), line + process.stderr.read()
        yield line.split()[-1].rstrip("/"), process
    finally:
        process.kill()
        process.wait(300)
        process.stderr.close()


def write_until_it_dies(url, seed, pictures, acknowledged):
    """Add, label and remove pictures; keep what a correct server must still know: picture -> class, or None."""
    rng = np.random.default_rng(seed)
    with httpx.Client(base_url=url, timeout=300) as http, contextlib.suppress(httpx.TransportError):
        session = http.post("/api/sessions").json()["session"]
        known, doubtful = acknowledged.setdefault(session, ({}, set()))
        classes = [http.post("/api/classes", json={"name": name}).json()["id"] for name in ("a", "b")]
        while True:
            picture = pictures[rng.integers(len(pictures))]
            chosen = classes[rng.integers(2)]
            answer = http.post(
                "/api/examples", params={"class_id": chosen, "copies": True}, content=picture, headers=PNG
            )
            if answer.status_code == 503:  # it is being stopped
                return
            number = answer.json()["id"]
            known[number] = chosen
            other = int(rng.choice([number, *known]))
            doubtful.add(other)  # a change that is never acknowledged may have happened or not
            if rng.random() < 0.5:
                new = classes[rng.integers(2)]
                if http.patch(f"/api/pictures/{other}", json={"class_id": new}).status_code == 503:
                    return
                known[other] = new
            elif len(known) > 3:
                if http.delete(f"/api/pictures/{other}").status_code == 503:
                    return
                del known[other]
            doubtful.clear()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_every_acknowledged_label_survives_a_kill(tmp_path, picture_of, sig):
    check_kill(tmp_path, picture_of, seed=0, n_pictures=20, sig=sig)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_every_acknowledged_label_survives_ten_kills(tmp_path, picture_of, seed):
    check_kill(tmp_path, picture_of, seed, n_pictures=12 + 7 * seed)


def wait_for(acknowledged, n_writers, n_pictures):
    """Until every writer has a picture, and so many pictures in all are known to them."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        counts = [len(known) for known, _ in list(acknowledged.values())]
        if len(counts) == n_writers and min(counts) > 0 and sum(counts) >= n_pictures:
            return
        time.sleep(0.01)
    raise AssertionError(f"Expected {n_pictures} pictures of {n_writers} writers, but got {acknowledged}.")


def check_kill(tmp_path, picture_of, seed, n_pictures, sig=signal.SIGKILL):
    pictures = [picture_of(kind) for kind in ("bar", "cross", "ring")]
    acknowledged = {}
    with serving(tmp_path / "data") as (url, process):
        writers = [
            threading.Thread(target=write_until_it_dies, args=(url, 100 * seed + i, pictures, acknowledged))
            for i in range(4)
        ]
        for writer in writers:
            writer.start()
        wait_for(acknowledged, len(writers), n_pictures)
        process.send_signal(sig)
        process.wait(300)
        for writer in writers:
            writer.join(300)
    with serving(tmp_path / "data") as (url, _), httpx.Client(base_url=url, timeout=300) as http:
        for session, (known, doubtful) in acknowledged.items():
            found = http.get("/api/session", headers={"Authorization": f"Bearer {session}"}).json()
            there = {picture["id"]: picture["class_id"] for picture in found["pictures"]}
            for number, class_id in known.items():
                if number not in doubtful:
                    assert there[number] == class_id
            assert len(set(there) - set(known)) <= 1  # the one that was on its way


STALLS = """
import sys, time
from mirrorshot.serve.images import Encoders
encode, left = Encoders.encode, {n}
def stalling(self, encoder, image):
    global left
    if encoder.startswith("pixels") and image.size == (40, 40):
        left -= 1
        while left < 0:
            time.sleep(1)
    return encode(self, encoder, image)
Encoders.encode = stalling
from mirrorshot.cli import main
main()
"""


def wait_until_encoded(http, n_done):
    """Wait until so many images are encoded anew; None: until the change has ended."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        change = http.get("/api/encoder").json()["change"]
        if (change and change["n_done"]) == n_done:
            return
        time.sleep(0.01)
    raise AssertionError(f"Expected {n_done} images to be encoded, but got {change}.")


def test_a_killed_server_resumes_a_change_of_the_encoder(tmp_path, picture_of):
    folder, headers = tmp_path / "data", {}
    for n_new, n_done in ((4, 4), (3, 7), (None, None)):
        program = ("-m", "mirrorshot") if n_new is None else ("-c", STALLS.format(n=n_new))
        with serving(folder, program) as (url, process), httpx.Client(base_url=url, timeout=300) as http:
            if not headers:
                headers["Authorization"] = f"Bearer {http.post('/api/sessions').json()['session']}"
                classes = [http.post("/api/classes", json={"name": name}).json()["id"] for name in ("bar", "ring")]
                for class_id, kind in zip(classes, ("bar", "ring"), strict=True):
                    for _ in range(6):
                        http.post("/api/examples", params={"class_id": class_id}, content=picture_of(kind), headers=PNG)
                assert http.put("/api/encoder", json={"name": "pixels"}).status_code == 200
            http.headers.update(headers)
            wait_until_encoded(http, n_done)  # what was done before a kill is not done again
            found = http.get("/api/session").json()
            assert found["encoder"] == ("pixels" if n_new is None else "glyphs")
            assert [picture["class_id"] for picture in found["pictures"]] == 6 * classes[:1] + 6 * classes[1:]
            assert http.post("/api/predict", content=picture_of("ring"), headers=PNG).json()["label"] == "ring"
            process.send_signal(signal.SIGKILL)
            process.wait(300)
