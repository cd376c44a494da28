"""Users share the server: turns, budgets, and connections that are closed."""

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
import time

import pytest

from mirrorshot.serve import Limits, Settings, guard
from mirrorshot.serve.budget import Budget
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.running import make_server
from mirrorshot.serve.scheduler import Scheduler

PNG = {"content-type": "image/png"}


def test_sessions_take_turns():
    async def serve():
        scheduler, begin, order = Scheduler(1, "test"), threading.Event(), []
        first = asyncio.create_task(scheduler.run("x", begin.wait))
        await asyncio.sleep(0)
        work = [asyncio.create_task(scheduler.run(name, lambda name=name: order.append(name))) for name in "aaabbc"]
        await asyncio.sleep(0)
        begin.set()
        await asyncio.gather(first, *work)
        assert scheduler.close(30)
        return order

    assert asyncio.run(serve()) == ["a", "b", "c", "a", "b", "a"]


def test_one_session_never_has_all_threads():
    async def serve():
        scheduler, go_on, started = Scheduler(4, "test"), threading.Event(), []

        def work():
            started.append(1)
            return go_on.wait(300)

        busy = [asyncio.create_task(scheduler.run("busy", work)) for _ in range(10)]
        assert await scheduler.run("other", lambda: "served") == "served"
        assert len(started) <= 2
        go_on.set()
        assert all(await asyncio.gather(*busy))
        assert scheduler.close(30)

    asyncio.run(serve())


def test_work_that_is_cancelled_or_fails_leaves_its_turn_to_others():
    async def serve():
        scheduler, go_on = Scheduler(1, "test"), threading.Event()
        first = asyncio.create_task(scheduler.run("x", go_on.wait))
        await asyncio.sleep(0)
        dropped = asyncio.create_task(scheduler.run("a", lambda: 1))
        failing = asyncio.create_task(scheduler.run("b", lambda: 1 / 0))
        last = asyncio.create_task(scheduler.run("c", lambda: "served"))
        await asyncio.sleep(0)
        dropped.cancel()
        go_on.set()
        with pytest.raises(ZeroDivisionError):
            await failing
        assert await last == "served"
        await first
        assert (scheduler._free, dict(scheduler._running), dict(scheduler._waiting)) == (1, {}, {})
        assert scheduler.close(30)

    asyncio.run(serve())


def test_a_budget_is_given_back():
    budget = Budget(Limits(session_bytes=100, total_bytes=150))
    with budget.request("a", 2) as reserve_a, budget.request("b", 2) as reserve_b:
        reserve_a(100)
        with pytest.raises(RequestError, match="requests of yours to have at most 100 bytes at the same time"):
            reserve_a(1)
        with pytest.raises(RequestError, match="requests of all users to have at most 150 bytes"):
            reserve_b(51)
        with budget.request("a", 2), pytest.raises(RequestError, match="at most 2 requests"), budget.request("a", 2):
            pass
    assert (budget.n_bytes, dict(budget._requests), dict(budget._bytes)) == (0, {}, {})


def teach(user, picture_of):
    for kind in ("bar", "ring"):
        user.add(picture_of(kind), user.make_class(kind))
    return user


def test_sixty_answers_at_once_do_not_keep_another_user_waiting(serve, picture_of, monkeypatch):
    from mirrorshot.serve import answers

    go_on, compute = threading.Event(), answers.all_answers

    def slowly(*arguments):
        assert go_on.wait(300)
        return compute(*arguments)

    server = serve()
    busy, other = (teach(server.client().begin(), picture_of) for _ in range(2))
    monkeypatch.setattr(answers, "all_answers", slowly)
    with concurrent.futures.ThreadPoolExecutor(60) as threads:
        asked = [threads.submit(busy.http.get, "/api/answers") for _ in range(60)]
        try:
            refused = [
                done.result() for _, done in zip(range(28), concurrent.futures.as_completed(asked), strict=False)
            ]
            predicted = other.http.post("/api/predict", content=picture_of("bar"), headers=PNG)
        finally:
            go_on.set()
        codes = sorted(answer.result().status_code for answer in asked)
    assert predicted.status_code == 200  # while all that were let in still wait
    assert codes == [200] * 32 + [429] * 28
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert refused[0].json()["error"].startswith("Expected at most 32 requests of yours at the same time, but got 33.")
    assert busy.http.get("/api/answers").status_code == 200  # the budget is there again


def head(session, *lines, path="/api/pool"):
    known = [] if session is None else [f"Authorization: Bearer {session}"]
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *known, *lines, "", ""]).encode()


def connect(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=300)


def status(connection):
    """Status of the answer; None for a connection that was closed without one."""
    try:
        first = connection.recv(4096)
    except ConnectionResetError:
        return None
    return int(first.split(b" ")[1]) if first else None


def begin(server):
    return server.client().http.post("/api/sessions").json()["session"]


def waiting(connections):
    """Those that have no answer yet."""
    found = []
    for connection in connections:
        connection.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            connection.recv(1, socket.MSG_PEEK)
            continue
        found.append(connection)
    return found


def test_a_hundred_large_uploads_are_refused_before_they_are_read(serve):
    server = serve()
    session = begin(server)
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(connect(server)) for _ in range(100)]
        for connection in many:
            connection.sendall(head(session, f"Content-Length: {16 * 2**20}"))
        deadline = time.monotonic() + 300
        while len(waiting(many)) > 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        kept = waiting(many)
        assert len(kept) == 4  # 64 MiB
        for connection in set(many) - set(kept):
            connection.settimeout(30)
            assert status(connection) == 429
        with connect(server) as other:
            other.sendall(head(begin(server), "Content-Length: 3", "Content-Type: image/png") + b"abc")
            assert status(other) == 422  # read, and no image


def test_bodies_of_all_users_are_bounded(serve, monkeypatch):
    budgets = []
    monkeypatch.setattr(guard, "Budget", lambda limits: budgets.append(Budget(limits)) or budgets[0])
    server = serve(limits=Limits(total_bytes=1000, sessions_per_minute=100, body_seconds=300, idle_seconds=300))
    with connect(server) as first, connect(server) as second:
        first.sendall(head(begin(server), "Content-Length: 900") + b"x" * 100)
        deadline = time.monotonic() + 300
        while budgets[0].n_bytes < 900 and time.monotonic() < deadline:
            time.sleep(0.01)
        second.sendall(head(begin(server), "Content-Length: 900"))
        assert status(second) == 429


def test_bytes_of_a_body_without_a_length_are_counted_as_they_come(serve):
    server = serve(limits=Limits(session_bytes=1000))
    chunk = b"258\r\n" + b"x" * 600 + b"\r\n"
    for lines in (["Transfer-Encoding: chunked"], ["Content-Length: 0", "Transfer-Encoding: chunked"]):
        with connect(server) as connection:
            connection.sendall(head(begin(server), *lines) + 2 * chunk)
            assert status(connection) in (400, 429)


@pytest.mark.parametrize("session", [None, "unknown"])
def test_uploads_without_a_session_are_refused_before_their_bodies_come(serve, picture_of, session):
    server = serve()
    user = server.client().begin()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(16)]
        for connection in slow:
            connection.sendall(head(session, "Content-Length: 1000") + b"x")
        assert [status(connection) for connection in slow] == [401] * 16
        assert user.add(picture_of("bar"))


def test_a_body_that_drips_is_cut_off(serve):
    server = serve(limits=Limits(body_seconds=0.3))
    with connect(server) as connection:
        connection.sendall(head(begin(server), "Content-Length: 20000"))
        connection.settimeout(0.02)
        for _ in range(15_000):  # it never stops to send
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                assert status(connection) == 408
                return
    pytest.fail("it was waited for")


def test_idle_connections_keep_nobody_out(serve):
    server = serve(limits=Limits(connections=20, idle_seconds=300))
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(30)]
        assert server.client().http.get("/api/health").status_code == 200
        assert [status(connection) for connection in idle[:10]] == [None] * 10  # the oldest ones are closed
        assert len(waiting(idle[12:])) == 18


def test_a_connection_that_is_being_served_is_not_closed_for_others(serve):
    server = serve(limits=Limits(connections=3, idle_seconds=300, body_seconds=300))
    with connect(server) as served, contextlib.ExitStack() as stack:
        served.sendall(head(begin(server), "Content-Length: 3", "Content-Type: image/png") + b"ab")
        for _ in range(5):
            stack.enter_context(connect(server))
        assert server.client().http.get("/api/health").status_code == 200
        served.sendall(b"c")
        assert status(served) == 422


@pytest.mark.parametrize("begun", [b"", b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_connection_without_a_complete_request_is_closed(serve, begun):
    server = serve(limits=Limits(idle_seconds=0.3))
    with connect(server) as connection:
        connection.settimeout(0.02)
        for _ in range(15_000):
            try:
                connection.sendall(begun[:1] if begun else b"")
                if connection.recv(100) == b"":
                    return
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                return
    pytest.fail("it was waited for")


def test_a_connection_stays_open_between_requests(serve):
    http = serve(limits=Limits(idle_seconds=300)).client().http
    answers = [http.get("/api/health") for _ in range(3)]
    assert all("connection" not in answer.headers for answer in answers)
    assert len({answer.extensions["network_stream"].get_extra_info("client_addr") for answer in answers}) == 1


def test_a_client_that_does_not_read_its_answer_is_let_go(tmp_path):
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(64 * 2**20)})

    server = make_server(app, Settings(tmp_path, limits=Limits(answer_seconds=0.3)))
    bound = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    with socket.create_connection(bound.getsockname(), timeout=300) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        deadline = time.monotonic() + 300
        while not server.server_state.total_requests and time.monotonic() < deadline:
            time.sleep(0.01)
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.server_state.connections
    server.should_exit = True
    thread.join(300)
