"""One table for the variants of a text model: without and with KV cache, int8, int4, fp16, pruned, and each compiled.

    python benchmarks/text_models.py models/gpt2/dynamo story.txt --out table

Makes the variants that are missing beside the source, then scores all of them. Writes table.md, table.csv and table.png. Run it on
a quiet machine: the speeds are only as good as that.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import opsmith
from opsmith.errors import OpsmithError
from opsmith.measure.chart_text import plot
from opsmith.measure.score_text import csv_text, markdown, score_text

# name -> options of quantize
VARIANTS = {
    "int8": {"bits": 8, "block": 32},
    "int4": {"bits": 4, "block": 32},
    "int4_mixed": {"bits": 4, "block": 32, "max_error": 0.08},
    "fp16": {"method": "fp16"},
}
PRUNED = {"method": "structured", "shrink": 0.125, "uniform": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the variant folder to start from")
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("text_models"), help="path of the tables, without an ending")
    parser.add_argument("--calibration", type=Path, help="text for pruning; the scored text by default, which flatters")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    home = args.source.absolute().parent
    found = [args.source]
    for name, options in VARIANTS.items():
        target = home / name
        if not target.exists():
            opsmith.quantize(args.source, target, calibration=args.text, threads=args.threads, **options)
        found.append(target)
    pruned = home / "pruned"
    if not pruned.exists():
        opsmith.prune(
            args.source, pruned, calibration=args.calibration or args.text, samples=96, threads=args.threads, **PRUNED
        )
    found.append(pruned)
    if not args.no_compile:
        for variant in list(found):
            target = home / f"{variant.name}_compiled"
            if not target.exists():
                opsmith.compile(variant, target)
            found.append(target)
    rows = score_text(
        found,
        args.text,
        tokens=args.tokens,
        decode=args.decode,
        threads=args.threads,
        without_cache=[args.source, pruned],
    )
    args.out.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    args.out.with_suffix(".csv").write_text(csv_text(rows), encoding="utf-8")
    plot(rows, args.out.with_suffix(".png"))
    print(markdown(rows))


if __name__ == "__main__":
    try:
        main()
    except OpsmithError as error:
        raise SystemExit(f"error: {error}") from None
