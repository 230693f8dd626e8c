"""The OpenAI HTTP API: models and pictures (images/generations, images/edits). Existing clients work unchanged.

Requests become jobs in the same queues as the page's. If a client goes away its job is cancelled.
"""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from PIL import Image
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from opsmith.errors import OpsmithError
from opsmith.pipelines import edit as editing
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import Callback, Generated, Preview
from opsmith.studio import uploads, waiting
from opsmith.studio.core import MOST, Studio, Wish
from opsmith.studio.jobs import FINISHED, Job

router = APIRouter(prefix="/v1")
PICTURES = "pictures"


# --- models ------------------------------------------------------------------------------------------------


@router.get("/models")
def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(name) for name in model_names(waiting.studio_of(request))]}


@router.get("/models/{name}")
def model(request: Request, name: str) -> dict[str, Any]:
    known = model_names(waiting.studio_of(request))
    if name not in known:
        raise waiting.unknown_model(name, known)
    return _model(name)


def model_names(studio: Studio) -> list[str]:
    """`pictures` is the best variant, `pictures:NAME` a certain one."""
    return [*_picture_names(studio), *studio.models.writer_names(), *studio.models.embedder_names()]


def _picture_names(studio: Studio) -> list[str]:
    return [PICTURES, *(f"{PICTURES}:{c.name}" for c in studio.models.variants())]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "opsmith"}


def _variant(studio: Studio, name: str | None) -> str | None:
    if name is None or name == PICTURES:
        return None
    known = _picture_names(studio)
    if name not in known:
        raise waiting.unknown_model(name, known)
    return name.partition(":")[2]


# --- pictures ----------------------------------------------------------------------------------------------


class Generation(waiting.Strict):
    """OpenAI's fields, and ours: steps, seed, guidance, negative_prompt."""

    says: ClassVar = {
        "quality": ("auto", "standard"),
        "style": (),
        "background": ("auto", "opaque"),
        "moderation": ("auto", "low"),
        "output_compression": (100, "100"),
        "input_fidelity": ("low",),
    }

    prompt: str
    model: str | None = None
    n: int | None = Field(None, ge=1, le=MOST)
    size: str | None = None
    response_format: str | None = None
    output_format: str | None = None
    stream: bool | None = None
    partial_images: int | None = Field(None, ge=0, le=3)
    steps: int | None = None
    seed: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    user: str | None = None

    def wish(self, studio: Studio) -> Wish:
        if self.response_format == "url":
            raise OpsmithError("response_format 'url' is not possible: pictures are not kept", "use 'b64_json'")
        if self.output_format not in (None, "png"):
            raise OpsmithError(f"output_format {self.output_format!r} is not possible", "pictures are PNG")
        width, height = parse_size(self.size)
        wish = Wish(
            self.prompt,
            self.negative_prompt or "",
            self.steps if self.steps is not None else 25,
            self.guidance,
            width,
            height,
            self.seed,
            self.n or 1,
            _variant(studio, self.model),
        )
        return wish.checked(studio.models)


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    if text in (None, "", "auto"):
        return None, None
    found = re.fullmatch("([0-9]{1,6})x([0-9]{1,6})", str(text))
    if found is None:
        raise OpsmithError(f"the size {str(text)[:40]!r} is not understood", "WIDTHxHEIGHT, such as 96x96, or auto")
    return int(found[1]), int(found[2])


@router.post("/images/generations")
async def generations(request: Request, asked: Generation) -> Response:
    studio = waiting.studio_of(request)
    wish = asked.wish(studio)

    def work(job: Job) -> dict[str, Any]:
        app = studio.load(job, wish.variant)
        callback = _collect(job, asked.partial_images or 0, wish.steps * wish.n)
        return _hand_over(job, studio.generate(job, app, wish, callback))

    job = studio.jobs.submit("pictures", "api", waiting.OWNER, work, title=wish.prompt)
    return await _pictures(request, studio, job, "image_generation", wish, bool(asked.stream))


@router.post("/images/edits")
async def edits(request: Request) -> Response:
    """Transparent parts of the mask (or, without one, of the picture) are painted anew; without any, all of it, from itself."""
    studio = waiting.studio_of(request)
    form = await request.form(max_files=20, max_fields=100, max_part_size=2**20)
    files = [v for k, v in form.multi_items() if k in ("image", "image[]") and isinstance(v, UploadFile)]
    if len(files) != 1:
        raise OpsmithError(f"{len(files)} pictures were sent", "send one as `image`")
    if not studio.models.edits:
        raise OpsmithError("this pipeline has no vae_encoder, so it cannot edit")
    fields = {k: v for k, v in form.multi_items() if isinstance(v, str) and v != ""}
    strength = _strength(fields.pop("strength", None))
    asked = Generation.model_validate(fields)
    source = await run_in_threadpool(uploads.decode, await files[0].read(), studio.limits, "RGBA")
    cut, mask = form.get("mask"), source
    if isinstance(cut, UploadFile):
        mask = await run_in_threadpool(uploads.decode, await cut.read(), studio.limits, "RGBA")
    image = source.convert("RGB")
    if mask.size != image.size:
        raise OpsmithError(
            f"the mask is {mask.width}x{mask.height}, the picture {image.width}x{image.height}", "they must be equal"
        )
    if asked.size in (None, "", "auto"):
        asked.size = "{}x{}".format(*fitting(image.size))
    wish = asked.wish(studio)
    hole = np.asarray(mask)[..., 3] < 128  # [H,W]
    if isinstance(cut, UploadFile) and not hole.any():
        raise OpsmithError("the mask has no transparent part", "transparent means: edit here")

    def work(job: Job) -> dict[str, Any]:
        app = studio.load(job, wish.variant)
        size = (wish.width or 0, wish.height or 0)
        start = image.resize(size, Image.Resampling.LANCZOS)
        more: dict[str, Any] = {"init": start, "strength": strength}
        if hole.any():
            area = Image.fromarray(hole.astype(np.uint8) * 255).resize(size, Image.Resampling.NEAREST)
            more = {"init": start, "mask": area, "strength": 1.0 if strength is None else strength}
        callback = _collect(job, asked.partial_images or 0, wish.steps * wish.n)
        made = studio.generate(job, app, wish, callback, **more)
        if hole.any():  # no other pixel changes
            soft = np.asarray(more["mask"], np.float32) / 255
            made.images = [editing.blended(start, np.asarray(i, np.float32), soft) for i in made.images]
        return _hand_over(job, made)

    job = studio.jobs.submit("pictures", "api", waiting.OWNER, work, title=wish.prompt)
    return await _pictures(request, studio, job, "image_edit", wish, bool(asked.stream))


def fitting(size: tuple[int, int]) -> tuple[int, int]:
    """The picture's own size in multiples of 8, made smaller if it is larger than 1024."""
    scale = min(1.0, 1024 / max(size))
    width, height = (max(8, round(side * scale / 8) * 8) for side in size)
    return width, height


def _strength(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise OpsmithError(f"the strength {text!r} is not a number") from None


def _collect(job: Job, wanted: int, total: int) -> Callback:
    """The pipeline's callback: keeps the few partial pictures that the client asked for, evenly spread."""
    at = {round(total * (i + 1) / (wanted + 1)) for i in range(wanted)}

    def on_step(step: int, steps: int, preview: Preview) -> bool:
        if step in at and step < steps and not job.stop.is_set():
            job.partials.append(preview())
        job.step, job.total = step, steps
        job.changed(job)
        return not job.stop.is_set()

    return on_step


def _hand_over(job: Job, made: Generated) -> dict[str, Any]:
    job.output = made
    return {}


async def _pictures(request: Request, studio: Studio, job: Job, name: str, wish: Wish, stream: bool) -> Response:
    if stream:
        return StreamingResponse(_picture_events(studio, job, name, wish), media_type="text/event-stream")
    await waiting.finished(request, studio, job)
    made: Generated = job.output
    data = [{"b64_json": await run_in_threadpool(png, image, note)} for image, note in zip(made.images, made.settings)]
    return JSONResponse({"created": int(time.time()), "data": data, **_about(wish), "usage": _usage()})


async def _picture_events(studio: Studio, job: Job, name: str, wish: Wish) -> AsyncIterator[str]:
    """Named events with the type inside. The client that goes away ends this generator, and with it the job."""
    about = {"created_at": int(time.time()), **_about(wish)}
    shown = 0
    try:
        async with studio.jobs.watch(lambda other: other is job) as watcher:
            while True:
                for i, image in enumerate(job.partials[shown:], shown):
                    shown = i + 1
                    drawn = await run_in_threadpool(png, image)
                    yield waiting.event(f"{name}.partial_image", {"b64_json": drawn, "partial_image_index": i, **about})
                if job.state in FINISHED:
                    break
                if not await watcher.next(10):
                    yield ": still here\n\n"
        if job.state != "done":
            yield waiting.event("error", waiting.error_of(job))
            return
        for image, note in zip(job.output.images, job.output.settings):
            drawn = await run_in_threadpool(png, image, note)
            yield waiting.event(f"{name}.completed", {"b64_json": drawn, "usage": _usage(), **about})
    finally:
        waiting.end(studio, job)


def _about(wish: Wish) -> dict[str, Any]:
    return {"size": f"{wish.width}x{wish.height}", "quality": "auto", "background": "opaque", "output_format": "png"}


def _usage() -> dict[str, Any]:
    """Pictures are not counted in tokens here; clients expect the fields."""
    details = {"image_tokens": 0, "text_tokens": 0}
    return {"input_tokens": 0, "input_tokens_details": details, "output_tokens": 0, "total_tokens": 0}


def png(image: Image.Image, settings: dict[str, Any] | None = None) -> str:
    """As base64, with the settings inside, as in every PNG of Opsmith."""
    file = io.BytesIO()
    image.save(file, "PNG", pnginfo=pictures.notes(settings or {}))
    return base64.b64encode(file.getvalue()).decode()
