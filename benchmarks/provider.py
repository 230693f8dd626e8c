"""The execution provider beside custom ops on full-size models; and what another checkpoint costs.

    python benchmarks/provider.py FOLDER OUT [--model NAME ...] [--seconds S] [--json FILE]

FOLDER holds model folders as `opsmith export` writes them (see export_full_size.py), OUT gets the compiled variants and second
checkpoints. The provider's regions go beside each model, `<model>.onnx.opsmith`. Per model: stock ONNX Runtime, the compiled variant and
the untouched model through the provider, in turns; the provider must reach 95 % of the variant's speed. Then a second checkpoint, the
same weights 1 % larger, is packed by `opsmith weights` in a process of its own (GPT-2 medium: under 20 s), and put into a live session
(under 100 ms, its pages in memory). Nothing that is there already is compiled again. The machine should be otherwise idle. Exit code 1
if a line does not hold.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import opsmith
from opsmith import model_checks, provider, store

# model -> the sizes at which it is timed
MODELS: dict[str, dict[str, int]] = {
    "bert-base-uncased": {"batch": 1, "sequence": 128},
    "gpt2-medium": {"batch": 1, "sequence": 1, "past": 128},
    "stable-diffusion-v1-4/unet": {"batch": 1, "height": 8, "width": 8, "sequence": 77},
}
SHARE = 0.95
PACK_SECONDS = {"gpt2-medium": 20.0}
SWAP_SECONDS = 0.1


def source_of(folder: Path, name: str) -> Path:
    return store.find_model(next(v for v in sorted((folder / name).iterdir()) if list(v.glob("*.onnx"))))


def speed(model: Path, compiled: Path, sizes: dict[str, int], seconds: float) -> dict[str, Any]:
    result = opsmith.bench([model, compiled], via="ep", shapes=sizes, seconds=seconds)
    stock, variant, through = result.entries
    ratio = result.ratio(variant.label, through.label)
    return {
        "stock_ms": 1e3 * stock.run.median,
        "custom_ops_ms": 1e3 * variant.run.median,
        "provider_ms": 1e3 * through.run.median,
        "share": [ratio.value, ratio.low, ratio.high],
        "load_s": {e.label: e.load for e in result.entries},
        "same_outputs": result.verified,
        "clean": result.clean,
        "ok": result.verified and ratio.high >= SHARE,
    }


def second_checkpoint(model: Path, into: Path) -> Path:
    """The same model with floats 1 % larger; its weights must lie in files of their own."""
    copy = into / model.name
    if copy.exists():
        return copy
    into.mkdir(parents=True)
    for file in model_checks.external_files(model):
        shutil.copyfile(file, into / file.name)
    for tensor in onnx.load(model, load_external_data=False).graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place and tensor.data_type == onnx.TensorProto.FLOAT:
            count = int(place["length"]) // 4
            array = np.memmap(into / place["location"], np.float32, "r+", int(place.get("offset", 0)), (count,))
            array *= np.float32(1.01)
            array.flush()
    shutil.copyfile(model, copy)
    return copy


def another(model: Path, compiled: Path, work: Path, limit: float | None) -> dict[str, Any]:
    new = second_checkpoint(model, work / "second")
    packed = work / "second_compiled"
    shutil.rmtree(packed, ignore_errors=True)
    command = [sys.executable, "-m", "opsmith", "weights", str(compiled), str(new), str(packed), "--json"]
    began = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.monotonic() - began
    provider.weights_ep(model, new)
    session = ort.InferenceSession(str(model), opsmith.session_options())
    times = []
    for path in (new, model, new, model):
        began = time.monotonic()
        opsmith.swap(session, provider.sidecar(path))
        times.append(time.monotonic() - began)
    swapped = min(times)
    return {
        "pack_s": seconds,
        "own_s": json.loads(done.stdout)["seconds"],
        "swap_ms": 1e3 * swapped,
        "ok": (limit is None or seconds < limit) and swapped < SWAP_SECONDS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring per model")
    parser.add_argument("--json", type=Path, help="all figures")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.model:
        model, work = source_of(options.folder, name), options.out.absolute() / name
        compiled = work / "compiled"
        if not compiled.exists():
            opsmith.compile(model, compiled, regions="all")
        if not provider.folder.is_whole(provider.sidecar(model), model):
            opsmith.compile_ep(model, regions="all")
        results[name] = {
            "speed": speed(model, compiled, MODELS[name], options.seconds),
            "weights": another(model, compiled, work, PACK_SECONDS.get(name)),
        }
        print(name, json.dumps(results[name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if all(part["ok"] for found in results.values() for part in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
