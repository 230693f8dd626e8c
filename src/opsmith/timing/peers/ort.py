"""ONNX Runtime through `opsmith.load`: plain, rewritten and compiled variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsmith import session


class OnnxRuntime:
    def __init__(self, path: Path, threads: int, settings: dict[str, Any]) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        config = {}
        if settings.get("optimized"):
            options.optimized_model_filepath = settings["optimized"]
            # Beyond 2 GB the weights must not be in the file itself.
            config = {
                "session.optimized_model_external_initializers_file_name": "optimized.weights",
                "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
            }
        self._session = session.load(
            path,
            threads=threads,
            options=options,
            config=config,
            profile_prefix=settings.get("profile"),
            provider=Path(settings["provider"]) if settings.get("provider") else None,
        )
        if settings.get("device") == "cuda":
            self._session.set_providers(["CUDAExecutionProvider", "CPUExecutionProvider"])
        self._names = [o.name for o in self._session.get_outputs()]
        # bfloat16 and float8 do not pass through numpy; everything else goes the shortest way.
        kinds = {value.type for value in (*self._session.get_inputs(), *self._session.get_outputs())}
        self._direct = not any("bfloat16" in kind or "float8" in kind for kind in kinds)

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def run(self, feed: dict[str, Any]) -> list[Any]:
        return list(self._session.run(None, feed)) if self._direct else session.run(self._session, feed)

    def outputs(self, raw: list[Any]) -> dict[str, Any]:
        return dict(zip(self._names, raw))

    def end_profiling(self) -> str:
        return str(self._session.end_profiling())
