"""Eight clients at once for ten minutes: chat, completions, embeddings, pictures, streams that are cut off.

    python benchmarks/soak.py                                       the starter models
    python benchmarks/soak.py --writer models/smollm2 --seconds 60

Every answer is compared with what the same request gave alone. It fails on a wrong answer, on any 5xx, and where resident memory
still grows in the second half.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

CLIENTS, SECONDS = 8, 600.0
MOST_GROWTH = 1.05  # of resident memory, from half time to the end
Json = dict[str, Any]


@dataclasses.dataclass
class Soak:
    """What happened."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)  # 5xx
    memory: list[float] = dataclasses.field(default_factory=list)  # bytes: at the start, at half time, at the end

    @property
    def growth(self) -> float:
        return self.memory[-1] / self.memory[-2]

    def __str__(self) -> str:
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        sizes = " -> ".join(f"{m / 2**20:.0f}" for m in self.memory)
        return f"{done}; {len(self.wrong)} wrong, {len(self.failed)} 5xx; {sizes} MiB"


def _chat(i: int) -> tuple[str, Json]:
    words = ["frog", "apple", "house", "boat", "cat", "tree"]
    said = [{"role": "user", "content": f"{words[i % 6]} and {words[i // 6 % 6]}"}]
    return "chat/completions", {
        "model": "writer", "messages": said, "max_tokens": 4 + i % 20, "temperature": i % 3 / 2, "seed": i,
    }  # fmt: skip


def _completion(i: int) -> tuple[str, Json]:
    return "completions", {
        "model": "writer",
        "prompt": "a red " * (1 + i % 4),
        "max_tokens": 8,
        "seed": i,
        "n": 1 + i % 2,
    }


def _embedding(i: int) -> tuple[str, Json]:
    return "embeddings", {"model": "embedder", "input": [f"number {i}", "a frog"]}


def _picture(i: int) -> tuple[str, Json]:
    return "images/generations", {
        "model": "pictures",
        "prompt": f"a house {i}",
        "response_format": "b64_json",
        "seed": i,
        "steps": 2,
    }


KINDS: dict[str, tuple[Callable[[int], tuple[str, Json]], int, float]] = {  # request, how many there are, its share
    "chat": (_chat, 12, 0.4),
    "completion": (_completion, 8, 0.2),
    "embedding": (_embedding, 8, 0.2),
    "picture": (_picture, 2, 0.02),
}
ABORTED = 0.18  # of all requests: a stream that is closed after its first pieces


def substance(answer: Json) -> Any:
    """An answer without what is new every time."""
    return {k: v for k, v in answer.items() if k not in ("id", "created")}


def soak(url: str, seconds: float, clients: int = CLIENTS, kinds: tuple[str, ...] = tuple(KINDS)) -> Soak:
    found, lock = Soak(), threading.Lock()
    expected: dict[tuple[str, int], Any] = {}
    with httpx.Client(base_url=f"{url}/v1/", timeout=300) as alone:
        for kind in kinds:
            for i in range(KINDS[kind][1]):
                path, body = KINDS[kind][0](i)
                answer = alone.post(path, json=body)
                assert answer.status_code == 200, f"{kind} alone: {answer.status_code} {answer.text[:300]}"
                expected[kind, i] = substance(answer.json())
    found.memory.append(_resident(url))
    started = time.monotonic()

    def client(number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(base_url=f"{url}/v1/", timeout=300) as http:
            while time.monotonic() - started < seconds:
                if draw.random() < ABORTED:
                    with http.stream(
                        "POST", "chat/completions", json={**_chat(draw.randrange(12))[1], "stream": True}
                    ) as s:
                        next(s.iter_bytes(), None)
                    kind, answer, right = "aborted", None, True
                else:
                    kind = draw.choices(kinds, [KINDS[k][2] for k in kinds])[0]
                    i = draw.randrange(KINDS[kind][1])
                    answer = http.post(KINDS[kind][0](i)[0], json=KINDS[kind][0](i)[1])
                    full = answer.status_code == 429  # the queue says so: not wrong
                    right = full or (answer.status_code == 200 and substance(answer.json()) == expected[kind, i])
                    kind = "refused" if full else kind
                with lock:
                    found.counts[kind] += 1
                    if answer is not None and answer.status_code >= 500:
                        found.failed.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
                    elif not right and answer is not None:
                        found.wrong.append(f"{kind} {i}: {answer.text[:400]}, alone {expected[kind, i]}"[:800])

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    found.memory.append(_resident(url))
    for thread in threads:
        thread.join()
    found.memory.append(_resident(url))
    return found


def _resident(url: str) -> float:
    words = re.search(r"^process_resident_memory_bytes (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert words is not None
    return float(words[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--writer", help="a text model folder; the starter's by default")
    parser.add_argument("--port", type=int, default=8499)
    asked = parser.parse_args()
    url = f"http://127.0.0.1:{asked.port}"
    more = ["--writer", asked.writer] if asked.writer else []
    server = subprocess.Popen([sys.executable, "-m", "opsmith", "serve", "--port", str(asked.port), *more])
    try:
        for _ in range(600):
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        found = soak(url, asked.seconds, asked.clients)
    finally:
        server.terminate()
        server.wait(30)
    print(found)
    for line in [*found.wrong[:5], *found.failed[:5]]:
        print(f"  {line}")
    return int(bool(found.wrong or found.failed) or found.growth > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
