"""LlamaIndex's OpenAILike, for chat and for completions: what it gets from the server at sys.argv[1], as JSON."""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model="writer", api_base=sys.argv[1], api_key="none", is_chat_model=True, temperature=0, max_retries=0
)
messages = [ChatMessage(role="user", content="frog")]
plain = model.chat(messages)
continued = OpenAILike(model="writer", api_base=sys.argv[1], api_key="none", temperature=0, max_tokens=8)
print(
    json.dumps(
        {
            "text": plain.message.content,
            "tokens": plain.raw.usage.total_tokens,
            "streamed": [chunk.delta for chunk in model.stream_chat(messages)],
            "completed": model.complete("frog").text,
            "continued": continued.complete("frog:").text,
        }
    )
)
