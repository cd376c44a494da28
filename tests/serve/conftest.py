"""Servers for tests: real ones, on a port of this machine, in a thread."""

import contextlib
import dataclasses
import io
import socket
import threading

import httpx
import numpy as np
import pytest
from PIL import Image

from mirrorshot.serve import Limits, Settings, make_app
from mirrorshot.serve.images import Encoders
from mirrorshot.serve.running import make_server

PNG = {"content-type": "image/png"}
KINDS = ("bar", "cross", "ring")
PATIENT = {"idle_seconds": 300.0, "body_seconds": 300.0}  # no client of a busy machine is cut off


class Client:
    """A user with a session of its own."""

    def __init__(self, url, **options):
        self.http = httpx.Client(base_url=url, timeout=300, **options)

    def begin(self):
        assert self.http.post("/api/sessions").status_code == 201
        return self

    def make_class(self, name):
        answer = self.http.post("/api/classes", json={"name": name})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def add(self, picture, class_id=None, name="picture.png"):
        values = {"name": name, "copies": True} | ({} if class_id is None else {"class_id": class_id})
        path = "/api/pool" if class_id is None else "/api/examples"
        answer = self.http.post(path, params=values, content=picture, headers=PNG)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def get(self, path):
        answer = self.http.get(f"/api/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@dataclasses.dataclass
class Running:
    url: str
    folder: object
    app: object
    clients: list = dataclasses.field(default_factory=list)

    def client(self, **options):
        """A user that is closed with the server."""
        self.clients.append(Client(self.url, **options))
        return self.clients[-1]


@pytest.fixture(scope="session")
def encoders():
    return Encoders(download=False)


@pytest.fixture
def picture_of():
    """Makes the same PNG files in every order of the tests."""
    return picture_maker()


def picture_maker():
    """Make PNG files of crosses, bars and rings, each a little different."""
    rng = np.random.default_rng(0)

    def make(kind):
        page = rng.integers(235, 250, (40, 40)).astype(np.uint8)
        x, y, thick = rng.integers(12, 18), rng.integers(12, 18), rng.integers(3, 6)
        if kind in ("bar", "cross"):
            page[4:36, x : x + thick] = 15
        if kind == "cross":
            page[y : y + thick, 4:36] = 15
        if kind == "ring":
            rows, columns = np.ogrid[:40, :40]
            radius = np.hypot(rows - 20, columns - 20)
            page[(radius > 15 - thick) & (radius < 15)] = 15
        return png(Image.fromarray(page))

    return make


def png(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@contextlib.contextmanager
def running(settings, encoders, model=None, port=0):
    app = make_app(settings, encoders, model)
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.listen()
    server = make_server(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    server_for_tests = Running(f"http://127.0.0.1:{bound.getsockname()[1]}", settings.data_folder, app)
    try:
        yield server_for_tests
    finally:
        for client in server_for_tests.clients:
            client.http.close()
        server.should_exit = True
        thread.join(300)
        bound.close()


@pytest.fixture
def serve(tmp_path, encoders):
    """Start servers with settings of one's own; all end with the test."""
    with contextlib.ExitStack() as stack:

        def start(model=None, limits=None, **settings):
            chosen = Settings(
                tmp_path / "data", limits=limits or Limits(sessions_per_minute=1000, **PATIENT), **settings
            )
            own = encoders if model is None else Encoders(model=model, download=False)
            return stack.enter_context(running(chosen, own, model))

        yield start


@pytest.fixture(scope="module")
def shared(tmp_path_factory, encoders):
    """One server for many tests, each with a session of its own."""
    settings = Settings(tmp_path_factory.mktemp("serve"), limits=Limits(sessions_per_minute=100_000, **PATIENT))
    with running(settings, encoders) as server:
        yield server


@pytest.fixture
def user(shared):
    return shared.client().begin()


@pytest.fixture
def taught(user, picture_of):
    """A user with three classes of four examples each; `user.classes` has their ids."""
    user.classes = {kind: user.make_class(kind) for kind in KINDS}
    for _ in range(4):
        for kind, number in user.classes.items():
            user.add(picture_of(kind), number, f"{kind}.png")
    return user
