"""The API, as a user calls it over HTTP."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mirrorshot.encoders import make_encoder
from mirrorshot.serve import Limits, answers
from mirrorshot.serve.answers import verdict
from mirrorshot.serve.store import session_key
from mirrorshot.tool import Items, Model, Prediction, read_labelled

from .conftest import png

PNG = {"content-type": "image/png"}


def test_a_user_teaches_three_classes_and_is_answered(taught, picture_of):
    for kind in taught.classes:
        answer = taught.http.post("/api/predict", content=picture_of(kind), headers=PNG).json()
        assert answer["label"] == kind
        assert answer["verdict"] == "sure"
        assert answer["labels"] == [kind]
        shares = [share["probability"] for share in answer["probabilities"]]
        assert sum(shares) == pytest.approx(1.0)
        assert shares == sorted(shares, reverse=True)


def test_answers_are_those_of_the_downloaded_model(taught, picture_of, tmp_path):
    pictures = [picture_of(kind) for kind in ("ring", "bar", "cross")]
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, picture in zip(paths, pictures, strict=True):
        path.write_bytes(picture)
        taught.add(picture, name=path.name)
    (tmp_path / "model").write_bytes(taught.http.get("/api/model").content)
    expected = Model.load(tmp_path / "model").predict(Items("picture", [p.name for p in paths], paths, None))
    got = taught.get("answers")["answers"]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours["label"] == theirs.label
        got_proba = {s["label"]: s["probability"] for s in ours["probabilities"]}
        assert got_proba == pytest.approx(theirs.probabilities, abs=1e-6)
        assert ours["labels"] == list(theirs.labels)
        assert ours["novelty"] == pytest.approx(theirs.novelty)
        assert (ours["verdict"] == "none") == theirs.is_novel


@pytest.mark.parametrize(
    ("probability", "labels", "expected"),
    [(0.79, None, "unsure"), (0.8, None, "sure"), (0.79, ("a",), "unsure"), (0.8, ("a",), "sure"), (0.9, (), "unsure")],
)
def test_a_sure_answer_is_probable_and_alone_in_its_set(probability, labels, expected):
    found = Prediction("x", "a", probability, False, labels, 0.0, 0.0, 0.0, {"a": probability, "b": 1 - probability})
    assert verdict(found) == expected
    assert verdict(found._replace(is_novel=True)) == "none"


def test_answers_about_removed_images_are_forgotten(taught, picture_of, shared):
    stays = taught.add(picture_of("bar"))
    for _ in range(3):
        gone = taught.add(picture_of("ring"))
        assert len(taught.get("answers")["answers"]) == 2
        assert taught.http.delete(f"/api/pictures/{gone}").status_code == 200
    taught.get("answers")
    (cookie,) = taught.http.cookies.jar
    assert set(shared.app.state.service.cache.earlier(session_key(cookie.value)).told) == {stays}


def test_the_suggestion_is_the_picture_that_is_like_no_example(taught, picture_of):
    dull = [taught.add(picture_of("bar")) for _ in range(3)]
    noise = np.random.default_rng(0).integers(0, 255, (40, 40)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    odd = taught.add(file.getvalue())
    found = taught.get("answers")
    assert found["suggestion"] == odd
    assert {answer["picture_id"] for answer in found["answers"]} == {*dull, odd}


def test_labelling_a_picture_of_the_pool_makes_it_an_example(taught, picture_of):
    number = taught.add(picture_of("ring"))
    assert taught.http.patch(f"/api/pictures/{number}", json={"class_id": taught.classes["ring"]}).status_code == 200
    overview = taught.get("session")
    assert {c["name"]: c["n_examples"] for c in overview["classes"]} == {"bar": 4, "cross": 4, "ring": 5}
    assert taught.get("answers")["answers"] == []
    assert taught.get("answers")["suggestion"] is None
    assert taught.get("answers")["support"] == overview["support"]


def test_a_picture_without_label_leaves_the_classifier_as_it_is(taught, shared, picture_of):
    before = taught.get("answers")["support"]
    taught.add(picture_of("ring"))
    assert taught.get("answers")["support"] == before


def test_a_wrong_label_is_suspected(taught, picture_of):
    number = taught.add(picture_of("ring"), taught.classes["bar"])
    (suspect, *_) = taught.get("answers")["suspects"]
    assert suspect["picture_id"] == number
    assert (suspect["label"], suspect["suggested"]) == ("bar", "ring")


def test_examples_can_be_moved_and_removed_and_classes_renamed_and_deleted(taught, picture_of):
    number = taught.add(picture_of("ring"), taught.classes["bar"])
    assert taught.http.patch(f"/api/pictures/{number}", json={"class_id": taught.classes["ring"]}).status_code == 200
    assert taught.http.patch(f"/api/pictures/{number}", json={"class_id": None}).status_code == 200
    assert taught.http.delete(f"/api/pictures/{number}").status_code == 200
    assert taught.http.delete(f"/api/pictures/{number}").status_code == 404
    assert taught.http.patch(f"/api/classes/{taught.classes['bar']}", json={"name": "line"}).status_code == 200
    assert taught.http.delete(f"/api/classes/{taught.classes['cross']}").status_code == 200
    answer = taught.http.post("/api/predict", content=picture_of("bar"), headers=PNG).json()
    assert answer["label"] == "line"
    assert {share["label"] for share in answer["probabilities"]} == {"line", "ring"}
    assert len(taught.get("session")["pictures"]) == 8


def test_calibration_counts_every_example_that_has_a_fellow(taught, picture_of):
    found = taught.get("calibration")
    assert found["n"] == 12
    assert sum(b["n"] for b in found["bins"]) == 12
    assert found["accuracy"] == pytest.approx(sum(b["n"] * b["accuracy"] for b in found["bins"] if b["n"]) / 12)
    gap = sum(b["n"] * abs(b["accuracy"] - b["confidence"]) for b in found["bins"] if b["n"]) / 12
    assert found["ece"] == pytest.approx(gap)
    taught.add(picture_of("ring"), taught.make_class("alone"))
    assert taught.get("calibration")["n"] == 12


def test_without_two_classes_there_are_no_answers_but_words(user, picture_of):
    user.add(picture_of("bar"), user.make_class("bar"))
    for path in ("answers", "calibration", "model"):
        answer = user.http.get(f"/api/{path}")
        assert answer.status_code == 409
        assert answer.json()["error"].startswith("Expected examples of at least two classes, but got 1.")
    assert not user.get("session")["is_ready"]


def test_one_example_for_each_class_is_enough(user, picture_of):
    for kind in ("bar", "ring"):
        user.add(picture_of(kind), user.make_class(kind))
    answer = user.http.post("/api/predict", content=picture_of("ring"), headers=PNG).json()
    assert answer["label"] == "ring"
    assert answer["labels"] is None
    assert user.get("calibration") == {
        "support": 2,
        "n": 0,
        "accuracy": None,
        "confidence": None,
        "ece": None,
        "bins": [],
        "examples": [],
    }


def test_two_users_see_nothing_of_each_other(shared, taught, picture_of):
    other = shared.client().begin()
    number = taught.get("session")["pictures"][0]["id"]
    for method, path, body in [
        ("GET", f"pictures/{number}/preview", None),
        ("DELETE", f"pictures/{number}", None),
        ("PATCH", f"pictures/{number}", {"class_id": None}),
        ("DELETE", f"classes/{taught.classes['bar']}", None),
        ("PATCH", f"classes/{taught.classes['bar']}", {"name": "mine"}),
    ]:
        assert other.http.request(method, f"/api/{path}", json=body).status_code == 404
    stolen = other.http.post(
        "/api/examples", params={"class_id": taught.classes["bar"]}, content=picture_of("bar"), headers=PNG
    )
    assert stolen.status_code == 404
    assert other.get("session")["pictures"] == []
    assert len(taught.get("session")["pictures"]) == 12


def test_a_session_id_serves_as_bearer_and_as_cookie(shared):
    client = shared.client()
    session = client.http.post("/api/sessions").json()["session"]
    client.make_class("by cookie")
    client.http.cookies.clear()
    assert client.http.get("/api/session").status_code == 401
    found = client.http.get("/api/session", headers={"Authorization": f"Bearer {session}"}).json()
    assert [c["name"] for c in found["classes"]] == ["by cookie"]
    assert client.http.get("/api/session", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_deleting_a_session_deletes_all_of_it(taught, shared):
    key = shared.app.state.service.store
    number = taught.get("session")["pictures"][0]["id"]
    assert taught.http.delete("/api/session").status_code == 200
    assert taught.http.get("/api/session").status_code == 401
    assert key.database.read("SELECT * FROM picture WHERE id = ?", (number,)) == []


def test_a_restart_loses_nothing_and_changes_no_answer(serve, picture_of):
    first = serve()
    client = first.client().begin()
    for kind in ("bar", "ring", "bar", "ring"):
        known = {c["name"]: c["id"] for c in client.get("session")["classes"]}
        client.add(picture_of(kind), known.get(kind) or client.make_class(kind))
    number = client.add(picture_of("cross"), name="what.png")
    before = [client.get(path) for path in ("session", "answers", "calibration")]
    preview = client.http.get(f"/api/pictures/{number}/preview").content
    second = serve()  # the same folder; what the first one has acknowledged is there
    again = second.client(cookies=client.http.cookies)
    after = [again.get(path) for path in ("session", "answers", "calibration")]
    assert after[0] == before[0]
    assert round_numbers(after[1:]) == round_numbers(before[1:])
    assert again.http.get(f"/api/pictures/{number}/preview").content == preview
    assert Image.open(io.BytesIO(preview)).size == (128, 128)


def round_numbers(found):
    """JSON with its numbers rounded; a classifier that was brought up to date agrees to 1e-6 with a new one."""
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 5))


def test_new_users_begin_with_the_examples_of_a_model(serve, tmp_path, picture_of, write_pictures):
    model = Model.fit(read_labelled(write_pictures(tmp_path / "support")), make_encoder("glyphs"))
    server = serve(model)
    users = [server.client().begin() for _ in range(2)]
    assert [len(user.get("session")["pictures"]) for user in users] == [12, 12]
    users[0].http.delete(f"/api/classes/{users[0].get('session')['classes'][0]['id']}")
    assert [len(user.get("session")["pictures"]) for user in users] == [8, 12]
    assert users[1].http.post("/api/predict", content=picture_of("bar"), headers=PNG).json()["label"] == "bar"


def test_the_first_picture_settles_the_encoder(user, picture_of):
    assert user.get("session")["encoder"] is None
    user.add(picture_of("bar"))
    assert user.get("session")["encoder"] == "glyphs"


def test_an_encoder_can_be_chosen_but_only_one_of_the_server(user, picture_of):
    assert user.http.put("/api/encoder", json={"name": "pixels"}).status_code == 200
    user.add(picture_of("bar"))
    assert user.get("session")["encoder"] == "pixels"
    for name in ("os:system", "timm:resnet18", "/etc", "embeddings", ""):
        answer = user.http.put("/api/encoder", json={"name": name})
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("Expected an encoder of this server (auto, glyphs, pixels)")


def test_the_example_of_the_guide_runs(shared, capsys):
    guide = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", guide, flags=re.DOTALL).groups()
    names = {"__name__": "guide"}
    exec(compile(code.replace("http://127.0.0.1:8000", shared.url), "serve.md", "exec"), names)
    names["http"].close()
    assert capsys.readouterr().out == printed


def test_the_guide_has_the_limits_that_are_set():
    guide = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    limits = Limits()
    for row in (
        f"| bytes of an image | {limits.upload_bytes // 2**20} MiB |",
        f"| pixels of an image | {limits.pixels // 10**6} millions |",
        f"| classes of a user | {limits.classes} |",
        f"| labelled images of a user | {limits.examples} |",
        f"| unlabelled images of a user | {limits.pool} |",
        f"| new sessions a minute from one address | {limits.sessions_per_minute} |",
        f"| sessions | {limits.sessions:,} |",
        f"| database | {limits.store_bytes // 2**30} GiB |",
    ):
        assert row in guide


def test_every_operation_is_documented_with_its_problems(shared):
    document = shared.client().http.get("/openapi.json").json()
    operations = [(m, p, o) for p, methods in document["paths"].items() for m, o in methods.items()]
    assert len(operations) >= 17
    for method, path, operation in operations:
        assert operation["description"], (method, path)
        if path != "/api/health":
            assert operation["responses"]["403"]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_loads_nothing_from_elsewhere(shared, path):
    answer = shared.client().http.get(path)
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("<!doctype html>", "")  # no address at all
    assert "<style" not in answer.text
    assert " style=" not in answer.text
    assert "onclick" not in answer.text


def test_scripts_of_the_page_never_make_html_of_text(shared):
    from importlib.resources import files

    scripts = [file for file in (files("mirrorshot.serve") / "static").iterdir() if file.name.endswith(".js")]
    assert len(scripts) >= 6
    for script in scripts:
        text = script.read_text()
        for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "http"):
            assert banned not in text.replace("http://www.w3.org/2000/svg", ""), (script.name, banned)
        assert shared.client().http.get(f"/static/{script.name}").text == text


def test_calibration_has_each_example_predicted_from_the_others(taught):
    found = taught.get("calibration")
    assert len(found["examples"]) == found["n"] == 12
    assert np.mean([example["is_right"] for example in found["examples"]]) == pytest.approx(found["accuracy"])
    assert np.mean([example["probability"] for example in found["examples"]]) == pytest.approx(found["confidence"])
    ids = {picture["id"] for picture in taught.get("session")["pictures"]}
    assert {example["picture_id"] for example in found["examples"]} == ids


def test_answers_are_computed_once_until_the_examples_change(taught, picture_of, monkeypatch):
    asked, predict = [], answers.predict
    monkeypatch.setattr(
        answers, "predict", lambda fitted, names, X: asked.append(len(names)) or predict(fitted, names, X)
    )
    first = taught.add(picture_of("ring"))
    before = taught.get("answers")["answers"]
    taught.add(picture_of("bar"))
    after = taught.get("answers")["answers"]
    assert after[0] == before[0]
    taught.http.patch("/api/pictures", json={"changes": [{"picture_id": first, "is_none": True}]})
    assert taught.get("answers")["answers"] == after
    assert asked == [1, 1]
    taught.add(picture_of("cross"), taught.classes["cross"])
    assert len(taught.get("answers")["answers"]) == 2
    assert asked == [1, 1, 2]


def test_an_upload_says_which_encoder_is_made_for_the_image(taught, picture_of):
    colours = np.random.default_rng(0).integers(0, 255, (6, 6, 3)).astype(np.uint8)
    scene = png(Image.fromarray(colours).resize((96, 96), Image.Resampling.BICUBIC))
    for picture, best in ((picture_of("ring"), "glyphs"), (scene, "pixels")):
        found = taught.http.post("/api/pool", content=picture, headers=PNG).json()
        assert (found["encoder"], found["best"]) == ("glyphs", best)
