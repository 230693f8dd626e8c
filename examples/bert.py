"""BERT: export a model from its config, compile it to one op, compare. Needs `pip install ".[export]"`.

python examples/bert.py [FOLDER]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import opsmith

CONFIG = {  # bert-base-uncased has 768, 12, 12, 3072
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 128, "type_vocab_size": 2,
}  # fmt: skip


def main(folder: Path) -> None:
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    (source / "config.json").write_text(json.dumps(CONFIG))

    opsmith.export(source, folder / "bert", random_weights=True, seed=0)
    result = opsmith.compile(folder / "bert" / "dynamo", folder / "bert" / "dynamo_compiled", regions="whole")
    print(f"one op for {result.nodes} nodes, {result.regions[0].calls} kernel calls")

    ids = np.random.default_rng(0).integers(0, 512, (2, 17))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    before = opsmith.load(folder / "bert" / "dynamo").run(None, feed)[0]
    after = opsmith.load(folder / "bert" / "dynamo_compiled").run(None, feed)[0]
    print(f"largest difference: {np.abs(before - after).max():.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary))
