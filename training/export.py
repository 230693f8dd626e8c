"""Checkpoints -> Hugging Face folders -> ONNX variants in the package: python -m training.export [names]

1. The averaged weights of each model, its config, tokenizer, scheduler and preprocessor become a folder in Hugging Face's
   layout under $OPSMITH_TRAINING_DIR/hf (transformers and diffusers load it as it is).
2. `opsmith export` makes and verifies ONNX variants of it.
3. The variants' large weights are stored as float16 (a Cast to float32 behind each, which ONNX Runtime folds at load) in
   packages/opsmith-starter; arithmetic stays float32.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

import opsmith
from opsmith import store
from training import models, tokens, world
from training.paths import folder
from training.train_pictures import scheduler

PACKAGE = Path(__file__).parents[1] / "packages" / "opsmith-starter" / "src" / "opsmith_starter"
NAMES = ("pictures", "writer", "masks", "clip")
WRITER_TEMPERATURE = 0.8  # in generation_config.json: a little surer than what it learnt, still varied
WRITTEN_BY_HAND = {"pictures": ("generation_config.json",), "writer": ("prompts.toml",)}  # defaults, kept as they are
SMALLEST = 1024  # tensors with fewer elements stay float32: they cost nothing, and norms are sensitive


def weights(name: str, part: str) -> dict[str, torch.Tensor]:
    """The averaged weights, the large ones rounded to what float16 can hold."""
    saved = torch.load(folder(name) / "checkpoint.pt", weights_only=False)["ema"][part]
    rounded = {key: value.half().float() if value.numel() >= SMALLEST else value for key, value in saved.items()}
    return {key: rounded[key] if value.is_floating_point() else value for key, value in saved.items()}


def write_json(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_tokenizer(to: Path, style: str) -> int:
    """tokenizer.json, and vocab.json + merges.txt for older readers; returns the size of the vocabulary."""
    to.mkdir(parents=True, exist_ok=True)
    tokenizer = tokens.load(style)
    tokenizer.save(str(to / "tokenizer.json"))
    tokenizer.model.save(str(to))
    begin = tokens.BEGIN if style == "clip" else tokens.END
    settings = {
        "tokenizer_class": "CLIPTokenizer" if style == "clip" else "GPT2Tokenizer",
        "model_max_length": models.TOKENS if style == "clip" else 64,
        "bos_token": begin,
        "eos_token": tokens.END,
        "pad_token": tokens.END,
        "unk_token": tokens.END,
    }
    write_json(to / "tokenizer_config.json", settings)
    special = {key: settings[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    write_json(to / "special_tokens_map.json", special)
    return tokenizer.get_vocab_size()


def write_preprocessor(to: Path, kind: str) -> None:
    settings = {
        "image_processor_type": kind,
        "do_resize": True,
        "size": {"height": world.SIDE, "width": world.SIDE},
        "do_center_crop": False,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    write_json(to / "preprocessor_config.json", settings)


def write_pictures(to: Path) -> None:
    vocabulary = write_tokenizer(to / "tokenizer", "clip")
    scheduler().save_pretrained(to / "scheduler")
    text, unet, vae = models.text_encoder(vocabulary), models.unet(), models.vae()
    text.load_state_dict(weights("pictures", "text"))
    unet.load_state_dict(weights("pictures", "unet"))
    vae.load_state_dict(weights("vae", "vae"))
    scale = json.loads((folder("latents") / "latents.json").read_text())["scaling_factor"]
    vae.register_to_config(scaling_factor=scale)
    text.save_pretrained(to / "text_encoder")
    unet.save_pretrained(to / "unet")
    vae.save_pretrained(to / "vae")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    write_json(to / "model_index.json", index)


def write_writer(to: Path) -> None:
    model = models.writer(write_tokenizer(to, "gpt2"))
    model.load_state_dict(weights("writer", "writer"))
    model.generation_config.update(do_sample=True, temperature=WRITER_TEMPERATURE, max_new_tokens=34)
    model.save_pretrained(to)


def write_masks(to: Path) -> None:
    model = models.clipseg(write_tokenizer(to, "clip"))
    model.load_state_dict(weights("masks", "masks"))
    model.save_pretrained(to)
    write_preprocessor(to, "ViTImageProcessor")


def write_clip(to: Path) -> None:
    model = models.clip(write_tokenizer(to, "clip"))
    model.load_state_dict(weights("clip", "clip"))
    model.save_pretrained(to)
    write_preprocessor(to, "CLIPImageProcessor")


def halve(model: onnx.ModelProto) -> None:
    """Store every large float32 initializer as float16, with a Cast back to float32 behind it.

    The weights were rounded to float16 before the export, so this loses nothing; a tensor that the exporter computed
    from several weights, and that float16 cannot hold exactly, stays float32.
    """
    graph = model.graph
    casts = []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != onnx.TensorProto.FLOAT or values.size < SMALLEST:
            continue
        half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(
            onnx.helper.make_node("Cast", [f"{name}.half"], [name], name=f"{name}.cast", to=onnx.TensorProto.FLOAT)
        )
    kept = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts, *kept])
    onnx.checker.check_model(model)


def pack(exported: Path, to: Path) -> None:
    """Copy an exported model or pipeline folder into the package, each variant with half-size weights."""
    ours = {name: (to / name).read_bytes() for name in WRITTEN_BY_HAND.get(to.name, ()) if (to / name).is_file()}
    shutil.rmtree(to, ignore_errors=True)
    for record in sorted(exported.rglob("opsmith.json")):
        source = store.find_model(record.parent)  # .../<component>/dynamo/*.onnx
        target = to / record.parent.parent.relative_to(exported) / "fp16"
        model = onnx.load(source)
        halve(model)
        with store.new_variant(target, verb="quantize", parent=record.parent, options={"method": "fp16"}) as draft:
            onnx.save(model, draft.path)
            store.copy_test_data(source, draft.folder)
    for file in exported.rglob("*"):
        inside = file.relative_to(exported)
        if file.is_file() and "dynamo" not in inside.parts:
            (to / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to / inside)
    for name, content in ours.items():
        (to / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    for name in parser.parse_args().names:
        hf = folder("hf", name)
        {"pictures": write_pictures, "writer": write_writer, "masks": write_masks, "clip": write_clip}[name](hf)
        exported = folder("onnx") / name
        shutil.rmtree(exported, ignore_errors=True)
        opsmith.export(str(hf), str(exported))
        pack(exported, PACKAGE / name)
        size = sum(f.stat().st_size for f in (PACKAGE / name).rglob("*") if f.is_file())
        print(f"{name}: {size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
