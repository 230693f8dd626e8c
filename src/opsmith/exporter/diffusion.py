"""Stable Diffusion pipelines (1.x, 2.x, XL, Turbo, LCM, inpainting), as one folder in the diffusers layout.

text_encoder    input_ids [B,S] -> last_hidden_state, pooler_output, hidden_states.0 ...
text_encoder_2  input_ids [B,S] -> text_embeds, last_hidden_state, hidden_states.0 ...     XL
unet            see unet.py
controlnet ...  see controlnet.py
vae_encoder, vae_decoder   see autoencoder.py

C is 4, or 9 for inpainting. H and W are multiples of what the UNet halves, 8 in all published models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError
from opsmith.exporter import autoencoder, controlnet
from opsmith.exporter import source as sources
from opsmith.exporter.encoder import clip_text
from opsmith.exporter.graph import Part, Plan
from opsmith.exporter.unet import latent_size, unet

_COMPONENTS = {
    "text_encoder": ("CLIPTextModel",),
    "text_encoder_2": ("CLIPTextModelWithProjection",),
    "unet": ("UNet2DConditionModel",),
    "vae": autoencoder.CLASSES,
    controlnet.FOLDER: controlnet.CLASSES,
}
_SUPPORTED = "Stable Diffusion 1.x, 2.x, XL, Turbo and LCM pipelines are supported"
_COPIED = ("tokenizer", "tokenizer_2", "scheduler", "feature_extractor")


def plan(source: sources.Source) -> Plan:
    index = source.config("model_index.json")
    encoders = [name for name in ("text_encoder", "text_encoder_2") if _class(index, name)] or ["text_encoder"]
    controlled = bool(_class(index, controlnet.FOLDER))
    for component in (*encoders, "unet", "vae", *([controlnet.FOLDER] if controlled else [])):
        found, expected = _class(index, component), _COMPONENTS[component]
        if found not in expected:
            raise OpsmithError(f"{source.name}: {component} is {found or 'missing'}, not {expected[0]}", _SUPPORTED)
    parts = [
        *(_text_part(source, name) for name in encoders),
        Part("unet", lambda: unet(source, controlled=controlled), source.config("unet"), "unet"),
        *(controlnet.parts(source) if controlled else ()),
        *autoencoder.parts(source, "vae", latent_size(source)),
    ]
    copies = [Path(name) for name in _COPIED if source.holds(name)]
    return Plan(parts, copies, {"model_index.json": _model_index(index)})


def _class(index: dict[str, Any], component: str) -> str | None:
    found = (index.get(component) or [None, None])[1]
    return None if found is None else str(found)


def _text_part(source: sources.Source, name: str) -> Part:
    projected = name == "text_encoder_2"
    return Part(
        name, lambda: clip_text(source, name, projected=projected, masked=False, layers=True), source.config(name), name
    )


def _model_index(index: dict[str, Any]) -> dict[str, Any]:
    """The source's index without the safety checker, which is not exported, and with the VAE in its two halves."""
    kept = {k: v for k, v in index.items() if k not in ("vae", "safety_checker", "image_encoder")}
    kept |= {"vae_encoder": index["vae"], "vae_decoder": index["vae"], "requires_safety_checker": False}
    return kept
