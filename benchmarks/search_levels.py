"""What tuning gives: every case of peers.py compiled with --search 0 and with --search 2, timed in turns.

    python benchmarks/search_levels.py MODELS RESULTS [--case NAME ...] [--variant fp32 ...] [--seconds 30]

MODELS and RESULTS as for peers.py, whose compiled variants are used if their kernels are still the same. Tuning begins with an empty
database in a folder of its own; compiling once more, with the database filled, is timed too. A variant is tuned for the sizes of its
model's test data, as `opsmith compile --search 2` does it, and timed at the sizes of every case. Exit code 1 if --search 0 takes more
than 1.15 times as long as --search 2 anywhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import CASES, Workshop

from opsmith.errors import OpsmithError
from opsmith.measure.bench import bench

LIMIT = 1.15


def tune_timed(source: Path, dest: Path, cache: Path) -> float:
    """Seconds of one `opsmith compile --search 2`, in a process of its own."""
    shutil.rmtree(dest, ignore_errors=True)
    command = [sys.executable, "-m", "opsmith", "compile", str(source), str(dest), "--search", "2"]
    started = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, "OPSMITH_CACHE": str(cache)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OpsmithError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--case", nargs="+", choices=[c.name for c in CASES], default=[c.name for c in CASES])
    parser.add_argument("--variant", nargs="+", default=["fp32"])
    parser.add_argument("--exporter", default="dynamo")
    parser.add_argument("--seconds", type=float, default=30.0, help="time to spend on each comparison")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    workshop = Workshop(options.models, options.results, options.exporter, 0)
    chosen = [c for c in CASES if c.name in options.case]
    good = True
    for source in dict.fromkeys(c.source for c in chosen):
        cases = [c for c in chosen if c.source == source]
        for variant in options.variant:
            timed = [c for c in cases if variant in c.variants]
            if not timed:
                continue
            plain = workshop.ours(timed[0], variant)
            tuned = plain.with_name(f"{plain.name}-search2")
            untuned = workshop.plain(timed[0], variant)
            with tempfile.TemporaryDirectory() as cache:
                first, again = (tune_timed(untuned, tuned, Path(cache)) for _ in range(2))
            print(
                f"{source} {variant}: --search 2 takes {first:.0f} s, with a filled database {again:.0f} s", flush=True
            )
            for case in timed:
                result = bench(
                    [tuned, plain],
                    shapes=case.sizes,
                    threads=options.threads,
                    seconds=options.seconds,
                    rounds=options.rounds,
                )
                ratio = result.ratio(result.entries[1].label, result.entries[0].label)
                good &= ratio.value <= LIMIT
                print(f"  {case.title}: 0 over 2 {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})", flush=True)
            shutil.rmtree(tuned)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
