"""Who is let in: names, origins, passwords, sizes, paths."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import Running, begin

from opsmith.errors import OpsmithError
from opsmith.studio import safety
from opsmith.studio.core import Studio
from opsmith.studio.models import Models
from opsmith.studio.uploads import Limits


@pytest.fixture(scope="module")
def locked(home: Path) -> Iterator[Running]:
    made = begin(Studio(Models(), home / "locked", Limits(body=100_000)), password="open sesame")
    yield made
    made.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.53"])
def test_this_machine_needs_no_password(host: str) -> None:
    safety.check_host(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_addresses_need_a_password(host: str) -> None:
    with pytest.raises(OpsmithError, match="needs a password"):
        safety.check_host(host, None)
    safety.check_host(host, "word")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "192.168.1.5"])
def test_a_foreign_name_gets_nothing(running: Running, host: str) -> None:
    """DNS rebinding: a page's own name is bent to 127.0.0.1, and the browser takes us for that page."""
    for path in ("/", "/api/state", "/v1/models"):
        answer = httpx.get(running.url + path, headers={"host": host})
        assert answer.status_code in (400, 421)
        assert "pictures" not in answer.text


@pytest.mark.parametrize("headers", [{"host": "["}, {"host": "[::1"}, {"origin": "http://["}], ids=str)
def test_a_header_that_is_no_address_is_a_bad_request(running: Running, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{running.url}/v1/models", headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_another_name_can_be_allowed(home: Path) -> None:
    served = begin(Studio(Models(), home / "docker"), hosts=["host.docker.internal"])
    try:
        for name, status in (("host.docker.internal:8417", 200), ("Host.Docker.Internal", 200), ("evil.example", 421)):
            assert httpx.get(f"{served.url}/v1/models", headers={"host": name}).status_code == status, name
    finally:
        served.stop()


def test_pages_of_another_site_can_be_allowed_to_use_the_api(home: Path) -> None:
    friend = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
    served = begin(Studio(Models(), home / "friend"), origins=["https://app.example/"])
    try:
        with httpx.Client(base_url=served.url) as client:
            asks = {
                **friend,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            }
            before = client.options("/v1/completions", headers=asks)
            assert before.status_code == 204
            assert before.headers["access-control-allow-origin"] == "https://app.example"
            assert before.headers["access-control-allow-headers"] == "authorization"
            answer = client.get("/v1/models", headers=friend)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert client.get("/api/state", headers=friend).status_code == 403  # the page's own API stays ours
            stranger = {**friend, "origin": "https://app.example.evil"}
            assert client.get("/v1/models", headers=stranger).status_code == 403
            assert "access-control-allow-origin" not in client.get("/v1/models").headers
    finally:
        served.stop()


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/page", "file:///x"])
def test_what_is_no_site_cannot_be_allowed(origin: str) -> None:
    with pytest.raises(OpsmithError, match="is not a site"):
        safety.check_origins([origin])


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def test_guesses_are_slow_also_when_many_are_sent_at_once() -> None:
    clock = Clock()
    guesses = safety.Guesses(clock, clock.sleep)
    words = [f"word {i}" for i in range(safety.MOST_GUESSES - 1)] + ["open sesame"]

    async def parallel() -> list[bool | None]:
        return await asyncio.gather(*(guesses.try_one("1.2.3.4", lambda w=w: w == "open sesame") for w in words))

    assert asyncio.run(parallel()) == [False] * (len(words) - 1) + [True]
    # the right word was looked at only after all the wrong ones had their second
    assert clock.now == pytest.approx((len(words) - 1) * safety.WRONG_PASSWORD_SECONDS)


def test_more_guesses_than_may_wait_are_not_looked_at_and_others_do_not_wait_for_them() -> None:
    clock = Clock()
    guesses = safety.Guesses(clock, clock.sleep)
    looked: list[int] = []

    async def crowd() -> list[bool | None]:
        many = [guesses.try_one("1.2.3.4", lambda i=i: bool(looked.append(i))) for i in range(50)]
        return await asyncio.gather(*many)

    answers = asyncio.run(crowd())
    assert len(looked) == safety.MOST_GUESSES + 1  # the first did not wait
    assert answers.count(None) == 50 - len(looked)
    passed = clock.now
    assert asyncio.run(guesses.try_one("5.6.7.8", lambda: True)) is True
    assert clock.now == passed  # another address waits for nobody


def test_bearer_guesses_and_logins_take_turns(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both doors ask the same gate, with the address of the guest."""
    asked: list[str] = []

    async def try_one(self: safety.Guesses, address: str, right: Callable[[], bool]) -> bool:
        asked.append(address)
        return right()

    monkeypatch.setattr(safety.Guesses, "try_one", try_one)
    httpx.get(f"{locked.url}/v1/models", headers={"authorization": "Bearer open barley"})
    httpx.post(f"{locked.url}/login", data={"password": "open barley"})
    assert asked == ["127.0.0.1"] * 2


def test_one_guest_may_have_many_addresses_of_ipv6() -> None:
    names = [safety.address_of({"client": (f"2001:db8:1:2::{i}", 1)}) for i in (1, 2)]
    assert names[0] == names[1] != safety.address_of({"client": ("2001:db8:1:3::1", 1)})


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
    ids=str,
)
def test_pages_of_other_sites_cannot_ask_for_anything(running: Running, headers: dict[str, str]) -> None:
    with running.visitor() as client:
        for path in ("/api/pictures", "/api/compile", "/v1/images/generations", "/v1/completions"):
            answer = client.post(path, json={"prompt": "x", "model": "writer"}, headers=headers)
            assert answer.status_code == 403, path
            assert "other sites" in answer.json()["error"]["message"]


def test_our_own_page_and_links_from_elsewhere_are_welcome(running: Running) -> None:
    with running.visitor() as client:
        answer = client.post("/api/ideas", json={"keyword": "frog"}, headers={"origin": running.url})
        assert answer.status_code == 202
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert client.get("/", headers=link).status_code == 200


def test_answers_carry_a_strict_policy(running: Running) -> None:
    headers = httpx.get(running.url).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "httponly" in headers["set-cookie"].lower()
    assert "samesite=strict" in headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "path", ["/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd", "/api/pictures/..%2f..%2fx.png"]
)
def test_paths_lead_nowhere_but_to_the_page(running: Running, path: str) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as line:  # a client would tidy the path
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    assert answer.split()[1] in (b"400", b"404")
    assert b"import" not in answer
    assert b"root:" not in answer


def test_without_the_password_there_is_only_the_login_page(locked: Running) -> None:
    assert httpx.get(f"{locked.url}/health").json() == {"status": "ok"}
    for path in ("/api/state", "/api/events", "/v1/models", "/app.js", "/index.html", "/metrics", "/docs"):
        answer = httpx.get(locked.url + path)
        assert answer.status_code == 401, path
        assert "password" in answer.json()["error"]["message"]
    first = httpx.get(locked.url, follow_redirects=True)
    assert 'type="password"' in first.text
    assert httpx.get(f"{locked.url}/style.css").status_code == 200


def test_the_password_opens_the_page(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsmith.studio.safety.WRONG_PASSWORD_SECONDS", 0.01)
    with httpx.Client(base_url=locked.url, follow_redirects=True) as client:
        wrong = client.post("/login", data={"password": "open barley"})
        assert str(wrong.url).endswith("/login?wrong")
        assert client.get("/api/state").status_code == 401
        assert "Make the picture" in client.post("/login", data={"password": "open sesame"}).text
        assert client.get("/api/state").status_code == 200
    forged = {"opsmith_login": "guess"}
    assert httpx.get(f"{locked.url}/api/state", cookies=forged).status_code == 401


def test_the_password_is_the_api_key(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsmith.studio.safety.WRONG_PASSWORD_SECONDS", 0.01)
    for word, status in (("open sesame", 200), ("open barley", 401)):
        answer = httpx.get(f"{locked.url}/v1/models", headers={"authorization": f"Bearer {word}"})
        assert answer.status_code == status


def test_too_large_a_body_is_refused_with_and_without_a_stated_length(locked: Running) -> None:
    headers = {"authorization": "Bearer open sesame"}
    with httpx.Client(base_url=locked.url, headers=headers) as client:
        client.get("/")
        stated = client.post("/api/uploads", content=bytes(200_000))
        unstated = client.post("/api/uploads", content=(bytes(10_000) for _ in range(20)))
        for answer in (stated, unstated):
            assert answer.status_code == 413
            assert "larger than" in answer.json()["error"]["message"]
        assert client.post("/api/uploads", content=bytes(90_000)).status_code == 400  # small enough, but no picture


def test_a_client_that_waits_is_told_that_its_body_is_too_large(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safety, "DRAIN_SECONDS", 0.3)
    address = urlsplit(locked.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        head = f"POST /api/uploads HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 999999999\r\n"
        connection.sendall(f"{head}Authorization: Bearer open sesame\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_without_the_page_there_is_only_the_api(home: Path) -> None:
    served = begin(Studio(Models(), home / "serve"), page=False)
    try:
        assert httpx.get(f"{served.url}/v1/models").status_code == 200
        for path in ("/", "/app.js", "/api/state"):
            assert httpx.get(served.url + path).status_code == 404
    finally:
        served.stop()
