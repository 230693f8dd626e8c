"""Compile full-size models whole, and check what that costs and what it gives.

    python benchmarks/compile_full_size.py FOLDER OUT [--model NAME ...] [--exporter dynamo ...] [--json FILE]
                                           [--compile-only | --bench-only]

FOLDER holds model folders as `opsmith export` writes them (see export_full_size.py); OUT gets the compiled variants,
from a cold cache. Per model and exporter: seconds and peak memory of `opsmith compile --regions whole` (which verifies
three sets of shapes against the original), then, interleaved with stock ONNX Runtime at each of a few shapes: the ratio of
times with its 95 % interval, load time, peak memory. The machine should be otherwise idle. Exit code 1 if a line of
EXPECTED does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import opsmith

# model -> the sizes at which it is timed
MODELS: dict[str, list[dict[str, int]]] = {
    "stable-diffusion-v1-4/unet": [
        {"batch": 1, "height": 64, "width": 64, "sequence": 77},
        {"batch": 1, "height": 32, "width": 32, "sequence": 77},
        {"batch": 1, "height": 8, "width": 8, "sequence": 77},
    ],
    "stable-diffusion-v1-4/vae_decoder": [{"batch": 1, "height": 32, "width": 32}],
    "stable-diffusion-v1-4/vae_encoder": [{"batch": 1, "height": 256, "width": 256}],
    "stable-diffusion-v1-4/text_encoder": [{"batch": 1, "sequence": 77}],
    "bert-base-uncased": [{"batch": 1, "sequence": 128}, {"batch": 8, "sequence": 128}],
    "gpt2-medium": [
        {"batch": 1, "sequence": 128, "past": 0},
        {"batch": 1, "sequence": 1, "past": 128},
        {"batch": 1, "sequence": 1, "past": 512},
    ],
    "clip-vit-base-patch32/text_model": [{"batch": 8, "sequence": 16}],
    "clip-vit-base-patch32/vision_model": [{"batch": 1}],
    "clipseg-rd64-refined": [{"batch": 1, "sequence": 8}],
    "TinyLlama-1.1B-Chat-v1.0": [
        {"batch": 1, "sequence": 128, "past": 0},
        {"batch": 1, "sequence": 1, "past": 128},
    ],
}
COMPILE_SECONDS = 600.0
COMPILE_GIB = 10.0
LOAD_SECONDS = 3.0
MEMORY_RATIO = 1.15


def compile_one(source: Path, dest: Path) -> dict[str, Any]:
    """One `opsmith compile` in a process of its own. Peak memory is that process's; the C++ compiler's is far below it."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "opsmith", "compile", str(source), str(dest), "--regions", "whole"]
        started = time.monotonic()
        process = subprocess.Popen(command, env={**os.environ, "OPSMITH_CACHE": cache}, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return {"failed": " ".join(command)}
    record = json.loads((dest / "opsmith.json").read_text())
    seconds, peak = round(time.monotonic() - started, 1), round(usage.ru_maxrss / 2**20, 2)
    return {
        "seconds": seconds,
        "peak_gib": peak,
        "steps": record["compiled"].get("seconds", {}),
        "max_abs_error": max(error["max_abs"] for error in record["verified"].values()),
        "ok": seconds < COMPILE_SECONDS and peak < COMPILE_GIB,
    }


def bench_one(source: Path, dest: Path, sizes: dict[str, int], seconds: float) -> dict[str, Any]:
    """Stock ORT and the compiled variant, side by side."""
    result = opsmith.bench([source, dest], shapes=sizes, seconds=seconds)
    stock, ours = result.entries
    return {
        "sizes": sizes,
        "stock_s": round(stock.run.median, 4),
        "ours_s": round(ours.run.median, 4),
        "speedup": [round(n, 3) for n in (ours.speedup.value, ours.speedup.low, ours.speedup.high)],
        "load_s": [round(stock.load, 2), round(ours.load, 2)],
        "peak_gib": [round(stock.peak_rss / 2**30, 2), round(ours.peak_rss / 2**30, 2)],
        "verified": result.verified,
        "clean": result.clean,
        "ok": result.verified
        and ours.speedup.high >= 1.0
        and ours.load < LOAD_SECONDS
        and ours.peak_rss <= MEMORY_RATIO * stock.peak_rss,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--exporter", nargs="+", default=["dynamo", "torchscript"])
    parser.add_argument("--seconds", type=float, default=30.0, help="time to spend on each comparison")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--bench-only", action="store_true", help="OUT holds the compiled variants already")
    parser.add_argument("--json", type=Path, help="append one line per result")
    options = parser.parse_args()
    failed = 0

    def tell(name: str, exporter: str, row: dict[str, Any]) -> None:
        nonlocal failed
        failed += not row.get("ok", False)
        row = {"model": name, "exporter": exporter, **row}
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    for name in options.model:
        for exporter in options.exporter:
            source, dest = options.folder / name / exporter, options.out / name / f"{exporter}-compiled"
            if not source.is_dir():
                print(f"{name} {exporter}: not there, skipped")
                continue
            if not options.bench_only:
                tell(name, exporter, compile_one(source, dest))
            if not options.compile_only and dest.is_dir():
                for sizes in MODELS[name]:
                    tell(name, exporter, bench_one(source, dest, sizes, options.seconds))
    print("all as expected" if not failed else f"{failed} not as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
