"""How far a compressed model is from its source: the inputs to judge it on, and the figures.

A model with logits is judged by its logits alone (KL divergence and top-1 agreement of the next token beside the
error); any other model by its worst float output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from opsmith import session, store
from opsmith.check import inputs as generate
from opsmith.check.drawn import same_draws
from opsmith.check.feed import judged_feed
from opsmith.check.next_token import next_token
from opsmith.check.values import random_inputs
from opsmith.errors import OpsmithError

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]

FAR = 0.95  # cosine similarity below which a model no longer gives its source's answers
OFF = 0.5  # relative error above which it does not, whatever the cosine: one number, doubled, has a cosine of 1
WINDOW = 64  # tokens of text per calibration case


@dataclasses.dataclass(frozen=True)
class Quality:
    """`error` is the relative one: RMS of the difference over RMS of the reference, of the worst output."""

    error: float
    max_abs: float
    cosine: float
    kl: float | None = None  # mean KL divergence to the source's next-token distribution, in nats
    top1: float | None = None  # share of positions whose most likely token is the same

    def facts(self) -> dict[str, float]:
        return {k: float(f"{v:.6g}") for k, v in dataclasses.asdict(self).items() if v is not None}

    @property
    def score(self) -> float:
        """What --min-quality means: top-1 agreement where there are logits, else cosine similarity."""
        return self.cosine if self.top1 is None else self.top1

    def remark(self, advice: str) -> list[str]:
        """That the model no longer gives its source's answers, and what to do."""
        if self.cosine >= FAR and self.error <= OFF:
            return []
        how = f"relative error {self.error:.2g}, cosine {self.cosine:.3f}"
        return [f"the answers are far from the source's ({how}): {advice}"]


# --- figures ---------------------------------------------------------------------------------------------


def judged_outputs(model: ir.Model) -> list[str]:
    names = [v.name or "" for v in model.graph.outputs]
    if "logits" in names:
        return ["logits"]
    numbers = [v for v in model.graph.outputs if v.dtype != ir.DataType.STRING]
    if not numbers:
        raise OpsmithError("the model has no output of numbers to judge by")
    floats = [v.name or "" for v in numbers if v.dtype is None or v.dtype.is_floating_point()]
    return floats or [v.name or "" for v in numbers]


def compare(reference: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]], *, logits: bool) -> Quality:
    """Both are [case][output]. Errors are taken over all cases of an output together."""
    worst, max_abs, cosine = 0.0, 0.0, 1.0
    for a_all, b_all in zip(zip(*reference), zip(*found), strict=True):
        difference = power = other = dot = 0.0
        for a, b in zip(a_all, b_all, strict=True):
            if a.shape != b.shape:
                raise OpsmithError(
                    f"an output that was {a.shape} became {b.shape}: its size follows the data, and the two cannot be compared",
                    "change less: leave out the layers that decide the size, or take a finer method (fp16)",
                )
            # Masked positions may be infinite or nan in both models; they say nothing about the error.
            good = np.isfinite(a)
            if np.any(good & ~np.isfinite(b)):
                return Quality(
                    float("inf"), float("inf"), 0.0, float("inf") if logits else None, 0.0 if logits else None
                )
            whole = bool(good.all())  # nearly always; a mask would copy gigabytes of logits
            x, y = ((v.ravel() if whole else v[good]).astype(np.float64) for v in (a, b))
            gap = y - x
            difference += float(gap @ gap)
            power += float(x @ x)
            other += float(y @ y)
            dot += float(x @ y)
            max_abs = max(max_abs, float(np.abs(gap).max(initial=0.0)))
        error = (difference / power) ** 0.5 if power else (0.0 if difference == 0 else float("inf"))
        worst = max(worst, error)
        if power and other:
            cosine = min(cosine, dot / (power * other) ** 0.5)
    if not logits:
        return Quality(worst, max_abs, cosine)
    kl, top1 = next_token(
        np.concatenate([_rows(r[0]) for r in reference]), np.concatenate([_rows(f[0]) for f in found])
    )
    return Quality(worst, max_abs, cosine, kl, top1)


def _rows(logits: Array) -> Array:
    return logits.reshape(-1, logits.shape[-1])


# --- inputs ----------------------------------------------------------------------------------------------


def calibration_feeds(
    path: Path,
    model: ir.Model,
    calibration: object = None,
    count: int = 8,
    *,
    one_shape: bool = False,
    shapes: generate.Fixed | None = None,
) -> list[Feed]:
    """Inputs to calibrate and to judge on.

    None: the stored test data and generated inputs; "generated": only those; a .txt file: its text through the model's
    tokenizer; a .npz file with the inputs by name, a test_data_set folder, or a folder of these. SHAPES are those of generated
    inputs, and then there are no others.
    """
    if shapes:
        if calibration not in (None, "generated"):
            raise OpsmithError(
                "a shape is for generated inputs, and calibration files have their own", "give one of them"
            )
        return _generated(path, model, count, one_shape, shapes)
    if calibration is None:
        kept = [d.inputs for d in store.read_test_data(path) if d.inputs]
        return [_checked(f, model, "the stored test data") for f in kept] + _generated(
            path, model, max(1, count // 2), one_shape
        )
    if calibration == "generated":
        return _generated(path, model, count, one_shape)
    files = [calibration] if isinstance(calibration, (str, Path)) else calibration
    if not isinstance(files, Sequence) or not files:
        raise OpsmithError(f"calibration {calibration!r} is not a file", 'give files, a folder, or "generated"')
    feeds: list[Feed] = []
    for file in files:
        feeds += _read(Path(file), path, model, count)
    if not feeds:
        raise OpsmithError(f"{calibration} holds no calibration data", "expected .txt, .npz or test_data_set folders")
    return feeds


def _generated(
    source: store.ModelLike, model: ir.Model, count: int, one_shape: bool, shapes: generate.Fixed | None = None
) -> list[Feed]:
    """Random inputs, none larger than what the model is known to run on (a table of 77 positions takes no 128 tokens), and of just
    that size where it does not run on another; where random values do not run either, the one feed that is known to."""
    judged = judged_feed(source, shapes)
    judged.required()
    runs = judged.dims
    if one_shape and runs:
        dims = [runs] * count
    else:
        wanted = generate.cases(generate.specs(model), count, shapes)
        dims = [{s: min(n, runs.get(s, n)) for s, n in d.items()} for d in wanted]
    if shapes:  # sizes that are given leave fewer to vary: the values still do
        dims = (dims * count)[:count]
    running = session.load(source, optimize=False)
    feeds = []
    for seed, sizes in enumerate(dims):
        tries = (random_inputs(model, each, seed=seed, known=judged.ranges) for each in (sizes, runs))
        feeds.append(next((feed for feed in tries if _runs_on(running, feed)), dict(judged.required())))
    return feeds


def _runs_on(running: ort.InferenceSession, feed: Feed) -> bool:
    try:
        session.run(running, feed)
    except OpsmithError:
        return False
    return True


def _read(file: Path, path: Path, model: ir.Model, count: int) -> list[Feed]:
    if not file.exists():
        raise OpsmithError(f"the calibration file {file} does not exist")
    if file.is_dir():
        if any(file.glob("input_*.pb")):
            names: tuple[list[str], list[str]] = ([v.name or "" for v in model.graph.inputs], [])
            sets = store.read_test_data(file.parent / "model.onnx", names)
            return [_checked(d.inputs, model, str(file)) for d in sets if d.folder.name == file.name]
        inside = sorted(f for f in file.iterdir() if f.suffix in (".npz", ".txt") or any(f.glob("input_*.pb")))
        return [feed for f in inside for feed in _read(f, path, model, count)]
    if file.suffix == ".npz":
        try:
            with np.load(file, allow_pickle=False) as arrays:
                feed = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError) as error:
            raise OpsmithError(f"{file} is not a readable .npz file: {error}") from error
        return [_checked(feed, model, str(file))]
    return text_feeds(file, path, model, count)


def text_feeds(file: Path, path: Path, model: ir.Model, count: int) -> list[Feed]:
    """Windows of a text through the tokenizer that lies with the model, with an empty KV cache."""
    from opsmith.pipelines.tokenizer import load_tokenizer

    if "input_ids" not in {v.name for v in model.graph.inputs}:
        raise OpsmithError(f"{file} is text, but the model takes no input_ids", "calibrate with .npz files")
    home = path.parent if (path.parent / "tokenizer.json").is_file() else path.parent.parent
    ids = load_tokenizer(home).encode(read_text(file)).ids
    return [id_feed(model, ids[i : i + WINDOW]) for i in range(0, len(ids), WINDOW)][:count]


def read_text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OpsmithError(f"{file} is not text in UTF-8") from error
    if not text.strip():
        raise OpsmithError(f"{file} holds no text")
    return text


def id_feed(model: ir.Model, ids: Sequence[int]) -> Feed:
    """Token ids as a batch of one, with whatever else a decoder asks for."""
    feed: Feed = {}
    for spec in generate.specs(model):
        if spec.name == "input_ids":
            feed[spec.name] = np.asarray([ids], spec.dtype.numpy())
        elif spec.name == "attention_mask":
            feed[spec.name] = np.ones((1, len(ids)), spec.dtype.numpy())
        elif spec.name == "position_ids":
            feed[spec.name] = np.arange(len(ids), dtype=spec.dtype.numpy())[None]
        elif spec.name.startswith("past_key_values.") and len(spec.dims) == 4:
            shape = (1, int(spec.dims[1]), 0, int(spec.dims[3]))
            feed[spec.name] = np.zeros(shape, spec.dtype.numpy())
        elif spec.name == "token_type_ids":
            feed[spec.name] = np.zeros((1, len(ids)), spec.dtype.numpy())
        else:
            raise OpsmithError(f"text cannot feed the input {spec.name!r}", "calibrate with .npz files")
    return feed


def _checked(feed: Feed, model: ir.Model, where: str) -> Feed:
    """Refuse what the model cannot take, with the input's name, before ONNX Runtime does."""
    wanted = {spec.name: spec for spec in generate.specs(model)}
    if missing := sorted(set(wanted) - set(feed)):
        raise OpsmithError(f"{where} lacks the input {missing[0]!r}", f"the model takes {', '.join(wanted)}")
    bound: dict[str, int] = {}
    for name, spec in wanted.items():
        array = feed[name]
        fixed = [d for d in spec.dims if isinstance(d, int)]
        fits = array.ndim == len(spec.dims) and all(
            have == d for have, d in zip(array.shape, spec.dims) if isinstance(d, int)
        )
        if fits:
            for have, d in zip(array.shape, spec.dims):
                if isinstance(d, str) and d.isidentifier() and bound.setdefault(d, have) != have:
                    fits = False
        if not fits:
            shape = "x".join(map(str, spec.dims)) if fixed or spec.dims else "a scalar"
            raise OpsmithError(
                f"{where}: input {name!r} has shape {'x'.join(map(str, array.shape))}, the model takes {shape}"
            )
        if array.dtype != spec.dtype.numpy():
            raise OpsmithError(f"{where}: input {name!r} holds {array.dtype}, the model takes {spec.dtype.numpy()}")
    return {name: feed[name] for name in wanted}


def answers(
    model: store.ModelLike, feeds: Sequence[Feed], names: Sequence[str], threads: int | None
) -> list[list[Array]]:
    """The outputs NAMES for every feed."""
    running = session.load(model, threads=threads, edit=same_draws(store.open_model(model)))
    return [[_numbers(output) for output in session.run(running, feed, names)] for feed in feeds]


def _numbers(output: Any) -> Array:
    """The scores of maps and the elements of sequences in one row."""
    if isinstance(output, dict):
        return np.asarray([*output.values()], np.float32)
    if isinstance(output, list):
        return np.concatenate([_numbers(element).ravel() for element in output] or [np.zeros(0, np.float32)])
    return np.asarray(output)
