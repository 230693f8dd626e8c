"""The denoiser of Stable Diffusion: 1.x, 2.x, XL, inpainting, with embedded guidance (LCM).

sample [B,C,H,W], timestep [1], encoder_hidden_states [B,S,X] -> out_sample [B,4,H,W]

timestep_cond  [B,G]   the guidance scale, embedded: consistency models
text_embeds    [B,P]   the pooled prompt, and
time_ids       [B,T]   sizes and crops that the picture is to look like it had: XL
down_block_residual.0 [B,C,H,W] ..., mid_block_residual   added to the skip connections: pipelines with ControlNets
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsmith.errors import OpsmithError
from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Sizes

if TYPE_CHECKING:
    import torch

IMAGE = {0: "batch", 2: "height", 3: "width"}


def latent_size(source: sources.Source) -> int:
    size = source.config("unet").get("sample_size") or 64
    return int(size if isinstance(size, int) else size[0])


@dataclasses.dataclass(frozen=True)
class Extra:
    """A further picture-like input: channels, and sides that are the latents' times or divided by a power of two."""

    channels: int
    times: int = 1
    divided: int = 1

    @property
    def dims(self) -> dict[int, str]:
        return {0: "batch", 2: self._side("height"), 3: self._side("width")}

    def _side(self, name: str) -> str:
        if self.divided > 1:
            return f"{name}//{self.divided}"
        return name if self.times == 1 else f"{self.times}*{name}"

    def shape(self, sizes: Sizes) -> tuple[int, int, int, int]:
        height, width = (sizes[k] * self.times // self.divided for k in ("height", "width"))
        return sizes["batch"], self.channels, height, width


def unet(source: sources.Source, *, controlled: bool = False) -> Graph:
    """CONTROLLED: with the residuals of ControlNets as inputs."""
    from diffusers import UNet2DConditionModel

    model = sources.load_diffusers(source, UNet2DConditionModel, "unet")
    config = model.config
    residuals = residuals_of(config) if controlled else {}
    return denoiser(source, model, config, conditions_of(source, config), residuals, {"out_sample": IMAGE}, _forward)


def residuals_of(config: Mapping[str, Any]) -> dict[str, Extra]:
    """One per skip connection, outermost first, then the middle's."""
    channels, layers = config["block_out_channels"], int(config["layers_per_block"])
    found = [Extra(channels[0])]
    for level, count in enumerate(channels):
        found += [Extra(count, divided=2**level)] * layers
        if level < len(channels) - 1:
            found.append(Extra(count, divided=2 ** (level + 1)))
    named = {f"down_block_residual.{i}": extra for i, extra in enumerate(found)}
    return {**named, "mid_block_residual": found[-1]}


def conditions_of(source: sources.Source, config: Mapping[str, Any]) -> dict[str, int]:
    """Inputs beside the three that all have, each [B,N], and their N."""
    kind = config.get("addition_embed_type")
    if kind not in (None, "text_time") or config.get("class_embed_type"):
        other = kind if kind not in (None, "text_time") else config["class_embed_type"]
        raise OpsmithError(
            f"{source.name}: a UNet with {other!r} embeddings is not supported", "Stable Diffusion's are"
        )
    found = {}
    if config.get("time_cond_proj_dim"):
        found["timestep_cond"] = int(config["time_cond_proj_dim"])
    if kind == "text_time":
        pooled = int(source.config("text_encoder_2")["projection_dim"])
        rest = int(config["projection_class_embeddings_input_dim"]) - pooled
        found |= {"text_embeds": pooled, "time_ids": rest // int(config["addition_time_embed_dim"])}
    return found


def denoiser(
    source: sources.Source,
    model: Any,
    config: Any,
    conditions: Mapping[str, int],
    extras: Mapping[str, Extra],
    outputs: Mapping[str, Mapping[int, str]],
    forward: Any,
) -> Graph:
    """The graph of a module that reads latents, time, text, CONDITIONS and EXTRAS."""
    native, step = latent_size(source), 2 ** (len(config.block_out_channels) - 1)  # H and W are halved this often
    longest = _longest(source)

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        batch, height, width, sequence = (sizes[k] for k in ("batch", "height", "width", "sequence"))
        sample = torch.randn(batch, config.in_channels, height, width, generator=random)
        timestep = torch.randint(0, 1000, (1,), generator=random).to(torch.float32)
        text = torch.randn(batch, sequence, config.cross_attention_dim, generator=random)
        rows = [_row(name, batch, n, random) for name, n in conditions.items()]
        return [sample, timestep, text, *rows, *(torch.rand(e.shape(sizes), generator=random) for e in extras.values())]

    def call(model: Any, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return list(forward(model, *inputs[:3], dict(zip((*conditions, *extras), inputs[3:]))))

    text = {"encoder_hidden_states": {0: "batch", 1: "sequence"}}
    return Graph(
        model=model,
        inputs={
            "sample": IMAGE,
            "timestep": {},
            **text,
            **{name: {0: "batch"} for name in conditions},
            **{name: extra.dims for name, extra in extras.items()},
        },
        outputs=outputs,
        forward=call,
        example=example,
        trace_at={"batch": 2, "height": 2 * step, "width": 3 * step, "sequence": 7},
        cases=[
            {"batch": 1, "height": native, "width": native, "sequence": longest},
            {"batch": 2, "height": 2 * step, "width": 4 * step, "sequence": 11},
            {"batch": 3, "height": 3 * step, "width": 2 * step, "sequence": longest},
        ],
    )


def _longest(source: sources.Source) -> int:
    encoder = "text_encoder" if source.holds("text_encoder") else "text_encoder_2"
    return int(source.config(encoder).get("max_position_embeddings", 77))


def _row(name: str, batch: int, count: int, random: torch.Generator) -> torch.Tensor:
    import torch

    if name == "time_ids":  # pixels
        return torch.randint(0, 1024, (batch, count), generator=random).to(torch.float32)
    return torch.randn(batch, count, generator=random)


def _forward(
    model: Any, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor, more: Mapping[str, torch.Tensor]
) -> Sequence[torch.Tensor]:
    added = {name: more[name] for name in ("text_embeds", "time_ids") if name in more}
    down = tuple(value for name, value in more.items() if name.startswith("down_block_residual"))
    made = model(
        sample,
        timestep,
        encoder_hidden_states=text,
        timestep_cond=more.get("timestep_cond"),
        added_cond_kwargs=added or None,
        down_block_additional_residuals=down or None,
        mid_block_additional_residual=more.get("mid_block_residual"),
        return_dict=False,
    )
    return [made[0]]
