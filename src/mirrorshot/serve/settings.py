"""Settings of a server: address, access, and limits of its users."""

import dataclasses
import ipaddress
import re
from pathlib import Path

from mirrorshot.serve.tokens import MIN_TOKEN, check_strength
from mirrorshot.types import InvalidInputError

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of users. Clients cannot exceed them by false headers.

    Attributes:
        upload_bytes: size of an image.
        labels_bytes: size of a file of labels.
        json_bytes: size of any other body.
        pixels: pixels of an image, checked before it is decoded.
        classes: classes of one user.
        examples: labelled images of one user.
        pool: unlabelled images of one user.
        sessions: number of users.
        sessions_per_minute: new users from one address.
        store_bytes: size of the database, beyond which no users and images are added.
        session_requests: open requests of one user, including those that wait.
        address_requests: open requests without a session from one address.
        session_bytes: total size of the bodies of one user's open requests.
        total_bytes: total size of the bodies of all open requests.
        body_seconds: time to send a body, in addition to its size divided by `body_rate`.
        body_rate: smallest rate of a body in bytes per second.
        idle_seconds: time for a connection to send the headers of its next request.
        answer_seconds: time for a client to read an answer.
        connections: open connections; beyond them the one that was idle longest is closed.
        cache_bytes: size of the fitted classifiers in memory.
    """

    upload_bytes: int = 16 * 2**20
    labels_bytes: int = 2**20
    json_bytes: int = 64 * 2**10
    pixels: int = 2**25
    classes: int = 20
    examples: int = 200
    pool: int = 500
    sessions: int = 10_000
    sessions_per_minute: int = 60
    store_bytes: int = 8 * 2**30
    session_requests: int = 32
    address_requests: int = 128
    session_bytes: int = 64 * 2**20
    total_bytes: int = 256 * 2**20
    body_seconds: float = 10.0
    body_rate: int = 128 * 2**10
    idle_seconds: float = 15.0
    answer_seconds: float = 60.0
    connections: int = 512
    cache_bytes: int = 2**28


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        data_folder: folder of the database; nothing is written elsewhere.
        host: address to listen at.
        port: port to listen at.
        token: secret that users need; None is possible only if other machines cannot reach the server.
        public_host: host name of a proxy in front of the server.
        limits: limits of users.

    Raises:
        InvalidInputError: a token is missing or weak, or `public_host` or `port` is invalid.

    Example:
        >>> Settings(Path("data")).allowed_hosts
        ('localhost', '127.0.0.1', '[::1]')
    """

    data_folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    public_host: str | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.token is None and not (is_loopback(self.host) and self.public_host is None):
            where = f"--host {self.host}" if not is_loopback(self.host) else f"--public-host {self.public_host}"
            raise InvalidInputError(
                f"Expected a token, because others can reach the server with {where}. Set the variable "
                f"MIRRORSHOT_TOKEN to a secret of at least {MIN_TOKEN} characters, or listen at 127.0.0.1."
            )
        if self.token is not None:
            check_strength(self.token)
        if self.public_host is not None and not _NAME.fullmatch(self.public_host):
            raise InvalidInputError(
                f"Expected the public host to be a name such as few.example.org, but got {self.public_host!r}. "
                "Leave out https://, the port and the path."
            )
        if self.port not in range(65536):
            raise InvalidInputError(f"Expected the port to be between 0 and 65535, but got {self.port}.")

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """Host names that requests may have; None: any, because a token protects a server that others can reach.

        Prevents DNS rebinding: another site could let its name resolve to 127.0.0.1 and then read the data.
        """
        if not is_loopback(self.host):
            return None
        own = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(dict.fromkeys([*_LOOPBACK_NAMES, own, *([self.public_host.lower()] if self.public_host else [])]))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
