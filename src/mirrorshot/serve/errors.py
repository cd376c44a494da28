"""Errors of requests: an HTTP status and a message."""

import errno
import logging

from mirrorshot.types import MirrorshotError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class RequestError(MirrorshotError):
    """A request cannot be served; `retry_after` is the number of seconds after which it may succeed, if known."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Additional headers of the answer."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def not_found(what: str, number: object) -> RequestError:
    """Return the error for an id that is not one of this user, whether or not another user has it."""
    return RequestError(
        404, f"Expected the id of one of your {what}, but got {number}. GET /api/session has all that there are."
    )


def unknown_session() -> RequestError:
    """Return the error for a session that does not exist or was deleted."""
    return RequestError(401, "Expected the id of a session that this server knows. Begin one with POST /api/sessions.")


def too_many(what: str, limit: int) -> RequestError:
    """Return the error for a reached limit."""
    return RequestError(409, f"Expected at most {limit} {what}, but that is how many you have. Remove some first.")


def disk_failed(error: OSError) -> RequestError:
    """Return the error for a failed disk. The details, with paths, are only logged."""
    logging.getLogger("mirrorshot.serve").error("the disk failed", exc_info=error)
    if error.errno in _NO_ROOM:
        return RequestError(
            507, "Expected room on the disk of the server, but it is full. Ask the operator of the server."
        )
    return RequestError(503, "Expected the disk of the server to work, but it failed. Ask the operator of the server.")


def database_failed(error: Exception) -> RequestError:
    """Return the error for a failed database."""
    logging.getLogger("mirrorshot.serve").error("the database failed", exc_info=error)
    return RequestError(503, f"Expected the database to answer, but got: {error}. Ask the operator of the server.")
