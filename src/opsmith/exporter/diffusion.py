"""Stable Diffusion v1.x and v2.x pipelines, inpainting ones too, as one folder in the diffusers layout.

text_encoder  input_ids [B,S] -> last_hidden_state, pooler_output
unet          sample [B,C,H,W], timestep [1], encoder_hidden_states [B,S,X] -> out_sample [B,4,H,W]
vae_encoder   sample [B,3,8H,8W] -> latent_parameters [B,8,H,W] (mean and log variance)
vae_decoder   latent_sample [B,4,H,W] -> sample [B,3,8H,8W]

C is 4, or 9 for inpainting. H and W are multiples of what the UNet halves, 8 in all published models. The VAE's
scaling factor is not in the graphs: the pipeline applies it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsmith.errors import OpsmithError
from opsmith.exporter import source as sources
from opsmith.exporter.encoder import clip_text
from opsmith.exporter.graph import Graph, Part, Plan, Sizes

if TYPE_CHECKING:
    import torch

_COMPONENTS = {"text_encoder": "CLIPTextModel", "unet": "UNet2DConditionModel", "vae": "AutoencoderKL"}

_IMAGE = {0: "batch", 2: "height", 3: "width"}


def _scaled(factor: int) -> dict[int, str]:
    return {0: "batch", 2: f"{factor}*height", 3: f"{factor}*width"}


def plan(source: sources.Source) -> Plan:
    index = source.config("model_index.json")
    for component, expected in _COMPONENTS.items():
        found = (index.get(component) or [None, None])[1]
        if found != expected:
            raise OpsmithError(
                f"{source.name}: {component} is {found or 'missing'}, not {expected}",
                "Stable Diffusion v1.x and v2.x pipelines are supported",
            )
    parts = [
        Part("text_encoder", lambda: clip_text(source, "text_encoder", projected=False), source.config("text_encoder")),
        Part("unet", lambda: _unet(source), source.config("unet")),
        Part("vae_encoder", lambda: _vae_encoder(source), source.config("vae")),
        Part("vae_decoder", lambda: _vae_decoder(source), source.config("vae")),
    ]
    copies = [Path(name) for name in ("tokenizer", "scheduler", "feature_extractor") if source.holds(name)]
    return Plan(parts, copies, {"model_index.json": _model_index(index)})


def _model_index(index: dict[str, Any]) -> dict[str, Any]:
    """The source's index without the safety checker, which is not exported, and with the VAE in its two halves."""
    kept = {k: v for k, v in index.items() if k not in ("vae", "safety_checker", "image_encoder")}
    kept |= {"vae_encoder": index["vae"], "vae_decoder": index["vae"], "requires_safety_checker": False}
    return kept


def _latent_size(source: sources.Source) -> int:
    size = source.config("unet").get("sample_size") or 64
    return int(size if isinstance(size, int) else size[0])


def _unet(source: sources.Source) -> Graph:
    from diffusers import UNet2DConditionModel

    model = sources.load_diffusers(source, UNet2DConditionModel, "unet")
    config, native = model.config, _latent_size(source)
    step = 2 ** (len(config.block_out_channels) - 1)  # H and W are halved this often
    longest = source.config("text_encoder").get("max_position_embeddings", 77)

    def example(sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
        import torch

        batch, height, width, sequence = (sizes[k] for k in ("batch", "height", "width", "sequence"))
        sample = torch.randn(batch, config.in_channels, height, width, generator=random)
        timestep = torch.randint(0, 1000, (1,), generator=random).to(torch.float32)
        text = torch.randn(batch, sequence, config.cross_attention_dim, generator=random)
        return [sample, timestep, text]

    def forward(model: Any, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> Sequence[torch.Tensor]:
        return [model(sample, timestep, encoder_hidden_states=text, return_dict=False)[0]]

    return Graph(
        model=model,
        inputs={"sample": _IMAGE, "timestep": {}, "encoder_hidden_states": {0: "batch", 1: "sequence"}},
        outputs={"out_sample": _IMAGE},
        forward=forward,
        example=example,
        trace_at={"batch": 2, "height": 2 * step, "width": 3 * step, "sequence": 7},
        cases=[
            {"batch": 1, "height": native, "width": native, "sequence": longest},
            {"batch": 2, "height": 2 * step, "width": 4 * step, "sequence": 11},
            {"batch": 3, "height": 3 * step, "width": 2 * step, "sequence": longest},
        ],
    )


def _vae(source: sources.Source) -> tuple[Any, int]:
    from diffusers import AutoencoderKL

    model = sources.load_diffusers(source, AutoencoderKL, "vae")
    return model, 2 ** (len(model.config.block_out_channels) - 1)


def _noise(channels: int, times: int, sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
    import torch

    return [torch.randn(sizes["batch"], channels, times * sizes["height"], times * sizes["width"], generator=random)]


def _vae_encoder(source: sources.Source) -> Graph:
    model, factor = _vae(source)
    model.decoder = model.post_quant_conv = None
    native = _latent_size(source)

    def forward(model: Any, sample: torch.Tensor) -> Sequence[torch.Tensor]:
        # The distribution's parameters, before it is sampled: the graph holds no random numbers.
        hidden = model.encoder(sample)
        return [hidden if model.quant_conv is None else model.quant_conv(hidden)]

    def original(model: Any, sample: torch.Tensor) -> Sequence[torch.Tensor]:
        return [model.encode(sample).latent_dist.parameters]

    return Graph(
        model=model,
        inputs={"sample": _scaled(factor)},
        outputs={"latent_parameters": _IMAGE},
        forward=forward,
        original=original,
        example=functools.partial(_noise, model.config.in_channels, factor),
        trace_at={"batch": 2, "height": 4, "width": 6},
        cases=[
            {"batch": 1, "height": native, "width": native},
            {"batch": 2, "height": 5, "width": 8},
            {"batch": 3, "height": 6, "width": 3},
        ],
    )


def _vae_decoder(source: sources.Source) -> Graph:
    model, factor = _vae(source)
    model.encoder = model.quant_conv = None
    native = _latent_size(source)

    def forward(model: Any, latent: torch.Tensor) -> Sequence[torch.Tensor]:
        hidden = latent if model.post_quant_conv is None else model.post_quant_conv(latent)
        return [model.decoder(hidden)]

    def original(model: Any, latent: torch.Tensor) -> Sequence[torch.Tensor]:
        return [model.decode(latent, return_dict=False)[0]]

    return Graph(
        model=model,
        inputs={"latent_sample": _IMAGE},
        outputs={"sample": _scaled(factor)},
        forward=forward,
        original=original,
        example=functools.partial(_noise, model.config.latent_channels, 1),
        trace_at={"batch": 2, "height": 4, "width": 6},
        cases=[
            {"batch": 1, "height": native, "width": native},
            {"batch": 2, "height": 5, "width": 8},
            {"batch": 3, "height": 6, "width": 3},
        ],
    )
