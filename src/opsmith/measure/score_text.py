"""score text: is a smaller or faster language model still as good, and is it smaller or faster?

perplexity   of the text, in windows of the context, every token after a window's first one predicted
KL, top-1    against the first model's next-token distribution, position by position
distinct-2   share of different word pairs in what is generated from keywords; and how often the keyword is in it
size, memory, speed   on disk with all that belongs to the model; peak resident memory of a fresh process after loading
             and generating; prompt and decode tokens per second apart, the median of several rounds

Every model runs in a process of its own, one after the other, so that memory and threads are its own.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opsmith import progress, session
from opsmith.errors import OpsmithError
from opsmith.measure import alone

if TYPE_CHECKING:
    from opsmith.pipelines.text import TextGenerator

Array = np.ndarray[Any, Any]
ROUNDS = 3
PER_KEYWORD = 4  # texts generated for each keyword


@dataclasses.dataclass(frozen=True)
class TextScore:
    """One row: a model beside the first one."""

    name: str
    perplexity: float
    kl: float  # nats per token; 0 for the first model
    top1: float
    distinct2: float | None
    keyword_hits: float | None
    size: int
    peak_rss: int
    prompt_speed: float  # tokens per second
    decode_speed: float
    predicted: int  # positions that the figures rest on


def score_text(
    models: Sequence[str | os.PathLike[str]],
    text: str | os.PathLike[str],
    *,
    tokens: int = 512,
    window: int | None = None,
    decode: int = 32,
    keywords: Sequence[str] = (),
    threads: int | None = None,
    without_cache: Sequence[str | os.PathLike[str]] = (),
) -> list[TextScore]:
    """Score MODELS (variant folders or .onnx files with their tokenizer) on the first TOKENS tokens of a text file.

    Models that are also in WITHOUT_CACHE get a second row, before their own: every token from a pass over all tokens so far.
    """
    from opsmith.compress.quality import read_text
    from opsmith.pipelines.text import choose_variant

    if not models:
        raise OpsmithError("no model given", "opsmith score text A B --text FILE")
    if not Path(text).is_file():
        raise OpsmithError(f"the text {text} {'is not a file' if Path(text).exists() else 'does not exist'}")
    read_text(Path(text))
    if tokens < 2 or decode < 2 or (window is not None and window < 2):
        raise OpsmithError("too few tokens to score", "at least 2 per window and 2 to decode")
    plain = {choose_variant(Path(m)) for m in without_cache}
    paths = [choose_variant(Path(m)) for m in models]
    runs = [(path, cached) for path in paths for cached in ([False, True] if path in plain else [True])]
    rows: list[TextScore] = []
    with tempfile.TemporaryDirectory(prefix="opsmith-score-") as folder, progress.task("scoring", len(runs)) as step:
        reference: Array | None = None
        first_ids: list[int] = []
        for i, (path, cached) in enumerate(runs):
            step(str(path.parent.name))
            logits_file = Path(folder) / f"{i}.npy"
            order = {
                "model": str(path),
                "text": str(text),
                "tokens": tokens,
                "window": window,
                "decode": decode,
                "keywords": list(keywords),
                "threads": threads,
                "logits": str(logits_file),
                "cached": cached,
            }
            answer = alone.ask("opsmith.measure.score_text", order, str(path))
            logits: Array = np.load(logits_file, mmap_mode="r")
            if reference is None:
                reference, first_ids = logits, answer["targets"]
            elif answer["targets"] != first_ids or logits.shape != reference.shape:
                raise OpsmithError(
                    f"{path} splits the text into other tokens than {paths[0]}", "compare variants of one model"
                )
            row = _row(path, answer, reference, logits)
            rows.append(row if cached else dataclasses.replace(row, name=f"{row.name}, no cache"))
            if i:
                logits_file.unlink()
    return rows


def _row(path: Path, answer: dict[str, Any], reference: Array, logits: Array) -> TextScore:
    from opsmith.check.next_token import log_softmax, next_token

    targets = np.asarray(answer["targets"])
    loss = 0.0
    for start in range(0, len(targets), 256):
        part = log_softmax(logits[start : start + 256])
        chosen = targets[start : start + 256]
        loss -= float(part[np.arange(len(chosen)), chosen].sum())
    kl, top1 = next_token(reference, logits)
    return TextScore(
        path.parent.name,
        float(np.exp(loss / len(targets))),
        kl,
        top1,
        answer["distinct2"],
        answer["keyword_hits"],
        session.size_on_disk(path),
        answer["peak_rss"],
        answer["prompt_speed"],
        answer["decode_speed"],
        len(targets),
    )


# --- tables ----------------------------------------------------------------------------------------------

HEADINGS = ("model", "perplexity", "KL", "top-1", "distinct-2", "hits", "MB", "RSS MB", "prompt t/s", "decode t/s")


def cells(row: TextScore) -> list[str]:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    quality = [f"{row.perplexity:.3f}", f"{row.kl:.5f}", *map(share, (row.top1, row.distinct2, row.keyword_hits))]
    memory = [f"{row.size / 1e6:.1f}", f"{row.peak_rss / 1e6:.0f}"]
    return [row.name, *quality, *memory, f"{row.prompt_speed:.0f}", f"{row.decode_speed:.1f}"]


def markdown(rows: Sequence[TextScore]) -> str:
    lines = [HEADINGS, ["---", *["---:"] * (len(HEADINGS) - 1)], *(cells(r) for r in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def csv_text(rows: Sequence[TextScore]) -> str:
    """Unrounded, under the names of TextScore's fields."""
    lines = io.StringIO()
    names = [f.name for f in dataclasses.fields(TextScore)]
    writer = csv.DictWriter(lines, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(r) for r in rows)
    return lines.getvalue()


# --- the child's side ------------------------------------------------------------------------------------


def _measure(order: dict[str, Any]) -> dict[str, Any]:
    from opsmith.pipelines.text import TextGenerator
    from opsmith.timing.worker import memory

    generator = TextGenerator(order["model"], threads=order["threads"])
    text = Path(order["text"]).read_text(encoding="utf-8")
    ids = list(generator.tokenizer.encode(text).ids)[: order["tokens"]]
    window = min(order["window"] or 256, generator.context)
    if len(ids) < 2:
        raise OpsmithError(f"{order['text']} has too few tokens to predict any")
    speed = _speed if order["cached"] else _speed_without_cache
    prompt_speed, decode_speed = speed(generator, ids, order["decode"])
    # Before the logits of whole windows are kept, which generation never does.
    peak = memory("VmHWM")
    distinct, hits = _generated(generator, order["keywords"])
    targets = _score_windows(generator, ids, window, Path(order["logits"]))
    return {
        "targets": targets,
        "peak_rss": peak,
        "prompt_speed": prompt_speed,
        "decode_speed": decode_speed,
        "distinct2": distinct,
        "keyword_hits": hits,
    }


def _speed(generator: TextGenerator, ids: list[int], decode: int) -> tuple[float, float]:
    """Prompt and decode tokens per second, greedy, batch 1; a first round warms up."""
    room = generator.context - decode
    if room < 1:
        raise OpsmithError(f"{decode} tokens to decode do not fit the context of {generator.context}")
    prompt = generator.tokenizer.decode(ids[: max(1, min(64, room - 8))])
    prompts, decodes = [], []
    for turn in range(ROUNDS + 1):
        generator.generate(prompt, max_new_tokens=decode, ends=())  # a text that ends early has no speed
        speed = generator.speed
        if turn:
            prompts.append(speed.prompt_tokens / max(speed.prompt_seconds, 1e-9))
            # The first token comes from the prompt's pass.
            decodes.append((speed.decode_tokens - 1) / max(speed.decode_seconds, 1e-9))
    return statistics.median(prompts), statistics.median(decodes)


def _speed_without_cache(generator: TextGenerator, ids: list[int], decode: int) -> tuple[float, float]:
    """The same, but every new token from one pass over all tokens so far: what the cache is there to avoid."""
    from opsmith.pipelines.text import Cache

    start = ids[: max(1, min(64, generator.context - decode - 8))]
    prompts, decodes = [], []
    for _ in range(ROUNDS + 1):
        seen, times = list(start), []
        for _ in range(decode):
            began = time.perf_counter()
            positions = np.arange(len(seen), dtype=np.int64)[None]
            logits = Cache(generator, 1).run(np.array([seen], np.int64), np.ones((1, len(seen)), np.int64), positions)
            seen.append(int(logits[0].argmax()))
            times.append(time.perf_counter() - began)
        prompts.append(len(start) / times[0])
        decodes.append(len(times) / sum(times))
    return statistics.median(prompts[1:]), statistics.median(decodes[1:])


def _generated(generator: TextGenerator, keywords: Sequence[str]) -> tuple[float | None, float | None]:
    """distinct-2 and the share of texts that hold their keyword, in the first try of the prompt writer's style."""
    from opsmith.pipelines.prompts import contains, style_of
    from opsmith.pipelines.sampling import Sampling

    if not keywords:
        return None, None
    style = style_of(generator)
    pairs: list[tuple[str, str]] = []
    hits = []
    for seed, keyword in enumerate(keywords):
        sampling = Sampling(style.temperature, 0, style.top_p, 0.0, style.repetition_penalty, 0, seed)
        texts = generator.generate(
            style.template.format(keyword=keyword),
            n=PER_KEYWORD,
            max_new_tokens=style.max_new_tokens,
            sampling=sampling,
            stop=style.stop,
        )
        for generation in texts:
            words = generation.text.lower().split()
            pairs += itertools.pairwise(words)
            hits.append(contains(generation.text, keyword))
    return len(set(pairs)) / max(1, len(pairs)), sum(hits) / len(hits)


def _score_windows(generator: TextGenerator, tokens: list[int], window: int, file: Path) -> list[int]:
    """Write the logits (positions, vocabulary) that predict each target; windows do not overlap."""
    from opsmith.pipelines.text import Cache

    starts = [s for s in range(0, len(tokens), window) if len(tokens) - s >= 2]
    targets = [t for s in starts for t in tokens[s + 1 : s + window]]
    kept: Array | None = None
    at = 0
    for start in starts:
        part = tokens[start : start + window]
        ids, positions = np.array([part], np.int64), np.arange(len(part), dtype=np.int64)[None]
        logits = Cache(generator, 1).run(ids, np.ones_like(ids), positions, every=True)[0, :-1]
        if kept is None:
            kept = np.lib.format.open_memmap(file, "w+", np.float32, (len(targets), logits.shape[1]))
        kept[at : at + len(logits)] = logits
        at += len(logits)
    assert kept is not None
    del kept  # to disk
    return targets


if __name__ == "__main__":
    alone.answer(_measure)
