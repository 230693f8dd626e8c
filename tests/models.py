"""Tiny models with random weights, in Hugging Face's layout and exported by both exporters, for every test.

    tiny_source("gpt2")              -> folder with config.json, model.safetensors, tokenizer files
    tiny_model("gpt2", "dynamo")     -> exported model folder (holds the variant folder `dynamo`)
    tiny_pipeline("torchscript")     -> exported Stable Diffusion pipeline folder

Built once and kept in the user's cache folder under a key made from this file, the exporter's code and the versions
of the libraries involved, so that a second run costs nothing.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

import opsmith

EXPORTERS = ("dynamo", "torchscript")
_SOURCE = Path(opsmith.__file__).parent


@functools.cache
def cache_folder() -> Path:
    """Where tests keep what is expensive to make or fetch; OPSMITH_TEST_CACHE overrides the user's cache folder."""
    given = os.environ.get("OPSMITH_TEST_CACHE")
    folder = Path(given) if given else Path(platformdirs.user_cache_dir("opsmith-tests"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def _key() -> str:
    digest = hashlib.sha256()
    for file in [Path(__file__), *sorted((_SOURCE / "exporter").rglob("*.py")), _SOURCE / "store.py"]:
        digest.update(file.read_bytes())
    for package in ("torch", "transformers", "diffusers", "onnx", "onnx-ir", "onnxscript"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made in a temporary place and moved in whole; safe with several test workers."""
    home = cache_folder() / f"tiny-{_key()}"
    target = home / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    for old in cache_folder().glob("tiny-*"):
        if old != home and old.stat().st_mtime < home.stat().st_mtime - 3 * 86400:
            shutil.rmtree(old, ignore_errors=True)
    with (home / f".{name.replace('/', '-')}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second worker waits instead of making the same model
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(prefix=".making.", dir=home) as temporary:
            made = Path(temporary) / target.name  # a variant's file is named after its model folder
            make(made)
            made.rename(target)
    return target


# --- the models ------------------------------------------------------------------------------------------

TINY = ("gpt2", "llama", "bert", "clip", "clipseg")
VOCABULARY = 514  # bytes, bytes that end a word, start and end


def tiny_source(name: str) -> Path:
    """A tiny model as Hugging Face would store it: one of TINY, taesd, sdxl, lcm, controlled, stable-diffusion, and that with -2 or -inpainting."""
    return _once(f"source/tiny-{name}", functools.partial(_write_source, name))


def tiny_model(name: str, exporter: str = "dynamo") -> Path:
    """A tiny model, exported: the model folder. CLIP gives two in it, text_model and vision_model."""
    from opsmith.exporter import export  # itself, where a test has put another function into the package's front

    source = tiny_source(name)
    target = f"{exporter}/tiny-{name}"
    return _once(target, lambda folder: export(source, folder, exporter=exporter))


def tiny_variant(name: str, exporter: str = "dynamo", part: str = "") -> Path:
    """The variant folder of a tiny model, e.g. tiny_variant("stable-diffusion", part="unet")."""
    return tiny_model(name, exporter) / part / exporter


def tiny_pipeline(exporter: str = "dynamo", *, inpainting: bool = False) -> Path:
    """A tiny Stable Diffusion pipeline, exported; 32 x 32 pixels, latents of 16 x 16."""
    return tiny_model("stable-diffusion-inpainting" if inpainting else "stable-diffusion", exporter)


def _write_source(name: str, folder: Path) -> None:
    import torch

    folder.mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        _WRITERS[name](folder)


def _gpt2(folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=512, eos_token_id=513
    )
    _lively(GPT2LMHeadModel(config)).save_pretrained(folder)
    _byte_tokenizer(folder, "GPT2TokenizerFast", "<|endoftext|>")


def _llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,  # grouped-query attention
        max_position_embeddings=128,
        bos_token_id=512,
        eos_token_id=513,
    )
    _lively(LlamaForCausalLM(config)).save_pretrained(folder)
    _byte_tokenizer(folder, "PreTrainedTokenizerFast", "</s>")


def _bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=300,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=128,
    )
    _lively(BertModel(config)).save_pretrained(folder)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})


_CLIP_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "bos_token_id": 512,
    "eos_token_id": 513,
    "pad_token_id": 513,
    "projection_dim": 32,
    "hidden_act": "quick_gelu",
}
_CLIP_VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 32,
    "hidden_act": "quick_gelu",
}


def _clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(text_config=_CLIP_TEXT, vision_config=_CLIP_VISION, projection_dim=32)
    _lively(CLIPModel(config), 2.0).save_pretrained(folder)
    _clip_tokenizer(folder)
    _write_json(folder / "preprocessor_config.json", _preprocessor(32, [0.481, 0.458, 0.408], [0.269, 0.261, 0.276]))


def _clipseg(folder: Path) -> None:
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    config = CLIPSegConfig(
        text_config=_CLIP_TEXT,
        vision_config=_CLIP_VISION,
        projection_dim=32,
        extract_layers=[0, 1, 2],
        reduce_dim=32,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=64,
    )
    _lively(CLIPSegForImageSegmentation(config), 1.0).save_pretrained(folder)
    _clip_tokenizer(folder)
    _write_json(folder / "preprocessor_config.json", _preprocessor(48, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


_UNET = {
    "sample_size": 16,
    "out_channels": 4,
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 64,
    "norm_num_groups": 8,
    "attention_head_dim": 4,
}


def _stable_diffusion(folder: Path, channels: int = 4, **unet_options: object) -> None:
    from diffusers import UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    unet = UNet2DConditionModel(**(_UNET | {"in_channels": channels} | unet_options))
    if (guided := unet.time_embedding.cond_proj) is not None:
        _lively(guided, 20.0)  # another guidance has to show
    _lively(unet, 1.0).save_pretrained(folder / "unet")
    _lively(CLIPTextModel(CLIPTextConfig(**_CLIP_TEXT))).save_pretrained(folder / "text_encoder")
    kind = "StableDiffusionInpaintPipeline" if channels == 9 else "StableDiffusionPipeline"
    _write_pipeline(folder, kind, {"text_encoder": ["transformers", "CLIPTextModel"]})


def _controlled(folder: Path) -> None:
    """Stable Diffusion with two ControlNets, as diffusers saves them."""
    from diffusers import ControlNetModel

    _stable_diffusion(folder)
    names = ("layers_per_block", "block_out_channels", "down_block_types", "cross_attention_dim", "norm_num_groups")
    for name in ("controlnet", "controlnet_1"):
        made = ControlNetModel(
            **{k: _UNET[k] for k in names}, attention_head_dim=4, conditioning_embedding_out_channels=(8, 16)
        )
        for parameter in made.parameters():  # their last layers begin as zeros
            _off_zero(parameter)
        _lively(made, 1.0).save_pretrained(folder / name)
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"_class_name": "StableDiffusionControlNetPipeline"}
    index["controlnet"] = ["diffusers", "MultiControlNetModel"]
    _write_json(folder / "model_index.json", index)


def _off_zero(parameter: Any) -> None:
    import torch

    if not parameter.any():
        with torch.no_grad():
            parameter.normal_(std=0.1)


def _sdxl(folder: Path) -> None:
    from diffusers import UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    unet = UNet2DConditionModel(
        **_UNET
        | {
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": (2, 4),
            "use_linear_projection": True,
            "transformer_layers_per_block": (1, 2),
            "cross_attention_dim": 128,  # of both encoders
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 32 + 6 * 8,
        }
    )
    _lively(unet, 1.0).save_pretrained(folder / "unet")
    _lively(CLIPTextModel(CLIPTextConfig(**_CLIP_TEXT))).save_pretrained(folder / "text_encoder")
    second = CLIPTextConfig(**_CLIP_TEXT | {"hidden_act": "gelu"})
    _lively(CLIPTextModelWithProjection(second)).save_pretrained(folder / "text_encoder_2")
    (folder / "tokenizer_2").mkdir()
    _clip_tokenizer(folder / "tokenizer_2", pad="!")
    more = {
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "force_zeros_for_empty_prompt": True,
    }
    _write_pipeline(folder, "StableDiffusionXLPipeline", more, scheduler="EulerDiscreteScheduler", steps_offset=1)


def _write_pipeline(
    folder: Path, kind: str, index: dict[str, object], scheduler: str = "PNDMScheduler", **options: object
) -> None:
    """What all of them have beside UNet and text encoders: VAE, scheduler, tokenizer, index."""
    import diffusers

    vae = diffusers.AutoencoderKL(
        sample_size=32,
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    _lively(vae, 1.0).save_pretrained(folder / "vae")
    if scheduler == "PNDMScheduler":
        options = {"skip_prk_steps": True, "steps_offset": 1}
    made = getattr(diffusers, scheduler)(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", **options)
    made.save_pretrained(folder / "scheduler")
    (folder / "tokenizer").mkdir()
    _clip_tokenizer(folder / "tokenizer")
    _write_json(
        folder / "model_index.json",
        {
            "_class_name": kind,
            "_diffusers_version": "0.31.0",
            "feature_extractor": [None, None],
            "image_encoder": [None, None],
            **({} if "XL" in kind else {"requires_safety_checker": False, "safety_checker": [None, None]}),
            "scheduler": ["diffusers", scheduler],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
            **index,
        },
    )


def _taesd(folder: Path) -> None:
    from diffusers import AutoencoderTiny

    made = AutoencoderTiny(
        encoder_block_out_channels=(16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    )
    _lively(made, 1.0).save_pretrained(folder)


_WRITERS: dict[str, Callable[[Path], None]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "clip": _clip,
    "clipseg": _clipseg,
    "stable-diffusion": _stable_diffusion,
    "stable-diffusion-2": functools.partial(
        _stable_diffusion, attention_head_dim=[2, 4], use_linear_projection=True, upcast_attention=True
    ),
    "sdxl": _sdxl,
    "controlled": _controlled,
    "lcm": functools.partial(_stable_diffusion, time_cond_proj_dim=16),
    "taesd": _taesd,
    "stable-diffusion-inpainting": functools.partial(_stable_diffusion, channels=9),
}


def _lively(model, factor=4.0):  # type: ignore[no-untyped-def]
    """Weights large enough that attention is not uniform: a wrong mask or order must show in the outputs.

    Biases and norms leave their zeros and ones too; exporters would drop them from the graph as no-ops.
    """
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


# --- tokenizers ------------------------------------------------------------------------------------------


def _bytes_to_unicode() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE, in the order of GPT-2's vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


def _byte_tokenizer(folder: Path, kind: str, end: str) -> None:
    """A byte-level BPE without merges: one token per byte."""
    characters = _bytes_to_unicode()
    vocabulary = {c: i for i, c in enumerate([*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", end])}
    _write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([end])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": kind, "bos_token": end, "eos_token": end, "unk_token": end, "model_max_length": 128},
    )


def _clip_tokenizer(folder: Path, pad: str = "<|endoftext|>") -> None:
    """CLIP's BPE with its first merges only: letters, and letters that end a word."""
    characters = _bytes_to_unicode()
    words = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    _write_json(folder / "vocab.json", {w: i for i, w in enumerate(words)})
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "CLIPTokenizer",
            "model_max_length": 77,
            "bos_token": "<|startoftext|>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
            "pad_token": pad,
            "do_lower_case": True,
            "errors": "replace",
        },
    )
    _write_json(
        folder / "special_tokens_map.json",
        {
            "bos_token": "<|startoftext|>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
            "pad_token": pad,
        },
    )


def _preprocessor(size: int, mean: list[float], std: list[float]) -> dict[str, object]:
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "size": {"height": size, "width": size},
        "rescale_factor": 1 / 255,
        "image_mean": mean,
        "image_std": std,
        "resample": 2,
    }


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
