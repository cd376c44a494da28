"""Images that stop decoders: the server refuses or takes them, and goes on."""

import contextlib
import itertools
import os
import signal
import threading
from pathlib import Path

import httpx
import pytest

PNG = {"content-type": "image/png"}
_FILE = Path(__file__).parents[1] / "files" / "imaging" / "hostile_images.py"
_STEP, _MAX_BYTES = 4, 10_000  # the tests of `imaging` send all of them to a worker


@pytest.fixture(scope="module")
def hostile(load_file):
    return load_file(_FILE)


def processes(server):
    return [worker._process.pid for worker in server.app.state.service.workers._running]


def test_hostile_images_are_answered(shared, picture_of, hostile):
    client = shared.client().begin()
    for kind in ("bar", "ring"):
        client.add(picture_of(kind), client.make_class(kind))
    before = processes(shared)
    for name, content in itertools.islice(hostile.hostile_images(), 0, None, _STEP):
        if len(content) < _MAX_BYTES:
            answer = client.http.post("/api/predict", content=content, headers=PNG)
            assert answer.status_code in (200, 422), (name, answer.text)
            if answer.status_code == 422:
                assert answer.json()["error"].startswith("Expected an image that can be read, but got: "), name
    assert processes(shared) == before


@pytest.mark.parametrize("key", ["comment", "transparency"])
def test_texts_in_an_image_reach_no_encoder(user, hostile, key):
    for _, text in hostile.text_chunks(key, hostile.TWO_BYTES * 40_000):
        answer = user.http.post("/api/pool", params={"copies": True}, content=hostile.png(text), headers=PNG)
        assert answer.status_code == 201, answer.text
        preview = user.http.get(f"/api/pictures/{answer.json()['id']}/preview").content
        assert len(preview) < 5000


def signalled(serve, picture_of, number):
    """A server with one image and its user, after a signal to every decoder."""
    server = serve()
    user = server.client().begin()
    user.add(picture_of("bar"))
    for pid in processes(server):
        os.kill(pid, number)
    return server, user


def test_decoders_that_crash_are_replaced(serve, picture_of):
    _, user = signalled(serve, picture_of, signal.SIGSEGV)
    codes = [user.http.post("/api/pool", content=picture_of("bar"), headers=PNG).status_code for _ in range(6)]
    assert 1 <= codes.count(422) <= 2
    assert codes[-1] == 201


def test_a_server_whose_decoders_hang_can_be_stopped(serve, picture_of):
    server, user = signalled(serve, picture_of, signal.SIGSTOP)
    codes = []

    def upload():
        with contextlib.suppress(httpx.HTTPError):  # the server may be gone before it answers
            codes.append(user.http.post("/api/pool", content=picture_of("bar"), headers=PNG).status_code)

    threads = [threading.Thread(target=upload, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    threads[0].join(0.5)
    server.app.state.service.workers.close()
    for thread in threads:
        thread.join(300)
    assert set(codes) == {503}
