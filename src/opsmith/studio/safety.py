"""Who may talk to the server: the guard before every request.

1. Host      Without a password only this machine's own names and those of --allow-host are answered, so that a web page whose name
             is bent to 127.0.0.1 (DNS rebinding) gets nothing. With one, the cookie and the key protect: they are bound to the real name.
2. Origin    A request that a page of another site makes is refused, unless --allow-origin names the site.
3. Password  A cookie from the login page, or `Authorization: Bearer PASSWORD` as OpenAI clients send it. Guesses are slowed.
4. Size      A body that is larger than allowed is refused before it is read, or once it has become too large.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from opsmith.errors import OpsmithError
from opsmith.studio.uploads import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, int, str], App]

SESSION = "opsmith_session"  # which browser this is; it sees its own jobs and pictures
LOGIN = "opsmith_login"
OPEN = (
    "/login",
    "/style.css",
    "/icon.svg",
    "/theme.js",
    "/health",
)  # what the login page needs, and who only asks whether we live
WRONG_PASSWORD_SECONDS = 1.0  # after a wrong password, before another one from the same address is looked at
MOST_GUESSES = 8  # that wait for it
MOST_ADDRESSES = 1000  # that are told apart; beyond them all wait together

DRAIN_TIMES, DRAIN_SECONDS = 8, 10.0  # how much of a refused body is read, as a multiple of what is allowed

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # "no-referrer" would make the origin of our own forms "null"
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def check_host(host: str, password: str | None) -> None:
    if not is_loopback(host) and not password:
        raise OpsmithError(
            f"--host {host} lets other machines in, which needs a password",
            "add --password WORD, or set OPSMITH_STUDIO_PASSWORD",
        )


def check_origins(origins: Collection[str]) -> None:
    for origin in origins:
        parts = urlsplit(origin.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
            raise OpsmithError(
                f"--allow-origin {origin!r} is not a site", "such as https://app.example or http://localhost:3000"
            )


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclasses.dataclass
class _Turn:
    """The guesses of one address: one at a time, and none for a while after a wrong one."""

    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    waiting: int = 0
    free_at: float = 0.0


class Guesses:
    """Passwords are looked at in turn, whether right or wrong: who sends many at once learns no more than who sends them one by one."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.clock, self.sleep = clock, sleep
        self._turns: dict[str, _Turn] = {}

    async def try_one(self, address: str, right: Callable[[], bool]) -> bool | None:
        """Whether the guess is right; None if too many are waiting already."""
        turn = self._turn(address)
        if turn.waiting >= MOST_GUESSES:
            return None
        turn.waiting += 1
        try:
            async with turn.lock:
                if (left := turn.free_at - self.clock()) > 0:
                    await self.sleep(left)
                if right():
                    return True
                turn.free_at = self.clock() + WRONG_PASSWORD_SECONDS
                return False
        finally:
            turn.waiting -= 1

    def _turn(self, address: str) -> _Turn:
        if address not in self._turns and len(self._turns) >= MOST_ADDRESSES:
            now = self.clock()
            self._turns = {a: t for a, t in self._turns.items() if t.waiting or t.free_at > now}
            if len(self._turns) >= MOST_ADDRESSES:
                address = "others"
        return self._turns.setdefault(address, _Turn())


def address_of(scope: Scope) -> str:
    """Who asks; of IPv6 the network, since one guest may have all of its addresses."""
    client = scope.get("client")
    name = str(client[0]) if client else ""
    try:
        ip = ipaddress.ip_address(name)
    except ValueError:
        return name
    return name if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


class Guard:
    """ASGI middleware. REFUSE makes the answer, since the page and the API say it in different forms."""

    def __init__(
        self,
        app: App,
        *,
        password: str | None,
        limits: Limits,
        refuse: Refuse,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        self.app, self.password, self.limits, self.refuse = app, password, limits, refuse
        self.hosts = {host.lower().rstrip(".") for host in hosts}
        self.origins = {origin.lower().rstrip("/") for origin in origins}
        self.guesses = Guesses()
        self._salt = secrets.token_bytes(16)
        self._token = secrets.token_urlsafe(32)

    def _digest(self, word: str) -> bytes:
        """Of equal length for all words, so that the comparison takes equal time."""
        return hmac.digest(self._salt, word.encode(errors="surrogatepass"), "sha256")

    def _right(self, word: str) -> bool:
        return self.password is not None and hmac.compare_digest(self._digest(word), self._digest(self.password))

    async def login(self, scope: Scope, word: str) -> str | None:
        """The cookie's value, if the password is right."""
        return self._token if await self.guesses.try_one(address_of(scope), lambda: self._right(word)) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        scope["opsmith.session"] = cookie(headers, SESSION)
        origin = headers.get("origin", "").lower()
        friend = origin if origin in self.origins and scope["path"].startswith("/v1/") else None
        largest = self.limits.largest(scope["path"])
        sending = _with_headers(send, friend)
        problem = self._stranger(scope, headers, friend)
        if problem is None and friend and scope["method"] == "OPTIONS":
            await _preflight(headers, sending)
            return
        problem = problem or await self._unknown(scope, headers) or _too_large(headers, largest)
        if problem is not None:
            await self._drain(receive, largest)
            await self.refuse(scope, *problem)(scope, receive, sending)
            return
        await self.app(scope, self._counted(receive, largest), sending)

    def _stranger(self, scope: Scope, headers: dict[str, str], friend: str | None) -> tuple[int, str] | None:
        """The name that was asked for, and the page that asks."""
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            site = urlsplit(headers.get("origin", f"//{host}")).netloc.lower()
        except ValueError:
            return 400, "the Host or Origin header is not an address"
        if self.password is None and not is_loopback(name) and name.rstrip(".") not in self.hosts:
            return 421, f"this server does not answer to the name {name[:80]!r} (opsmith serve --allow-host NAME)"
        if friend:
            return None
        visits = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        crosses = headers.get("sec-fetch-site") in ("cross-site", "same-site") and not visits
        if site != host.lower() or crosses:
            return 403, "requests from pages of other sites are refused (opsmith serve --allow-origin ORIGIN)"
        return None

    async def _unknown(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if self.password is None or scope["path"] in OPEN:
            return None
        if hmac.compare_digest((cookie(headers, LOGIN) or "").encode(), self._token.encode()):
            return None
        kind, _, word = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            right = await self.guesses.try_one(address_of(scope), lambda: self._right(word.strip()))
            if right is None:
                return 429, "too many passwords are being tried from this address; try again in a while"
            if right:
                return None
        return 401, "the password is missing or wrong"

    @staticmethod
    async def _drain(receive: Receive, largest: int) -> None:
        """Read and drop what is still coming, within limits: a client that is cut off while it sends never sees why."""
        seen = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):  # also for a client that sends nothing more, and waits
                while seen < DRAIN_TIMES * largest:
                    message = await receive()
                    seen += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return

    def _counted(self, receive: Receive, largest: int) -> Receive:
        """For bodies without a length."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > largest:
                if message.get("more_body"):
                    await self._drain(receive, largest)
                raise TooLarge(_too_large_message(largest))
            return message

        return counted


def _too_large(headers: dict[str, str], largest: int) -> tuple[int, str] | None:
    length = headers.get("content-length", "0")
    return None if length.isdigit() and int(length) <= largest else (413, _too_large_message(largest))


def _too_large_message(largest: int) -> str:
    return f"the request is larger than {largest / 2**20:.0f} MiB"


class TooLarge(OpsmithError):
    """A body without a stated length turned out too large."""


def cookie(headers: dict[str, str], name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None


async def _preflight(headers: dict[str, str], send: Send) -> None:
    """What a browser asks before a page of an allowed site may ask."""
    allowed = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": headers.get("access-control-request-headers", ""),
        "access-control-max-age": "600",
    }
    lines = [(k.encode(), v.encode("latin-1")) for k, v in allowed.items()]
    await send({"type": "http.response.start", "status": 204, "headers": lines})
    await send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, friend: str | None) -> Send:
    """FRIEND is the allowed site whose page asks."""
    wanted = dict(HEADERS)
    if friend:
        wanted |= {
            "access-control-allow-origin": friend,
            "vary": "origin",
            "cross-origin-resource-policy": "cross-origin",
        }

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {k.lower() for k, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in wanted.items() if k.encode() not in present]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sending
