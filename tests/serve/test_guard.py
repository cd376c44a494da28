"""Who may come in, and with how much."""

import http.client
import socket
import sqlite3
from pathlib import Path

import pytest

from mirrorshot.serve import Limits, Settings
from mirrorshot.serve.tokens import Rate
from mirrorshot.types import InvalidInputError

PNG = {"content-type": "image/png"}
TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "example.org", "::"])
def test_a_server_that_others_can_reach_needs_a_token(host):
    with pytest.raises(InvalidInputError, match=r"Expected a token, .* Set the variable MIRRORSHOT_TOKEN"):
        Settings(Path("data"), host=host)
    assert Settings(Path("data"), host=host, token=TOKEN).allowed_hosts is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_a_server_on_this_machine_alone_needs_none(host):
    assert (f"[{host}]" if ":" in host else host) in Settings(Path("data"), host=host).allowed_hosts


def test_a_name_for_the_public_needs_a_token_too():
    with pytest.raises(InvalidInputError, match=r"--public-host few\.example"):
        Settings(Path("data"), public_host="few.example")
    assert "few.example" in Settings(Path("data"), public_host="Few.Example", token=TOKEN).allowed_hosts


@pytest.mark.parametrize("name", ["https://few.example", "few.example:443", "few.example/serve", ""])
def test_a_name_for_the_public_is_a_name_alone(name):
    with pytest.raises(InvalidInputError, match="Expected the public host to be a name"):
        Settings(Path("data"), public_host=name, token=TOKEN)


@pytest.mark.parametrize("token", ["", "short", "ü" * 20])
def test_a_token_is_long(token):
    with pytest.raises(InvalidInputError, match="at least 16 characters"):
        Settings(Path("data"), token=token)


def test_a_token_is_asked_for_and_a_login_is_remembered(serve):
    client = serve(token=TOKEN).client()
    assert client.http.get("/").status_code == 200  # the page itself is no secret
    assert client.http.get("/api/health").json()["needs_token"]
    assert client.http.post("/api/sessions").status_code == 403
    assert client.http.post("/api/login", json={"token": "wrong"}).status_code == 403
    assert client.http.post("/api/sessions", headers={"X-Mirrorshot-Token": "wrong"}).status_code == 403
    assert client.http.post("/api/sessions", headers={"X-Mirrorshot-Token": TOKEN}).status_code == 201
    assert client.http.get("/api/session").status_code == 403  # a session is not enough
    answer = client.http.post("/api/login", json={"token": TOKEN})
    assert answer.status_code == 200
    assert TOKEN not in answer.headers["set-cookie"]
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert client.http.get("/api/session").status_code == 200


def test_tokens_cannot_be_guessed_in_a_hurry(serve):
    client = serve(token=TOKEN).client()
    codes = [client.http.post("/api/login", json={"token": f"guess number {i}"}).status_code for i in range(12)]
    assert codes == [403] * 10 + [429] * 2


def test_sessions_are_not_given_out_without_end(serve):
    client = serve(limits=Limits(sessions_per_minute=3)).client()
    answers = [client.http.post("/api/sessions") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429]
    assert answers[-1].json()["error"].startswith("Expected at most 3 new sessions a minute")


def test_the_number_of_users_is_bounded(serve):
    client = serve(limits=Limits(sessions=2)).client()
    assert [client.http.post("/api/sessions").status_code for _ in range(3)] == [201, 201, 503]


def test_a_rate_recovers_with_time():
    now = [0.0]
    rate = Rate(60, clock=lambda: now[0])
    assert [rate.allows("a") for _ in range(61)] == [True] * 60 + [False]
    now[0] = 2.5
    assert [rate.allows("a") for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.", "[::2]:80", "0.0.0.0"])
def test_a_name_that_is_not_ours_is_refused(shared, host):
    """A page elsewhere could make its name mean 127.0.0.1."""
    answer = shared.client().http.get("/api/health", headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"].startswith("Expected the host to be localhost, 127.0.0.1, [::1]")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_somebody_else_changes_nothing(user, headers):
    answer = user.http.post("/api/classes", json={"name": "theirs"}, headers=headers)
    assert answer.status_code == 403
    assert user.get("session")["classes"] == []


def test_our_own_page_may_change_things(user, shared):
    headers = {"origin": shared.url, "sec-fetch-site": "same-origin"}
    assert user.http.post("/api/classes", json={"name": "ours"}, headers=headers).status_code == 201


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_refused(user, kind):
    """A browser sends these from any page without asking first."""
    for path in ("/api/classes", "/api/pool"):
        answer = user.http.post(path, content=b'{"name": "a"}', headers={"content-type": kind})
        assert answer.status_code == 415, path


def test_headers_protect_every_answer(user):
    for path in ("/", "/api/session", "/nowhere", "/static/app.js"):
        headers = user.http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers or headers["server"] == "uvicorn"
        assert "access-control-allow-origin" not in headers


def test_cookies_are_out_of_reach_for_scripts_and_other_sites(serve):
    cookie = serve().client().http.post("/api/sessions").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_behind_a_proxy_the_public_name_is_known_and_cookies_stay_on_https(serve):
    http = serve(token=TOKEN, public_host="few.example").client().http
    headers = {"host": "few.example", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
    headers |= {"origin": "https://few.example", "sec-fetch-site": "same-origin"}
    answer = http.post("/api/login", json={"token": TOKEN}, headers=headers)
    assert answer.status_code == 200
    assert "Secure" in answer.headers["set-cookie"]
    assert (
        http.post("/api/login", json={"token": TOKEN}, headers={**headers, "host": "other.example"}).status_code == 421
    )


def raw(server, request):
    """What the server says to some bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read()


def test_a_body_that_says_it_is_large_is_refused_before_it_is_sent(shared):
    status, text = raw(shared, b"POST /api/pool HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n")
    assert status == 413
    assert b"Expected at most 16777216 bytes, but got 99999999999." in text


def post(server, *headers, path="/api/pool"):
    """The head of a request by a new user."""
    session = server.client().http.post("/api/sessions").json()["session"]
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {session}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_body_that_does_not_say_its_length_is_cut_off(serve):
    server = serve(limits=Limits(upload_bytes=1000))
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    status, text = raw(server, post(server, "Transfer-Encoding: chunked") + chunk)  # and it never ends
    assert status == 413
    assert b"more than 1000" in text


def test_a_body_that_never_comes_is_not_waited_for(serve):
    server = serve(limits=Limits(body_seconds=0.3))
    # a server that waits for the body does not answer at all
    status, text = raw(server, post(server, "Content-Length: 10") + b"abc")
    assert status == 408
    assert b"within 0.3 seconds" in text


def test_a_client_that_leaves_in_the_middle_does_no_harm(shared, user):
    host, port = shared.url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(post(shared, "Content-Length: 10") + b"abc")
    assert user.get("health")["is_running"]


def test_json_is_bounded_more_tightly_than_pictures(user):
    answer = user.http.post("/api/classes", content=b"x" * 70_000, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_a_compressed_body_is_refused(user):
    answer = user.http.post("/api/pool", content=b"x", headers={**PNG, "content-encoding": "gzip"})
    assert answer.status_code == 415


def test_pictures_and_classes_of_a_user_are_bounded(serve, picture_of):
    user = serve(limits=Limits(classes=2, examples=2, pool=1)).client().begin()
    a, _ = user.make_class("a"), user.make_class("b")
    user.add(picture_of("bar"), a)
    user.add(picture_of("bar"), a)
    waiting = user.add(picture_of("bar"))
    full = [
        user.http.post("/api/classes", json={"name": "c"}),
        user.http.post("/api/examples", params={"class_id": a}, content=picture_of("bar"), headers=PNG),
        user.http.post("/api/pool", content=picture_of("bar"), headers=PNG),
        user.http.patch(f"/api/pictures/{waiting}", json={"class_id": a}),
    ]
    assert [answer.status_code for answer in full] == [409] * 4
    assert [answer.json()["error"].split(",")[0] for answer in full] == [
        "Expected at most 2 classes",
        "Expected at most 2 examples",
        "Expected at most 1 unlabelled images",
        "Expected at most 2 examples",
    ]
    assert len(user.get("session")["pictures"]) == 3


def test_the_database_does_not_grow_beyond_its_bound(serve, picture_of):
    user = serve(limits=Limits(store_bytes=200_000)).client().begin()
    codes = []
    while 507 not in codes and len(codes) < 100:
        codes.append(user.http.post("/api/pool", content=picture_of("bar"), headers=PNG).status_code)
    assert codes[-1] == 507
    assert user.http.delete("/api/session").status_code == 200  # removing is always possible


def test_a_database_that_fails_is_told_in_words(serve, monkeypatch):
    server = serve()
    user = server.client().begin()

    def fail(*_):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(server.app.state.service.database, "read", fail)
    answer = user.http.get("/api/session")
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("Expected the database to answer, but got: disk I/O error.")
