"""ControlNet: what a picture of edges, depth or poses adds to the UNet's skip connections.

sample, timestep, encoder_hidden_states, controlnet_cond [B,3,8H,8W] in 0..1 -> down_block_residual.0 ..., mid_block_residual

The UNet of a pipeline with ControlNets reads residuals of the same names. Scales are not in the graphs: the pipeline
applies them, and adds up what several ControlNets give.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsmith.errors import OpsmithError
from opsmith.exporter import source as sources
from opsmith.exporter.graph import Graph, Part
from opsmith.exporter.unet import Extra, conditions_of, denoiser, residuals_of

if TYPE_CHECKING:
    import torch

FOLDER = "controlnet"
CLASSES = ("ControlNetModel", "MultiControlNetModel")
_MUST_FIT = ("block_out_channels", "layers_per_block", "cross_attention_dim", "addition_embed_type")


def folders(source: sources.Source) -> list[str]:
    """Those of the pipeline's ControlNets: controlnet, controlnet_1, ..."""
    names = sorted(f.name for f in source.folder.glob(f"{FOLDER}*") if f.is_dir())
    if not names:
        raise OpsmithError(f"{source.name} names a controlnet, but has no such folder")
    return names


def parts(source: sources.Source) -> list[Part]:
    """One model folder per ControlNet; each has to fit to the UNet."""
    unet, names = source.config("unet"), folders(source)
    for name in names:
        _check_fit(source, name, unet)
    return [Part(name, functools.partial(controlnet, source, name), source.config(name), name) for name in names]


def _check_fit(source: sources.Source, name: str, unet: Mapping[str, Any]) -> None:
    config = source.config(name)
    for key in _MUST_FIT:
        if config.get(key) != unet.get(key):
            raise OpsmithError(
                f"{source.name}/{name} is made for another base: its {key} is {config.get(key)}, the UNet's {unet.get(key)}"
            )


def controlnet(source: sources.Source, folder: str) -> Graph:
    from diffusers import ControlNetModel

    model = sources.load_diffusers(source, ControlNetModel, folder)
    config = model.config
    times = 2 ** (len(config.conditioning_embedding_out_channels) - 1)
    picture = {FOLDER + "_cond": Extra(int(config.conditioning_channels), times)}
    residuals = {name: extra.dims for name, extra in residuals_of(config).items()}
    return denoiser(source, model, config, conditions_of(source, config), picture, residuals, _forward)


def _forward(
    model: Any, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor, more: Mapping[str, torch.Tensor]
) -> Sequence[torch.Tensor]:
    added = {name: more[name] for name in ("text_embeds", "time_ids") if name in more}
    down, middle = model(
        sample,
        timestep,
        encoder_hidden_states=text,
        controlnet_cond=more[FOLDER + "_cond"],
        added_cond_kwargs=added or None,
        return_dict=False,
    )
    return [*down, middle]
