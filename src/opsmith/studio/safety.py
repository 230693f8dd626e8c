"""Who may talk to the server: the guard before every request.

1. Host      Without a password only this machine's own names are answered, so that a web page whose name is bent to 127.0.0.1
             (DNS rebinding) gets nothing. With one, the cookie and the key protect: they are bound to the real name.
2. Origin    A request that a page of another site makes is refused.
3. Password  A cookie from the login page, or `Authorization: Bearer PASSWORD` as OpenAI clients send it.
4. Size      A body that is larger than allowed is refused before it is read, or once it has become too large.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from opsmith.errors import OpsmithError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, int, str], App]

SESSION = "opsmith_session"  # which browser this is; it sees its own jobs and pictures
LOGIN = "opsmith_login"
OPEN = ("/login", "/style.css", "/icon.svg", "/theme.js")  # what the login page needs

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


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware. REFUSE makes the answer, since the page and the API say it in different forms."""

    def __init__(self, app: App, *, password: str | None, largest: int, refuse: Refuse) -> None:
        self.app, self.password, self.largest, self.refuse = app, password, largest, refuse
        self._salt = secrets.token_bytes(16)
        self._token = secrets.token_urlsafe(32)

    def _digest(self, word: str) -> bytes:
        """Of equal length for all words, so that the comparison takes equal time."""
        return hmac.digest(self._salt, word.encode(), "sha256")

    def login(self, word: str) -> str | None:
        """The cookie's value, if the password is right."""
        right = self.password is not None and hmac.compare_digest(self._digest(word), self._digest(self.password))
        return self._token if right else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        scope["opsmith.session"] = cookie(headers, SESSION)
        problem = self._problem(scope, headers)
        if problem is not None:
            await self._drain(receive)
            await self.refuse(scope, *problem)(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), _with_headers(send))

    def _problem(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if self.password is None and not is_loopback(name):
            return 421, f"this server does not answer to the name {name[:80]!r}"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "requests from pages of other sites are refused"
        visits = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not visits:
            return 403, "requests from pages of other sites are refused"
        if self.password is not None and scope["path"] not in OPEN and not self._known(headers):
            return 401, "the password is missing or wrong"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.largest:
            return 413, f"the request is larger than {self.largest / 2**20:.0f} MB"
        return None

    def _known(self, headers: dict[str, str]) -> bool:
        kind, _, word = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.login(word.strip()):
            return True
        return hmac.compare_digest((cookie(headers, LOGIN) or "").encode(), self._token.encode())

    async def _drain(self, receive: Receive) -> None:
        """Read and drop what is still coming, within limits: a client that is cut off while it sends never sees why."""
        seen, until = 0, time.monotonic() + DRAIN_SECONDS
        while seen < DRAIN_TIMES * self.largest and time.monotonic() < until:
            message = await receive()
            seen += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body"):
                return

    def _counted(self, receive: Receive) -> Receive:
        """For bodies without a length."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.largest:
                if message.get("more_body"):
                    await self._drain(receive)
                raise TooLarge(f"the request is larger than {self.largest / 2**20:.0f} MB")
            return message

        return counted


class TooLarge(OpsmithError):
    """A body without a stated length turned out too large."""


def cookie(headers: dict[str, str], name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {k.lower() for k, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sending
