"""What nobody sends by accident: no answer is a 500, nothing hangs, nothing is written outside the data folder."""

import http.client
import io
import json
import resource
import struct
import urllib.parse
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from .conftest import picture_maker

PNG = {"content-type": "image/png"}
SCRIPTS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "javascript:alert(1)",
    "'; DROP TABLE picture; --",
    "\u202egnp.exe",
    "\U0001d54f" * 20,
    "\x7f",
    "a\x00b",
    "a\nb",
    "\ufeff",
    "%00",
    "../../../etc/passwd",
)
NAMES = (*SCRIPTS, "..", ".", "/", "C:\\Windows\\win.ini", "~/.ssh/id_rsa", "x" * 900, "con", "%2e%2e%2f", "")


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(width, height, data=b"", depth=8, colour=2):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def encoded(picture, form, **options):
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def zip_bomb():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 10**7)
    return file.getvalue()


def pictures_that_are_none():
    grey = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 30)).astype(np.uint8))
    good = encoded(grey, "PNG")
    text_bomb = chunk(b"zTXt", b"c\0\0" + zlib.compress(b"a" * 10**7))
    cases = {
        "nothing": b"",
        "text": b"hello",
        "html": b"<html><script>alert(1)</script></html>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "xml entities": b'<!DOCTYPE a [<!ENTITY b "bbbb">]><a>&b;</a>',
        "zip bomb": zip_bomb(),
        "gzip": zlib.compress(b"\0" * 10**6),
        "pdf": b"%PDF-1.7\n1 0 obj",
        "elf": b"\x7fELF" + b"\0" * 100,
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(%pipe%id) (r) file\n",
        "pixel bomb": png_of(2**16, 2**16),
        "wide bomb": png_of(2**31 - 1, 1),
        "no pixels": png_of(0, 0),
        "no width": png_of(0, 10),
        "too little data": png_of(100, 100),
        "data bomb": png_of(8, 8, b"\0" * 10**7),
        "text bomb": good[:33] + text_bomb + good[33:],
        "depth of 3": png_of(8, 8, b"\0" * 500, depth=3),
        "colour of 9": png_of(8, 8, b"\0" * 500, colour=9),
        "float tiff": encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"),
        "gif of nothing": b"GIF89a\xff\xff\xff\xff\x00\x00\x00;",
        "bmp of negative size": b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, -5, -5, 1, 24, 0, 0, 0, 0, 0, 0),
        "jpeg of markers": b"\xff\xd8" + b"\xff\xe0\x00\x02" * 1000 + b"\xff\xd9",
        "webp of lies": b"RIFF\xff\xff\xff\xffWEBPVP8 \xff\xff\xff\xff",
        "tiff loop": b"II*\0\x08\0\0\0\x01\0\x00\x01\x03\0\x01\0\0\0\x08\0\0\0\x08\0\0\0",
    }
    for form in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"):
        content = encoded(grey, form)
        for share in (0.1, 0.5, 0.9):
            cases[f"{form} cut at {share}"] = content[: int(share * len(content))]
    return cases


NO_PICTURES = pictures_that_are_none()


def is_sentence(answer):
    message = answer.json()["error"]
    assert message.startswith("Expected "), message
    assert message.endswith((".", "/docs."))
    assert "Traceback" not in message
    return True


@pytest.mark.parametrize("name", NO_PICTURES)
def test_what_is_no_picture_is_refused_in_words(user, name):
    answer = user.http.post("/api/pool", content=NO_PICTURES[name], headers=PNG)
    if answer.status_code == 201:  # decoders forgive some damage
        assert name.split()[0] in ("data", "text", "BMP", "GIF", "TIFF", "JPEG", "WEBP", "PNG")
    else:
        assert answer.status_code == 422, answer.text
        assert is_sentence(answer)
        assert user.get("session")["pictures"] == []


@pytest.mark.parametrize(
    "picture",
    [
        Image.new("1", (9, 9)),
        Image.new("L", (1, 1)),
        Image.new("L", (1, 3000)),
        Image.new("L", (3000, 1)),
        Image.new("LA", (5, 5)),
        Image.new("P", (5, 5)),
        Image.new("RGBA", (5, 5)),
        Image.new("I;16", (5, 5)),
        Image.new("RGB", (2000, 2000), "white"),
    ],
    ids=lambda picture: f"{picture.mode} {picture.size}",
)
def test_odd_pictures_are_pictures(user, picture):
    assert user.http.post("/api/pool", content=encoded(picture, "PNG"), headers=PNG).status_code == 201


@pytest.mark.parametrize("encoder", ["glyphs", "pixels"])
@pytest.mark.parametrize("shades", [(0, 0), (255, 255), (0, 255), (0, 0, 0, 0), (128, 128, 7)], ids=str)
def test_blank_pictures_in_every_class_are_answered_all_the_same(user, encoder, shades):
    user.http.put("/api/encoder", json={"name": encoder})
    pictures = [encoded(Image.new("L", (9, 9), shade), "PNG") for shade in shades]
    for i, picture in enumerate(pictures):
        user.add(picture, user.make_class(str(i)))
        user.add(picture)
    answer = user.http.post("/api/predict", content=pictures[0], headers=PNG).json()
    shares = [share["probability"] for share in answer["probabilities"]]
    assert sum(shares) == pytest.approx(1.0)
    assert len(user.get("answers")["answers"]) == len(shades)
    assert user.get("calibration")["n"] == 0


def test_a_picture_that_says_it_is_another_is_decoded_as_what_it_is(user, picture_of):
    for kind in ("image/svg+xml", "image/gif", "application/octet-stream", "IMAGE/PNG; charset=utf-8"):
        answer = user.http.post("/api/pool", content=picture_of("bar"), headers={"content-type": kind})
        assert answer.status_code == 201
        preview = user.http.get(f"/api/pictures/{answer.json()['id']}/preview")
        assert preview.headers["content-type"] == "image/jpeg"
        assert preview.content.startswith(b"\xff\xd8")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_is_only_ever_text(user, shared, picture_of, name):
    answer = user.http.post("/api/pool", params={"name": name}, content=picture_of("bar"), headers=PNG)
    assert answer.status_code == 201
    kept = answer.json()["name"]
    assert kept.isprintable()
    assert "/" not in kept
    assert "\\" not in kept
    assert 0 < len(kept) <= 120
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", ["👩\u200d🚀.png", "می\u200cشود.jpg", "naïve café.png"])
def test_file_names_of_emoji_and_other_scripts_survive(user, picture_of, name):
    answer = user.http.post("/api/pool", params={"name": name}, content=picture_of("bar"), headers=PNG)
    assert answer.json()["name"] == name


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_class_name_is_refused_or_only_ever_text(user, name):
    answer = user.http.post("/api/classes", json={"name": name})
    if answer.status_code == 201:
        found = user.http.get("/api/session")
        assert found.json()["classes"][0]["name"] == name.strip()
        assert found.headers["content-type"] == "application/json"
        assert found.headers["x-content-type-options"] == "nosniff"
    else:
        assert answer.status_code == 422
        assert is_sentence(answer)


def test_names_of_classes_and_pictures_come_back_from_a_model_as_they_were(user, picture_of, tmp_path):
    from mirrorshot.tool import Model

    for name in ("<script>alert(1)</script>", "'; DROP TABLE picture; --"):
        user.add(picture_of("bar"), user.make_class(name), "../../x.png")
    (tmp_path / "model").write_bytes(user.http.get("/api/model").content)
    model = Model.load(tmp_path / "model")
    assert model.names == ["x.png", "x.png (2)"]
    assert set(model.classes) == {"<script>alert(1)</script>", "'; DROP TABLE picture; --"}


NUMBERS = (
    "0",
    "-1",
    "9007199254740992",
    "1e400",
    "NaN",
    "1.5",
    "0x1",
    "",
    "true",
    "null",
    "1 or 1=1",
    "\uff11",
    "9" * 400,
)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("path", ["/api/pictures/{}", "/api/classes/{}", "/api/examples?class_id={}"])
def test_numbers_that_are_no_ids_are_refused(user, picture_of, path, number):
    path = path.format(urllib.parse.quote(number))
    method, body = ("POST", picture_of("bar")) if "?" in path else ("DELETE", b"")
    answer = user.http.request(method, path, content=body, headers=PNG)
    assert answer.status_code in (404, 405, 422)
    assert is_sentence(answer)


BODIES = (
    "", "{", "[]", "null", '"name"', "{}", '{"name": null}', '{"name": 5}', '{"name": ["a"]}', '{"name": "a", "b": 1}',
    '{"name": "\\ud800"}', '{"name": "' + "a" * 61 + '"}', '{"name": "   "}', "[" * 20_000, '{"name": 1e999}',
    '{"name": NaN}', "\ufeff{}", '{"class_id": 1.5}', '{"class_id": "1"}', '{"class_id": -1}', '{"class_id": true}',
    '{"class_id": 99999999999999999999999999}', '{"token": 5}', "\x00",
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:20] or "nothing")
def test_json_that_is_not_what_was_asked_for_is_refused(user, body):
    headers = {"content-type": "application/json"}
    for method, path in [("POST", "classes"), ("PATCH", "pictures/1"), ("PUT", "encoder"), ("POST", "login")]:
        answer = user.http.request(method, f"/api/{path}", content=body.encode(), headers=headers)
        assert answer.status_code == 422, (path, answer.text)
        assert is_sentence(answer)


PATHS = (
    "/static/../app.py", "/static/..%2f..%2fapp.py", "/static/%2e%2e/app.py", "/../../../../etc/passwd", "//etc/passwd",
    "/static/....//app.py", "/static/app.js%00.png", "/static", "/static/", "/api", "/api/", "/API/session",
    "/api//session",
    "/api/session/", "/.git/config", "/serve.sqlite3", "/data/serve.sqlite3", "/api/pictures/../session", "/%", "/%ff",
    "/api/pictures/1/preview/..", "/docs/..", "/redoc", "/static/%5c..%5capp.py",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_path_leads_to_nothing_but_what_there_is(shared, path):
    connection = http.client.HTTPConnection(shared.url.removeprefix("http://"), timeout=300)
    connection.request("GET", path)  # as it is; other clients tidy it up
    answer = connection.getresponse()
    text = json.loads(answer.read())
    connection.close()
    assert answer.status == 404
    assert text["error"].startswith("Expected a path of this server, but got 'GET /")


HEADERS = (
    {"authorization": "Bearer"}, {"authorization": "Bearer " + "x" * 5000}, {"authorization": "Basic YTpi"},
    {"authorization": "Bearer ' OR 1=1"}, {"authorization": "Bearer \u00fc".encode("latin-1")},
    {"cookie": "=;;=;"}, {"cookie": 'a="\\"; b'}, {"cookie": "\u00fc=1".encode("latin-1")}, {"cookie": "x" * 5000},
    {"authorization": b"Bearer \xff\xfe"},
)  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_odd_headers_open_no_session(shared, headers):
    answer = shared.client().http.get("/api/session", headers=headers)
    assert answer.status_code == 401
    assert is_sentence(answer)


ODD_TEXT = st.one_of(st.sampled_from([*NAMES, *NUMBERS]), st.text(max_size=20), st.integers().map(str))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def operations(document):
    return [(method, path, about) for path, found in document["paths"].items() for method, about in found.items()]


def body_of(schemas, content):
    """Bodies that are as the document says, nearly so, or not at all."""
    kinds = [*content] * 3 + ["text/plain", "multipart/form-data; boundary=x"]
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    names = list(schemas.get(reference.rpartition("/")[2], {}).get("properties", {}))
    near = st.fixed_dictionaries(dict.fromkeys(names, JSON)).map(lambda body: json.dumps(body).encode())
    return st.tuples(st.sampled_from(kinds), st.one_of(near, st.binary(max_size=200)))


@settings(max_examples=200, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_to_a_documented_path_fails(fuzzed, data):
    """Every operation of openapi.json with values of all kinds."""
    client, document = fuzzed
    method, path, about = data.draw(st.sampled_from(operations(document)))
    query = {}
    for parameter in about.get("parameters", ()):
        value = data.draw(ODD_TEXT).encode("utf-8", "replace").decode()
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", urllib.parse.quote(value, safe="") or "0")
        else:
            query[parameter["name"]] = value
    content = about.get("requestBody", {}).get("content", {})
    kind, body = data.draw(body_of(document["components"]["schemas"], content)) if content else ("", b"")
    answer = client.request(method, path, params=query, content=body, headers={"content-type": kind})
    assert answer.status_code < 500, answer.text
    documented = {int(status) for status in about["responses"]}
    assert answer.status_code in documented | {404, 405, 413}, (method, path, answer.text)
    if answer.status_code >= 400:
        assert is_sentence(answer)
    if answer.status_code == 401:  # it has deleted itself
        client.cookies.clear()
        client.post("/api/sessions")


@pytest.fixture(scope="module")
def fuzzed(shared):
    client = shared.client().begin()
    return client.http, client.http.get("/openapi.json").json()


@settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
@given(form=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"]), data=st.data())
def test_damaged_pictures_are_refused_or_read(ready, form, data):
    content = bytearray(encoded(Image.fromarray(np.arange(900, dtype=np.uint8).reshape(30, 30)), form))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    answer = ready.http.post("/api/predict", content=bytes(content), headers=PNG)
    assert answer.status_code == 200 or (answer.status_code == 422 and is_sentence(answer))


@pytest.fixture(scope="module")
def ready(shared):
    """A user with a classifier."""
    client, picture_of = shared.client().begin(), picture_maker()
    for kind in ("bar", "ring"):
        client.add(picture_of(kind), client.make_class(kind))
    return client


def test_nothing_was_written_outside_the_data_folder_and_memory_is_bounded(shared, user, tmp_path, monkeypatch):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.chdir(tmp_path)
    for name in ("pixel bomb", "wide bomb", "text bomb", "zip bomb", "data bomb"):
        for _ in range(3):
            user.http.post("/api/pool", params={"name": "../up.png"}, content=NO_PICTURES[name], headers=PNG)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 200 * 1024
    assert list(tmp_path.iterdir()) == []
    assert {path.name.partition("-")[0] for path in shared.folder.iterdir()} == {"serve.sqlite3"}
    assert [path.name for path in shared.folder.parent.iterdir() if path.name.startswith("up")] == []
