"""The server: the page and its API, the OpenAI API, and the guard before both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from opsmith.errors import OpsmithError
from opsmith.studio import openai_api, page_api, safety, uploads
from opsmith.studio.core import Studio
from opsmith.studio.jobs import QueueFull

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
WORKERS_END_SECONDS = 10.0
WRONG_PASSWORD_SECONDS = 1.0  # before the answer, so that guessing is slow


def make_app(studio: Studio, *, page: bool = True, password: str | None = None) -> safety.Guard:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        studio.jobs.close()

    # No documentation pages: they would load their scripts from another host.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.studio = studio
    app.include_router(openai_api.router)
    _answer_errors(app)
    guard = safety.Guard(app, password=password, largest=studio.limits.body, refuse=refusal)
    if page:
        app.include_router(page_api.router)
        _serve_page(app, guard)
    return guard


def _serve_page(app: FastAPI, guard: safety.Guard) -> None:
    # Only files that are there when the server starts are served: a path in a request is looked up, never opened.
    files = {f.relative_to(PAGE).as_posix(): f for f in PAGE.rglob("*") if f.suffix in TYPES}

    @app.get("/")
    def index(request: Request) -> Response:
        answer = FileResponse(files["index.html"], media_type="text/html")
        if not request.scope.get("opsmith.session"):
            answer.set_cookie(
                safety.SESSION, secrets.token_urlsafe(24), max_age=30 * 86400, httponly=True, samesite="strict"
            )
        return answer

    @app.get("/login")
    def ask() -> Response:
        return FileResponse(files["login.html"], media_type="text/html")

    @app.post("/login")
    async def login(request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=4)
        token = guard.login(str(form.get("password", "")))
        if token is None:
            await asyncio.sleep(WRONG_PASSWORD_SECONDS)
            return RedirectResponse("/login?wrong", 303)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(safety.LOGIN, token, httponly=True, samesite="strict")
        return answer

    @app.get("/{name:path}")
    def file(name: str) -> Response:
        if name not in files:
            return HTMLResponse("<!doctype html><title>not found</title><p>There is no such page.", 404)
        return FileResponse(files[name], media_type=TYPES[files[name].suffix], headers={"cache-control": "no-cache"})


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(OpsmithError)
    async def ours(_: Request, error: OpsmithError) -> JSONResponse:
        return JSONResponse(openai_api.error_body(str(error), _code(error)), _status(error))

    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError | ValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"] if p != "body")
        message = f"{where}: {first['msg']}" if where else str(first["msg"])
        return JSONResponse(openai_api.error_body(message, "invalid_request", where or None), 400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(openai_api.error_body(str(error.detail), None), error.status_code)


def _status(error: OpsmithError) -> int:
    if isinstance(error, openai_api.UnknownModel):
        return 404
    if isinstance(error, safety.TooLarge):
        return 413
    return 429 if isinstance(error, QueueFull) else 400


def _code(error: OpsmithError) -> str | None:
    kinds = {openai_api.UnknownModel: "model_not_found", uploads.Refused: "invalid_image", QueueFull: "queue_full"}
    return next((code for kind, code in kinds.items() if isinstance(error, kind)), None)


def refusal(scope: safety.Scope, status: int, message: str) -> Any:
    """The guard's answer: the login page for a visitor without a cookie, an error in OpenAI's form for all others."""
    if status == 401 and scope["path"] == "/" and scope["method"] == "GET":
        return RedirectResponse("/login", 303)
    return JSONResponse(openai_api.error_body(message, None), status, headers={"connection": "close"})


def run(
    studio: Studio,
    *,
    host: str,
    port: int,
    page: bool,
    password: str | None,
    open_browser: bool,
    ready: Callable[[str], None],
) -> None:
    """Serve until interrupted. READY is called with the address once connections are accepted."""
    safety.check_host(host, password)
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/"
    app = make_app(studio, page=page, password=password)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, timeout_keep_alive=30, server_header=False
    )  # fmt: skip
    server = uvicorn.Server(config)
    ready(address)
    if open_browser:
        webbrowser.open(address)
    studio.warm_up()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    studio.jobs.close()
    # A thread that is inside ONNX Runtime when the interpreter goes away would abort the process.
    if not studio.jobs.join(WORKERS_END_SECONDS):
        sys.stdout.flush()
        os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    """Bound before anything is loaded, so that a taken port is told at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(found[0], found[1])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
        made.listen(128)
    except OSError as error:
        raise OpsmithError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port; 0 is any"
        ) from error
    return made
