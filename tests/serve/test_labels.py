"""Labels go out and come back: CSV, JSON and Label Studio; copies are told; changes are made together."""

import csv
import io
import json

import pytest

from mirrorshot.serve import Limits
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.labels import Label, match, read_labels
from mirrorshot.serve.records import Picture

from .conftest import KINDS, PNG

FORMS = ("json", "csv", "label-studio")
MEDIA = {"json": "application/json", "csv": "text/csv", "label-studio": "application/json"}


@pytest.fixture
def busy(taught, picture_of):
    """A user with examples, accepted answers, an image that is none of the classes, and one that is open."""
    taught.files = [picture_of(kind) for kind in (*KINDS, "ring")]
    taught.pool = [taught.add(file, name="same.png") for file in taught.files]
    ring, bar = taught.classes["ring"], taught.classes["bar"]
    changes = [
        {"picture_id": taught.pool[0], "accepted_id": bar},
        {"picture_id": taught.pool[1], "is_none": True},
        {"picture_id": taught.pool[2], "class_id": ring},
    ]
    assert taught.http.patch("/api/pictures", json={"changes": changes}).status_code == 200
    return taught


def states(client):
    overview = client.get("session")
    names = {found["id"]: found["name"] for found in overview["classes"]}
    return [
        (names.get(p["class_id"]), names.get(p["accepted_id"]), p["is_none"])
        for p in overview["pictures"]
        if p["name"] == "same.png"
    ]


def exported(client, form):
    answer = client.http.get("/api/labels", params={"form": form})
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    return answer.content


def imported(client, content, form):
    return client.http.post("/api/labels", content=content, headers={"content-type": MEDIA[form]})


@pytest.mark.parametrize("form", FORMS)
def test_labels_come_back_in_a_new_session(shared, busy, form):
    content = exported(busy, form)
    other = shared.client().begin()
    for file in reversed(busy.files):  # equal names in another order: the content tells them apart
        other.add(file, name="same.png")
    answer = imported(other, content, form)
    assert answer.status_code == 200, answer.text
    assert answer.json()["n_unmatched"] == 12  # the examples, which the new session does not have
    assert {k: v for k, v in answer.json().items() if k.startswith("n_") and k != "n_unmatched"} == {
        "n_examples": 1,
        "n_accepted": 1,
        "n_none": 1,
    }
    assert sorted(states(other), key=str) == sorted(states(busy), key=str)


def test_tables_have_a_line_for_each_image_and_the_answers(busy):
    rows = list(csv.DictReader(io.StringIO(exported(busy, "csv").decode())))
    assert len(rows) == 16
    assert len({row["name"] for row in rows}) == 16
    answered = [row for row in rows if row["how"] != "example"]
    assert all(0 < float(row["probability"]) <= 1 for row in answered)
    tasks = json.loads(exported(busy, "label-studio"))
    chosen = [task["annotations"][0]["result"][0]["value"]["choices"] for task in tasks if task["annotations"]]
    assert chosen.count(["ring"]) == 5
    assert ["none of these"] in chosen


def test_exports_of_label_studio_are_understood():
    whole = [
        {
            "id": 7,
            "data": {"image": "/data/upload/1/1a2b3c4d-owl.png"},
            "annotations": [{"result": [{"type": "choices", "value": {"choices": ["owl"]}}]}],
        }
    ]
    small = [{"image": "/data/upload/1/1a2b3c4d-owl.png", "choice": "owl", "id": 7}]
    for tasks in (whole, small):
        (label,) = labels = read_labels(json.dumps(tasks).encode(), "application/json")
        assert label == Label("1a2b3c4d-owl.png", "", "owl", "")
        found, _ = match(labels, [Picture(3, "owl.png", None)], {})
        assert list(found) == [3]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'{"labels": []}',
        b'[{"data": {}}]',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": "mirrorshot-labels", "labels": [{"name": 1, "label": "a"}]}',
        b'{"format": "mirrorshot-labels", "labels": [{"name": "a", "label": "b", "how": "perhaps"}]}',
        b'{"format": "mirrorshot-labels", "labels": [{"name": "a", "label": "\\u202e"}]}',
    ],
)
def test_other_files_are_refused(content):
    with pytest.raises(RequestError, match="a file of labels"):
        read_labels(content, "application/json")


def test_other_tables_are_refused(user):
    answer = imported(user, b"a,b\n1,2\n", "csv")
    assert answer.status_code == 422
    assert "columns name and label" in answer.json()["error"]
    assert user.http.post("/api/labels", content=b"x", headers=PNG).status_code == 415
    too_large = user.http.post("/api/labels", content=b"x" * (2**20 + 1), headers={"content-type": "text/csv"})
    assert too_large.status_code == 413
    assert user.http.get("/api/labels", params={"form": "xml"}).status_code == 422


@pytest.mark.parametrize(
    "content",
    [
        "name;label\nowl.png;owl\n",
        "name\tlabel\nowl.png\towl\n",
        " Name ,LABEL\nowl.png,owl\n",
        "name,label\r\nowl.png,owl\r\n".encode("utf-16"),
    ],
)
def test_tables_of_spreadsheets_are_understood(content):
    content = content if isinstance(content, bytes) else content.encode()
    assert read_labels(content, "text/csv") == [Label("owl.png", "", "owl", "")]


def test_a_file_in_another_encoding_says_how_to_save_it():
    with pytest.raises(RequestError, match="Save it as UTF-8"):
        read_labels("name,label\nbär.png,bär\n".encode("latin-1"), "text/csv")


def test_a_file_of_a_newer_version_is_refused():
    with pytest.raises(RequestError, match="it has version 2, and this server reads 1"):
        read_labels(b'{"format": "mirrorshot-labels", "version": 2, "labels": []}', "application/json")


@pytest.mark.parametrize("form", FORMS)
def test_an_edited_label_replaces_none_of_these(busy, form):
    rows = read_labels(exported(busy, form).replace(b"none of these", b"owl"), MEDIA[form])
    assert [(row.label, row.how) for row in rows if row.label == "owl"] == [("owl", "")]


def test_no_class_is_called_none_of_these(user):
    for name in ("none of these", " None of these"):
        answer = user.http.post("/api/classes", json={"name": name})
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("Expected another name")
    (row,) = read_labels(b"name,label\na.png,None of these\n", "text/csv")
    assert (row.label, row.how) == ("none of these", "none")


def test_labels_beyond_the_limit_are_accepted_and_classes_take_turns(serve, picture_of):
    client = serve(limits=Limits(examples=4, sessions_per_minute=1000)).client().begin()
    for i in range(8):
        client.add(picture_of("bar"), name=f"{i}.png")
    table = "name,label\n" + "".join(f"{i}.png,{'a' if i < 6 else 'b'}\n" for i in range(8))
    answer = imported(client, table.encode(), "csv").json()
    assert (answer["n_examples"], answer["n_accepted"]) == (4, 4)
    overview = client.get("session")
    assert [found["n_examples"] for found in overview["classes"]] == [2, 2]


def test_an_image_is_stored_once(taught, picture_of):
    file, bar, ring = picture_of("bar"), taught.classes["bar"], taught.classes["ring"]

    def send(path, **values):
        return taught.http.post(f"/api/{path}", params=values, content=file, headers=PNG)

    first = send("pool")
    assert (first.status_code, first.json()["is_new"]) == (201, True)
    again = send("examples", class_id=bar)  # it is there, and gets the label
    assert (again.status_code, again.json()["id"], again.json()["is_new"]) == (200, first.json()["id"], False)
    assert send("pool").status_code == 200
    other = send("examples", class_id=ring)
    assert other.status_code == 409
    assert "of class 'bar'" in other.json()["error"]
    assert send("examples", class_id=ring, copies=True).status_code == 201


def test_a_copy_is_described_as_it_is_stored(taught, picture_of):
    file = picture_of("ring")
    stored = taught.add(file, taught.classes["ring"], "first.png")
    answer = taught.http.post("/api/pool", params={"name": "second.png"}, content=file, headers=PNG).json()
    assert not answer["is_new"]
    assert (answer["id"], answer["name"], answer["class_id"]) == (stored, "first.png", taught.classes["ring"])


def test_changes_are_made_together_or_not_at_all(busy):
    before = busy.get("session")
    ring = busy.classes["ring"]
    good = {"picture_id": busy.pool[3], "accepted_id": ring}
    for bad in (
        {"picture_id": 10**9, "accepted_id": ring},
        {"picture_id": busy.pool[3], "accepted_id": 10**9},
        {"picture_id": busy.pool[3], "accepted_id": ring, "is_none": True},
    ):
        assert busy.http.patch("/api/pictures", json={"changes": [good, bad]}).status_code in (404, 422)
    assert busy.get("session") == before
    assert busy.http.patch("/api/pictures", json={"changes": []}).status_code == 422


def test_accepted_answers_are_not_learned_from_and_not_asked_about(busy):
    support = busy.get("session")["support"]
    answers = busy.get("answers")
    assert answers["suggestion"] == busy.pool[3]
    assert {answer["picture_id"] for answer in answers["answers"]} == {busy.pool[0], busy.pool[1], busy.pool[3]}
    change = {"picture_id": busy.pool[3], "is_none": True}
    busy.http.patch("/api/pictures", json={"changes": [change]})
    assert busy.get("session")["support"] == support
    assert busy.get("answers")["suggestion"] is None


def test_labels_of_others_cannot_be_changed(shared, busy):
    other = shared.client().begin()
    change = {"picture_id": busy.pool[3], "is_none": True}
    assert other.http.patch("/api/pictures", json={"changes": [change]}).status_code == 404
