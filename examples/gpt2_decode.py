"""GPT-2: decode token by token through the model's own presents, stock against compiled. Needs `pip install ".[export]"`.

python examples/gpt2_decode.py [FOLDER]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import opsmith

CONFIG = {  # gpt2 has 768, 12, 12, 1024
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def decode(model: Path, start: int, count: int) -> list[int]:
    """Greedy tokens; every step feeds one token and the presents of the step before."""
    session = opsmith.load(model)
    past = {
        i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
        for i in session.get_inputs()
        if i.name.startswith("past")
    }
    names = [o.name for o in session.get_outputs()]
    tokens = [start]
    for position in range(count):
        feed = {
            "input_ids": np.array([[tokens[-1]]]),
            "attention_mask": np.ones((1, position + 1), np.int64),
            "position_ids": np.array([[position]]),
            **past,
        }
        found = dict(zip(names, session.run(None, feed)))
        tokens.append(int(found["logits"][0, -1].argmax()))
        past = {n: found[n.replace("past_key_values", "present")] for n in past}
    return tokens[1:]


def main(folder: Path) -> None:
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    (source / "config.json").write_text(json.dumps(CONFIG))
    opsmith.export(source, folder / "gpt2", random_weights=True, seed=0)
    opsmith.compile(folder / "gpt2" / "dynamo", folder / "gpt2" / "dynamo_compiled", regions="whole")
    stock, compiled = (decode(folder / "gpt2" / v, start=7, count=100) for v in ("dynamo", "dynamo_compiled"))
    print(f"100 tokens, the same in both: {stock == compiled}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
