"""Worker processes that decode images of unknown origin, within limits of time and memory.

Design note: decoders are large C libraries. In a thread, one that hangs cannot be stopped, and one that crashes ends
the server; a process can be killed. Workers import little more than Pillow, so they start in a fraction of a second.

- Rejected: multiprocessing, which imports the parent's main module and sends pickles.
- Rejected: a process per image, because most images decode faster than a process starts.
"""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from PIL import Image

from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging.worker import IMAGE, READY, REQUEST, TEXT

_HOME = Path(__file__).parents[3]  # folder that contains the package `mirrorshot`
_MAX_PREVIEW, _MAX_TEXT = 2**22, 2**16
_START_SECONDS = 120.0  # for a new process, before its first image
_END_SECONDS = 10.0  # for a process that has closed its output
_IMAGES_OF_ONE = 1000  # after which a worker is replaced, because decoders may leak memory


class ClosedError(ImageError):
    """The workers have been closed."""


class Decoded(NamedTuple):
    """An image, grey ("L") or colour ("RGB"), and its preview, a JPEG file."""

    image: Image.Image
    preview: bytes


class WorkerLimits(NamedTuple):
    """Limits for one image."""

    pixels: int = 2**25
    cpu_seconds: int = 5
    wall_seconds: float = 15.0  # larger, because it also passes while other processes use the processor

    @property
    def memory(self) -> int:
        """Memory limit of a worker in bytes: Python, Pillow, and the copies of the pixels that decoders make."""
        return 2**28 + 24 * self.pixels


class DecodeWorkers:
    """`n` processes that decode one image at a time each.

    Any thread may call `decode`; it waits until a worker is free. A worker that exceeds its limits or crashes is killed
    and replaced. `side` is the side of previews in pixels.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> Image.new("L", (40, 30)).save(file, "PNG")
        >>> with contextlib.closing(DecodeWorkers(1, side=8)) as workers:
        ...     workers.decode(file.getvalue()).image.size
        (40, 30)
    """

    def __init__(self, n: int, *, side: int, limits: WorkerLimits | None = None) -> None:
        self._side, self._limits = side, limits or WorkerLimits()
        self._lock, self._is_closed = threading.Lock(), False
        self._running: set[_Worker] = set()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(n):
            self._idle.put(self._new())
        self._end = weakref.finalize(self, _kill_all, self._running)

    def decode(self, content: bytes) -> Decoded:
        """Decode a file, or raise an `ImageError` or `ClosedError`."""
        with self._worker() as worker:
            return worker.decode(content, self._side, self._limits)

    def close(self) -> None:
        """Kill all workers immediately. Threads that wait for them get a `ClosedError`."""
        with self._lock:
            self._is_closed = True
        self._end()
        self._idle.put(None)

    @contextlib.contextmanager
    def _worker(self) -> Iterator["_Worker"]:
        worker = self._idle.get()
        if worker is None:
            self._idle.put(None)  # for the next waiting thread
            raise ClosedError("the server is stopping")
        try:
            yield worker
        except ImageError as error:
            if self._is_closed:
                raise ClosedError("the server is stopping") from error
            raise
        finally:
            self._idle.put(worker if worker.is_good else self._replace(worker))

    def _replace(self, worker: "_Worker") -> "_Worker | None":
        worker.kill()
        with self._lock:
            self._running.discard(worker)
        return self._new()

    def _new(self) -> "_Worker | None":
        with self._lock:
            if self._is_closed:
                return None
            worker = _Worker(self._limits)
            self._running.add(worker)
            return worker


def _kill_all(workers: set["_Worker"]) -> None:
    for worker in list(workers):
        worker.kill()


class _Worker:
    """One process. Its replies are checked, because a hostile image may control it."""

    def __init__(self, limits: WorkerLimits) -> None:
        command = [sys.executable, "-m", "mirrorshot.files.imaging.worker", str(limits.memory), str(limits.cpu_seconds)]
        self._n_left, self._is_ready, self._is_late, self.is_good = _IMAGES_OF_ONE, False, False, True
        self._process = subprocess.Popen(
            command,
            cwd=_HOME,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def decode(self, content: bytes, side: int, limits: WorkerLimits) -> Decoded:
        """Decode one file; set `is_good` to False if the worker has to be replaced."""
        self._n_left -= 1
        self.is_good = False
        try:
            self._wait_until_ready()
            with self._within(limits.wall_seconds):
                kind, found = self._exchange(content, side, limits.pixels)
        except (OSError, EOFError) as error:
            raise ImageError(self._why_ended(limits)) from error
        except ValueError as error:  # it still runs, but its reply is invalid
            raise ImageError("its decoder failed") from error
        self.is_good = kind in (b"I", b"E") and self._n_left > 0
        if isinstance(found, str):
            raise ImageError(found)
        return found

    def kill(self) -> None:
        """End the process and close its pipes; a thread that reads from them sees the end of the file."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent bytes are lost
                    pipe.close()

    def _wait_until_ready(self) -> None:
        """Wait for the imports of a new process, which take seconds on a busy machine."""
        if not self._is_ready:
            assert self._process.stdout is not None
            with self._within(_START_SECONDS):
                self._is_ready = _read(self._process.stdout, len(READY)) == READY

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Kill the process if it takes longer."""
        timer = threading.Timer(seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _exchange(self, content: bytes, side: int, max_pixels: int) -> tuple[bytes, Decoded | str]:
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        requests.write(REQUEST.pack(len(content), max_pixels, side))
        requests.write(content)
        requests.flush()
        kind = _read(replies, 1)
        if kind == b"I":
            return kind, _read_decoded(replies, max_pixels)
        (n_text,) = TEXT.unpack(_read(replies, TEXT.size))
        if n_text > _MAX_TEXT:
            raise ValueError(f"Expected a text of at most {_MAX_TEXT} bytes, but got {n_text}.")
        return kind, _read(replies, n_text).decode("utf-8", "replace")

    def _why_ended(self, limits: WorkerLimits) -> str:
        """The reason why the process ended while it decoded an image."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its decoder failed"  # it has closed its output, and still runs
        if self._is_late and not self._is_ready:
            return f"its decoder did not start within {_START_SECONDS:g} seconds"
        if self._is_late:
            return f"it takes more than {limits.wall_seconds:g} seconds to decode"
        if code == -getattr(signal, "SIGXCPU", 0):
            return f"it takes more than {limits.cpu_seconds} seconds to decode"
        return "its decoder crashed"


def _read_decoded(replies: IO[bytes], max_pixels: int) -> Decoded:
    is_colour, width, height, n_preview = IMAGE.unpack(_read(replies, IMAGE.size))
    if not 0 < width * height <= max_pixels or n_preview > _MAX_PREVIEW:
        raise ValueError(f"Expected at most {max_pixels} pixels, but got {width} x {height}.")
    preview = _read(replies, n_preview)
    pixels = _read(replies, width * height * (3 if is_colour else 1))
    return Decoded(Image.frombytes("RGB" if is_colour else "L", (width, height), pixels), preview)


def _read(stream: IO[bytes], n: int) -> bytes:
    found = stream.read(n)
    if len(found) < n:
        raise EOFError
    return found
