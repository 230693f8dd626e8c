"""What the studio does, as jobs: ideas, pictures, selections, edits, comparisons, compiling, measuring.

The page's API, the OpenAI API and their tests all stand on these functions.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import secrets
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from opsmith import settings
from opsmith.errors import OpsmithError
from opsmith.pipelines import edit, grammar, masks, pictures
from opsmith.pipelines.diffusion import Callback, Cancelled, DiffusionApp, Generated
from opsmith.pipelines.prompts import write_prompts
from opsmith.pipelines.shared import SLOTS
from opsmith.studio import speeds
from opsmith.studio.album import Album, Picture
from opsmith.studio.forge import Progress
from opsmith.studio.jobs import EVERYONE, FINISHED, Job, Jobs
from opsmith.studio.metrics import Metrics
from opsmith.studio.models import Models
from opsmith.studio.pipelines import Pipelines
from opsmith.studio.uploads import Limits
from opsmith.studio.verbs import run_opsmith

# Jobs that each does at a time. light: selections and edits that need no picture model. Texts share the steps of the writer.
WORKERS = {"pictures": 1, "writer": SLOTS, "embedder": 1, "light": 1, "forge": 1}
LARGEST = 1024  # pixels of a side
MOST = 8  # pictures of one request
LONGEST = 2000  # characters of a prompt
REPORT_SECONDS = 12


class Wrong(OpsmithError):
    """A value that cannot be. FIELD is its name in the request, so that the page can say it there."""

    def __init__(self, field: str, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.field = field


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
            raise Wrong("prompt", "the prompt is empty", "say what the picture shows")
        for field in ("prompt", "negative"):
            if len(getattr(self, field)) > LONGEST:
                raise Wrong(field, f"the prompt is longer than {LONGEST} characters")
        if not 1 <= self.steps <= 150:
            raise Wrong("steps", f"{self.steps} steps are not possible", "1 to 150")
        if not 1 <= self.n <= MOST:
            raise Wrong("n", f"{self.n} pictures at once are not possible", f"1 to {MOST}")
        guidance = self.guidance if self.guidance is not None else models.guidance
        if not 0 <= guidance <= 30:
            raise Wrong("guidance", f"a guidance of {guidance} is not possible", "0 to 30; 1 is none")
        width, height = (n if n is not None else d for n, d in zip((self.width, self.height), models.native))
        for field, side in (("width", width), ("height", height)):
            if side % 8 or not 8 <= side <= LARGEST:
                raise Wrong(field, f"{width}x{height} is not possible", f"multiples of 8 up to {LARGEST}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise Wrong("seed", f"the seed {self.seed} is not possible", "0 or more")
        if self.variant is not None and self.variant not in (names := [c.name for c in models.variants()]):
            raise Wrong("variant", f"there is no variant {self.variant!r}", f"there are: {', '.join(names)}")
        seed = self.seed if self.seed is not None else secrets.randbelow(2**31)
        return dataclasses.replace(self, guidance=guidance, width=width, height=height, seed=seed)


class Studio:
    def __init__(self, models: Models, folder: Path, limits: Limits | None = None) -> None:
        self.models = models
        self.pipelines = Pipelines(models.given["pictures"])
        self.album = Album(folder)
        self.limits = limits or Limits()
        self.jobs = Jobs(WORKERS)
        self.metrics = Metrics()

    # --- 1 idea ------------------------------------------------------------------------------------------

    def ideas(self, owner: str, keyword: str, n: int = 3, seed: int | None = None) -> Job:
        words = " ".join(keyword.split())
        if not words or len(words) > 200:
            raise Wrong("keyword", "the idea is empty" if not words else "the idea is longer than 200 characters")
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

    def warm_up(self) -> Job:
        """Load the models and measure their speed while nobody waits; gives way to the first real job."""

        def work(job: Job) -> dict[str, Any]:
            best = next(c for c in self.models.variants() if c.name == self.models.best())
            app = self.load(job, best.name)
            if best.seconds_per_step is None:
                self.generate(job, app, Wish("a picture", steps=8, seed=0).checked(self.models))
            self.models.writer()
            job.tell()
            self.models.segmenter()
            self.models.forge.probe()
            self.jobs.news("models")
            job.tell()
            if self.models.untimed():
                self.models.time_variants(job.stop.is_set)
                self.jobs.news("models")
            return {}

        return self.jobs.submit("pictures", "warm-up", "", work, background=True)

    # --- models ------------------------------------------------------------------------------------------

    def use(self, source: str) -> Job:
        """Another picture model, for all browsers. Pictures that wait already are made with it."""
        folder = self.pipelines.folder(source)

        def work(job: Job) -> dict[str, Any]:
            self.models.use(folder)
            self.jobs.news("models")
            self.warm_up()
            return {}

        return self.jobs.submit("pictures", "model", EVERYONE, work, title=source)

    def add(self, source: str) -> Job:
        """A pipeline folder joins the list at once; a model in Hugging Face's layout, or on its hub, is exported before."""

        def work(job: Job) -> dict[str, Any]:
            job.tell(note=f"exporting {source}")
            folder = self.pipelines.add(source, job.stop.is_set)
            self.jobs.news("models")
            return {"pipeline": str(folder)}

        return self.jobs.submit("forge", "add", EVERYONE, work, title=source)

    # --- 3 select ----------------------------------------------------------------------------------------

    def select(self, owner: str, picture: Picture, words: str, threshold: float) -> Job:
        image = pictures.read(picture.path)
        if not words.strip() or len(words) > 200:
            raise Wrong("words", "what to select is empty", "name a thing in the picture")
        if not 0 < threshold <= 1:
            raise Wrong("threshold", f"a threshold of {threshold} is not possible", "above 0, at most 1")

        def work(job: Job) -> dict[str, Any]:
            area = masks.from_words(image, words, self.models.segmenter(), threshold, feather=0)
            mask = Image.fromarray(area.hard.astype(np.uint8) * 255)
            return {
                "mask": _data_url(mask),
                "share": float(area.hard.mean()),
                "sure": area.sure,
                "doubt": area.doubt,
            }

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
        try:
            wanted = grammar.parse(change)
        except OpsmithError as error:
            raise Wrong("change", error.message, error.hint) from error
        if mask.size != image.size:
            raise OpsmithError(f"the mask is {mask.width}x{mask.height}, the picture {image.width}x{image.height}")
        area = masks.clean(np.asarray(mask.convert("L"), np.float32) / 255, 0.5, feather, smallest=0.0, min_area=0)
        if not area.hard.any():
            raise Wrong("mask", "nothing is selected", "type what to edit, click it, or brush over it")
        paints = wanted.kind in edit.PAINTED
        asked = Wish(change, steps=steps, guidance=guidance, seed=seed, variant=variant).checked(self.models)

        def work(job: Job) -> dict[str, Any]:
            app, how = edit.painter(wanted, lambda: self.models.app(asked.variant))
            if app is not None:
                app = self.load(job, asked.variant)
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
            remarks = [how] if how else []
            return {"pictures": [kept.describe()], "remarks": remarks, **(_times(made) if made else {})}

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

    def compile(self, precision: str = "fp32") -> Job:
        """All browsers see it; who asks again gets the one that is under way."""
        if precision not in settings.PRECISIONS:
            raise Wrong("precision", f"the precision {precision!r} is unknown", " or ".join(settings.PRECISIONS))
        for job in self.jobs.of(EVERYONE):
            if job.kind == "compile" and job.state not in FINISHED:
                return job

        def work(job: Job) -> dict[str, Any]:
            def show(share: float, left: float, note: str) -> None:
                job.left = left
                job.tell(step=round(1000 * share), total=1000, note=note)

            def compiled(now: Progress) -> None:
                show(0.9 * now.share, now.seconds_left + speeds.EXPECTED, now.note)

            def timing() -> bool:
                spent = min(time.monotonic() - began, 0.95 * speeds.EXPECTED)
                show(0.9 + 0.1 * spent / speeds.EXPECTED, speeds.EXPECTED - spent, "timing all variants, in turn")
                return job.stop.is_set()

            remarks = self.models.compile(precision, compiled, job.stop.is_set)
            began = time.monotonic()
            try:
                self.models.time_variants(timing)
            except Cancelled:
                raise
            except OpsmithError as error:
                remarks.append(f"the variants could not be timed: {error}")
            self.jobs.news("models")
            self.warm_up()  # loads what was compiled, and times again if the machine was busy
            return {"remarks": remarks}

        return self.jobs.submit("forge", "compile", EVERYONE, work, title="compile for this machine")

    def time_variants(self) -> Job:
        """All variants of the picture model in turn, while no picture is made."""

        def work(job: Job) -> dict[str, Any]:
            job.tell(note="timing all variants, in turn")
            self.models.time_variants(job.stop.is_set)
            self.jobs.news("models")
            return {}

        return self.jobs.submit("pictures", "time", EVERYONE, work, title="timing")

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
