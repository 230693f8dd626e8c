"""Models that answer rows: `open_runner` finds out what MODEL is.

a pipeline folder       prompt  -> picture          diffusion.py
a decoder with a past   prompt  -> text             decoder.py
a text encoder          text    -> embedding        encoder.py
any other model         its inputs -> its outputs   graph.py
"""

from __future__ import annotations

from pathlib import Path

from opsmith import model_checks, store
from opsmith.batch.rows import Runner
from opsmith.errors import OpsmithError


def files_of(model: Path, variant: str | None) -> list[Path]:
    """The files whose change makes it another model; nothing is loaded."""
    from opsmith.pipelines.text import choose_variant

    if not model.exists():
        raise OpsmithError(f"{model} does not exist", "MODEL is a model or pipeline folder, or an .onnx file")
    if is_pipeline(model):
        from opsmith.pipelines.diffusion import DiffusionApp

        paths = list(DiffusionApp(model, variant=variant).paths.values())
    else:
        paths = [choose_variant(model, variant)]
    return [file for path in paths for file in (path, *sorted(model_checks.external_files(path)))]


def open_runner(model: Path, variant: str | None, threads: int | None) -> Runner:
    from opsmith.batch.runners.decoder import Decoder
    from opsmith.batch.runners.diffusion import Diffusion
    from opsmith.batch.runners.encoder import Encoder
    from opsmith.batch.runners.graph import Graph
    from opsmith.pipelines.text import choose_variant

    if is_pipeline(model):
        return Diffusion(model, variant, threads)
    path = choose_variant(model, variant)
    inputs, outputs = _names(path)
    if "input_ids" in inputs and any(name.startswith("past_key_values.") for name in inputs):
        return Decoder(path, threads)
    if "input_ids" in inputs and outputs & {"text_embeds", "last_hidden_state"}:
        return Encoder(path, threads)
    return Graph(path, threads)


def is_pipeline(model: Path) -> bool:
    return model.is_dir() and (model / "unet").is_dir()


def _names(path: Path) -> tuple[set[str], set[str]]:
    """Inputs and outputs of a model file."""
    graph = store.read_proto(path).graph
    weights = {w.name for w in graph.initializer}
    return {v.name for v in graph.input} - weights, {v.name for v in graph.output}
