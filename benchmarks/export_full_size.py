"""Export full-size models with random weights and measure each export's time and peak memory.

    python benchmarks/export_full_size.py OUT [--model ID ...] [--exporter dynamo ...] [--json FILE]

Each export is one `opsmith export ID OUT/<name> --random-weights` in its own process, one after the other, so that the
peak resident memory is that export's alone. Needs 12 GiB of memory and about 40 GB of disk. Not part of CI, which runs
the same code on tiny configs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

MODELS = (
    "CompVis/stable-diffusion-v1-4",
    "gpt2-medium",
    "bert-base-uncased",
    "openai/clip-vit-base-patch32",
    "CIDAS/clipseg-rd64-refined",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
)
EXPORTERS = ("dynamo", "torchscript")


def measure(model: str, exporter: str, out: Path) -> dict[str, object]:
    folder = out / model.rsplit("/", 1)[-1]
    command = [
        sys.executable,
        "-m",
        "opsmith",
        "export",
        model,
        str(folder),
        "--exporter",
        exporter,
        "--random-weights",
    ]
    started = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with {process.returncode}")
    records = [json.loads(f.read_text()) for f in sorted(folder.rglob(f"{exporter}/opsmith.json"))]
    return {
        "model": model,
        "exporter": exporter,
        "seconds": round(time.monotonic() - started, 1),
        "peak_gib": round(usage.ru_maxrss / 2**20, 2),  # Linux counts KiB
        "max_abs_error": max(r["verified"]["max_abs_error"] for r in records),
        "cases": sum(len(r["verified"]["cases"]) for r in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--exporter", nargs="+", default=EXPORTERS, choices=EXPORTERS)
    parser.add_argument("--json", type=Path, help="append one line per export")
    arguments = parser.parse_args()
    for model in arguments.model:
        for exporter in arguments.exporter:
            row = measure(model, exporter, arguments.out)
            print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
