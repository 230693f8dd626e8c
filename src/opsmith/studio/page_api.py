"""What the page asks the server: jobs are started here and watched through one stream of events."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from opsmith import settings
from opsmith.errors import OpsmithError
from opsmith.pipelines import grammar
from opsmith.pipelines.diffusion import unknown_remark
from opsmith.studio import uploads
from opsmith.studio.album import Picture
from opsmith.studio.core import LARGEST, LONGEST, MOST, Studio, Wish, Wrong
from opsmith.studio.jobs import FINISHED, Job
from opsmith.studio.pipelines import STARTER

router = APIRouter(prefix="/api")
HEARTBEAT = 15.0  # seconds of silence after which the stream says that it is alive


class Idea(BaseModel):
    keyword: str
    n: int = Field(3, ge=1, le=6)
    seed: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(Wish):
    variants: tuple[str, str]


class Selection(BaseModel):
    picture: str
    words: str
    threshold: float = 0.5


class Edit(BaseModel):
    picture: str
    mask: str  # a PNG as base64, white is selected
    change: str
    select: str = ""
    feather: float = 2.0
    steps: int = 25
    guidance: float | None = None
    seed: int | None = None
    variant: str | None = None


class Part(BaseModel):
    part: str


class Words(BaseModel):
    prompt: str = Field(max_length=LONGEST)


class Source(BaseModel):
    source: str = Field(max_length=1000)


class Compiling(BaseModel):
    precision: str = "fp32"


def studio_of(request: Request) -> Studio:
    found: Studio = request.app.state.studio
    return found


def owner_of(request: Request) -> str:
    """The browser: jobs and pictures are shown to the one that asked for them."""
    found: str | None = request.scope.get("opsmith.session")
    if not found:
        raise OpsmithError("this browser has no session yet", "open the page first, with cookies allowed")
    return f"browser {found}"


def describe(studio: Studio) -> dict[str, Any]:
    models = studio.models
    parts = {}
    for name in models.parts():
        report = models.report_file(name)
        parts[name] = report.stat().st_mtime if report.is_file() else None
    return {
        "models": {name: models.title(name) for name in models.given},
        "variants": [dataclasses.asdict(c) for c in models.variants()],
        "best": models.best(),
        "draws": models.draws(),
        "pipelines": [dataclasses.asdict(p) for p in studio.pipelines.all()],
        "pipeline": str(given.resolve()) if (given := models.given["pictures"]) else STARTER,
        "closed": studio.pipelines.closed,
        "uncompiled": {p: _work(studio, p) for p in settings.PRECISIONS},
        "parts": parts,
        "native": models.native,
        "guidance": models.guidance,
        "can_edit": models.edits,
        "largest": LARGEST,
        "most": MOST,
        "folder": str(studio.album.folder),
        "changes": grammar.KINDS,
        "upload": {"bytes": studio.limits.body, "pixels": studio.limits.pixels},
    }


def _work(studio: Studio, precision: str) -> dict[str, Any] | None:
    """What compiling would do, and how long it takes; None if it is done."""
    parts = studio.models.uncompiled(precision)
    if not parts:
        return None
    return {"parts": [part.name for part in parts], "seconds": studio.models.forge.estimate(parts)}


def _started(studio: Studio, job: Job) -> JSONResponse:
    return JSONResponse(studio.jobs.snapshot(job), 202)


@router.get("/state")
def state(request: Request) -> dict[str, Any]:
    return describe(studio_of(request))


@router.get("/events")
async def events(request: Request) -> StreamingResponse:
    studio, owner = studio_of(request), owner_of(request)
    return StreamingResponse(_events(studio, owner), media_type="text/event-stream")


async def _events(studio: Studio, owner: str) -> AsyncIterator[str]:
    """First everything as it is, then what changes. A page that connects again sees the same."""
    async with studio.jobs.watch(lambda job: job.shown_to(owner)) as watcher:
        yield _event("models", describe(studio))
        yield _event("gallery", [p.describe() for p in studio.album.of(owner)])
        yield _event("jobs", [studio.jobs.snapshot(job) for job in studio.jobs.of(owner)])
        while not studio.jobs.closed:
            changed = await watcher.next(HEARTBEAT)
            if not changed:
                yield ": still here\n\n"
            for key, job in changed.items():
                if job is not None:
                    yield _event("job", studio.jobs.snapshot(job))
                elif key == "models":
                    yield _event("models", describe(studio))
                elif key.startswith("gone "):
                    yield _event("gone", key.removeprefix("gone "))
                elif key == owner:
                    yield _event("gallery", [p.describe() for p in studio.album.of(owner)])


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, default=str)}\n\n"


@router.post("/ideas")
def ideas(request: Request, asked: Idea) -> JSONResponse:
    studio = studio_of(request)
    return _started(studio, studio.ideas(owner_of(request), asked.keyword, asked.n, asked.seed))


@router.post("/pictures")
def make(request: Request, asked: Wish) -> JSONResponse:
    studio = studio_of(request)
    return _started(studio, studio.pictures(owner_of(request), asked))


@router.post("/compare")
def compare(request: Request, asked: Comparison) -> JSONResponse:
    studio = studio_of(request)
    return _started(studio, studio.compare(owner_of(request), asked, asked.variants))


@router.post("/select")
def select(request: Request, asked: Selection) -> JSONResponse:
    studio, owner = studio_of(request), owner_of(request)
    picture = studio.album.get(asked.picture, owner)
    return _started(studio, studio.select(owner, picture, asked.words, asked.threshold))


@router.post("/edits")
def edit(request: Request, asked: Edit) -> JSONResponse:
    studio, owner = studio_of(request), owner_of(request)
    picture = studio.album.get(asked.picture, owner)
    try:
        data = base64.b64decode(asked.mask.removeprefix("data:image/png;base64,"), validate=True)
    except (binascii.Error, ValueError):
        raise uploads.Refused("the mask is not base64") from None
    mask = uploads.decode(data, studio.limits, "L")
    job = studio.edit(
        owner,
        picture,
        mask,
        asked.change,
        feather=asked.feather,
        select=asked.select,
        steps=asked.steps,
        guidance=asked.guidance,
        seed=asked.seed,
        variant=asked.variant,
    )
    return _started(studio, job)


@router.post("/uploads")
async def upload(request: Request) -> JSONResponse:
    """The body is the file. A picture that Opsmith made brings its settings with it."""
    studio, owner = studio_of(request), owner_of(request)
    data = await request.body()

    def keep() -> tuple[Picture, dict[str, Any]]:
        image, settings = uploads.decode_with_settings(data, studio.limits)
        return studio.album.add(image, {**settings, "studio": "upload"}, owner, "upload"), settings

    kept, settings = await run_in_threadpool(keep)
    return JSONResponse({**kept.describe(), "restored": bool(settings.get("prompt"))})


@router.get("/pictures/{name}.png")
def picture(request: Request, name: str, download: bool = False) -> Response:
    kept = studio_of(request).album.get(name, owner_of(request))
    if not kept.path.is_file():
        raise OpsmithError(f"{kept.path.name} was deleted from the folder")
    kind = "attachment" if download else "inline"
    headers = {"cache-control": "private, max-age=86400, immutable"}
    return FileResponse(
        kept.path, media_type="image/png", filename=kept.path.name, content_disposition_type=kind, headers=headers
    )


@router.post("/pictures/{name}/delete")
def delete(request: Request, name: str) -> dict[str, Any]:
    """From the gallery and from the disk."""
    studio, owner = studio_of(request), owner_of(request)
    studio.album.delete(name, owner)
    studio.jobs.news(owner)
    return {"id": name}


def _job(request: Request, name: str) -> Job:
    job = studio_of(request).jobs.get(name)
    if job is None or not job.shown_to(owner_of(request)):
        raise OpsmithError("this job is no longer known")
    return job


@router.get("/jobs/{name}")
def job(request: Request, name: str) -> dict[str, Any]:
    return studio_of(request).jobs.snapshot(_job(request, name))


@router.get("/jobs/{name}/preview")
def preview(request: Request, name: str) -> Response:
    found = _job(request, name)
    if found.preview is None:
        raise OpsmithError("there is no preview yet")
    return Response(found.preview, media_type="image/jpeg")


@router.post("/jobs/{name}/cancel")
def cancel(request: Request, name: str) -> dict[str, Any]:
    studio, found = studio_of(request), _job(request, name)
    studio.jobs.cancel(found)
    return studio.jobs.snapshot(found)


@router.post("/jobs/{name}/clear")
def clear(request: Request, name: str) -> dict[str, Any]:
    """A job that has ended leaves the gallery."""
    found = _job(request, name)
    if found.state not in FINISHED:
        raise OpsmithError("this job has not ended yet", "cancel it first")
    studio_of(request).jobs.forget(found)
    return {"id": name}


@router.post("/words")
def words(request: Request, asked: Words) -> dict[str, Any]:
    """Which words of a prompt the picture model was never shown, before the picture is made."""
    owner_of(request)
    unknown = studio_of(request).models.unknown_words(asked.prompt)
    return {"unknown": unknown, "remark": unknown_remark(unknown) if unknown else ""}


@router.post("/models/look")
def look(request: Request, asked: Source) -> dict[str, Any]:
    """Size and licence of a model, before anything is fetched."""
    owner_of(request)
    try:
        return dataclasses.asdict(studio_of(request).pipelines.look(asked.source))
    except OpsmithError as error:
        raise Wrong("source", error.message, error.hint) from error


@router.post("/models/add")
def add_model(request: Request, asked: Source) -> JSONResponse:
    studio = studio_of(request)
    owner_of(request)
    if studio.pipelines.closed:
        raise Wrong("source", studio.pipelines.closed)
    return _started(studio, studio.add(asked.source))


@router.post("/models/use")
def use_model(request: Request, asked: Source) -> JSONResponse:
    studio = studio_of(request)
    owner_of(request)
    return _started(studio, studio.use(asked.source))


@router.post("/compile")
def compile_models(request: Request, asked: Compiling) -> JSONResponse:
    studio = studio_of(request)
    owner_of(request)
    return _started(studio, studio.compile(asked.precision))


@router.post("/time")
def time_variants(request: Request) -> JSONResponse:
    studio = studio_of(request)
    owner_of(request)
    return _started(studio, studio.time_variants())


@router.post("/report")
def measure(request: Request, asked: Part) -> JSONResponse:
    studio = studio_of(request)
    owner_of(request)
    return _started(studio, studio.report(asked.part))


@router.get("/report/{part}")
def report(request: Request, part: str) -> HTMLResponse:
    """The page that `opsmith report` wrote, to be shown inside ours. Its style and script are inline."""
    owner_of(request)
    file = studio_of(request).models.report_file(part)
    if not file.is_file():
        raise OpsmithError(f"{part} was not measured yet")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'self'"
    return HTMLResponse(file.read_text(encoding="utf-8"), headers={"content-security-policy": policy})
