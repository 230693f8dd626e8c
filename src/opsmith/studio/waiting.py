"""What the endpoints of the OpenAI API share: strict requests, errors in its form, waiting for a job while the client is there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from opsmith.errors import OpsmithError
from opsmith.studio.core import Studio
from opsmith.studio.jobs import FINISHED, Job

OWNER = "api"
PATIENCE = 0.3  # seconds between two looks whether the client is still there


class UnknownModel(OpsmithError):
    """The client's NotFoundError."""


class JobFailed(OpsmithError):
    """The message of a job that failed."""


class OurFault(JobFailed):
    """A job that failed by a mistake of ours: status 500."""


class Strict(BaseModel):
    """A request in which nothing is ignored. SAYS are fields that we have not: they may be missing or say what holds anyway."""

    model_config = ConfigDict(extra="forbid")
    says: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, allowed in cls.says.items():
            value = given.get(name)
            if value is not None and not any(value == a and type(value) is type(a) for a in allowed):
                only = f"; only {' or '.join(json.dumps(a) for a in allowed)}" if allowed else ""
                raise PydanticCustomError("unsupported", "{what}", {"what": f"{name} is not supported{only}"})
        return {name: value for name, value in given.items() if name not in cls.says}


def error_body(message: str, code: str | None, param: str | None = None, status: int = 400) -> dict[str, Any]:
    """What clients send comes back in messages: half characters in it are written out."""
    told = [text and text.encode(errors="backslashreplace").decode() for text in (message, param)]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": told[0], "type": kind, "param": told[1], "code": code}}


def what_is_invalid(errors: Sequence[Any]) -> tuple[str, str | None]:
    """Pydantic's errors in words, and the field that they are about."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])} at {first['loc'][-1]}", None
    if tuple(first["loc"]) == ("body",) and first["type"] in ("missing", "model_attributes_type"):
        return "the body is not a JSON object (send one, with content-type: application/json)", None
    # Of a field that may be one of several things each has its error; the deepest is about the one that was meant.
    same = [e for e in errors if e["loc"][: len(first["loc"]) - 1] == first["loc"][:-1]]
    meant = max(same, key=lambda e: len(e["loc"]))
    where = ".".join(str(p) for p in meant["loc"] if p != "body" and not _ALTERNATIVE.fullmatch(str(p)))
    return f"{where}: {meant['msg']}" if where else str(meant["msg"]), where or None


_ALTERNATIVE = re.compile(r"str|int|list\[.*\]")  # what pydantic calls the things that a field may be


def error_of(job: Job) -> dict[str, Any]:
    """The last event of a stream whose job failed or was cancelled. No [DONE] follows: clients would take the text for whole."""
    theirs = job.state == "failed" and not job.our_fault
    return error_body(job.error or "the server is stopping", None, status=400 if theirs else 500)


def unknown_model(name: str, known: list[str]) -> UnknownModel:
    return UnknownModel(f"there is no model {name[:100]!r} for this", f"there are: {', '.join(known)}")


def studio_of(request: Request) -> Studio:
    found: Studio = request.app.state.studio
    return found


async def begun(request: Request, studio: Studio, job: Job) -> None:
    await _until(request, studio, job, lambda: any(job.texts))


async def finished(request: Request, studio: Studio, job: Job) -> None:
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
        end(studio, job)
        raise
    if job.state in ("failed", "cancelled"):
        studio.jobs.forget(job)
        raise (OurFault if job.our_fault else JobFailed)(job.error or "the server is stopping")


def end(studio: Studio, job: Job) -> None:
    if job.state not in FINISHED:
        studio.jobs.cancel(job)
    studio.jobs.forget(job)


def event(name: str, content: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **content})}\n\n"


def data(content: dict[str, Any]) -> str:
    """In ASCII: characters that some readers take for the end of a line (U+2028) are written out."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"
