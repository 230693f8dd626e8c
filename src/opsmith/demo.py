"""The demo: the whole road on a small model that is built here, then the starter models, offline, without torch.

Each station is one function; STATIONS is the road. A station gives an Outcome, or raises NotHere if it cannot be walked:
this version of Opsmith does not have its verb, or the station before it gave it nothing to work on.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import PIL.Image
from onnx import TensorProto, helper, numpy_helper

import opsmith
from opsmith import session, starter, store
from opsmith.check.verify import verify
from opsmith.errors import OpsmithError
from opsmith.measure.inspect import ModelInfo, inspect
from opsmith.measure.units import counted, faster, size
from opsmith.pipelines import edit, grammar, masks
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.pipelines.prompts import write_prompts
from opsmith.pipelines.text import TextGenerator

BENCH_ROUNDS = 10
SIDE = 64  # of the pictures that the model is measured with
THRESHOLD = 0.5  # how sure the mask model has to be
KEYWORD, CHANGE, SEED, STEPS = "frog", "make it blue", 1, 15


@dataclasses.dataclass
class Work:
    """What the stations hand on: the model folder and the variants made so far, the original first."""

    folder: Path
    variants: list[Path] = dataclasses.field(default_factory=list)
    prompt: str = ""  # what the writer made of the keyword
    unets: list[Path] = dataclasses.field(default_factory=list)  # of the starter pictures: as it is, compiled
    picture: PIL.Image.Image | None = None
    mask: masks.Mask | None = None

    @property
    def original(self) -> Path:
        return self.variants[0]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a station shows: one line, and a table if it has one. `ok` is False if it found a fault."""

    headline: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    ok: bool = True


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    outcome: Outcome | None
    skipped: str | None
    seconds: float


class NotHere(Exception):
    """This station cannot be walked; the message says why."""


def demo(folder: store.PathLike) -> Iterator[Step]:
    """Walk the road; yields each station as it is done."""
    work = Work(Path(folder) / "tiny")
    for name, station in STATIONS:
        started = time.monotonic()
        outcome, skipped = None, None
        try:
            outcome = station(work)
        except NotHere as missing:
            skipped = str(missing)
        except OpsmithError as error:
            if not work.variants:
                raise  # without the model there is nothing to go on with
            outcome = Outcome(str(error), ok=False)
        yield Step(name, outcome, skipped, time.monotonic() - started)


# --- the stations -----------------------------------------------------------------------------------------


def _model(work: Work) -> Outcome:
    model = tiny_model()
    dest = work.folder / "original"
    with store.new_variant(dest, verb="demo", options={"seed": 0}) as draft:
        onnx.save(model, str(draft.path))
        image = np.random.default_rng(0).standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)
        outputs = session.run(session.load(draft.path), {"image": image})
        store.write_test_data(draft.folder, {"image": image}, dict(zip(("logits", "tokens"), outputs)))
    work.variants.append(dest)
    return Outcome(f"a vision transformer with a convolutional stem, random weights, in {dest}")


def _inspect(work: Work) -> Outcome:
    info = inspect(work.original, dims={"batch": 1, "height": SIDE, "width": SIDE})
    assert isinstance(info, ModelInfo)
    top = [op for op in info.ops if op.flops][:4]
    rows = tuple((op.op, str(op.count), f"{op.flops / 1e6:.1f} M", f"{op.share:.1%}") for op in top)
    dims = ", ".join(f"{k}={v}" for k, v in info.flops_dims.items())
    work_text = f"{(info.flops or 0) / 1e6:.0f} MFLOP at {dims}"
    return Outcome(
        f"{info.nodes} nodes, {info.parameters:,} parameters, {work_text}", ("op", ">count", ">FLOPs", ">share"), rows
    )


def _optimize(work: Work) -> Outcome:
    optimize = _verb("optimize")
    dest = work.folder / "original_rewritten"
    before = _nodes(work.original)
    optimize(work.original, dest)
    work.variants.append(dest)
    return Outcome(f"{before} nodes became {_nodes(dest)}; still portable ONNX, in {dest}")


def _compile(work: Work) -> Outcome:
    compile_ = _verb("compile")
    dest = work.folder / "original_compiled"
    compile_(work.original, dest)
    work.variants.append(dest)
    libraries = store.libraries(store.find_model(dest))
    if not libraries:
        return Outcome("no region was measured faster than ONNX Runtime here, so the model stays as it was")
    library = libraries[0]
    nodes = _nodes(dest)
    code = f"{size(library.stat().st_size)} of native code"
    return Outcome(f"{nodes} node{'' if nodes == 1 else 's'} and {library.name}, {code}")


def _verify(work: Work) -> Outcome:
    others = work.variants[1:]
    results = {path.name: verify(work.original, path) for path in others}
    if not others:
        results = {work.original.name: verify(work.original)}
    rows = []
    for name, result in results.items():
        for check in result.worst:
            verdict = "same" if check.ok else str(check.problem)
            rows.append((name, check.name, f"{check.max_abs:.1e}", f"{check.cosine:.6f}", verdict))
    sets = sum(len(result.cases) for result in results.values())
    ok = all(result.ok for result in results.values())
    against = "the original" if others else "what the model gave when it was made"
    return Outcome(
        f"{'same as' if ok else 'DIFFERENT from'} {against}, in {sets} comparison{'s' * (sets > 1)}",
        ("variant", "output", ">max abs", ">cosine", ""),
        tuple(rows),
        ok,
    )


def _bench(work: Work) -> Outcome:
    result = _verb("bench")(work.variants, rounds=BENCH_ROUNDS, processes=1)
    rows = []
    for i, entry in enumerate(result.entries):
        gain = entry.speedup
        ratio = "1x" if i == 0 else f"{faster(gain.value)} ({gain.low:.2f}-{gain.high:.2f})"
        speed = "" if entry.gflops is None else f"{entry.gflops:.1f}"
        rows.append((entry.label, f"{entry.run.median * 1e3:.2f} ms", ratio, speed))
    noise = "" if result.clean else "; other processes disturbed it"
    headline = f"interleaved in separate processes, {counted(result.threads, 'thread')}{noise}"
    return Outcome(headline, ("variant", ">median", ">speed (95 %)", ">GFLOP/s"), tuple(rows), bool(result.verified))


def _write(work: Work) -> Outcome:
    """The starter's writer: a GPT-2 with a KV cache."""
    generator = TextGenerator(_starter("writer"))
    prompts = write_prompts(generator, KEYWORD, n=3, seed=SEED)
    work.prompt = prompts[0]
    return Outcome(
        f"{KEYWORD!r} became {len(prompts)} prompts; {generator.speed}", ("prompt",), tuple((p,) for p in prompts)
    )


def _imagine(work: Work) -> Outcome:
    """The starter's diffusion pipeline, with its UNet as it is and compiled: the same seed, the same picture."""
    home = work.folder.parent / "pictures"
    shutil.copytree(_starter("pictures"), home, dirs_exist_ok=True)
    source = store.variants(home / "unet")[0].folder
    compiled = source.with_name(f"{source.name}_compiled")
    _verb("compile")(source, compiled, regions="all")
    work.unets = [source, compiled]
    pictures, rows = [], []
    for name in (source.name, compiled.name):
        app = DiffusionApp(home, variant={"unet": name})
        made = app.generate(work.prompt or KEYWORD, steps=STEPS, seed=SEED)
        made.images[0].save(home / f"{name}.png")
        work.picture = made.images[0]
        pictures.append(np.asarray(made.images[0], np.float64))
        step = statistics.median(made.step_seconds)
        rows.append((name, f"{step * 1e3:.0f} ms", f"{made.seconds:.1f} s", str(home / f"{name}.png")))
    error = float(np.mean((pictures[0] - pictures[1]) ** 2))
    psnr = 10 * math.log10(255**2 / error) if error else math.inf
    height, width = pictures[0].shape[:2]
    agreement = f"the two pictures agree to {psnr:.0f} dB" if error else "the two pictures are the same in every byte"
    return Outcome(
        f"{width}x{height} pixels in {STEPS} steps; {agreement}",
        ("UNet", ">per step", ">picture", "file"),
        tuple(rows),
        psnr >= 40,
    )


def _compare(work: Work) -> Outcome:
    """The UNet as it is against the compiled one: time, error, memory."""
    if not work.unets:
        raise NotHere("no compiled UNet to compare")
    result = _verb("bench")(work.unets, rounds=BENCH_ROUNDS, processes=1)
    rows = []
    for i, entry in enumerate(result.entries):
        error = "" if i == 0 else f"{max((check.max_abs for check in entry.errors), default=0.0):.1e}"
        ratio = "1x" if i == 0 else faster(entry.speedup.value)
        memory = size(entry.peak_rss - entry.base_rss)
        rows.append((entry.label, f"{entry.run.median * 1e3:.2f} ms", ratio, error, memory))
    noise = "" if result.clean else "; other processes disturbed it"
    return Outcome(
        f"one run of the UNet, {counted(result.threads, 'thread')}{noise}",
        ("variant", ">median", ">speed", ">max error", ">memory added"),
        tuple(rows),
        bool(result.verified),
    )


def _mask(work: Work) -> Outcome:
    """The starter's mask model: where in the picture is the keyword?"""
    if work.picture is None:
        raise NotHere("no picture to look at")
    segmenter = masks.Segmenter(_starter("masks"))
    chances = segmenter.find(work.picture, KEYWORD)
    if float(chances.max()) < THRESHOLD:
        raise NotHere(f"no {KEYWORD} was found in the picture: the best match has {float(chances.max()):.0%}")
    work.mask = masks.clean(chances, THRESHOLD, feather=1.0)
    file = work.folder.parent / "pictures" / "mask.png"
    masks.overlay(work.picture, work.mask).save(file)
    return Outcome(f"{KEYWORD!r} is {work.mask.hard.mean():.0%} of the picture, surest at {chances.max():.0%}: {file}")


def _edit(work: Work) -> Outcome:
    """Changes what the mask selects, and nothing else."""
    if work.picture is None or work.mask is None:
        raise NotHere("nothing is selected that could be changed")
    edited, _ = edit.edit(work.picture, work.mask, grammar.parse(CHANGE))
    file = work.folder.parent / "pictures" / "edited.png"
    edited.save(file)
    changed = (np.asarray(edited) != np.asarray(work.picture)).any(-1)
    outside = int((changed & (work.mask.soft == 0)).sum())
    return Outcome(
        f"{CHANGE!r}: {changed.mean():.0%} of the pixels changed, {outside} of them outside of the mask: {file}",
        ok=outside == 0,
    )


STATIONS: list[tuple[str, Callable[[Work], Outcome]]] = [
    ("model", _model),
    ("inspect", _inspect),
    ("optimize", _optimize),
    ("compile", _compile),
    ("verify", _verify),
    ("bench", _bench),
    ("write", _write),
    ("imagine", _imagine),
    ("compare", _compare),
    ("mask", _mask),
    ("edit", _edit),
]


def _verb(name: str) -> Callable[..., Any]:
    try:
        verb: Callable[..., Any] = getattr(opsmith, name)
    except AttributeError:
        raise NotHere(f"`{name}` is not part of this version yet") from None
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opsmith"):
            raise OpsmithError(f"{name} needs the package {error.name}, which is missing") from error
        raise NotHere(f"`{name}` is not part of this version yet") from None
    return verb


def _starter(name: str) -> Path:
    try:
        return starter.folder(name)
    except OpsmithError as error:
        raise NotHere(str(error)) from None


def _nodes(variant: Path) -> int:
    return len(store.read_proto(store.find_model(variant)).graph.node)


# --- the model: what an exporter would write, torn into small operators -------------------------------------

WIDTH, HEADS, BLOCKS, CLASSES = 128, 4, 2, 10


class _Graph:
    """Adds nodes one by one; every method returns the name of a value."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        out = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], name=f"{kind}_{len(self.nodes)}", **attributes))
        return out

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.constant(self.rng.standard_normal(shape) / np.sqrt(fan_in))

    def small(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) * 0.1)

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(rows, columns)), self.small(columns))

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.constant(np.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(1.0))), self.constant(0.5))

    def layer_norm(self, x: str, width: int) -> str:
        last = self.constant([-1], np.int64)
        centered = self.op("Sub", x, self.op("ReduceMean", x, last))
        variance = self.op("ReduceMean", self.op("Pow", centered, self.constant(2.0)), last)
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(1e-5)))
        scaled = self.op("Mul", self.op("Div", centered, deviation), self.constant(1 + 0.1 * self.rng.random(width)))
        return self.op("Add", scaled, self.small(width))

    def group_norm(self, x: str, channels: int, groups: int) -> str:
        grouped = self.op("Reshape", x, self.constant([0, groups, -1], np.int64))
        ones, zeros = self.constant(np.ones(groups)), self.constant(np.zeros(groups))
        normal = self.op("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
        back = self.op("Reshape", normal, self.op("Shape", x))
        scaled = self.op("Mul", back, self.constant(1 + 0.1 * self.rng.random((channels, 1, 1))))
        return self.op("Add", scaled, self.small(channels, 1, 1))

    def attention(self, x: str, width: int, heads: int) -> str:
        split = self.constant([0, 0, heads, width // heads], np.int64)
        turns = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        parts = {
            name: self.op("Transpose", self.op("Reshape", self.linear(x, width, width), split), perm=perm)
            for name, perm in turns.items()
        }  # q, v [B,H,T,D], k [B,H,D,T]
        scores = self.op("MatMul", parts["q"], parts["k"])
        scores = self.op("Mul", scores, self.constant((width // heads) ** -0.5))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), parts["v"])
        joined = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", joined, self.constant([0, 0, width], np.int64)), width, width)


def tiny_model(seed: int = 0) -> onnx.ModelProto:
    """image [batch,3,height,width] -> logits [batch,10], tokens [batch,height/4*width/4,128]"""
    g = _Graph(seed)
    x = g.op("Conv", "image", g.weight(64, 3, 3, 3), g.small(64), strides=[2, 2], pads=[1, 1, 1, 1])
    x = g.silu(g.group_norm(x, 64, 8))
    x = g.op("Conv", x, g.weight(WIDTH, 64, 3, 3), g.small(WIDTH), strides=[2, 2], pads=[1, 1, 1, 1])
    inner = g.silu(g.group_norm(x, WIDTH, 8))
    x = g.op("Add", x, g.op("Conv", inner, g.weight(WIDTH, WIDTH, 3, 3), g.small(WIDTH), pads=[1, 1, 1, 1]))
    x = g.op("Transpose", g.op("Reshape", x, g.constant([0, WIDTH, -1], np.int64)), perm=[0, 2, 1])  # [B,T,128]
    for _ in range(BLOCKS):
        x = g.op("Add", x, g.attention(g.layer_norm(x, WIDTH), WIDTH, HEADS))
        wide = g.gelu(g.linear(g.layer_norm(x, WIDTH), WIDTH, 4 * WIDTH))
        x = g.op("Add", x, g.linear(wide, 4 * WIDTH, WIDTH))
    tokens = g.layer_norm(x, WIDTH)
    pooled = g.op("ReduceMean", tokens, g.constant([1], np.int64), keepdims=0)
    g.nodes.append(helper.make_node("Identity", [tokens], ["tokens"], name="tokens_out"))
    gemm = helper.make_node("Gemm", [pooled, g.weight(WIDTH, CLASSES), g.small(CLASSES)], ["logits"], name="classify")
    g.nodes.append(gemm)
    graph = helper.make_graph(
        g.nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES]),
            helper.make_tensor_value_info("tokens", TensorProto.FLOAT, ["batch", "tokens", WIDTH]),
        ],
        g.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="opsmith demo")
    model.ir_version = 10
    onnx.checker.check_model(model, full_check=True)
    return model
