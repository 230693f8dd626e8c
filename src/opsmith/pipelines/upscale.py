"""A larger picture by a super-resolution model of the user's: any ONNX file with one picture in and a larger one out.

    larger = Upscaler("RealESRGAN_x4.onnx")(picture)

What the file does not say is found by asking the model. Its factor is that of its output's size. Its values may go from 0 to 1, from 0 to
255 or from -1 to 1: the range is taken in which the larger picture, made small again, is most like the picture; a model that is far
from it in all three is refused. One channel: luma is the model's, colour is enlarged smoothly. A fixed size, or a picture beyond
TILE, means tiles that overlap and are blended.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from PIL import Image

from opsmith import session, store
from opsmith.errors import OpsmithError
from opsmith.pipelines import pictures
from opsmith.pipelines.diffusion import tiles

Array = np.ndarray[Any, Any]

TILE = 256  # pixels on a side of what a model of any size is given at once
ALIKE = 15.0  # dB: what the larger picture, made small again, must have with the picture
PROBE = 64  # pixels on a side of what the model is asked with
RANGES = ((0.0, 1.0), (0.0, 255.0), (-1.0, 1.0))  # black, white


@dataclasses.dataclass(frozen=True)
class Form:
    """What the model reads and gives."""

    channels: int  # 3, or 1: luma
    last: bool  # channels are the last size: [1,H,W,C]
    size: tuple[int | None, int | None]  # height and width, where they are fixed
    dtype: Any


class Upscaler:
    def __init__(self, model: store.PathLike, *, threads: int | None = None) -> None:
        self.path = store.find_model(model)
        self._session = session.load(self.path, threads=threads)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise self._no(
                f"it has {len(inputs)} inputs and {len(outputs)} outputs, not a picture in and a picture out"
            )
        self.form = self._form(inputs[0].shape, inputs[0].type)
        self._name, self._out = inputs[0].name, outputs[0].name
        self._range: tuple[float, float] | None = None
        self.factor = 0

    def __call__(self, image: Image.Image) -> Image.Image:
        rgb = image.convert("RGB")
        if self._range is None:
            self._range, self.factor = self._ask(rgb)
        if self.form.channels == 3:
            return _picture(self._enlarged(np.asarray(rgb, np.float32).transpose(2, 0, 1)))
        size = (rgb.width * self.factor, rgb.height * self.factor)
        _, *colour = rgb.convert("YCbCr").split()
        luma = self._enlarged(np.asarray(rgb.convert("YCbCr"), np.float32)[None, :, :, 0])
        bands = [_picture(luma), *(band.resize(size, Image.Resampling.BICUBIC) for band in colour)]
        return Image.merge("YCbCr", bands).convert("RGB")

    def _no(self, why: str) -> OpsmithError:
        return OpsmithError(
            f"{self.path} is no super-resolution model: {why}", "it takes a picture [1,3,H,W] or [1,1,H,W]"
        )

    def _form(self, shape: list[Any], kind: str) -> Form:
        dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
        if len(shape) != 4 or kind not in dtypes:
            raise self._no(f"it reads {kind} {shape}")
        first, last = shape[1] in (1, 3), shape[3] in (1, 3)
        if first == last:
            raise self._no(f"it reads {shape}")
        height, width = shape[2:] if first else shape[1:3]
        fixed = tuple(s if isinstance(s, int) else None for s in (height, width))
        return Form(shape[1] if first else shape[3], last, (fixed[0], fixed[1]), dtypes[kind])

    def _ask(self, image: Image.Image) -> tuple[tuple[float, float], int]:
        """The range of values and the factor."""
        tall, wide = (fixed or PROBE for fixed in self.form.size)
        probe = image.resize((wide, tall), Image.Resampling.BICUBIC)
        values = np.asarray(probe if self.form.channels == 3 else probe.convert("L"), np.float32)
        planes = values.transpose(2, 0, 1) if self.form.channels == 3 else values[None]
        found = []
        for black, white in RANGES[1:2] if self.form.dtype == np.uint8 else RANGES:
            made = self._run(planes, black, white)
            factor = self._factor(made, tall, wide)
            small = made.reshape(len(made), tall, factor, wide, factor).mean((2, 4))
            found.append((pictures.psnr(np.clip(small, 0, 255), planes), (black, white), factor))
        alike, values_range, factor = max(found)
        if not alike >= ALIKE:
            raise self._no(f"what it gives is another picture ({alike:.0f} dB, {ALIKE:.0f} are needed)")
        return values_range, factor

    def _factor(self, made: Array, tall: int, wide: int) -> int:
        factor = int(made.shape[1]) // tall
        if len(made) != self.form.channels or factor < 1 or made.shape[1:] != (factor * tall, factor * wide):
            raise self._no(f"of {wide}x{tall} it makes {list(made.shape)}, no multiple of it")
        return factor

    def _run(self, planes: Array, black: float, white: float) -> Array:
        """[C,H,W] in 0..255 -> [C,fH,fW] in the same."""
        fed = (planes[None] / np.float32(255) * np.float32(white - black) + np.float32(black)).astype(self.form.dtype)
        fed = fed.transpose(0, 2, 3, 1) if self.form.last else fed
        made = session.run(self._session, {self._name: np.ascontiguousarray(fed)}, [self._out])[0].astype(np.float32)
        if made.ndim != 4 or len(made) != 1:
            raise self._no(f"it gives {list(made.shape)}")
        made = made.transpose(0, 3, 1, 2) if self.form.last else made
        return np.asarray((made[0] - np.float32(black)) * np.float32(255 / (white - black)))

    def _enlarged(self, planes: Array) -> Array:
        """[C,fH,fW] of [C,H,W], in tiles."""
        assert self._range is not None
        black, white = self._range
        height, width = planes.shape[1:]
        side = self.form.size[0] or TILE, self.form.size[1] or TILE
        room = [max(0, fixed - length) if fixed else 0 for fixed, length in zip(self.form.size, (height, width))]
        padded = np.pad(planes, [(0, 0), (0, room[0]), (0, room[1])], mode="edge")
        made = tiles.decoded(padded[None], lambda part: self._run(part[0], black, white), self.factor, side)
        return made[:, : self.factor * height, : self.factor * width]


def _picture(planes: Array) -> Image.Image:
    pixels = np.clip(planes.round(), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
