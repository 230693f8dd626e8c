"""opsmith weights VARIANT NEW [DEST]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options
from opsmith.errors import OpsmithError
from opsmith.measure.units import counted

if TYPE_CHECKING:
    from opsmith.compiler.repack import WeightsResult

PANEL = "Road"
ORDER = 45
JSON = {
    "variant": "the .onnx file that was written; with --ep NEW, beside which the folder is",
    "tensors": "packed",
    "seconds": "that it took",
    "verified": "as `opsmith verify --json`; null with --no-verify and with --ep",
}
EXAMPLES = (
    "opsmith weights models/gpt2/dynamo_compiled tuned.onnx models/gpt2/tuned_compiled",
    "opsmith weights model.onnx tuned.onnx --ep",
)


def command(
    variant: Annotated[str, typer.Argument(help="A compiled variant; with --ep a model that was compiled with --ep.")],
    new: Annotated[
        str, typer.Argument(help="An .onnx of the same structure, a .safetensors file, or a Hugging Face folder.")
    ],
    dest: Annotated[str | None, typer.Argument(help="The variant folder or .onnx file to write.")] = None,
    source: Annotated[
        str | None,
        typer.Option(help="What VARIANT was compiled from, for tensors by name; found if it lies beside it."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with the new model before writing.")
    ] = True,
    overwrite: options.Overwrite = False,
    ep: Annotated[
        bool,
        typer.Option("--ep", help="For the execution provider: writes the folder NEW.opsmith; NEW stays as it is."),
    ] = False,
) -> None:
    """Put another checkpoint of the same structure into a compiled variant, without compiling."""
    if ep:
        _for_the_provider(variant, new, dest, source)
        return
    if dest is None:
        raise OpsmithError("DEST is missing: the variant folder to write", "or --ep, for the execution provider")
    from opsmith.compiler.repack import weights

    result = weights(variant, new, dest, source=source, verify=verify, overwrite=overwrite)
    console.answer(result, lambda: _print(result, variant, result.variant.place), written=result.variant.place)


def _for_the_provider(model: str, new: str, dest: str | None, source: str | None) -> None:
    from opsmith import provider

    if dest is not None or source is not None:
        raise OpsmithError("--ep excludes DEST and --source: the folder goes beside NEW, an .onnx")
    result = provider.weights_ep(model, new)
    folder = provider.sidecar(result.variant.path)
    console.answer(result, lambda: _print(result, model, folder), written=folder)


def _print(result: WeightsResult, variant: str, place: Path) -> None:
    console.say(
        f"{counted(result.tensors, 'weight')} packed in {result.seconds:.1f} s; library and source are those of {console.escape(variant)}"
    )
    if result.verified is not None and result.verified.cases:
        cases = counted(len(result.verified.cases), "case")
        console.say(f"verified in {cases}, largest error {result.verified.of_scale:.1e} of an output's scale")
    console.say(f"wrote {console.escape(str(place))}")
