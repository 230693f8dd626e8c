"""LiteLLM's completion and embedding: what they get from the server at sys.argv[1], as JSON."""

import json
import sys

sys.path.pop(0)  # this file has the package's name
import litellm

where = {"api_base": sys.argv[1], "api_key": "none"}
asked = {"model": "openai/writer", "messages": [{"role": "user", "content": "frog"}], "temperature": 0, **where}
plain = litellm.completion(**asked)
vectors = litellm.embedding(model="openai/embedder", input=["a frog", "a castle"], **where)
try:
    litellm.completion(**{**asked, "model": "openai/gpt-9"}, num_retries=0)
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
print(
    json.dumps(
        {
            "text": plain.choices[0].message.content,
            "tokens": plain.usage.total_tokens,
            "streamed": [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)],
            "vectors": [row["embedding"] for row in vectors.data],
            "refused": refused,
        }
    )
)
