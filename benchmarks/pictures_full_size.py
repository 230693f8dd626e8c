"""Whole pictures from a full-size Stable Diffusion v1.4 (random weights): sizes, peak memory, and time beyond its components.

    python benchmarks/pictures_full_size.py FOLDER [--steps 4] [--stored fp32 fp16] [--whole-steps 20] [--json FILE]
    python benchmarks/pictures_full_size.py FOLDER --only savings [--savings-steps 25] [--rounds 2]
    python benchmarks/pictures_full_size.py FOLDER --only turbo --taesd FOLDER

FOLDER is the pipeline folder that export_full_size.py writes. What is missing in it is made first: a tokenizer of single
bytes (random weights come without one), variants with fp16-stored weights, and a compiled variant of each component.

sizes   512x512, 768x512 and 256x256 from the same compiled variants, each picture in a process of its own, with the peak
        resident memory that Linux counts for it (VmHWM: memory-mapped weights included) against the limits
whole   one 512x512 picture of --whole-steps steps against the sum of its parts, timed in the same process: the text encoder
        on both prompts, the UNet at batch 2 once per step, the VAE decoder. The machine should be otherwise idle.
savings one picture of --savings-steps steps: fp32 whole (the reference), fp32 and bf16 with the exact savings, and --fast 1 to 3, each
        in a process of its own, one round after the other; with the distance that each has on the starter, which is trained.
        In bf16 the pipeline lies beside FOLDER as FOLDER-bf16, with links to what is the same.
turbo   1 to 4 steps without guidance and with the tiny autoencoder of --taesd: a picture is its UNet steps and half a second

Exit code 1 if a limit does not hold. Not part of CI: needs 25 GB of disk and up to 12 GiB of memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import store
from opsmith.pipelines.diffusion import DiffusionApp

COMPONENTS = ("text_encoder", "unet", "vae_decoder")
SIZES = ((512, 512), (768, 512), (256, 256))  # width, height
LIMITS = {"fp32": 12.0, "fp16": 8.0}  # GiB
WHOLE = 1.05  # of the sum of the parts
BEYOND_STEPS = 0.5  # seconds of a Turbo picture
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


def saved(home: str, savings: str, fast: int, steps: int, size: tuple[int, int]) -> dict[str, Any]:
    """One picture by a pipeline that has drawn one before: time, and the peak of the whole process."""
    app = DiffusionApp(home, savings=savings)
    told: dict[str, Any] = {"width": size[0], "height": size[1], "scheduler": "ddim", "seed": 1, "fast": fast}
    app.generate(PROMPT, NEGATIVE, steps=2, **told)
    made = app.generate(PROMPT, NEGATIVE, steps=steps, **told)
    return {"seconds": made.seconds, "step_s": statistics.mean(made.step_seconds), "peak": memory()["peak"]}


def turbo(home: str, taesd: str, steps: int, size: tuple[int, int]) -> dict[str, Any]:
    app = DiffusionApp(home, vae=taesd)
    told: dict[str, Any] = {"guidance": 0.0, "width": size[0], "height": size[1], "steps": steps}
    app.generate(PROMPT, **told)
    made = app.generate(PROMPT, **told)
    return {"seconds": made.seconds, "beyond_steps": made.seconds - sum(made.step_seconds), "peak": memory()["peak"]}


# --- savings ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    precision: str
    savings: str
    fast: int = 0
    least: float | None = None  # times as fast as the first
    memory: float | None = None  # GiB


ROWS = (
    Row("fp32, whole", "fp32", "off"),
    Row("fp32, exact savings", "fp32", "on", least=1.05),
    Row("bf16, exact savings", "bf16", "on", least=1.6, memory=8.0),
    *(Row(f"fp32, --fast {n}", "fp32", "on", n) for n in (1, 2, 3)),
    *(Row(f"bf16, --fast {n}", "bf16", "on", n, 3.0 if n == 2 else None, 8.0) for n in (1, 2, 3)),
)


def compiled_home(folder: Path, precision: str) -> Path:
    """A pipeline whose UNet is compiled whole and in pieces, made if it is not there."""
    import opsmith

    if not (folder / "tokenizer").is_dir():
        write_tokenizer(folder / "tokenizer")
    home = folder if precision == "fp32" else folder.with_name(f"{folder.name}-{precision}")
    if home != folder and not home.is_dir():
        _link(folder, home)
    opsmith.create_stable_diffusion(home, pieces=True, precision=precision)
    return home


def _link(folder: Path, home: Path) -> None:
    """All of FOLDER but what is compiled or cut."""
    home.mkdir()
    for entry in folder.iterdir():
        if entry.name.startswith("unet_"):
            continue
        if not entry.is_dir() or not store.variants(entry):
            (home / entry.name).symlink_to(entry.absolute())
            continue
        (home / entry.name).mkdir()
        there = {v.name for v in store.variants(entry) if v.record.get("verb") == "compile"}
        for inner in entry.iterdir():
            if inner.name not in there:
                (home / entry.name / inner.name).symlink_to(inner.absolute())


def distances(work: Path, prompts: int, steps: int) -> dict[str, dict[str, float]]:
    """Of each row to the first, on the starter: PSNR, SSIM and CLIP score."""
    from fast_pictures import PROMPTS

    from opsmith import starter
    from opsmith.measure.score_pictures import Clip, ssim
    from opsmith.pipelines import pictures

    source = work / "starter"
    if not source.is_dir():
        shutil.copytree(starter.folder("pictures"), source)
    judge = Clip(starter.folder("clip"), threads=1)
    found: dict[str, dict[str, float]] = {}
    plain: list[Any] = []
    for row in ROWS:
        app = DiffusionApp(compiled_home(source, row.precision), savings=row.savings)
        made = [app.generate(p, seed=i, steps=steps, fast=row.fast).images[0] for i, p in enumerate(PROMPTS[:prompts])]
        plain = plain or made
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(made, plain)]
        clip = [100 * float(judge.look(i)[0] @ judge.words(p)) for i, p in zip(made, PROMPTS)]
        found[row.name] = {
            "psnr": round(float(np.mean([min(pictures.psnr(a, b), 100) for a, b in pairs])), 1),
            "ssim": round(float(np.mean([ssim(a, b) for a, b in pairs])), 4),
            "clip": round(float(np.mean(clip)), 2),
        }
    return found


def measure_savings(options: argparse.Namespace, tell: Callable[[dict[str, Any]], None]) -> None:
    homes = {precision: compiled_home(options.folder, precision) for precision in ("fp32", "bf16")}
    near: dict[str, dict[str, float]] = {}
    if options.prompts:
        with tempfile.TemporaryDirectory(prefix="opsmith-starter-") as work:
            near = distances(Path(work), options.prompts, options.savings_steps)
    times: dict[str, list[dict[str, Any]]] = {row.name: [] for row in ROWS}
    for _ in range(options.rounds):
        for row in ROWS:
            order = {"what": "saved", "home": str(homes[row.precision]), "savings": row.savings, "fast": row.fast}
            order |= {"steps": options.savings_steps, "size": options.size}
            times[row.name].append(in_a_process(options.folder, order))
    reference = statistics.median(t["seconds"] for t in times[ROWS[0].name])
    for row in ROWS:
        seconds = statistics.median(t["seconds"] for t in times[row.name])
        peak = max(t["peak"] for t in times[row.name])
        faster = reference / seconds
        ok = faster >= (row.least or 0) and peak <= (row.memory or np.inf)
        figures = {"seconds": round(seconds, 2), "faster": round(faster, 2), "peak": peak}
        tell({"row": row.name, **figures, **near.get(row.name, {}), "least": row.least, "memory": row.memory, "ok": ok})


def measure_turbo(options: argparse.Namespace, tell: Callable[[dict[str, Any]], None]) -> None:
    home = compiled_home(options.folder, "bf16")
    for steps in (1, 2, 4):
        order = {"what": "turbo", "home": str(home), "taesd": str(options.taesd), "steps": steps, "size": options.size}
        row = in_a_process(options.folder, order)
        ok = row["beyond_steps"] <= BEYOND_STEPS
        tell(
            {
                "row": "turbo",
                "steps": steps,
                **{k: round(v, 3) for k, v in row.items()},
                "limit": BEYOND_STEPS,
                "ok": ok,
            }
        )


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
    parser.add_argument("--only", nargs="+", default=["sizes", "whole"], choices=["sizes", "whole", "savings", "turbo"])
    parser.add_argument("--savings-steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=5, help="of the starter, for the distances; 0: none")
    parser.add_argument("--size", type=_size, default=SIZES[0], help="of savings and turbo: WIDTHxHEIGHT")
    parser.add_argument("--taesd", type=Path, help="an exported tiny autoencoder, for turbo")
    parser.add_argument("--json", type=Path, help="append one line per result")
    parser.add_argument("--order", type=json.loads, help=argparse.SUPPRESS)  # one measurement, in this process
    options = parser.parse_args()
    if "turbo" in options.only and options.taesd is None:
        parser.error("turbo needs --taesd")
    if options.order:
        options.order["size"] = tuple(options.order["size"])
        what = options.order.pop("what")
        if what in ("saved", "turbo"):
            made = {"saved": saved, "turbo": turbo}[what](**options.order)
        else:
            made = {"sizes": picture, "whole": whole}[what](options.folder, **options.order)
        print(json.dumps(made))
        return 0
    failed = 0

    def tell(row: dict[str, Any]) -> None:
        nonlocal failed
        failed += not row["ok"]
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    if {"sizes", "whole"} & set(options.only):
        measure_sizes(options, tell)
    if "savings" in options.only:
        measure_savings(options, tell)
    if "turbo" in options.only:
        measure_turbo(options, tell)
    print("all as expected" if not failed else f"{failed} not as expected")
    return 1 if failed else 0


def measure_sizes(options: argparse.Namespace, tell: Callable[[dict[str, Any]], None]) -> None:
    for stored in options.stored:
        variants = prepare(options.folder, options.source, stored)
        before = _states(options.folder, variants)
        for size in SIZES if options.steps and "sizes" in options.only else ():
            order = {"what": "sizes", "variants": variants, "size": size, "steps": options.steps}
            row = in_a_process(options.folder, order)
            ok = row["end"]["peak"] <= LIMITS[stored]
            tell({"stored": stored, "size": f"{size[0]}x{size[1]}", **row, "limit": LIMITS[stored], "ok": ok})
        if options.whole_steps and "whole" in options.only:
            order = {"what": "whole", "variants": variants, "size": SIZES[0], "steps": options.whole_steps}
            row = in_a_process(options.folder, order)
            tell({"stored": stored, "size": "512x512", **row, "limit": WHOLE, "ok": row["ratio"] <= WHOLE})
        assert _states(options.folder, variants) == before, "something was built again"


def _size(text: str) -> tuple[int, int]:
    width, height = map(int, text.split("x"))
    return width, height


def _states(folder: Path, variants: dict[str, str]) -> list[tuple[str, int, int]]:
    files = [f for name, variant in variants.items() for f in (folder / name / variant).rglob("*") if f.is_file()]
    return sorted((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


if __name__ == "__main__":
    sys.exit(main())
