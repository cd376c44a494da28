"""Start the server: read the model, open the port, say where it is."""

import socket
import sys
import warnings
from pathlib import Path

import uvicorn

from mirrorshot.encoders import EncoderError
from mirrorshot.models import Model
from mirrorshot.serve.app import make_app
from mirrorshot.serve.pictures import Encoders
from mirrorshot.serve.settings import Settings
from mirrorshot.types import DataError

_CONNECTIONS = 512
_KEEP_ALIVE_SECONDS = 15


def run(settings: Settings, model_path: Path | None, encoder: str, *, download: bool, trust_encoder: bool) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        settings: of the server.
        model_path: a model that new users begin with.
        encoder: name of the only encoder, or "auto".
        download: whether weights may be fetched.
        trust_encoder: whether a function that the model names may be imported.

    Raises:
        DataError: the port is taken, or the data folder cannot serve.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")  # odd metadata of users' pictures
    model = None if model_path is None else Model.load(model_path, trust_encoder=trust_encoder, download=download)
    if model is not None and encoder != "auto":
        raise EncoderError("Expected the encoder of the model, but got another one. Leave out --encoder.")
    encoders = Encoders(("glyphs", "pixels") if encoder == "auto" else (encoder,), model, download=download)
    app = make_app(settings, encoders, model)
    bound = _listen(settings)
    print(f"mirrorshot serve: {_address(settings, bound.getsockname()[1])}", file=sys.stderr, flush=True)
    print(f"Data in {settings.data_folder}. Stop with Ctrl-C.", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=settings.public_host is not None,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[bound])


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # the protocol is named, because asyncio sends small answers at once (TCP_NODELAY) only if it is
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        bound.listen(_CONNECTIONS)  # who comes before the server is ready waits
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
