"""opsmith weights VARIANT NEW DEST"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opsmith.cli import console, options

if TYPE_CHECKING:
    from opsmith.compiler.repack import WeightsResult

PANEL = "Road"
ORDER = 45
JSON = {
    "variant": "the .onnx file that was written",
    "tensors": "packed",
    "seconds": "that it took",
    "verified": "as `opsmith verify --json`; null with --no-verify",
}
EXAMPLES = (
    "opsmith weights models/gpt2/dynamo_compiled tuned.onnx models/gpt2/tuned_compiled",
    "opsmith weights models/gpt2/dynamo_compiled tuned.safetensors models/gpt2/tuned_compiled --source models/gpt2/dynamo",
)


def command(
    variant: Annotated[str, typer.Argument(help="A compiled variant.")],
    new: Annotated[
        str, typer.Argument(help="An .onnx of the same structure, a .safetensors file, or a Hugging Face folder.")
    ],
    dest: Annotated[str, typer.Argument(help="The variant folder to write.")],
    source: Annotated[
        str | None,
        typer.Option(help="What VARIANT was compiled from, for tensors by name; found if it lies beside it."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with the new model before writing.")
    ] = True,
    overwrite: options.Overwrite = False,
) -> None:
    """Put another checkpoint of the same structure into a compiled variant, without compiling."""
    from opsmith.compiler.repack import weights

    result = weights(variant, new, dest, source=source, verify=verify, overwrite=overwrite)
    console.answer(result, lambda: _print(result, variant), written=result.variant.folder)


def _print(result: WeightsResult, variant: str) -> None:
    console.say(
        f"{result.tensors} weights packed in {result.seconds:.1f} s; library and source are those of {console.escape(variant)}"
    )
    if result.verified is not None and result.verified.cases:
        worst = max((o.max_abs for o in result.verified.worst), default=0.0)
        console.say(f"verified in {len(result.verified.cases)} cases, largest absolute error {worst:.1e}")
    console.say(f"wrote {console.escape(str(result.variant.folder))}")
