"""Is a token at a time with the KV cache the same as one pass over all tokens? The largest difference of logits per variant.

    python benchmarks/token_by_token.py models/gpt2-medium/dynamo models/gpt2-medium/dynamo_compiled

Random tokens; batch 1, and batch 4 with prompts of different lengths, padded on the left. Exit code 1 above --tolerance.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines.text import make_cache

Array = np.ndarray[Any, Any]


def owner_of(path: Path, threads: int) -> Any:
    """What a cache wants to know of a TextGenerator, without a tokenizer."""
    running = session.load(path, threads=threads)
    inputs = {i.name: i for i in running.get_inputs()}
    record = store.read_record(store.find_model(path)).get("compiled") or {}
    past = [n for n in inputs if n.startswith("past_key_values.")]
    return SimpleNamespace(session=running, inputs=inputs, past=past, in_place=record.get("cache") == "in place")


def difference(path: Path, reference: Path, batch: int, steps: int, threads: int) -> tuple[float, float]:
    """Largest difference, and the largest logit for scale."""
    rng = np.random.default_rng(batch)
    lengths = [7, 3, 12, 5][:batch]
    longest = max(lengths)
    ids = rng.integers(10, 1000, (batch, longest + steps))
    mask = np.ones((batch, longest + steps), np.int64)
    for i, length in enumerate(lengths):
        mask[i, : longest - length] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    owner = owner_of(path, threads)
    cache = make_cache(owner, batch, longest + steps)
    found = [cache.run(ids[:, :longest], mask[:, :longest], positions[:, :longest])]
    for at in range(longest, longest + steps):
        found.append(cache.run(ids[:, at : at + 1], mask[:, : at + 1], positions[:, at : at + 1]))
    # One pass per sequence, alone and without padding: what the model says when nothing can go wrong.
    whole = owner_of(reference, threads)
    worst = largest = 0.0
    for i, length in enumerate(lengths):
        own = ids[i : i + 1, longest - length :]
        feed = {
            "input_ids": own,
            "attention_mask": np.ones(own.shape, np.int64),
            "position_ids": np.arange(own.shape[1])[None],
        }
        feed = {n: a for n, a in feed.items() if n in whole.inputs}
        for name in whole.past:
            shape = whole.inputs[name].shape
            feed[name] = np.zeros((1, shape[1], 0, shape[3]), np.float32)
        logits = session.run(whole.session, feed, ["logits"])[0][0, length - 1 :]
        for step, row in enumerate(found):
            worst = max(worst, float(np.abs(row[i] - logits[step]).max()))
        largest = max(largest, float(np.abs(logits).max()))
    return worst, largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", type=Path, nargs="+", help="the first is also the full forward pass for all")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    bad = False
    for path in args.variants:
        for batch in (1, 4):
            worst, largest = difference(path, args.variants[0], batch, args.steps, args.threads)
            bad |= not worst <= args.tolerance
            print(
                f"{path.name}, batch {batch}: largest difference {worst:.1e}, largest logit {largest:.1f}", flush=True
            )
    raise SystemExit(int(bad))


if __name__ == "__main__":
    try:
        main()
    except OpsmithError as error:
        raise SystemExit(f"error: {error}") from None
