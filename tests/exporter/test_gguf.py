"""GGUF files as a source: the same model, tokenizer and ends as the folder that they were written from."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import gguf
import models
import numpy as np
import onnx_ir as ir
import pytest

import opsmith
from opsmith import starter, store
from opsmith.compress.blocks import dequantize_blocks
from opsmith.errors import OpsmithError
from opsmith.exporter import gguf_blocks
from opsmith.exporter.gguf import ends_of, remarks
from opsmith.pipelines.chat import load_chat
from opsmith.pipelines.text import TextGenerator

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbours, Hugging Face the halves of a head: (head, 2, pair) -> (head, pair, 2)."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write(file: Path, kind: str) -> tuple[Path, dict[str, np.ndarray]]:
    """The tiny Llama with its weights as KIND; and the weights as they then are."""
    from safetensors.numpy import load_file

    source = models.tiny_source("llama")
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    vocabulary = json.loads((starter.folder("writer") / "vocab.json").read_text())
    words = sorted(vocabulary, key=vocabulary.__getitem__)[: config["vocab_size"]]
    merges = (starter.folder("writer") / "merges.txt").read_text().splitlines()[1:]
    merges = [m for m in merges if "".join(m.split()) in set(words)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_merges(merges)
    writer.add_token_types([1] * len(words))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)
    writer.add_chat_template(TEMPLATE)
    kept = {}
    for name, weight in tensors.items():
        short = name.removeprefix("model.").removesuffix(".weight")
        if short.startswith("layers."):
            _, number, part = short.split(".", 2)
            target = f"blk.{number}.{PARTS[part]}.weight"
        else:
            target = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[short] + ".weight"
        stored = weight.astype(np.float32)
        if "attn_q" in target or "attn_k" in target:
            stored = interleaved(stored, heads if "attn_q" in target else kv_heads)
        if kind != "F32" and stored.ndim == 2:
            wanted = gguf.GGMLQuantizationType[kind]
            packed = gguf.quants.quantize(stored, wanted)
            writer.add_tensor(target, packed, raw_dtype=wanted)
            stored = gguf.quants.dequantize(packed, wanted)
        else:
            writer.add_tensor(target, stored)
        kept[name] = stored
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file, kept


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_1"])
def test_a_gguf_file_exports_to_the_model_that_it_holds(tmp_path: Path, kind: str) -> None:
    file, weights = write(tmp_path / f"tiny-{kind}.gguf", kind)
    made = opsmith.export(file, tmp_path / "out" / "tiny")
    assert any(kind in remark for remark in made.remarks) == (kind != "F32")
    generator = TextGenerator(tmp_path / "out" / "tiny")
    ids = generator.encode("a red frog")
    assert generator.tokenizer.decode(ids) == "a red frog"
    assert {1, 2} <= generator.ends
    assert load_chat(generator.home).prompt([{"role": "user", "content": "x"}]) == "user: x\n"
    # The weights of the export are those that the blocks stand for: compare with transformers on them.
    logits = expected(weights, ids)
    likely = generator.generate([ids], max_new_tokens=1, logprobs=5, ends=())[0].likelihoods[0]
    wanted = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert [t for t, _ in likely.top] == list(np.argsort(-wanted)[:5])
    np.testing.assert_allclose([p for _, p in likely.top], np.sort(wanted)[::-1][:5], atol=1e-4)
    check_blocks(made.variants[0], kind, len([n for n, w in weights.items() if w.ndim == 2 and "embed" not in n]))
    if kind == "Q4_1":  # zero points are floats
        opsmith.compile(made.variants[0], tmp_path / "out" / "tiny" / "fast", regions="whole", verify=False)
        fast = TextGenerator(tmp_path / "out" / "tiny", "fast")
        wrote = [g.generate([ids], max_new_tokens=12, ends=())[0].tokens for g in (generator, fast)]
        assert wrote[0] == wrote[1]


def check_blocks(variant: store.Variant, kind: str, products: int) -> None:
    """Products and the table are blocks, no matrix is left in floats, and what is tied is stored once."""
    model = store.open_model(variant)
    kinds = collections.Counter(node.op_type for node in model.graph)
    matrices = [v for v in model.graph.initializers.values() if v.shape is not None and len(v.shape) > 1]
    floats = [v.name for v in matrices if v.dtype == ir.DataType.FLOAT and v.const_value.size > 4096]
    packed = [v for v in matrices if v.dtype == ir.DataType.UINT8]
    if kind == "F32":
        assert "MatMulNBits" not in kinds and packed == []
        return
    assert kinds["MatMulNBits"] >= products and kinds["MatMul"] <= kinds["Softmax"] * 2 + 1
    assert floats == []
    tied = json.loads((models.tiny_source("llama") / "config.json").read_text()).get("tie_word_embeddings")
    assert len(packed) == kinds["MatMulNBits"] + (0 if tied else 1)


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0), ("Q4_0", 0), ("Q4_1", 3e-7)])
def test_blocks_stand_for_the_floats_that_llama_cpp_reads(kind: str, error: float) -> None:
    weight = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    weight[2] = 0.5  # blocks without a spread
    weight[3] += 20
    wanted = gguf.GGMLQuantizationType[kind]
    raw = gguf.quants.quantize(weight, wanted)
    floats = gguf.quants.dequantize(raw, wanted)
    found = dequantize_blocks(gguf_blocks.read_blocks(raw, kind)).T
    assert np.abs(found - floats).max() <= error * np.abs(floats).max()


def test_rows_are_found_wherever_a_library_put_them(tmp_path: Path) -> None:
    file, weights = write(tmp_path / "tiny.gguf", "Q4_0")
    rows = gguf_blocks.File(file)
    names = [n for n, w in weights.items() if w.ndim == 2]
    joined = np.concatenate([weights[names[0]][::-1], weights[names[0]][:5]])  # turned round, with some twice
    place = rows.find(joined)
    assert place is not None
    np.testing.assert_array_equal(dequantize_blocks(rows.read(place)).T, joined)
    joined[3, 0] += 1
    assert rows.find(joined) is None  # no longer what the file holds


def test_what_became_floats_is_said(tmp_path: Path) -> None:
    file, _ = write(tmp_path / "tiny.gguf", "Q5_0")
    (told,) = remarks(file, {})
    assert "became floats" in told and "Q5_0" in told
    with pytest.raises(OpsmithError, match="--floats is about"):
        opsmith.export(models.tiny_source("llama"), tmp_path / "out", floats=True)


def expected(weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models.tiny_source("llama"), dtype=torch.float32).eval()
    heads, kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
    state = {}
    for name, stored in weights.items():
        if "q_proj" in name or "k_proj" in name:
            count = heads if "q_proj" in name else kv_heads
            rows, columns = stored.shape
            stored = stored.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        state[name] = torch.from_numpy(np.ascontiguousarray(stored))
    missing = model.load_state_dict(state, strict=False)
    assert all("lm_head" in name for name in missing.missing_keys)
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([ids])).logits[0, -1].double().numpy()
    return found


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(OpsmithError, match="cannot be read as GGUF"):
        opsmith.export(tmp_path / "bad.gguf", tmp_path / "out")


def test_a_text_ends_where_a_turn_ends() -> None:
    assert ends_of({"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 7}) == [2, 7]
    assert ends_of({}) == []
