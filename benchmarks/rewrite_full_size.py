"""Rewrite full-size models and check that everything in them is found.

    python benchmarks/rewrite_full_size.py FOLDER [--verify] [--bench] [--model NAME ...]

FOLDER holds model folders as `opsmith export` writes them: stable-diffusion-v1-4 (a pipeline), gpt2-medium,
bert-base-uncased, each with the variants dynamo and torchscript; what is absent is skipped. Weights may be random.
Asserted: how many attentions, norms and activations each model holds, under 60 seconds and under 8 GiB per model; with
--verify, outputs at 1e-4; with --bench, that -O2 and -O3 are not slower than the input on stock ONNX Runtime, interleaved (the
machine should be idle).
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import opsmith
from opsmith import store
from opsmith.check.verify import verify
from opsmith.rewriter import rewrite_model

# model folder -> rule -> how often it must fire; "layer_norms" counts LayerNormalization with and without skip
EXPECTED: dict[str, dict[str, int]] = {
    "stable-diffusion-v1-4/unet": {
        "attention": 32,
        "group_norm": 61,
        "group_norm_silu": 45,
        "silu": 47,
        "geglu": 16,
        "upsample_conv": 3,
        "layer_norms": 48,
    },
    "stable-diffusion-v1-4/vae_decoder": {"attention": 1, "group_norm": 30, "silu": 29, "upsample_conv": 3},
    "stable-diffusion-v1-4/text_encoder": {"attention": 12, "quick_gelu": 12, "layer_norms": 25},
    "gpt2-medium": {"attention": 24, "gelu_tanh": 24, "kv_append": 48, "layer_norms": 49},
    "bert-base-uncased": {"attention": 12, "gelu": 12, "layer_norms": 25},
}
SIZES: dict[str, dict[str, int]] = {
    "stable-diffusion-v1-4/unet": {"batch": 1, "height": 32, "width": 32, "sequence": 77},
    "stable-diffusion-v1-4/vae_decoder": {"batch": 1, "height": 16, "width": 16},
    "stable-diffusion-v1-4/text_encoder": {"batch": 1, "sequence": 77},
    "gpt2-medium": {"batch": 1, "sequence": 64, "past": 64},
    "bert-base-uncased": {"batch": 1, "sequence": 128},
}
SECONDS = 60.0
GIBIBYTES = 8.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verify", action="store_true", help="also compare the outputs; loads each model twice")
    parser.add_argument("--bench", action="store_true", help="also time -O2 and -O3 against the input on stock ORT")
    parser.add_argument("--model", nargs="+", default=list(EXPECTED), choices=list(EXPECTED))
    parser.add_argument("--exporter", nargs="+", default=["dynamo", "torchscript"])
    arguments = parser.parse_args()
    failed = found = 0
    for name in arguments.model:
        expected = EXPECTED[name]
        for exporter in arguments.exporter:
            folder = arguments.folder / name / exporter
            if not folder.is_dir():
                print(f"{name} {exporter}: not there, skipped")
                continue
            found += 1
            ok = check(folder, name, exporter, expected, arguments.verify)
            if arguments.bench:
                ok &= not_slower(folder, name, exporter)
            failed += not ok
    print(f"{found - failed} of {found} as expected")
    return 1 if failed or not found else 0


def check(folder: Path, name: str, exporter: str, expected: dict[str, int], compare: bool) -> bool:
    source = store.find_model(folder)
    started = time.perf_counter()
    model = store.open_model(source)
    before = len(model.graph)
    counted = {r.rule: r.matches for r in rewrite_model(model)}
    seconds = time.perf_counter() - started
    counted["layer_norms"] = sum(n.op_type in ("LayerNormalization", "SkipLayerNorm") for n in model.graph)
    wrong = {rule: counted.get(rule, 0) for rule, count in expected.items() if counted.get(rule, 0) != count}
    ok, remark = not wrong, f"expected {expected}, found {wrong}" if wrong else ""
    with tempfile.TemporaryDirectory(prefix="opsmith-full-", dir=folder.parent) as written:
        path = Path(written) / "rewritten.onnx"
        store.save_model(model, path)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        if seconds > SECONDS or memory > GIBIBYTES:
            ok, remark = False, f"{remark} over the limit of {SECONDS:.0f} s or {GIBIBYTES:.0f} GiB"
        if compare:
            compared = verify(source, path, rtol=1e-4, atol=1e-4, shapes=1)
            if not compared.ok:
                ok, remark = False, f"{remark} {compared.problems[0]}"
    figures = f"{before} -> {len(model.graph)} nodes, {seconds:.1f} s, peak {memory:.1f} GiB"
    print(f"{name} {exporter}: {figures}: {'ok' if ok else 'WRONG: ' + remark}", flush=True)
    return ok


def not_slower(folder: Path, name: str, exporter: str) -> bool:
    """-O2 and -O3 beside the input, each a process of its own: slower only if the whole interval says so."""
    with tempfile.TemporaryDirectory(prefix="opsmith-full-", dir=folder.parent) as written:
        levels = [Path(written) / f"O{level}" for level in (2, 3)]
        for level, path in zip((2, 3), levels):
            opsmith.optimize(folder, path, level, "ort-cpu" if level == 3 else "portable", check=False, timing=False)
        result = opsmith.bench([folder, *levels], shapes=SIZES[name], rtol=1e-3, atol=1e-4, seconds=12)
    text = ", ".join(
        f"{e.label} {e.speedup.value:.3f} ({e.speedup.low:.3f} to {e.speedup.high:.3f})" for e in result.entries[1:]
    )
    slower = [e.label for e in result.entries[1:] if e.speedup.high < 1.0]
    ok = result.verified and not slower
    print(
        f"{name} {exporter}: time against the input: {text}: {'ok' if ok else 'SLOWER' if slower else 'NOT THE SAME'}",
        flush=True,
    )
    return ok


if __name__ == "__main__":
    sys.exit(main())
