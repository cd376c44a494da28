"""A signal ends the server in time, whatever it is doing, and no acknowledged label is lost."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

PNG = {"content-type": "image/png"}
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
_TOO_LONG = 300.0  # seconds that only a server that hangs needs

# A server whose parts can be made to hang; the name of the part is the first argument.
PROGRAM = """
import multiprocessing, sys, time
from pathlib import Path
from mirrorshot.serve import Settings, answers, running, service

def sleep(*_):
    time.sleep(3600)

def hang(*_):
    print("hangs", file=sys.stderr, flush=True)
    sleep()

if __name__ == "__main__":
    part, folder = sys.argv[1:]
    if part == "fit":
        service.fit = hang
    if part == "compute":
        answers.all_answers = hang
    if part in ("worker", "closer"):
        make_app = running.make_app

        def make(*arguments):
            app = make_app(*arguments)
            worker = multiprocessing.Process(target=sleep, daemon=True)
            worker.start()
            print("worker", worker.pid, file=sys.stderr, flush=True)
            app.state.service.closers.append(worker.terminate if part == "worker" else sleep)
            return app

        running.make_app = make
    if part == "nothing":
        running._STOP_SECONDS = 300.0  # it has to end by itself, however busy the machine is
    tell = lambda line: print(line, file=sys.stderr, flush=True)
    running.run(Settings(Path(folder), port=0), None, "pixels", download=False, trust_encoder=False, say=tell)
"""


@contextlib.contextmanager
def serving(tmp_path, part):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), part, str(tmp_path / "data")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = []
    try:
        while not lines or not lines[-1].startswith("mirrorshot serve: http"):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        yield lines[-1].split()[-1].rstrip("/"), process, lines
    finally:
        process.kill()
        process.wait(300)
        process.stderr.close()


def ends(process, sig=signal.SIGTERM):
    process.send_signal(sig)
    process.wait(_TOO_LONG)
    return process.returncode


def taught(url, picture_of):
    http = httpx.Client(base_url=url, timeout=_TOO_LONG)
    http.post("/api/sessions")
    for kind in ("bar", "ring"):
        number = http.post("/api/classes", json={"name": kind}).json()["id"]
        http.post(
            "/api/examples", params={"class_id": number}, content=picture_of(kind), headers=PNG
        ).raise_for_status()
    return http


@pytest.mark.parametrize(
    ("part", "sig"), [("fit", signal.SIGTERM), ("compute", signal.SIGTERM), ("fit", signal.SIGINT)]
)
def test_a_signal_ends_a_server_whose_threads_hang(tmp_path, picture_of, part, sig):
    with serving(tmp_path, part) as (url, process, _), contextlib.closing(taught(url, picture_of)) as http:
        asking = threading.Thread(target=lambda: ask(http))
        asking.start()
        while (line := process.stderr.readline()) != "hangs\n":
            assert line
        assert ends(process, sig) != 0
        asking.join(300)


def ask(http):
    with contextlib.suppress(httpx.TransportError):
        assert http.get("/api/answers").status_code == 503


def test_a_signal_ends_a_server_with_open_uploads_and_idle_connections(tmp_path):
    with serving(tmp_path, "nothing") as (url, process, _), contextlib.ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        session = httpx.post(f"{url}/api/sessions", timeout=_TOO_LONG).json()["session"]
        for i in range(6):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=300))
            if i < 3:
                connection.sendall(
                    b"POST /api/pool HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
                    b"Authorization: Bearer " + session.encode() + b"\r\n\r\nx"
                )
        time.sleep(0.3)
        assert ends(process) == -signal.SIGTERM
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("part", ["worker", "closer"])
def test_worker_processes_end_with_the_server(tmp_path, part):
    with serving(tmp_path, part) as (url, process, lines):
        httpx.get(f"{url}/api/health", timeout=_TOO_LONG)  # its signal handlers are there
        worker = int(next(line for line in lines if line.startswith("worker")).split()[1])
        ends(process)
        deadline = time.monotonic() + _TOO_LONG
        while is_alive(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_alive(worker)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return True
