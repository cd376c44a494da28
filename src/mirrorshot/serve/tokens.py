"""Token of the server: strength, check, and a limit on guesses."""

import hashlib
import hmac
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from mirrorshot.serve.errors import RequestError
from mirrorshot.types import InvalidInputError

MIN_TOKEN = 16  # characters
MIN_BITS = 40.0  # about the smallest `token_bits` of 16 random hexadecimal digits
TOKEN_HEADER = "x-mirrorshot-token"
GUESSES = 10  # per minute and address
_MAX_ADDRESSES = 10_000


def check_strength(token: str) -> None:
    """Refuse a token that is short, not ASCII, or easy to guess; the message does not contain it."""
    good = "For a good one: python -c 'import secrets; print(secrets.token_urlsafe())'"
    if len(token) < MIN_TOKEN or not token.isascii():
        raise InvalidInputError(
            f"Expected the token to have at least {MIN_TOKEN} characters, all of them ASCII, but got one of "
            f"{len(token)}. {good}"
        )
    if token_bits(token) < MIN_BITS:
        raise InvalidInputError(
            f"Expected the token to be hard to guess (about {MIN_BITS:.0f} bits), but got one of about "
            f"{token_bits(token):.0f}: it repeats itself, counts up, or has few different characters. {good}"
        )


def token_bits(token: str) -> float:
    """Return an upper bound on the entropy of a token in bits; repetitions and runs such as "abc" do not count.

    Example:
        >>> [round(token_bits(token)) for token in ("aaaaaaaaaaaaaaaa", "1234567890123456", "p4-Zt81xQ_vR20mK")]
        [0, 7, 64]
    """
    period = next(n for n in range(1, len(token) + 1) if token[n:] == token[:-n])
    once = token[:period]
    surprising = 1 + sum(abs(ord(b) - ord(a)) > 1 for a, b in itertools.pairwise(once))
    return surprising * math.log2(len(set(once)))


class Rate:
    """Limit of `per_minute` events per address and minute, also all at once (a token bucket).

    Example:
        >>> rate = Rate(2, clock=lambda: 0.0)
        >>> [rate.allows("a"), rate.allows("a"), rate.allows("a"), rate.allows("b")]
        [True, True, False, True]
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def seconds(self) -> int:
        """Seconds until an address that has used all events may have another."""
        return math.ceil(60 / self._per_minute)

    def allows(self, address: str, cost: float = 1.0) -> bool:
        """Return whether the address may have another event now; if so, count `cost` events."""
        now = self._clock()
        left, before = self._left.pop(address, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - before) * self._per_minute / 60.0)
        self._left[address] = (left - cost if left >= 1.0 else left, now)
        if len(self._left) > _MAX_ADDRESSES:
            self._left.popitem(last=False)
        return left >= 1.0


class Door:
    """Check of the token; None: no token is needed. Wrong tokens, in logins and headers, are counted per address.

    The cookie depends on the token and on a random secret of the server, so it cannot be guessed. Users who have it are
    not locked out by wrong tokens from the same address.
    """

    def __init__(self, token: str | None, cookie: str, secret: str) -> None:
        self._token, self._cookie, self._wrong = token, cookie, Rate(GUESSES)
        self.proof = hmac.new(secret.encode(), (token or "").encode(), hashlib.sha256).hexdigest()

    def knows(self, token: str, address: str) -> bool:
        """Return whether this is the token; raise a `RequestError` after too many wrong ones from the address."""
        if self._token is None:
            return False
        if not self._wrong.allows(address, cost=0.0):
            raise RequestError(
                429,
                f"Expected at most {GUESSES} wrong tokens a minute, but got more. Wait a minute.",
                retry_after=self._wrong.seconds,
            )
        is_right = _equal(token, self._token)
        if not is_right:
            self._wrong.allows(address)
        return is_right

    def is_open(self, headers: Headers, address: str) -> bool:
        """Return whether a request has the token or its cookie; raise a `RequestError` like `knows`."""
        if self._token is None:
            return True
        proof, given = cookies(headers).get(self._cookie), headers.get(TOKEN_HEADER)
        if proof is not None and _equal(proof, self.proof):
            return True
        return given is not None and self.knows(given, address)


def _equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def cookies(headers: Headers) -> dict[str, str]:
    """Return the cookies of a request."""
    return cookie_parser(headers.get("cookie", ""))
