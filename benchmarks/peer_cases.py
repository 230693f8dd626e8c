"""What `benchmarks/peers.py` compares: runtimes with the precision they compute in, models with sizes, goals."""

from __future__ import annotations

import dataclasses

# From exact to coarse. A variant of ours is judged against every runtime of its own precision or a finer one.
CLASSES = ("fp32", "bf16", "int8", "int4")


@dataclasses.dataclass(frozen=True)
class Runtime:
    title: str
    precision: str
    colour: str


STOCK, OPTIMIZED = "ort", "ort-optimizer"
RUNTIMES = {
    STOCK: Runtime("ONNX Runtime", "fp32", "#9aa5b1"),
    OPTIMIZED: Runtime("ORT + its optimizer", "fp32", "#7b8794"),
    "openvino-f32": Runtime("OpenVINO f32", "fp32", "#5b8def"),
    "torch-compile": Runtime("torch.compile", "fp32", "#e8833a"),
    "mnn": Runtime("MNN", "fp32", "#8f6bc4"),
    "openvino": Runtime("OpenVINO as installed", "bf16", "#3b5ba5"),
    "torch-compile-bf16": Runtime("torch.compile bf16", "bf16", "#c8631a"),
    "ort-int8": Runtime("ORT quantize_dynamic", "int8", "#52606d"),
    "openvino-int8": Runtime("OpenVINO NNCF int8", "int8", "#243b6b"),
}
PEERS = tuple(name for name in RUNTIMES if name != STOCK)
OUR_COLOUR = "#2f9e6e"


@dataclasses.dataclass(frozen=True)
class Ours:
    """A variant of ours: how it is made of the plain export, and the class of its error."""

    title: str
    precision: str  # the class
    arithmetic: str = "fp32"  # of `compile --precision`
    quantize: dict[str, object] | None = None  # what happens to the weights first


OURS = {
    "fp32": Ours("fp32", "fp32"),
    "fp16": Ours("fp16 weights", "bf16", quantize={"method": "fp16"}),
    "bf16": Ours("bf16", "bf16", arithmetic="bf16"),
    "int8": Ours("int8", "int8", arithmetic="int8"),
    "w8": Ours("8-bit weights", "int8", quantize={"bits": 8}),
    "w4": Ours("4-bit weights", "int4", quantize={"bits": 4}),
}


def label(variant: str) -> str:
    """Of our variant among the runtimes of a result."""
    return f"opsmith-{variant}"


def title(name: str) -> str:
    """Of any runtime of a result."""
    return RUNTIMES[name].title if name in RUNTIMES else f"Opsmith {OURS[name.removeprefix('opsmith-')].title}"


def rivals(precision: str) -> list[str]:
    """The runtimes whose error class is this one or a finer one."""
    finer = CLASSES[: CLASSES.index(precision) + 1]
    return [name for name, runtime in RUNTIMES.items() if runtime.precision in finer]


@dataclasses.dataclass(frozen=True)
class Goal:
    variant: str
    factor: float
    over: tuple[str, ...]  # runtimes, of which the fastest counts

    def __str__(self) -> str:
        whom = RUNTIMES[self.over[0]].title if len(self.over) == 1 else "the best peer"
        return f"{OURS[self.variant].title} {self.factor:g}x {whom}"


def over_best(variant: str, factor: float, precision: str | None = None) -> Goal:
    return Goal(variant, factor, tuple(rivals(precision or OURS[variant].precision)))


def over(variant: str, factor: float, runtime: str) -> Goal:
    return Goal(variant, factor, (runtime,))


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    title: str
    source: str  # folder inside MODELS, or the name of a real model
    sizes: dict[str, int]
    goals: tuple[Goal, ...]
    variants: tuple[str, ...] = ("fp32",)
    kind: str = ""  # what ONNX Runtime's transformers optimizer calls this model; empty: it knows none


def _bf16(factor: float) -> Goal:
    """Against OpenVINO as users run it, in bf16 where the CPU has it."""
    return over("bf16", factor, "openvino")


def _unet(latent: int, batch: int, *goals: Goal, variants: tuple[str, ...] = ("fp32",)) -> Case:
    sizes = {"batch": batch, "height": latent, "width": latent, "sequence": 77}
    name = f"SD v1.4 UNet, {8 * latent} px, batch {batch}"
    return Case(f"unet_{latent}_b{batch}", name, "stable-diffusion-v1-4/unet", sizes, goals, variants, "unet")


def _vae(latent: int) -> Case:
    sizes = {"batch": 1, "height": latent, "width": latent}
    goals = (over("fp32", 2.5, STOCK), over("fp32", 2.5, "openvino-f32"), over("fp32", 1.1, "mnn"), _bf16(2.0))
    name = f"SD v1.4 VAE decoder, {8 * latent} px"
    return Case(f"vae_{latent}", name, "stable-diffusion-v1-4/vae_decoder", sizes, goals, ("fp32", "bf16"), "vae")


def _gpt2(name: str, what: str, sequence: int, past: int, *goals: Goal, variants: tuple[str, ...]) -> Case:
    sizes = {"batch": 1, "sequence": sequence, "past": past}
    return Case(name, f"GPT-2 medium, {what}", "gpt2-medium", sizes, goals, variants, "gpt2")


def _bert(batch: int, factor: float) -> Case:
    sizes = {"batch": batch, "sequence": 128}
    goals = (over_best("fp32", factor), _bf16(1.15), over_best("int8", 1.15))
    name = f"BERT-base, batch {batch}, 128 tokens"
    return Case(f"bert_b{batch}", name, "bert-base-uncased", sizes, goals, ("fp32", "bf16", "int8"), "bert")


_DECODE = (over("fp32", 1.1, STOCK), over("w8", 3.5, STOCK), over("w4", 5.0, STOCK))
_DECODED = ("fp32", "w8", "w4")
CASES = (
    _unet(64, 1, over_best("fp32", 1.6), _bf16(1.35), variants=("fp32", "bf16")),
    _unet(64, 2, over_best("fp32", 1.6)),
    _unet(32, 1, over_best("fp32", 1.5)),
    _unet(32, 2, over_best("fp32", 1.5)),
    _unet(
        8, 1, over_best("fp32", 1.25), over_best("fp16", 2.0, "fp32"), _bf16(1.25), variants=("fp32", "fp16", "bf16")
    ),
    _unet(8, 2, over_best("fp32", 1.25), over_best("fp16", 2.0, "fp32"), variants=("fp32", "fp16")),
    _vae(32),
    _vae(64),
    Case(
        "clip",
        "CLIP text encoder",
        "stable-diffusion-v1-4/text_encoder",
        {"batch": 1, "sequence": 77},
        (over_best("fp32", 1.15), _bf16(1.15)),
        ("fp32", "bf16", "int8"),
        kind="clip",
    ),
    _bert(1, 1.2),
    _bert(8, 1.1),
    _gpt2(
        "gpt2_prompt",
        "prompt of 128",
        128,
        0,
        over_best("fp32", 1.2),
        _bf16(1.15),
        over_best("int8", 1.1),
        variants=("fp32", "bf16", "int8"),
    ),
    _gpt2("gpt2_decode_128", "decode at 128", 1, 128, *_DECODE, variants=_DECODED),
    _gpt2("gpt2_decode_512", "decode at 512", 1, 512, *_DECODE, variants=_DECODED),
    Case("terrain", "terrain UNet (trained)", "terrain", {"batch": 1}, (over("fp32", 1.5, STOCK),)),
    Case(
        "minilm",
        "MiniLM (trained), batch 8, 128 tokens",
        "minilm",
        {"batch": 8, "sequence": 128},
        (over("fp32", 1.15, STOCK),),
        ("fp32", "bf16", "int8"),
        kind="bert",
    ),
)
