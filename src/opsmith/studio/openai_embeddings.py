"""The OpenAI HTTP API for embeddings."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from opsmith.errors import OpsmithError
from opsmith.studio import waiting
from opsmith.studio.jobs import Job

router = APIRouter(prefix="/v1")
MOST_TEXTS = 2048  # as OpenAI has it


class Embedding(waiting.Strict):
    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None


@router.post("/embeddings")
async def embeddings(request: Request, asked: Embedding) -> Response:
    """A vector of unit length for every text."""
    studio = waiting.studio_of(request)
    if asked.model not in (names := studio.models.embedder_names()):
        raise waiting.unknown_model(asked.model, names)
    given: Any = asked.input
    one = isinstance(given, str) or (given and all(isinstance(t, int) for t in given))
    texts: list[str | list[int]] = [given] if one else list(given)
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise OpsmithError(f"{len(texts)} texts are not possible", f"1 to {MOST_TEXTS}")

    def work(job: Job) -> dict[str, Any]:
        encoder = studio.models.embedder()
        encoded = [encoder.encode(t) for t in texts]
        job.tell()
        vectors = encoder.embed_tokens(encoded, job.stop.is_set)
        job.tell()
        if asked.dimensions not in (None, vectors.shape[1]):
            raise OpsmithError(f"dimensions: {asked.dimensions} is not possible", f"the model gives {vectors.shape[1]}")
        rows = [
            base64.b64encode(v.astype("<f4").tobytes()).decode()
            if asked.encoding_format == "base64"
            else np.round(v.astype(np.float64), 9).tolist()
            for v in vectors
        ]
        tokens = sum(map(len, encoded))
        studio.metrics.embedded(tokens)
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        job.output = {"object": "list", "data": data, "model": asked.model, "usage": usage}
        return {}

    job = studio.jobs.submit("embedder", "api", waiting.OWNER, work)
    await waiting.finished(request, studio, job)
    return JSONResponse(job.output)
