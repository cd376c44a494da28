"""Errors that a client gets: a status, and a sentence that says what was expected, what was got, and what to do."""

from mirrorshot.types import MirrorshotError


class RequestError(MirrorshotError):
    """A request that cannot be served.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def not_found(what: str, number: object) -> RequestError:
    """There is no such thing among those of the user; whether another user has it is not told."""
    return RequestError(404, f"Expected the id of a {what} of yours, but got {number}. Load the page again.")


def too_many(what: str, limit: int) -> RequestError:
    """A bound is reached."""
    return RequestError(409, f"Expected at most {limit} {what}, but that is how many you have. Remove some first.")
