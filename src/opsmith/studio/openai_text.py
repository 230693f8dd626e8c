"""The OpenAI HTTP API for text: completions and chat/completions, whole or streamed.

What a client asks for is done or refused, never ignored: a field that is not declared here is an error, and one that OpenAI has
and we have not may only say what holds anyway.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from opsmith.errors import OpsmithError
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.text import Generation, Likelihood, TextGenerator
from opsmith.studio import waiting
from opsmith.studio.core import Studio
from opsmith.studio.jobs import FINISHED, Job

router = APIRouter(prefix="/v1")
CHAT_TOKENS = 4096  # of an answer at most, unless the client says otherwise
MOST_TEXTS = 16
MOST_STOPS, LONGEST_STOP = 16, 1000


class Asked(waiting.Strict):
    """What both endpoints take. top_k, min_p, repetition_penalty and lookup are ours; user and the like change nothing for anyone."""

    model: str
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=MOST_TEXTS)
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, lt=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    lookup: int | None = Field(None, ge=0, le=64)
    user: str | None = None

    @property
    def texts(self) -> int:
        return self.n or 1

    def stops(self) -> list[str]:
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(found) > MOST_STOPS or any(len(s) > LONGEST_STOP for s in found):
            raise OpsmithError(
                f"stop: at most {MOST_STOPS} strings of {LONGEST_STOP} characters", "send fewer or shorter ones"
            )
        return found

    def sampling(self) -> Sampling:
        given: dict[str, float | None] = {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        seed = self.seed if self.seed is not None else secrets.randbelow(2**31)
        return Sampling(bias=self._bias(), seed=seed, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]

    def _bias(self) -> dict[int, float]:
        try:
            return {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        except ValueError:
            raise OpsmithError("logit_bias: keys are token numbers", 'such as {"50256": -100}') from None


class StreamOptions(waiting.Strict):
    says: ClassVar = {
        "include_obfuscation": (False,),
    }

    include_usage: bool | None = None


class Completion(Asked):
    says: ClassVar = {
        "best_of": (1,),
        "suffix": ("",),
    }

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=5)

    def prompts(self) -> list[str | list[int]]:
        asked: Any = self.prompt
        several = isinstance(asked, list) and not all(isinstance(t, int) for t in asked)
        found = asked if several or asked == [] else [asked]
        if not 1 <= len(found) * self.texts <= MOST_TEXTS:
            raise OpsmithError(f"{len(found) * self.texts} texts are not possible", f"1 to {MOST_TEXTS}")
        return list(found)


class Part(waiting.Strict):
    type: Literal["text"]
    text: str


class Message(waiting.Strict):
    says: ClassVar = {
        "name": (),
        "refusal": (),
        "tool_calls": ([],),
        "function_call": (),
        "audio": (),
        "annotations": ([],),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    def plain(self) -> dict[str, str]:
        parts = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": parts}


class ChatCompletion(Asked):
    says: ClassVar = {
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "verbosity": (),
        "web_search_options": (),
        "store": (False,),
        "service_tier": ("auto", "default"),
    }

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


# --- answering ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Form:
    """How one endpoint writes its answers, with the fields in OpenAI's order; tests/studio/streams has them whole."""

    prefix: str
    whole: str  # the object's name
    chunk: str
    choice: Callable[[int, str, list[Any] | None, str], dict[str, Any]]  # index, text, likelihoods, why it ended
    begin: Callable[[int], dict[str, Any]] | None  # the first piece of a streamed choice
    piece: Callable[[int, str, str | None], dict[str, Any]]  # index, text, why it ended
    tail: tuple[str, ...]  # the fields of a chunk that follow its choices


def _text(index: int, text: str, likely: list[Any] | None, reason: str | None) -> dict[str, Any]:
    table = None if likely is None else _table(likely)
    return {"text": text, "index": index, "logprobs": table, "finish_reason": reason}


def _message(index: int, text: str, likely: list[Any] | None, reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    table = None if likely is None else {"content": likely, "refusal": None}
    return {"index": index, "message": message, "logprobs": table, "finish_reason": reason}


def _delta(index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


TEXT = Form(
    prefix="cmpl-",
    whole="text_completion",
    chunk="text_completion",
    choice=_text,
    begin=None,
    piece=lambda index, text, reason: _text(index, text, None, reason),
    tail=("model",),
)
CHAT = Form(
    prefix="chatcmpl-",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    choice=_message,
    begin=lambda index: _delta(index, {"role": "assistant", "content": "", "refusal": None}, None),
    piece=lambda index, text, reason: _delta(index, {"content": text} if text else {}, reason),
    tail=(),
)


@router.post("/completions")
async def completions(request: Request, asked: Completion) -> Response:
    """Continue a text, or several."""
    studio = waiting.studio_of(request)
    prompts, sampling, stop = asked.prompts(), asked.sampling(), asked.stops()
    _check(studio, asked, asked.logprobs is not None)
    if asked.echo and asked.logprobs is not None:
        raise OpsmithError("logprobs of an echoed prompt are not supported", "leave echo or logprobs away")

    def work(job: Job) -> dict[str, Any]:
        writer = studio.models.writer()
        encoded = [writer.encode(p) for p in prompts]
        echoed = [writer.tokenizer.decode(p) if isinstance(p, list) else p for p in prompts] if asked.echo else None
        job.texts = [text for text in echoed or [""] * len(prompts) for _ in range(asked.texts)]
        room = writer.room(encoded, asked.max_tokens) if asked.max_tokens else min(16, writer.room(encoded))
        return _write(studio, job, writer, encoded, room, sampling, asked, stop, asked.logprobs)

    return await _answer(request, studio, asked, TEXT, len(prompts) * asked.texts, work)


@router.post("/chat/completions")
async def chat(request: Request, asked: ChatCompletion) -> Response:
    """The assistant's next message, by the model's own chat template."""
    studio = waiting.studio_of(request)
    sampling, stop, messages = asked.sampling(), asked.stops(), [m.plain() for m in asked.messages]
    _check(studio, asked, bool(asked.logprobs))
    if asked.top_logprobs is not None and not asked.logprobs:
        raise OpsmithError("top_logprobs needs logprobs: true")
    others = (asked.top_logprobs or 0) if asked.logprobs else None

    def work(job: Job) -> dict[str, Any]:
        from opsmith.pipelines.chat import load_chat

        writer = studio.models.writer()
        told = load_chat(writer.home)
        if sum(len(m["content"]) for m in messages) > writer.context * writer.longest_token:
            raise OpsmithError(f"the messages do not fit the model's context of {writer.context} tokens", "send fewer")
        ids = writer.encode(told.prompt(messages), special=told.special)
        job.texts = [""] * asked.texts
        left = min(CHAT_TOKENS, writer.context - len(ids))
        room = left if asked.new_tokens is None else writer.room([ids], asked.new_tokens)
        return _write(studio, job, writer, [ids], room, sampling, asked, [*stop, *told.stop], others)

    return await _answer(request, studio, asked, CHAT, asked.texts, work)


def _check(studio: Studio, asked: Asked, logprobs: bool) -> None:
    if asked.model not in (names := studio.models.writer_names()):
        raise waiting.unknown_model(asked.model, names)
    if asked.stream_options is not None and not asked.stream:
        raise OpsmithError("stream_options needs stream: true")
    if logprobs and asked.stream:
        raise OpsmithError("logprobs are not streamed", "leave stream or logprobs away")


def _write(
    studio: Studio,
    job: Job,
    writer: TextGenerator,
    prompts: Sequence[list[int]],
    room: int,
    sampling: Sampling,
    given: Asked,
    stop: list[str],
    logprobs: int | None,
) -> dict[str, Any]:
    made, speed = studio.models.shared_writer().generate(
        list(prompts),
        max_new_tokens=room,
        sampling=sampling,
        n=given.texts,
        stop=stop,
        logprobs=logprobs,
        lookup=given.lookup or 0,
        on_text=job.say,
        cancelled=job.stop.is_set,
    )
    job.output = [(g, [_likely(writer, t) for t in g.likelihoods] if logprobs is not None else None) for g in made]
    studio.metrics.wrote(speed)
    job.tell()
    asked, written = sum(map(len, prompts)), sum(len(g.tokens) for g in made)
    return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}


async def _answer(
    request: Request,
    studio: Studio,
    asked: Asked,
    form: Form,
    rows: int,
    work: Callable[[Job], dict[str, Any]],
) -> Response:
    job = studio.jobs.submit("writer", "api", waiting.OWNER, work)
    name, now = f"{form.prefix}{job.id}", int(time.time())
    if asked.stream:
        usage = bool(asked.stream_options and asked.stream_options.include_usage)
        # What is refused before a token is written (an empty prompt, a full context) is an error, not a stream.
        await waiting.begun(request, studio, job)
        head = {"id": name, "object": form.chunk, "created": now, "model": asked.model}
        return StreamingResponse(_events(studio, job, head, form, rows, usage), media_type="text/event-stream")
    await waiting.finished(request, studio, job)
    choices = [form.choice(i, job.texts[i], likely, _reason(made)) for i, (made, likely) in enumerate(job.output)]
    head = {"id": name, "object": form.whole, "created": now, "model": asked.model}
    return JSONResponse({**head, "choices": choices, "usage": job.result})


async def _events(
    studio: Studio, job: Job, head: dict[str, Any], form: Form, rows: int, usage: bool
) -> AsyncIterator[str]:
    """The first piece of every choice, its text as it comes, why each ended, what it took, [DONE]."""
    before = {name: value for name, value in head.items() if name not in form.tail}
    after = {name: head[name] for name in form.tail}

    def chunk(choices: list[dict[str, Any]], took: dict[str, Any] | None = None) -> str:
        return waiting.data({**before, "choices": choices, **after, **({"usage": took} if usage else {})})

    sent = [0] * rows
    try:
        if form.begin is not None:
            for i in range(rows):
                yield chunk([form.begin(i)])
        async with studio.jobs.watch(lambda other: other is job) as watcher:
            while True:
                ended = job.state in FINISHED
                for i, text in enumerate(job.texts):
                    if len(text) > sent[i]:
                        yield chunk([form.piece(i, text[sent[i] :], None)])
                        sent[i] = len(text)
                if ended:
                    break
                if not await watcher.next(10):
                    yield ": still here\n\n"
        if job.state != "done":
            yield waiting.data(waiting.error_of(job))
            return
        for i, (made, _) in enumerate(job.output):
            yield chunk([form.piece(i, "", _reason(made))])
        if usage:
            yield chunk([], job.result)
        yield "data: [DONE]\n\n"
    finally:
        waiting.end(studio, job)


def _reason(made: Generation) -> str:
    return "length" if made.ended == "length" else "stop"


def _likely(writer: TextGenerator, found: Likelihood) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text = writer.tokenizer.decode([token], skip_special_tokens=False)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}

    return {**one(found.token, found.logprob), "top_logprobs": [one(*t) for t in found.top]}


def _table(likely: list[dict[str, Any]]) -> dict[str, Any]:
    """As completions have them: columns instead of rows."""
    offsets, at = [], 0
    for row in likely:
        offsets.append(at)
        at += len(row["token"])
    return {
        "tokens": [r["token"] for r in likely],
        "token_logprobs": [r["logprob"] for r in likely],
        "top_logprobs": [{t["token"]: t["logprob"] for t in r["top_logprobs"]} for r in likely],
        "text_offset": offsets,
    }
