"""`mirrorshot serve`."""

import secrets
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mirrorshot.cli.options import Download, EncoderName, Trust, examples
from mirrorshot.cli.terminal import check_folder, errors_as_messages, say, wrong_usage


@examples(
    {
        "mirrorshot serve": "Open http://127.0.0.1:8000, drop images into classes, see answers. Only this machine can "
        "reach it.",
        "mirrorshot serve model.mirrorshot": "Begin with the examples of a model.",
        "mirrorshot serve --host 0.0.0.0": "For others in your network, who have to know the token that is printed, or "
        "the one in MIRRORSHOT_TOKEN.",
    }
)
def serve(
    model: Annotated[
        Path | None,
        typer.Argument(help="File of a model that new users begin with.", metavar="MODEL", readable=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 8000,
    data_folder: Annotated[Path, typer.Option(help="Folder for the images of all users.", metavar="FOLDER")] = Path(
        "serve-data"
    ),
    token: Annotated[
        str | None,
        typer.Option(
            envvar="MIRRORSHOT_TOKEN",
            help="Secret that users have to know. Others can read a command line: prefer the variable. Without one, a "
            "server that others can reach makes its own and prints it.",
        ),
    ] = None,
    public_host: Annotated[
        str | None, typer.Option(help="Name under which a proxy on this machine offers the server.", metavar="NAME")
    ] = None,
    encoder: EncoderName = "auto",
    download: Download = False,
    trust_encoder: Trust = False,
    max_examples: Annotated[int, typer.Option(help="Labelled images of one user.", min=2)] = 200,
    max_classes: Annotated[int, typer.Option(help="Classes of one user.", min=2)] = 20,
    max_pool: Annotated[int, typer.Option(help="Unlabelled images of one user.", min=1)] = 500,
    sessions_per_minute: Annotated[int, typer.Option(help="New users from one address.", min=1)] = 60,
) -> None:
    """Build a classifier image by image on a page in the browser, with a JSON API beside it.

    Several people can use it at once, each with images of their own, which survive a restart.
    """
    check_folder("--data-folder", data_folder)
    with wrong_usage():
        from mirrorshot.serve import Limits, Settings
        from mirrorshot.serve.settings import is_loopback

        limits = Limits(
            examples=max_examples, classes=max_classes, pool=max_pool, sessions_per_minute=sessions_per_minute
        )
        is_public = public_host is not None or not is_loopback(host)
        generated = secrets.token_urlsafe() if is_public and not token else None
        settings = Settings(data_folder, host, port, token or generated, public_host, limits)
    if generated is not None:
        say(f"Token of this server, which users have to know: {generated}", err=True)
    with errors_as_messages():
        from mirrorshot.serve.running import run

        tell = partial(say, err=True)
        run(settings, model, encoder, download=download, trust_encoder=trust_encoder, say=tell)
