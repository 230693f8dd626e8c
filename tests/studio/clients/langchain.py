"""LangChain's ChatOpenAI and OpenAIEmbeddings: what they get from the server at sys.argv[1], as JSON."""

import json
import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url = sys.argv[1]
model = ChatOpenAI(base_url=url, api_key="none", model="writer", temperature=0, max_retries=0)
plain = model.invoke("frog")
embedder = OpenAIEmbeddings(base_url=url, api_key="none", model="embedder", check_embedding_ctx_length=False)
try:
    model.bind_tools([{"type": "function", "function": {"name": "now", "parameters": {}}}]).invoke("frog")
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
print(
    json.dumps(
        {
            "text": plain.content,
            "tokens": plain.usage_metadata["total_tokens"],
            "streamed": [chunk.content for chunk in model.stream("frog")],
            "batch": [answer.content for answer in model.batch(["frog", "frog"])],
            "vectors": embedder.embed_documents(["a frog", "a castle"]),
            "refused": refused,
        }
    )
)
