"""The OpenAI HTTP API: models, images/generations, images/edits, completions. Existing clients work unchanged.

Requests become jobs in the same queues as the page's. If a client goes away its job is cancelled.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from PIL import Image
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile

from opsmith.errors import OpsmithError
from opsmith.pipelines import edit as editing
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import Callback, Generated, Preview
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import Generation as TextGeneration
from opsmith.studio import uploads
from opsmith.studio.core import MOST, Studio, Wish
from opsmith.studio.jobs import FINISHED, Job

router = APIRouter(prefix="/v1")
OWNER = "api"
WRITER = "writer"
PICTURES = "pictures"
PATIENCE = 0.3  # seconds between two looks whether the client is still there


class UnknownModel(OpsmithError):
    """The client's NotFoundError."""


class JobFailed(OpsmithError):
    """The message of a job that failed."""


def error_body(message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


# --- models ------------------------------------------------------------------------------------------------


@router.get("/models")
def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(name) for name in model_names(_studio(request))]}


@router.get("/models/{name}")
def model(request: Request, name: str) -> dict[str, Any]:
    known = model_names(_studio(request))
    if name not in known:
        raise _unknown(name, known)
    return _model(name)


def model_names(studio: Studio) -> list[str]:
    """`pictures` is the best variant, `pictures:NAME` a certain one."""
    return [PICTURES, *(f"{PICTURES}:{c.name}" for c in studio.models.variants()), WRITER]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "opsmith"}


def _variant(studio: Studio, name: str | None) -> str | None:
    if name is None or name == PICTURES:
        return None
    known = [n for n in model_names(studio) if n != WRITER]
    if name not in known:
        raise _unknown(name, known)
    return name.partition(":")[2]


def _unknown(name: str, known: list[str]) -> UnknownModel:
    return UnknownModel(f"there is no model {name[:100]!r} for this", f"there are: {', '.join(known)}")


# --- pictures ----------------------------------------------------------------------------------------------


class Generation(BaseModel):
    """OpenAI's fields, and ours: steps, seed, guidance, negative_prompt. Others (quality, style, user...) change nothing."""

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

    def wish(self, studio: Studio) -> Wish:
        if self.response_format == "url":
            raise OpsmithError("response_format 'url' is not possible: pictures are not kept", "use 'b64_json'")
        if self.output_format not in (None, "png"):
            raise OpsmithError(f"output_format {self.output_format!r} is not possible", "pictures are PNG")
        width, height = parse_size(self.size)
        wish = Wish(
            self.prompt, self.negative_prompt or "", self.steps if self.steps is not None else 25, self.guidance, width,
            height, self.seed, self.n or 1, _variant(studio, self.model),
        )  # fmt: skip
        return wish.checked(studio.models)


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    if text in (None, "", "auto"):
        return None, None
    try:
        width, height = (int(part) for part in str(text).split("x"))
    except ValueError:
        raise OpsmithError(f"the size {text!r} is not understood", "WIDTHxHEIGHT, such as 96x96, or auto") from None
    return width, height


@router.post("/images/generations")
async def generations(request: Request, asked: Generation) -> Response:
    studio = _studio(request)
    wish = asked.wish(studio)

    def work(job: Job) -> dict[str, Any]:
        app = studio.load(job, wish.variant)
        callback = _collect(job, asked.partial_images or 0, wish.steps * wish.n)
        return _hand_over(job, studio.generate(job, app, wish, callback))

    job = studio.jobs.submit("pictures", "api", OWNER, work, title=wish.prompt)
    return await _pictures(request, studio, job, "image_generation", wish, bool(asked.stream))


@router.post("/images/edits")
async def edits(request: Request) -> Response:
    """Transparent parts of the mask (or, without one, of the picture) are painted anew; without any, all of it, from itself."""
    studio = _studio(request)
    form = await request.form(max_files=20, max_fields=100, max_part_size=2**20)
    files = [v for k, v in form.multi_items() if k in ("image", "image[]") and isinstance(v, UploadFile)]
    if len(files) != 1:
        raise OpsmithError(f"{len(files)} pictures were sent", "send one as `image`")
    if not studio.models.edits:
        raise OpsmithError("this pipeline has no vae_encoder, so it cannot edit")
    fields = {k: v for k, v in form.multi_items() if isinstance(v, str) and v != ""}
    known = {k: v for k, v in fields.items() if k in Generation.model_fields}
    asked = Generation.model_validate(known)
    data = await files[0].read()
    source = uploads.decode(data, studio.limits, "RGBA")
    image = source.convert("RGB")
    cut = form.get("mask")
    mask = uploads.decode(await cut.read(), studio.limits, "RGBA") if isinstance(cut, UploadFile) else source
    if mask.size != image.size:
        raise OpsmithError(
            f"the mask is {mask.width}x{mask.height}, the picture {image.width}x{image.height}", "they must be equal"
        )
    if asked.size in (None, "", "auto"):
        asked.size = "{}x{}".format(*fitting(image.size))
    wish = asked.wish(studio)
    strength = _strength(fields.get("strength"))
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

    job = studio.jobs.submit("pictures", "api", OWNER, work, title=wish.prompt)
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
    await _finished(request, studio, job)
    made: Generated = job.output
    data = [{"b64_json": png(image, note)} for image, note in zip(made.images, made.settings)]
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
                    yield _event(f"{name}.partial_image", {"b64_json": png(image), "partial_image_index": i, **about})
                if job.state in FINISHED:
                    break
                if not await watcher.next(10):
                    yield ": still here\n\n"
        if job.state != "done":
            yield _event("error", error_body(job.error or "cancelled", None))
            return
        for image, note in zip(job.output.images, job.output.settings):
            yield _event(f"{name}.completed", {"b64_json": png(image, note), "usage": _usage(), **about})
    finally:
        _end(studio, job)


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


# --- text --------------------------------------------------------------------------------------------------


class Completion(BaseModel):
    model: str
    prompt: str | list[Any] = ""
    max_tokens: int | None = Field(16, ge=1)
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    n: int | None = Field(1, ge=1, le=16)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    echo: bool | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None

    def prompts(self) -> list[str]:
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not all(isinstance(t, str) for t in texts):
            raise OpsmithError("prompts as token numbers are not possible", "send text")
        if not 1 <= len(texts) <= 16:
            raise OpsmithError(f"{len(texts)} prompts are not possible", "1 to 16")
        return texts


@router.post("/completions")
async def completions(request: Request, asked: Completion) -> Response:
    studio = _studio(request)
    if asked.model != WRITER:
        raise _unknown(asked.model, [WRITER])
    prompts = asked.prompts()
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    sampling = Sampling(
        temperature=_or(asked.temperature, 1.0), top_k=asked.top_k or 0, top_p=_or(asked.top_p, 1.0),
        repetition_penalty=_or(asked.repetition_penalty, 1.0),
        seed=asked.seed if asked.seed is not None else secrets.randbelow(2**31),
    )  # fmt: skip
    rows = len(prompts) * (asked.n or 1)

    def work(job: Job) -> dict[str, Any]:
        writer = studio.models.writer()
        job.texts = [p if asked.echo else "" for p in prompts for _ in range(asked.n or 1)]
        job.output = writer.generate(
            prompts, max_new_tokens=asked.max_tokens or 16, sampling=sampling, n=asked.n or 1, stop=stop,
            on_text=job.say, cancelled=job.stop.is_set,
        )  # fmt: skip
        counted = sum(len(writer.tokenizer.encode(p).ids) for p in prompts)
        job.tell()
        return {"prompt_tokens": counted}

    job = studio.jobs.submit("writer", "api", OWNER, work)
    base = {"id": f"cmpl-{job.id}", "object": "text_completion", "created": int(time.time()), "model": asked.model}
    if asked.stream:
        usage = bool((asked.stream_options or {}).get("include_usage"))
        # What is refused before a token is written (an empty prompt, a full context) is an error, not a stream.
        await _begun(request, studio, job)
        return StreamingResponse(_text_events(studio, job, base, rows, usage), media_type="text/event-stream")
    await _finished(request, studio, job)
    choices = [_choice(i, job.texts[i], _reason(g)) for i, g in enumerate(job.output)]
    return JSONResponse({**base, "choices": choices, "usage": _tokens(job)})


async def _text_events(studio: Studio, job: Job, base: dict[str, Any], rows: int, usage: bool) -> AsyncIterator[str]:
    sent = [0] * rows
    try:
        async with studio.jobs.watch(lambda other: other is job) as watcher:
            while True:
                finished = job.state in FINISHED
                for i, text in enumerate(job.texts):
                    if len(text) > sent[i]:
                        yield _data({**base, "choices": [_choice(i, text[sent[i] :], None)]})
                        sent[i] = len(text)
                if finished:
                    break
                if not await watcher.next(10):
                    yield ": still here\n\n"
        if job.state != "done":
            yield _data(error_body(job.error or "cancelled", None))
            return
        for i, generation in enumerate(job.output):
            yield _data({**base, "choices": [_choice(i, "", _reason(generation))]})
        if usage:
            yield _data({**base, "choices": [], "usage": _tokens(job)})
        yield "data: [DONE]\n\n"
    finally:
        _end(studio, job)


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}


def _reason(generation: TextGeneration) -> str:
    return "length" if generation.ended == "length" else "stop"


def _tokens(job: Job) -> dict[str, int]:
    asked = int((job.result or {})["prompt_tokens"])
    written = sum(len(g.tokens) for g in job.output)
    return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


# --- waiting -----------------------------------------------------------------------------------------------


def _studio(request: Request) -> Studio:
    found: Studio = request.app.state.studio
    return found


async def _begun(request: Request, studio: Studio, job: Job) -> None:
    await _until(request, studio, job, lambda: any(job.texts))


async def _finished(request: Request, studio: Studio, job: Job) -> None:
    await _until(request, studio, job, lambda: False)
    studio.jobs.forget(job)


async def _until(request: Request, studio: Studio, job: Job, enough: Callable[[], bool]) -> None:
    """Until the job has ended or is far enough. A client that goes away, or a failure, ends it."""
    try:
        async with studio.jobs.watch(lambda other: other is job) as watcher:
            looked = time.monotonic()
            while job.state not in FINISHED and not enough():
                await watcher.next(PATIENCE)
                if time.monotonic() - looked >= PATIENCE:
                    looked = time.monotonic()
                    if await request.is_disconnected():
                        raise JobFailed("the client went away")
    except BaseException:
        _end(studio, job)
        raise
    if job.state in ("failed", "cancelled"):
        studio.jobs.forget(job)
        raise JobFailed(job.error or "the server is stopping")


def _end(studio: Studio, job: Job) -> None:
    if job.state not in FINISHED:
        studio.jobs.cancel(job)
    studio.jobs.forget(job)


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n"


def _data(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
