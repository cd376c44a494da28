"""A process that decodes images for its parent: requests on standard input, replies on standard output.

It writes `READY` after its imports; the time limit of the first image begins then.

A request is the size of the file, the pixel limit, the side of the preview, and the file. A reply is one of

    b"I", whether the image has colours, its width and height, the size of the preview; the preview, the pixels
    b"E", the size of a text; the text: the reason why the image cannot be decoded
    b"M", as b"E", after it ran out of memory; the process has to be replaced

The process ends when its input is closed, and therefore with its parent.
"""

import contextlib
import os
import signal
import struct
import sys
import warnings
from typing import BinaryIO

from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging.reading import make_preview, read_image

try:
    import resource
except ImportError:  # Windows: the time limit of the parent is the only one
    resource = None  # type: ignore[assignment]

READY = b"R"
REQUEST = struct.Struct(">QQI")
IMAGE = struct.Struct(">?III")
TEXT = struct.Struct(">I")


def main() -> None:
    """Serve until the input ends. Arguments: memory limit in bytes, and seconds of processor time per image."""
    memory, seconds = (int(argument) for argument in sys.argv[1:3])
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if resource is not None:
        _limit_memory(memory)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write(READY)
    replies.flush()
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        n_bytes, max_pixels, side = REQUEST.unpack(head)
        content = requests.read(n_bytes)
        if len(content) < n_bytes:
            return
        if resource is not None:
            _limit_time(seconds)
        _reply(replies, content, max_pixels, side)
        replies.flush()


def _reply(replies: BinaryIO, content: bytes, max_pixels: int, side: int) -> None:
    try:
        image = read_image(content, max_pixels)
        preview = make_preview(image, side)
        pixels = image.tobytes()
    except ImageError as error:
        _reply_text(replies, b"M" if isinstance(error.__cause__, MemoryError) else b"E", str(error))
    except MemoryError:
        _reply_text(replies, b"M", "it takes too much memory to decode")
    else:
        replies.write(b"I" + IMAGE.pack(image.mode == "RGB", *image.size, len(preview)))
        replies.write(preview)
        replies.write(pixels)


def _reply_text(replies: BinaryIO, kind: bytes, text: str) -> None:
    encoded = text.encode("utf-8", "replace")
    replies.write(kind + TEXT.pack(len(encoded)) + encoded)


def _limit_memory(memory: int) -> None:
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError):  # macOS has no limit of the address space
            _set_limit(limit, value)


def _limit_time(seconds: int) -> None:
    """Allow `seconds` more processor time; SIGXCPU then ends the process."""
    used = os.times()
    _set_limit(resource.RLIMIT_CPU, int(used.user + used.system) + 1 + seconds)


def _set_limit(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
