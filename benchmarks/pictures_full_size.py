"""Whole pictures from a full-size Stable Diffusion v1.4 (random weights): sizes, peak memory, and time beyond its components.

    python benchmarks/pictures_full_size.py FOLDER [--steps 4] [--stored fp32 fp16] [--whole-steps 20] [--json FILE]

FOLDER is the pipeline folder that export_full_size.py writes. What is missing in it is made first: a tokenizer of single
bytes (random weights come without one), variants with fp16-stored weights, and a compiled variant of each component.

sizes   512x512, 768x512 and 256x256 from the same compiled variants, each picture in a process of its own, with the peak
        resident memory that Linux counts for it (VmHWM: memory-mapped weights included) against the limits
whole   one 512x512 picture of --whole-steps steps against the sum of its parts, timed in the same process: the text encoder
        on both prompts, the UNet at batch 2 once per step, the VAE decoder. The machine should be otherwise idle.

Exit code 1 if a limit does not hold. Not part of CI: needs 25 GB of disk and up to 12 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opsmith.pipelines.diffusion import DiffusionApp

COMPONENTS = ("text_encoder", "unet", "vae_decoder")
SIZES = ((512, 512), (768, 512), (256, 256))  # width, height
LIMITS = {"fp32": 12.0, "fp16": 8.0}  # GiB
WHOLE = 1.05  # of the sum of the parts
PROMPT, NEGATIVE = "a red apple on a table", "blurred"


# --- what is measured: each in a process of its own ------------------------------------------------------


def memory() -> dict[str, float]:
    """This process in GiB: the largest so far, and of what is there now the file pages and the rest."""
    text = Path("/proc/self/status").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    names = {"peak": "VmHWM", "mapped": "RssFile", "own": "RssAnon"}
    return {name: round(int(lines[key].split()[0]) / 2**20, 2) for name, key in names.items()}


def picture(folder: Path, variants: dict[str, str], size: tuple[int, int], steps: int) -> dict[str, Any]:
    after: dict[str, Any] = {}

    def watch(step: int, total: int, _: object) -> None:
        if step in (1, total):
            after[f"after step {step}"] = memory()

    app = DiffusionApp(folder, variant=variants)
    made = app.generate(
        PROMPT, NEGATIVE, steps=steps, width=size[0], height=size[1], scheduler="ddim", seed=1, callback=watch
    )
    assert made.images[0].size == size
    assert app.variants | variants == app.variants  # what was asked for is what ran
    step = statistics.median(made.step_seconds)
    return {"seconds": round(made.seconds, 1), "step_s": round(step, 2), **after, "end": memory()}


class Watched:
    """Counts the seconds inside of a pipeline's components."""

    def __init__(self, app: DiffusionApp) -> None:
        self.inside = 0.0
        self._run = app.parts.run
        setattr(app.parts, "run", self.run)  # noqa: B010  a method is replaced on purpose

    def run(self, name: str, feeds: Mapping[str, Any]) -> Any:
        started = time.perf_counter()
        found = self._run(name, feeds)
        self.inside += time.perf_counter() - started
        return found


def whole(folder: Path, variants: dict[str, str], size: tuple[int, int], steps: int) -> dict[str, Any]:
    """Parts are timed before and after the picture, so that a machine that changes its speed shows."""
    app = DiffusionApp(folder, variant=variants)
    watched = Watched(app)
    app.generate(PROMPT, NEGATIVE, steps=1, width=size[0], height=size[1], scheduler="ddim")  # loads, touches all pages
    height, width = size[1] // app.geometry.factor, size[0] // app.geometry.factor
    random = np.random.default_rng(0)
    ids = {"input_ids": np.zeros((2, app.words.length), np.int64)}
    states = app.parts.run("text_encoder", ids)
    feeds: dict[str, dict[str, Any]] = {
        "text_encoder": ids,
        "unet": {
            "sample": random.standard_normal((2, 4, height, width), dtype=np.float32),
            "timestep": np.array([500]),
            "encoder_hidden_states": states,
        },
        "vae_decoder": {"latent_sample": random.standard_normal((1, 4, height, width), dtype=np.float32)},
    }
    times: dict[str, list[float]] = {name: [] for name in COMPONENTS}

    def time_parts() -> None:
        for name in COMPONENTS:
            for _ in range(2):
                times[name].append(_timed(lambda name=name: app.parts.run(name, feeds[name])))  # type: ignore[misc]

    time_parts()
    watched.inside = 0.0
    made = app.generate(PROMPT, NEGATIVE, steps=steps, width=size[0], height=size[1], scheduler="ddim", seed=1)
    outside = made.seconds - watched.inside
    time_parts()
    parts = {name: statistics.median(found) for name, found in times.items()}
    total = parts["text_encoder"] + steps * parts["unet"] + parts["vae_decoder"]
    return {
        "steps": steps,
        "parts_s": {name: round(seconds, 3) for name, seconds in parts.items()},
        "sum_s": round(total, 2),
        "picture_s": round(made.seconds, 2),
        "ratio": round(made.seconds / total, 3),
        "outside_s": round(outside, 3),  # of the components: what the pipeline itself costs, on any machine
        "end": memory(),
    }


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# --- preparation -----------------------------------------------------------------------------------------


def prepare(folder: Path, source: str, stored: str) -> dict[str, str]:
    """The compiled variant of each component, made if it is not there."""
    if not (folder / "tokenizer").is_dir():
        write_tokenizer(folder / "tokenizer")
    found = {}
    for name in COMPONENTS:
        plain = folder / name / (source if stored == "fp32" else f"{source}_fp16")
        compiled = plain.with_name(f"{plain.name}_compiled")
        if not compiled.is_dir():
            if not plain.is_dir():
                stored_case = folder / name / source / "test_data_set_0"
                _opsmith("quantize", folder / name / source, plain, "--method", "fp16", "--calibration", stored_case)
            _opsmith("compile", plain, compiled, "--regions", "whole")
        found[name] = compiled.name
    return found


def _opsmith(*arguments: object) -> None:
    command = [sys.executable, "-m", "opsmith", *map(str, arguments)]
    print(" ".join(command[2:]), flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_tokenizer(folder: Path) -> None:
    """CLIP's form with no merges: every character is a token, and ids beyond them are never used."""
    folder.mkdir()
    letters = [chr(c) for c in range(33, 127)]
    words = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77}))


def in_a_process(folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, str(folder), "--order", json.dumps(order)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", default="dynamo", help="the exported variant to start from")
    parser.add_argument(
        "--stored", nargs="+", default=list(LIMITS), choices=list(LIMITS), help="how weights are stored"
    )
    parser.add_argument("--steps", type=int, default=4, help="steps of each picture of `sizes`")
    parser.add_argument("--whole-steps", type=int, default=20, help="steps of the picture that is timed; 0: none")
    parser.add_argument("--json", type=Path, help="append one line per result")
    parser.add_argument("--order", type=json.loads, help=argparse.SUPPRESS)  # one measurement, in this process
    options = parser.parse_args()
    if options.order:
        options.order["size"] = tuple(options.order["size"])
        made = {"sizes": picture, "whole": whole}[options.order.pop("what")]
        print(json.dumps(made(options.folder, **options.order)))
        return 0
    failed = 0

    def tell(row: dict[str, Any]) -> None:
        nonlocal failed
        failed += not row["ok"]
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    for stored in options.stored:
        variants = prepare(options.folder, options.source, stored)
        before = _states(options.folder, variants)
        for size in SIZES if options.steps else ():
            order = {"what": "sizes", "variants": variants, "size": size, "steps": options.steps}
            row = in_a_process(options.folder, order)
            ok = row["end"]["peak"] <= LIMITS[stored]
            tell({"stored": stored, "size": f"{size[0]}x{size[1]}", **row, "limit": LIMITS[stored], "ok": ok})
        if options.whole_steps:
            order = {"what": "whole", "variants": variants, "size": SIZES[0], "steps": options.whole_steps}
            row = in_a_process(options.folder, order)
            tell({"stored": stored, "size": "512x512", **row, "limit": WHOLE, "ok": row["ratio"] <= WHOLE})
        assert _states(options.folder, variants) == before, "something was built again"
    print("all as expected" if not failed else f"{failed} not as expected")
    return 1 if failed else 0


def _states(folder: Path, variants: dict[str, str]) -> list[tuple[str, int, int]]:
    files = [f for name, variant in variants.items() for f in (folder / name / variant).rglob("*") if f.is_file()]
    return sorted((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


if __name__ == "__main__":
    sys.exit(main())
