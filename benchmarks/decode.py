"""Decoding one token with GPT-2 medium: stock ONNX Runtime beside compiled fp32, int8, int4 and int4 with a cache of halves, at two lengths
of the past.

    python benchmarks/decode.py models/gpt2-medium/dynamo --past 128 512

Makes the variants that are missing beside the source. All sessions stand at once and take turns: a short pause (the threads of the last
session spin for a while), one run unmeasured, three measured. Compiled variants grow their cache in place, stock ones get a past and
return a present, as ONNX Runtime does it. The time that memory bandwidth allows is the weights' bytes over the speed of a plain pass over memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

import opsmith
from opsmith import session, store
from opsmith.errors import OpsmithError


class Model:
    def __init__(self, path: Path, threads: int) -> None:
        self.name = path.name
        self.session = session.load(path, threads=threads)
        record = store.read_record(store.find_model(path)).get("compiled") or {}
        self.in_place = record.get("cache") == "in place"
        self.bindings: dict[int, tuple[ort.IOBinding, list[ort.OrtValue]]] = {}
        self.times: dict[int, list[float]] = {}

    def prepare(self, past: int) -> None:
        binding, held = self.session.io_binding(), []
        feed = {
            "input_ids": np.array([[5]]),
            "attention_mask": np.ones((1, past + 1), np.int64),
            "position_ids": np.array([[past]]),
        }
        binding.bind_output("logits", "cpu")
        rng = np.random.default_rng(0)
        for spec in self.session.get_inputs():
            if spec.name in feed:
                binding.bind_cpu_input(spec.name, feed[spec.name])
                continue
            shape = (1, spec.shape[1], past + (64 if self.in_place else 0), spec.shape[3])
            rows = rng.standard_normal(shape, np.float32) * np.float32(0.1)
            if spec.type == "tensor(float16)":
                rows = rows.astype(np.float16)
            value = ort.OrtValue.ortvalue_from_numpy(rows)
            held.append(value)
            binding.bind_ortvalue_input(spec.name, value)
            present = spec.name.replace("past_key_values", "present")
            if self.in_place:
                binding.bind_ortvalue_output(present, value)
            else:
                binding.bind_output(present, "cpu")
        self.bindings[past], self.times[past] = (binding, held), []

    def step(self, past: int) -> float:
        started = time.perf_counter()
        self.session.run_with_iobinding(self.bindings[past][0])
        return time.perf_counter() - started


def make_variants(source: Path) -> list[Path]:
    home = source.parent
    for bits in (8, 4):
        if not (home / f"int{bits}").exists():
            opsmith.quantize(source, home / f"int{bits}", bits=bits, block=32, calibration="generated", samples=1)
    compiled = []
    for variant in (source, home / "int8", home / "int4"):
        target = home / f"{variant.name}_compiled"
        if not target.exists():
            opsmith.compile(variant, target, regions="whole")
        compiled.append(target)
    halves = home / "int4_fp16"
    if not halves.exists():
        opsmith.compile(home / "int4", halves, regions="whole", cache="fp16")
    compiled.append(halves)
    return [source, home / "int4", *compiled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the variant folder of the fp32 model")
    parser.add_argument("--past", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bandwidth", type=float, help="GB/s; measured if not given")
    args = parser.parse_args()
    models = [Model(path, args.threads) for path in make_variants(args.source.absolute())]
    for model in models:
        for past in args.past:
            model.prepare(past)
            model.step(past)
    for _ in range(args.rounds):
        for model in models:
            for past in args.past:
                time.sleep(0.1)
                model.step(past)
                model.times[past] += [model.step(past) for _ in range(3)]
    reading = args.bandwidth or _bandwidth(args.threads)
    weights = sum(t.nbytes for v in store.open_model(args.source).graph.initializers.values() if (t := v.const_value))
    print(f"{weights / 1e9:.2f} GB of fp32 weights at {reading:.0f} GB/s: {weights / reading / 1e6:.1f} ms\n")
    print("| variant | " + " | ".join(f"past {p}, ms | x stock fp32" for p in args.past) + " | last over first |")
    print("|---" + "|---:" * (2 * len(args.past) + 1) + "|")
    first = {p: statistics.median(models[0].times[p]) for p in args.past}
    for model in models:
        found = {p: statistics.median(model.times[p]) for p in args.past}
        cells = [f"{found[p] * 1e3:.1f} | {first[p] / found[p]:.2f}" for p in args.past]
        cells.append(f"{found[args.past[-1]] / found[args.past[0]]:.2f}")
        print(f"| {model.name} | " + " | ".join(cells) + " |")


def _bandwidth(threads: int) -> float:
    """GB/s of reading, from a plain sum over memory much larger than any cache, the best of several."""
    from concurrent.futures import ThreadPoolExecutor

    parts = [np.ones(1 << 26, np.float32) for _ in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(8):
            started = time.perf_counter()
            list(pool.map(lambda part: part.max(), parts))
            best = min(best, time.perf_counter() - started)
    return threads * parts[0].nbytes / best / 1e9


if __name__ == "__main__":
    try:
        main()
    except OpsmithError as error:
        raise SystemExit(f"error: {error}") from None
