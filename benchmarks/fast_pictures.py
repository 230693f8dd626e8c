"""How far the presets of `imagine --fast` are from the plain picture, and how much less work they are.

    python benchmarks/fast_pictures.py [--model PIPELINE] [--prompts 8] [--steps 25] [--also 2:0.6:1 ...] [--side 384] [--json FILE] [--sheet FILE.png]

One row per preset, against --fast 0 with the same prompts and seeds: PSNR, SSIM and the CLIP score (the starter's judge), and the
processor time of the steps in one thread. --also REUSE:GUIDED:MERGE adds settings of one's own. Without --model: the starter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opsmith import starter
from opsmith.measure.score_pictures import Clip, ssim
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.pipelines.diffusion.fast import PRESETS, Fast

PROMPTS = (
    "a red apple on a yellow background",
    "a big green frog on the grass",
    "a castle under the stars",
    "two blue whales in the sea",
    "a small cat beside a big dog, on a white background",
    "a purple umbrella on a grey background",
    "a drawing of a rocket under the stars",
    "an orange fish in the sea",
)


WHOLE = "whole"  # the setting that leaves nothing out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--variant", default=None)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=None)
    parser.add_argument("--side", type=int, default=None, help="pixels; the pipeline's own by default")
    parser.add_argument("--also", nargs="*", default=[], metavar="REUSE:GUIDED:MERGE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    settings = {WHOLE: PRESETS[0], **{f"--fast {level}": fast for level, fast in PRESETS.items()}}
    for text in options.also:
        reuse, guided, merge = text.split(":")
        settings[text] = Fast(int(reuse), float(guided), int(merge))
    prompts = PROMPTS[: options.prompts]
    made, seconds = draw(options, settings, prompts)
    judge = Clip(starter.folder("clip"), threads=1)
    rows = []
    for name, images in made.items():
        faster = seconds[WHOLE] / seconds[name]
        rows.append({"setting": name, **figures(settings[name], images, made[WHOLE], prompts, judge, faster)})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.sheet:
        labels = [name if i == 0 else "" for name in made for i in range(len(prompts))]
        sheet = pictures.sheet([i for images in made.values() for i in images], labels, columns=len(prompts))
        sheet.save(options.sheet)


def draw(
    options: argparse.Namespace, settings: Mapping[str, Fast], prompts: Sequence[str]
) -> tuple[dict[str, list[Any]], dict[str, float]]:
    """The pictures of each setting, and the seconds of CPU time that they took."""
    model = options.model or starter.folder("pictures")
    app = DiffusionApp(model, variant=options.variant, threads=1)
    whole = DiffusionApp(model, variant=options.variant, threads=1, savings="off")
    sizes = {"steps": options.steps, "guidance": options.guidance, "height": options.side, "width": options.side}
    made: dict[str, list[Any]] = {name: [] for name in settings}
    seconds = dict.fromkeys(settings, 0.0)
    for seed, prompt in enumerate(prompts):  # interleaved, so that a machine that changes its speed changes all rows
        for name, fast in settings.items():
            used = whole if name == WHOLE else app
            started = time.process_time()
            made[name].append(used.generate(prompt, seed=seed, fast=fast, **sizes).images[0])
            seconds[name] += time.process_time() - started
    return made, seconds


def figures(
    fast: Fast, images: Sequence[Any], whole: Sequence[Any], prompts: Sequence[str], judge: Clip, faster: float
) -> dict[str, Any]:
    """How near pictures are to the whole ones and to their prompts, and how much faster they came."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(images, whole)]
    clip = [100 * float(judge.look(i)[0] @ judge.words(p)) for i, p in zip(images, prompts)]
    return {
        "reuse": fast.reuse,
        "guided": fast.guided,
        "merge": fast.merge,
        "psnr": round(float(np.mean([min(pictures.psnr(a, b), 100) for a, b in pairs])), 1),
        "ssim": round(float(np.mean([ssim(a, b) for a, b in pairs])), 3),
        "clip": round(float(np.mean(clip)), 2),
        "faster": round(faster, 2),
    }


if __name__ == "__main__":
    main()
