"""The two halves of an autoencoder of pictures: a pipeline's own, or one that is exported alone to be chosen later.

vae_encoder   sample [B,3,8H,8W] -> latent_parameters [B,8,H,W] (mean and log variance), or latents [B,4,H,W] of a tiny one
vae_decoder   latent_sample [B,4,H,W] -> sample [B,3,8H,8W]

The scaling factor is not in the graphs: the pipeline applies it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Part, Plan, Sizes
from opsmith.exporter.unet import IMAGE

if TYPE_CHECKING:
    import torch

CLASSES = ("AutoencoderKL", "AutoencoderTiny")


def accepts(config: Mapping[str, Any]) -> bool:
    return config.get("_class_name") in CLASSES


def plan(source: sources.Source) -> Plan:
    """An autoencoder alone: two model folders, as in a pipeline."""
    config = source.config()
    blocks = config.get("block_out_channels") or config.get("decoder_block_out_channels") or (0,) * 4
    native = int(config.get("sample_size") or 512) // 2 ** (len(blocks) - 1)
    return Plan(parts(source, "", native), [], reads_text=False)


def parts(source: sources.Source, folder: str, native: int) -> list[Part]:
    """FOLDER of the source has the weights; NATIVE is the usual size of the latents."""
    config = source.config(folder)
    return [
        Part("vae_encoder", lambda: _encoder(source, folder, native), config, folder),
        Part("vae_decoder", lambda: _decoder(source, folder, native), config, folder),
    ]


def _load(source: sources.Source, folder: str) -> tuple[Any, int]:
    import diffusers

    kind = source.config(folder).get("_class_name", "AutoencoderKL")
    model = sources.load_diffusers(source, getattr(diffusers, kind), folder)
    return model, 2 ** (len(model.config.block_out_channels) - 1)


def _tiny(model: Any) -> bool:
    return type(model).__name__ == "AutoencoderTiny"


def _scaled(factor: int) -> dict[int, str]:
    return {0: "batch", 2: f"{factor}*height", 3: f"{factor}*width"}


def _noise(channels: int, times: int, sizes: Sizes, random: torch.Generator) -> Sequence[torch.Tensor]:
    import torch

    return [torch.randn(sizes["batch"], channels, times * sizes["height"], times * sizes["width"], generator=random)]


def _graph(model: Any, native: int, **more: Any) -> Graph:
    return Graph(
        model=model,
        trace_at={"batch": 2, "height": 4, "width": 6},
        cases=[
            {"batch": 1, "height": native, "width": native},
            {"batch": 2, "height": 5, "width": 8},
            {"batch": 3, "height": 6, "width": 3},
        ],
        **more,
    )


def _encoder(source: sources.Source, folder: str, native: int) -> Graph:
    model, factor = _load(source, folder)
    model.decoder = model.post_quant_conv = None

    def forward(model: Any, sample: torch.Tensor) -> Sequence[torch.Tensor]:
        # The distribution's parameters, before it is sampled: the graph holds no random numbers.
        hidden = model.encoder(sample)
        return [hidden if getattr(model, "quant_conv", None) is None else model.quant_conv(hidden)]

    def original(model: Any, sample: torch.Tensor) -> Sequence[torch.Tensor]:
        made = model.encode(sample)
        return [made.latents if _tiny(model) else made.latent_dist.parameters]

    return _graph(
        model,
        native,
        inputs={"sample": _scaled(factor)},
        outputs={"latents" if _tiny(model) else "latent_parameters": IMAGE},
        forward=forward,
        original=original,
        example=functools.partial(_noise, model.config.in_channels, factor),
    )


def _decoder(source: sources.Source, folder: str, native: int) -> Graph:
    model, _ = _load(source, folder)
    factor = 2 ** (len(model.config.block_out_channels) - 1)
    model.encoder = model.quant_conv = None

    def forward(model: Any, latent: torch.Tensor) -> Sequence[torch.Tensor]:
        hidden = latent if getattr(model, "post_quant_conv", None) is None else model.post_quant_conv(latent)
        return [model.decoder(hidden)]

    def original(model: Any, latent: torch.Tensor) -> Sequence[torch.Tensor]:
        return [model.decode(latent, return_dict=False)[0]]

    return _graph(
        model,
        native,
        inputs={"latent_sample": IMAGE},
        outputs={"sample": _scaled(factor)},
        forward=forward,
        original=original,
        example=functools.partial(_noise, model.config.latent_channels, 1),
    )
