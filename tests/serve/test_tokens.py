"""The token of the server: strength, and how often it may be guessed."""

import secrets
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from mirrorshot.serve import Settings
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.tokens import Door, token_bits
from mirrorshot.types import InvalidInputError

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize(
    "token",
    [
        "a" * 40,
        "passwordpassword",
        "changeme-changeme",
        "1234567890123456",
        "abcdefghijklmnopqrstuvwxyz",
        "0101100101101011",
    ],
)
def test_a_token_that_is_easy_to_guess_is_refused(token):
    with pytest.raises(InvalidInputError, match=r"hard to guess .* For a good one: python -c") as caught:
        Settings(Path("data"), token=token)
    assert token not in str(caught.value)


def test_random_tokens_are_strong_enough():
    for make in (secrets.token_urlsafe, secrets.token_hex):
        assert min(token_bits(make()) for _ in range(200)) > 80
    Settings(Path("data"), token="correct-horse-battery-staple")


def test_guesses_by_header_are_limited_like_those_of_the_login(serve):
    client = serve(token=TOKEN).client()
    wrong = [{"x-mirrorshot-token": f"guess number {i}"} for i in range(12)]
    answers = [client.http.get("/api/session", headers=headers) for headers in wrong]
    assert [answer.status_code for answer in answers] == [403] * 10 + [429] * 2
    assert answers[-1].headers["retry-after"] == "6"
    assert answers[-1].json()["error"].startswith("Expected at most 10 wrong tokens a minute")
    right = {"x-mirrorshot-token": TOKEN}
    assert client.http.get("/api/session", headers=right).status_code == 429  # else guessing would go on
    assert client.http.post("/api/login", json={"token": TOKEN}).status_code == 429
    assert client.http.get("/api/health", headers=wrong[0]).status_code == 429


def test_who_has_logged_in_is_not_locked_out_by_guesses_of_others(serve):
    server = serve(token=TOKEN)
    user, stranger = server.client(), server.client()
    assert user.http.post("/api/login", json={"token": TOKEN}).status_code == 200
    for i in range(12):
        stranger.http.get("/api/session", headers={"x-mirrorshot-token": f"guess number {i}"})
    assert user.begin().get("session")["classes"] == []


def test_the_right_token_costs_nothing(serve):
    client = serve(token=TOKEN).client(headers={"x-mirrorshot-token": TOKEN}).begin()
    for _ in range(15):
        assert client.get("session")["classes"] == []


def test_the_cookie_cannot_be_made_from_the_token():
    doors = [Door(TOKEN, "cookie", secret) for secret in ("one", "two")]
    assert doors[0].proof != doors[1].proof
    headers = Headers({"cookie": f"cookie={doors[0].proof}"})
    assert doors[0].is_open(headers, "a")
    assert not doors[1].is_open(headers, "a")


def test_addresses_are_counted_apart():
    door = Door(TOKEN, "cookie", "secret")
    for _ in range(10):
        assert not door.knows("wrong", "a")
    with pytest.raises(RequestError, match="Wait a minute"):
        door.knows("wrong", "a")
    assert door.knows(TOKEN, "b")


def test_a_login_survives_a_restart_but_not_another_token(serve):
    first = serve(token=TOKEN)
    client = first.client()
    client.http.post("/api/login", json={"token": TOKEN})
    for token, known in ((TOKEN, True), ("another-token-of-some-length", False)):
        again = serve(token=token).client(cookies=dict(client.http.cookies))
        assert again.http.get("/api/health").json()["needs_token"] is not known
