"""The command `llm`, with the server at sys.argv[1] as one of its models: what it prints, as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    models = f"- model_id: opsmith\n  model_name: writer\n  api_base: {sys.argv[1]}\n"
    (Path(folder) / "extra-openai-models.yaml").write_text(models)

    def llm(*words: str) -> str:
        command = [sys.executable, "-m", "llm", *words]
        made = subprocess.run(command, env={**os.environ, "LLM_USER_PATH": folder}, capture_output=True, text=True)
        return made.stdout.removesuffix("\n") if made.returncode == 0 else made.stderr

    asked = ("-m", "opsmith", "--key", "none", "-o", "temperature", "0", "frog")
    plain, streamed = llm("prompt", "--no-stream", *asked), llm("prompt", *asked)
    (row,) = json.loads(llm("logs", "--json", "-n", "1"))
    print(json.dumps({"text": plain, "streamed": [streamed], "kept": row["response"]}))
