"""The server: the page and its API, the OpenAI API, and the guard before both."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from opsmith._version import __version__
from opsmith.errors import OpsmithError
from opsmith.studio import (
    openai_api,
    openai_embeddings,
    openai_text,
    page_api,
    reference,
    safety,
    uploads,
    waiting,
)
from opsmith.studio.core import Studio, Wrong
from opsmith.studio.jobs import QueueFull

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
WORKERS_END_SECONDS = 10.0


def make_app(
    studio: Studio,
    *,
    page: bool = True,
    password: str | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
) -> safety.Guard:
    """HOSTS and ORIGINS are names and sites that are allowed beside our own."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        studio.jobs.close()

    # FastAPI's own documentation pages would load their scripts from another host; reference.py has ours.
    app = FastAPI(
        title="Opsmith",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.studio = studio
    for part in (openai_api, openai_text, openai_embeddings, reference):
        app.include_router(part.router)
    _watch(app, studio)
    _answer_errors(app)
    guard = safety.Guard(app, password=password, limits=studio.limits, refuse=refusal, hosts=hosts, origins=origins)
    if page:
        app.include_router(page_api.router, include_in_schema=False)
        _serve_page(app, guard)
    return guard


def _watch(app: FastAPI, studio: Studio) -> None:
    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether the server answers; needs no password."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Queues, tokens, steps and memory, as Prometheus reads them."""
        return PlainTextResponse(studio.metrics.text(studio.jobs.busy()), media_type="text/plain; version=0.0.4")


def _serve_page(app: FastAPI, guard: safety.Guard) -> None:
    # Only files that are there when the server starts are served: a path in a request is looked up, never opened.
    files = {f.relative_to(PAGE).as_posix(): f for f in PAGE.rglob("*") if f.suffix in TYPES}

    @app.get("/", include_in_schema=False)
    def index(request: Request) -> Response:
        answer = FileResponse(files["index.html"], media_type="text/html")
        if not request.scope.get("opsmith.session"):
            answer.set_cookie(
                safety.SESSION, secrets.token_urlsafe(24), max_age=30 * 86400, httponly=True, samesite="strict"
            )
        return answer

    @app.get("/login", include_in_schema=False)
    def ask() -> Response:
        return FileResponse(files["login.html"], media_type="text/html")

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=4)
        token = await guard.login(request.scope, str(form.get("password", "")))
        if token is None:
            return RedirectResponse("/login?wrong", 303)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(safety.LOGIN, token, httponly=True, samesite="strict")
        return answer

    def file(request: Request) -> Response:
        found = files[request.scope["path"][1:]]
        return FileResponse(found, media_type=TYPES[found.suffix], headers={"cache-control": "no-cache"})

    for name in files:  # one route each: any other path is unknown, whatever the method
        app.add_api_route(f"/{name}", file, include_in_schema=False)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(OpsmithError)
    async def ours(_: Request, error: OpsmithError) -> JSONResponse:
        field, status = error.field if isinstance(error, Wrong) else None, _status(error)
        return JSONResponse(waiting.error_body(str(error), _code(error), field, status), status)

    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError | ValidationError) -> JSONResponse:
        message, where = waiting.what_is_invalid(error.errors())
        return JSONResponse(waiting.error_body(message, "invalid_request", where), 400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 404 and not path.startswith(("/v1", "/api/")):
            return HTMLResponse("<!doctype html><title>not found</title><p>There is no such page.", 404)
        said = {
            404: (f"there is no {request.method} {path[:200]}", "unknown_url"),
            405: (f"{path[:200]} takes no {request.method}", "method_not_supported"),
        }
        message, code = said.get(error.status_code, (str(error.detail), None))
        body = waiting.error_body(message, code, status=error.status_code)
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def ours_alone(_: Request, error: Exception) -> JSONResponse:
        body = waiting.error_body(f"internal error: {type(error).__name__}", "internal_error", status=500)
        return JSONResponse(body, 500)


def _status(error: OpsmithError) -> int:
    if isinstance(error, waiting.UnknownModel):
        return 404
    if isinstance(error, waiting.OurFault):
        return 500
    if isinstance(error, safety.TooLarge):
        return 413
    return 429 if isinstance(error, QueueFull) else 400


def _code(error: OpsmithError) -> str | None:
    kinds = {waiting.UnknownModel: "model_not_found", uploads.Refused: "invalid_image", QueueFull: "queue_full"}
    return next((code for kind, code in kinds.items() if isinstance(error, kind)), None)


def refusal(scope: safety.Scope, status: int, message: str) -> Any:
    """The guard's answer: the login page for a visitor without a cookie, an error in OpenAI's form for all others."""
    if status == 401 and scope["path"] == "/" and scope["method"] == "GET":
        return RedirectResponse("/login", 303)
    return JSONResponse(waiting.error_body(message, None, status=status), status, headers={"connection": "close"})


def run(
    studio: Studio,
    *,
    host: str,
    port: int,
    page: bool,
    password: str | None,
    open_browser: bool,
    ready: Callable[[str], None],
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
) -> None:
    """Serve until interrupted. READY is called with the address once connections are accepted."""
    safety.check_host(host, password)
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/"
    if not safety.is_loopback(host):
        studio.pipelines.closed = "models are added on the machine that runs the studio, with --model"
    app = make_app(studio, page=page, password=password, hosts=hosts, origins=origins)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
        server_header=False,
    )
    server = _Server(config, studio)
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


class _Server(uvicorn.Server):
    """Ends its streams when it is told to stop: one that is still open would be cut off, with a traceback."""

    def __init__(self, config: uvicorn.Config, studio: Studio) -> None:
        super().__init__(config)
        self.studio = studio

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.studio.jobs.close()
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    """Bound before anything is loaded, so that a taken port is told at once."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(address[0], address[1])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address[4])
        made.listen(128)
    except OSError as error:
        raise OpsmithError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port; 0 is any"
        ) from error
    return made
