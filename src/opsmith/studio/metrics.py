"""What the server did so far, as Prometheus reads it: counters that only grow, and how things are now."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from opsmith.pipelines.text import Speed
from opsmith.timing.worker import memory

_WHAT = {
    "opsmith_jobs": "Jobs that run or wait, by worker.",
    "opsmith_prompt_tokens_total": "Tokens of prompts that were read.",
    "opsmith_prompt_seconds_total": "Seconds spent on reading them.",
    "opsmith_decode_tokens_total": "Tokens that were written.",
    "opsmith_decode_seconds_total": "Seconds spent on writing them.",
    "opsmith_decode_steps_total": "Passes through the text model for them; several texts share one.",
    "opsmith_embedded_tokens_total": "Tokens of texts that were embedded.",
    "opsmith_picture_steps_total": "Denoising steps.",
    "opsmith_picture_seconds_total": "Seconds spent on them.",
    "process_resident_memory_bytes": "Resident memory.",
    "process_peak_resident_memory_bytes": "The most there was of it.",
}


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {name: 0.0 for name in _WHAT if name.endswith("_total")}

    def wrote(self, speed: Speed) -> None:
        self._add(
            prompt_tokens=speed.prompt_tokens,
            prompt_seconds=speed.prompt_seconds,
            decode_tokens=speed.decode_tokens,
            decode_seconds=speed.decode_seconds,
            decode_steps=speed.decode_steps,
        )

    def embedded(self, tokens: int) -> None:
        self._add(embedded_tokens=tokens)

    def painted(self, step_seconds: Sequence[float]) -> None:
        self._add(picture_steps=len(step_seconds), picture_seconds=sum(step_seconds))

    def _add(self, **more: float) -> None:
        with self._lock:
            for name, number in more.items():
                self._counts[f"opsmith_{name}_total"] += number

    def text(self, busy: Mapping[str, int]) -> str:
        """BUSY: jobs by worker."""
        with self._lock:
            rows: dict[str, dict[str, float]] = {name: {"": count} for name, count in self._counts.items()}
        rows["opsmith_jobs"] = {f'{{worker="{name}"}}': count for name, count in busy.items()}
        rows["process_resident_memory_bytes"] = {"": memory("VmRSS")}
        rows["process_peak_resident_memory_bytes"] = {"": memory("VmHWM")}
        lines = []
        for name, what in _WHAT.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value:.17g}" for label, value in rows[name].items()]
        return "\n".join(lines) + "\n"
