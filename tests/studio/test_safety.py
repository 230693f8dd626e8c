"""Who is let in: names, origins, passwords, sizes, paths."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

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
    for path in ("/api/state", "/api/events", "/v1/models", "/app.js", "/index.html"):
        answer = httpx.get(locked.url + path)
        assert answer.status_code == 401, path
        assert "password" in answer.json()["error"]["message"]
    first = httpx.get(locked.url, follow_redirects=True)
    assert 'type="password"' in first.text
    assert httpx.get(f"{locked.url}/style.css").status_code == 200


def test_the_password_opens_the_page(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsmith.studio.server.WRONG_PASSWORD_SECONDS", 0.01)
    with httpx.Client(base_url=locked.url, follow_redirects=True) as client:
        wrong = client.post("/login", data={"password": "open barley"})
        assert str(wrong.url).endswith("/login?wrong")
        assert client.get("/api/state").status_code == 401
        assert "Make the picture" in client.post("/login", data={"password": "open sesame"}).text
        assert client.get("/api/state").status_code == 200
    forged = {"opsmith_login": "guess"}
    assert httpx.get(f"{locked.url}/api/state", cookies=forged).status_code == 401


def test_the_password_is_the_api_key(locked: Running) -> None:
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


def test_without_the_page_there_is_only_the_api(home: Path) -> None:
    served = begin(Studio(Models(), home / "serve"), page=False)
    try:
        assert httpx.get(f"{served.url}/v1/models").status_code == 200
        for path in ("/", "/app.js", "/api/state"):
            assert httpx.get(served.url + path).status_code == 404
    finally:
        served.stop()
