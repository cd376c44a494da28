"""Start and stop of the server."""

import multiprocessing
import os
import socket
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from mirrorshot.encoders import EncoderError, candidates
from mirrorshot.serve.app import make_app
from mirrorshot.serve.connections import bounded
from mirrorshot.serve.images import Encoders
from mirrorshot.serve.settings import Settings
from mirrorshot.tool import Model
from mirrorshot.types import DataError

_GRACEFUL_SECONDS = 2  # for open requests, after a signal to stop
_STOP_SECONDS = 4.0  # after a signal, until the process ends in any case


class Server(uvicorn.Server):
    """A server that ends within seconds of a signal, whatever its threads and connections do.

    Open requests have `_GRACEFUL_SECONDS` to end, then the service is closed. If that takes too long, because a thread
    or a worker process hangs, the process exits. Acknowledged changes are on the disk.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, and exit after `_STOP_SECONDS` at the latest."""
        if not self.should_exit:
            last_resort = threading.Timer(_STOP_SECONDS, _end, (128 + sig,))
            last_resort.daemon = True
            last_resort.start()
        super().handle_exit(sig, frame)


def make_server(app: Any, settings: Settings) -> Server:
    """Create the server of an application, without starting it."""
    config = uvicorn.Config(
        app,
        http=bounded(settings.limits),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=settings.public_host is not None,
        timeout_keep_alive=int(settings.limits.idle_seconds) + 1,  # `Connection` enforces the limit itself
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        ws="none",
    )
    return Server(config)


def _end(status: int) -> None:
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(status)


def run(
    settings: Settings,
    model_path: Path | None,
    encoder: str,
    *,
    download: bool,
    trust_encoder: bool,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM. New users start with the model; `encoder` is the only one, or "auto"."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # about metadata of users' images
    model = None if model_path is None else Model.load(model_path, trust_encoder=trust_encoder, download=download)
    if model is not None and encoder != "auto":
        raise EncoderError("Expected the encoder of the model, but got another one. Leave out --encoder.")
    names = tuple(candidates("picture")) if encoder == "auto" else (encoder,)
    encoders = Encoders(names, model, download=download)
    with _listen(settings) as bound:  # before any file is created
        app = make_app(settings, encoders, model)
        say(f"mirrorshot serve: {_address(settings, bound.getsockname()[1])}")
        say(f"Data in {settings.data_folder}. Stop with Ctrl-C.")
        make_server(app, settings).run(sockets=[bound])


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sets TCP_NODELAY, which sends small answers immediately, only if the protocol is given
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # on Windows SO_REUSEADDR would let a second server use the same port; SO_EXCLUSIVEADDRUSE prevents it
        option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((settings.host, settings.port))
        bound.listen(settings.limits.connections)  # early clients wait until the server is ready
    except OSError as error:
        bound.close()
        raise DataError(
            f"Expected {settings.host} port {settings.port} to be free, but got: {error}. Choose another with --port."
        ) from error
    return bound


def _address(settings: Settings, port: int) -> str:
    host = settings.public_host or ("127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host)
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" if settings.public_host is None else f"https://{name}/"
