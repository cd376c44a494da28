"""Whatever becomes of a worker, the next image is decoded."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

import mirrorshot
from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging import workers as workers_module
from mirrorshot.files.imaging.worker import READY, REQUEST
from mirrorshot.files.imaging.workers import ClosedError, DecodeWorkers, WorkerLimits

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mirrorshot.__file__).parents[1])}


def png(size=(40, 30), colour=200):
    file = io.BytesIO()
    Image.new("L", size, colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def workers():
    with contextlib.closing(DecodeWorkers(1, side=16, limits=WorkerLimits(pixels=2000))) as found:
        found.decode(png())
        yield found


def process_of(workers):
    (worker,) = workers._running
    return worker._process.pid


def test_an_image_and_its_preview_come_back(workers):
    found = workers.decode(png(colour=77))
    assert (found.image.mode, found.image.size) == ("L", (40, 30))
    assert found.image.getextrema() == (77, 77)
    with Image.open(io.BytesIO(found.preview)) as preview:
        assert (preview.format, preview.size) == ("JPEG", (16, 16))


def test_errors_are_those_of_the_decoder_and_keep_the_worker(workers):
    before = process_of(workers)
    with pytest.raises(ImageError, match=r"^50 x 50 are more than 2000 pixels$"):
        workers.decode(png((50, 50)))
    with pytest.raises(ImageError, match=r"^no image in one of the formats PNG"):
        workers.decode(b"")
    assert process_of(workers) == before


def test_a_worker_that_crashed_is_replaced(workers):
    before = process_of(workers)
    os.kill(before, signal.SIGSEGV)
    with pytest.raises(ImageError, match=r"^its decoder crashed$"):
        workers.decode(png())
    assert workers.decode(png()).image.size == (40, 30)
    assert process_of(workers) != before


def test_a_worker_that_hangs_is_replaced():
    with contextlib.closing(DecodeWorkers(1, side=16, limits=WorkerLimits(wall_seconds=5.0))) as workers:
        workers.decode(png())
        os.kill(process_of(workers), signal.SIGSTOP)
        with pytest.raises(ImageError, match=r"^it takes more than 5 seconds to decode$"):
            workers.decode(png())
        assert workers.decode(png()).image.size == (40, 30)


def test_the_start_of_a_worker_is_no_time_of_its_first_image(monkeypatch):
    seconds = []

    class Recorded(threading.Timer):
        def __init__(self, interval, function):
            seconds.append(interval)
            super().__init__(interval, function)

    monkeypatch.setattr(threading, "Timer", Recorded)
    with contextlib.closing(DecodeWorkers(1, side=16, limits=WorkerLimits(wall_seconds=77.0))) as workers:
        for _ in range(2):
            workers.decode(png())
    assert seconds == [120.0, 77.0, 77.0]


def test_a_worker_that_does_not_start_is_replaced(monkeypatch):
    with contextlib.closing(DecodeWorkers(1, side=16)) as workers:
        os.kill(process_of(workers), signal.SIGSTOP)
        monkeypatch.setattr(workers_module, "_START_SECONDS", 0.2)
        with pytest.raises(ImageError, match=r"^its decoder did not start within 0.2 seconds$"):
            workers.decode(png())
        monkeypatch.undo()
        assert workers.decode(png()).image.size == (40, 30)


def test_a_worker_out_of_processor_time_is_replaced(workers):
    os.kill(process_of(workers), signal.SIGXCPU)
    with pytest.raises(ImageError, match=r"^it takes more than 5 seconds to decode$"):
        workers.decode(png())
    assert workers.decode(png()).image.size == (40, 30)


def test_many_threads_share_the_workers():
    with contextlib.closing(DecodeWorkers(2, side=16)) as workers, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda shade: workers.decode(png(colour=shade)).image.getpixel((0, 0)), range(60)))
    assert found == list(range(60))


def test_closing_ends_a_decoder_that_hangs_and_all_who_wait(workers):
    os.kill(process_of(workers), signal.SIGSTOP)
    errors = []

    def wait():
        with pytest.raises(ClosedError):
            workers.decode(png())
        errors.append("closed")

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    workers.close()
    for thread in threads:
        thread.join(300)
    assert errors == ["closed"] * 3
    with pytest.raises(ClosedError, match=r"^the server is stopping$"):
        workers.decode(png())


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_worker_ends_when_its_parent_is_killed():
    code = (
        "from mirrorshot.files.imaging.workers import DecodeWorkers; w = DecodeWorkers(1, side=8); "
        "print(next(iter(w._running))._process.pid, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    with parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    until = time.monotonic() + 300
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(pid)


def run_worker(read_image, memory=2**30, seconds=0):
    """A worker with another decoder: what it replies to one request, and how it ends."""
    code = (
        "import sys, time; from mirrorshot.files.imaging import worker; "
        f"worker.read_image = {read_image}; sys.argv[1:] = ['{memory}', '{seconds}']; worker.main()"
    )
    request = REQUEST.pack(1, 100, 8) + b"x"
    done = subprocess.run(
        [sys.executable, "-c", code], input=request, capture_output=True, env=ENVIRONMENT, timeout=300
    )
    assert done.stdout[:1] == READY
    return done.stdout[1:], done.returncode


def test_a_worker_with_an_invalid_reply_is_replaced(workers, monkeypatch):
    before = process_of(workers)
    monkeypatch.setattr(workers_module, "_MAX_PREVIEW", 0)
    with pytest.raises(ImageError, match=r"^its decoder failed$"):
        workers.decode(png())
    monkeypatch.undo()
    assert workers.decode(png()).image.size == (40, 30)
    assert process_of(workers) != before


def test_processor_time_is_limited():
    replies, code = run_worker("lambda *arguments: [None for _ in iter(int, 1)]", memory=2**33)
    assert (replies, code) == (b"", -signal.SIGXCPU)


def test_memory_is_limited():
    replies, code = run_worker("lambda *arguments: bytearray(2**31)")
    assert replies.startswith(b"M")
    assert b"too much memory" in replies
    assert code == 0


def test_no_file_can_be_written(tmp_path):
    path = tmp_path / "written"
    run_worker(f"lambda *arguments: open({str(path)!r}, 'w').write('x' * 9999)")
    assert not path.exists() or path.stat().st_size == 0


def test_a_worker_imports_no_torch():
    code = (
        "import sys, mirrorshot.files.imaging.worker; print(sorted({'torch', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout.strip() == "[]"
