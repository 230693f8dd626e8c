"""The starter models: small, trained from scratch for Opsmith, ONNX files in the package opsmith-starter; no torch.

    opsmith.starter.folder("pictures")   text -> picture, 96x96: a Stable-Diffusion-type pipeline folder
    opsmith.starter.folder("writer")     keyword -> prompt: GPT-2
    opsmith.starter.folder("masks")      picture + word -> mask: CLIPSeg
    opsmith.starter.folder("clip")       picture, text -> embeddings for the CLIP score: CLIP

They know a small world: 40 things (`OBJECTS`) in natural or seven painted colours (`TINTS`), small or big, one to three
to a picture, before ten plain colours or in four settings (`BACKGROUNDS`):

    a big red apple beside a small green frog, on a yellow background
    a drawing of a castle above a purple whale, under the stars

Pictures look best at 96x96. How they were trained, and how well they do: training/README.md and docs/starter.md.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from opsmith.errors import OpsmithError
from opsmith.starter.vocabulary import BACKGROUNDS as BACKGROUNDS
from opsmith.starter.vocabulary import OBJECTS as OBJECTS
from opsmith.starter.vocabulary import PLAIN as PLAIN
from opsmith.starter.vocabulary import PLAIN_PHRASES, SETTING_PHRASES, SIZES
from opsmith.starter.vocabulary import TINTS as TINTS

NAMES: tuple[str, ...] = ("pictures", "writer", "masks", "clip")


def folder(name: str) -> Path:
    """Where a starter model lies: a model or pipeline folder that every verb and pipeline accepts."""
    if name not in NAMES:
        raise OpsmithError(f"no starter model is called {name!r}", f"there are: {', '.join(NAMES)}")
    for home in _homes():
        if (home / name).is_dir():
            return home / name
    raise OpsmithError(
        f"the starter model {name!r} is not installed",
        "in a clone: pip install ./packages/opsmith-starter; or name a model",
    )


def _homes() -> Iterator[Path]:
    """Where the models may lie: the installed package; else the clone that this code, or the user, is in, or came from."""
    spec = importlib.util.find_spec("opsmith_starter")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent
    for clone in (Path(__file__).parents[3], Path.cwd(), *_installed_from()):
        yield clone / "packages" / "opsmith-starter" / "src" / "opsmith_starter"


def _installed_from() -> Iterator[Path]:
    """The folder of `pip install FOLDER`, as pip notes it (PEP 610)."""
    try:
        noted = importlib.metadata.distribution("opsmith").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return
    url = urllib.parse.urlparse(json.loads(noted)["url"]) if noted else None
    if url is not None and url.scheme == "file":
        yield Path(urllib.request.url2pathname(url.path))


def draws() -> dict[str, list[str]]:
    """What the picture model can draw, as prompts say it."""
    plain = [PLAIN_PHRASES[0].format(colour=colour).replace("a orange", "an orange") for colour in PLAIN]
    return {
        "things": list(OBJECTS),
        "colours": list(TINTS),
        "sizes": [words[0] for words in SIZES.values() if words],
        "places": [*(phrases[0] for phrases in SETTING_PHRASES.values()), *plain],
    }


def writer_prompt(keyword: str) -> str:
    """What the prompt writer continues: its answer is the text up to the end token."""
    words = " ".join(keyword.lower().split())
    if not words:
        raise OpsmithError("an empty keyword", "give a word of the starter world, such as frog or night")
    return f"{words}:"
