"""What the studio does, as jobs: ideas, pictures, selections, edits, comparisons, compiling, measuring.

The page's API, the OpenAI API and their tests all stand on these functions.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import secrets
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.pipelines import edit, grammar, masks, pictures
from opsmith.pipelines.diffusion import Callback, DiffusionApp, Generated
from opsmith.pipelines.prompts import write_prompts
from opsmith.pipelines.shared import SLOTS
from opsmith.studio.album import Album, Picture
from opsmith.studio.jobs import EVERYONE, FINISHED, Job, Jobs
from opsmith.studio.metrics import Metrics
from opsmith.studio.models import Models, run_opsmith
from opsmith.studio.uploads import Limits

# Jobs that each does at a time. light: selections and edits that need no picture model. Texts share the steps of the writer.
WORKERS = {"pictures": 1, "writer": SLOTS, "embedder": 1, "light": 1, "forge": 1}
LARGEST = 1024  # pixels of a side
MOST = 8  # pictures of one request
REPORT_SECONDS = 12


@dataclasses.dataclass(frozen=True)
class Wish:
    """What a picture is made from."""

    prompt: str
    negative: str = ""
    steps: int = 25
    guidance: float | None = None
    width: int | None = None
    height: int | None = None
    seed: int | None = None
    n: int = 1
    variant: str | None = None

    def checked(self, models: Models) -> Wish:
        """With defaults filled in; a wish that cannot be granted is refused before it waits in the queue."""
        if not self.prompt.strip():
            raise OpsmithError("the prompt is empty", "say what the picture shows")
        if len(self.prompt) > 2000 or len(self.negative) > 2000:
            raise OpsmithError("the prompt is longer than 2000 characters")
        if not 1 <= self.steps <= 150:
            raise OpsmithError(f"{self.steps} steps are not possible", "1 to 150")
        if not 1 <= self.n <= MOST:
            raise OpsmithError(f"{self.n} pictures at once are not possible", f"1 to {MOST}")
        guidance = self.guidance if self.guidance is not None else models.guidance
        if not 0 <= guidance <= 30:
            raise OpsmithError(f"a guidance of {guidance} is not possible", "0 to 30; 1 is none")
        width, height = self.width or models.native[0], self.height or models.native[1]
        for side in (width, height):
            if side % 8 or not 8 <= side <= LARGEST:
                raise OpsmithError(f"{width}x{height} is not possible", f"multiples of 8 up to {LARGEST}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise OpsmithError(f"the seed {self.seed} is not possible", "0 or more")
        if self.variant is not None and self.variant not in (names := [c.name for c in models.variants()]):
            raise OpsmithError(f"there is no variant {self.variant!r}", f"there are: {', '.join(names)}")
        seed = self.seed if self.seed is not None else secrets.randbelow(2**31)
        return dataclasses.replace(self, guidance=guidance, width=width, height=height, seed=seed)


class Studio:
    def __init__(self, models: Models, folder: Path, limits: Limits | None = None) -> None:
        self.models = models
        self.album = Album(folder)
        self.limits = limits or Limits()
        self.jobs = Jobs(WORKERS)
        self.metrics = Metrics()

    # --- 1 idea ------------------------------------------------------------------------------------------

    def ideas(self, owner: str, keyword: str, n: int = 3, seed: int | None = None) -> Job:
        words = " ".join(keyword.split())
        if not words or len(words) > 200:
            raise OpsmithError("the idea is empty" if not words else "the idea is longer than 200 characters")
        chosen = seed if seed is not None else secrets.randbelow(2**31)

        def work(job: Job) -> dict[str, Any]:
            job.texts = [""] * n
            area = write_prompts(
                self.models.writer(),
                words,
                n=n,
                seed=chosen,
                style=self.models.style(),
                on_text=job.say,
                cancelled=job.stop.is_set,
            )
            job.tell()
            return {"prompts": area, "seed": chosen}

        return self.jobs.submit("writer", "ideas", owner, work, title=words)

    # --- 2 picture ---------------------------------------------------------------------------------------

    def pictures(self, owner: str, wish: Wish) -> Job:
        asked = wish.checked(self.models)

        def work(job: Job) -> dict[str, Any]:
            app = self.load(job, asked.variant)
            made = self.generate(job, app, asked)
            kept = [
                self.album.add(image, {**settings, "studio": "made"}, owner, "made")
                for image, settings in zip(made.images, made.settings)
            ]
            return {"pictures": [p.describe() for p in kept], "remarks": made.remarks, **_times(made)}

        return self.jobs.submit("pictures", "picture", owner, work, title=asked.prompt)

    def load(self, job: Job, variant: str | None) -> DiffusionApp:
        job.tell(note="loading the model")
        app = self.models.app(variant)
        for name in ("text_encoder", "unet", "vae_decoder"):
            app.component(name)
            job.tell()
        job.tell(note="")
        return app

    def generate(
        self, job: Job, app: DiffusionApp, wish: Wish, callback: Callback | None = None, **more: Any
    ) -> Generated:
        made = app.generate(
            wish.prompt,
            wish.negative,
            steps=wish.steps,
            guidance=wish.guidance or 0.0,
            width=wish.width,
            height=wish.height,
            seed=wish.seed or 0,
            n=wish.n,
            callback=callback or job.on_step,
            **more,
        )
        self.metrics.painted(made.step_seconds)
        plain = not more and wish.guidance != 1 and (wish.width, wish.height) == self.models.native
        if plain and self.models.note_speed(app.variants["unet"], made.step_seconds):
            self.jobs.news("models")
        return made

    def warm_up(self, variants: Sequence[str] | None = None) -> Job:
        """Load the picture model and measure its speed while nobody waits; gives way to the first real job."""

        def work(job: Job) -> dict[str, Any]:
            for choice in self.models.variants():
                if choice.name in variants if variants is not None else choice.name == self.models.best():
                    app = self.load(job, choice.name)
                    if choice.seconds_per_step is None:
                        self.generate(job, app, Wish("a picture", steps=8, seed=0).checked(self.models))
            self.models.writer()
            self.models.segmenter()
            self.jobs.news("models")
            return {}

        return self.jobs.submit("pictures", "warm-up", "", work, background=True)

    # --- 3 select ----------------------------------------------------------------------------------------

    def select(self, owner: str, picture: Picture, words: str, threshold: float) -> Job:
        image = pictures.read(picture.path)
        if not words.strip() or len(words) > 200:
            raise OpsmithError("what to select is empty", "name a thing in the picture")
        if not 0 < threshold <= 1:
            raise OpsmithError(f"a threshold of {threshold} is not possible", "above 0, at most 1")

        def work(job: Job) -> dict[str, Any]:
            soft = self.models.segmenter().find(image, words)
            best = float(soft.max())
            if best < threshold:
                raise OpsmithError(
                    f"nothing like {words!r} was found: the best match has {best:.0%}, {threshold:.0%} are asked for",
                    "try other words, a lower threshold, or the brush",
                )
            area = masks.clean(soft, threshold, 0)
            mask = Image.fromarray(area.hard.astype(np.uint8) * 255)
            return {"mask": _data_url(mask), "share": float(area.hard.mean()), "best": best}

        return self.jobs.submit("light", "select", owner, work, title=words)

    # --- 4 edit ------------------------------------------------------------------------------------------

    def edit(
        self,
        owner: str,
        picture: Picture,
        mask: Image.Image,
        change: str,
        *,
        feather: float = 2.0,
        select: str = "",
        steps: int = 25,
        guidance: float | None = None,
        seed: int | None = None,
        variant: str | None = None,
    ) -> Job:
        """MASK is white where the picture changes."""
        image = pictures.read(picture.path)
        wanted = grammar.parse(change)
        if mask.size != image.size:
            raise OpsmithError(f"the mask is {mask.width}x{mask.height}, the picture {image.width}x{image.height}")
        area = masks.clean(np.asarray(mask.convert("L"), np.float32) / 255, 0.5, feather, smallest=0.0, min_area=0)
        if not area.hard.any():
            raise OpsmithError("nothing is selected", "type what to edit, or brush over it")
        paints = wanted.kind == "replace"
        asked = Wish(change, steps=steps, guidance=guidance, seed=seed, variant=variant).checked(self.models)

        def work(job: Job) -> dict[str, Any]:
            app = self.load(job, asked.variant) if paints else None
            edited, made = edit.edit(
                image,
                area,
                wanted,
                app=app,
                steps=asked.steps,
                guidance=asked.guidance or 0.0,
                seed=asked.seed or 0,
                callback=job.on_step,
            )
            job.tell()
            note: dict[str, Any] = {
                "change": change,
                "kind": wanted.kind,
                "select": select,
                "feather": feather,
                "source": picture.path.name,
            }
            if made is not None:
                note |= {k: made.settings[0][k] for k in ("prompt", "seed", "steps", "guidance", "variants")}
            settings = {**picture.settings, "studio": "edited", "edits": [*picture.settings.get("edits", []), note]}
            kept = self.album.add(edited, settings, owner, "edited", picture)
            return {"pictures": [kept.describe()], **(_times(made) if made else {})}

        return self.jobs.submit("pictures" if paints else "light", "edit", owner, work, title=change)

    # --- 6 bench -----------------------------------------------------------------------------------------

    def compare(self, owner: str, wish: Wish, variants: tuple[str, str]) -> Job:
        """The same seed with two variants: both pictures, their difference, and both times."""
        asked = [dataclasses.replace(wish, variant=name, n=1).checked(self.models) for name in variants]
        asked[1] = dataclasses.replace(asked[1], seed=asked[0].seed)

        def work(job: Job) -> dict[str, Any]:
            sides, images = [], []
            for one in asked:
                app = self.load(job, one.variant)
                job.tell(note=one.variant)
                made = self.generate(job, app, one)
                kept = self.album.add(made.images[0], {**made.settings[0], "studio": "compared"}, owner, "compared")
                images.append(np.asarray(made.images[0], np.int16))
                sides.append({"variant": one.variant, "picture": kept.describe(), **_times(made)})
            gap = np.abs(images[0] - images[1])
            largest = int(gap.max())
            gain = max(1, min(64, 255 // max(largest, 1)))
            shown = Image.fromarray((gap * gain).clip(0, 255).astype(np.uint8))
            settings = {"of": [s["picture"]["file"] for s in sides], "gain": gain, "studio": "difference"}
            difference = self.album.add(shown, settings, owner, "difference")
            ratio = pictures.psnr(images[0], images[1])
            return {
                "sides": sides,
                "difference": difference.describe(),
                "gain": gain,
                "largest": largest,
                "mean": float(gap.mean()),
                "psnr": None if np.isinf(ratio) else round(ratio, 1),
            }

        return self.jobs.submit("pictures", "compare", owner, work, title=asked[0].prompt)

    def compile(self) -> Job:
        """All browsers see it; who asks again gets the one that is under way."""
        for job in self.jobs.of(EVERYONE):
            if job.kind == "compile" and job.state not in FINISHED:
                return job

        def work(job: Job) -> dict[str, Any]:
            remarks = self.models.compile(
                lambda done, total, note: job.tell(step=done, total=total, note=note), job.stop.is_set
            )
            self.jobs.news("models")
            self.warm_up([c.name for c in self.models.variants()])
            return {"remarks": remarks}

        return self.jobs.submit("forge", "compile", EVERYONE, work, title="compile for this machine")

    def report(self, part: str) -> Job:
        target = self.models.report_file(part)

        def work(job: Job) -> dict[str, Any]:
            job.tell(note=f"measuring all variants of {part}")
            folder = self.models.parts()[part]
            more = [] if self.models.threads is None else ["--threads", str(self.models.threads)]
            arguments = ["report", str(folder), "--out", str(target), "--seconds", str(REPORT_SECONDS), *more]
            run_opsmith(arguments, job.stop.is_set)
            self.jobs.news("models")
            return {"part": part}

        return self.jobs.submit("forge", "report", EVERYONE, work, title=part)


def _times(made: Generated) -> dict[str, Any]:
    return {
        "seconds_total": round(made.seconds, 3),
        "step_seconds": round(statistics.median(made.step_seconds), 5) if made.step_seconds else None,
    }


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
