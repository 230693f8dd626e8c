"""A compiled model in plain ONNX Runtime: this file does not import Opsmith.

python examples/plain_onnxruntime.py FOLDER_OF_A_COMPILED_VARIANT
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(folder: Path) -> None:
    record = json.loads((folder / "opsmith.json").read_text())
    (model,) = folder.glob("*.onnx")
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(folder / record["compiled"]["library"]))
    session = ort.InferenceSession(model, options)
    feed = {
        i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], np.float32) for i in session.get_inputs()
    }
    for output, value in zip(session.get_outputs(), session.run(None, feed)):
        print(output.name, value.dtype, value.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
