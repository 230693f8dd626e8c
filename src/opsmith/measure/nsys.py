"""GPU kernel times by NVTX range, through NVIDIA's `nsys`, for `profile --device cuda`.

The model runs in a process under `nsys profile`, every run inside an NVTX range; `nsys stats` then says which kernels
ran in which range. Where ONNX Runtime was built with NVTX, its own ranges per node are among them.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import ctypes.util
import dataclasses
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opsmith.errors import OpsmithError

RANGE = "opsmith run"


@dataclasses.dataclass(frozen=True)
class GpuKernel:
    range: str
    kernel: str
    count: int  # over all runs
    us: float  # total, over all runs


def available() -> bool:
    return shutil.which("nsys") is not None


def kernel_times(order: Mapping[str, Any], runs: int, folder: Path) -> list[GpuKernel]:
    """Run the model RUNS times under nsys and read its kernels, the slowest first."""
    trace = folder / "gpu"
    target = [sys.executable, "-m", __name__, json.dumps({**order, "runs": runs})]
    _call(["nsys", "profile", "--trace=cuda,nvtx", "--force-overwrite=true", "-o", str(trace), *target])
    text = _call(["nsys", "stats", "--report", "nvtx_kern_sum", "--format", "csv", f"{trace}.nsys-rep"])
    return parse(text)


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no message"]
        raise OpsmithError(f"{command[0]} {command[1]} failed: {last[0]}")
    return done.stdout


def parse(text: str) -> list[GpuKernel]:
    """The table of `nsys stats --report nvtx_kern_sum --format csv`; lines before its head are progress messages."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("NVTX Range") or '"NVTX Range"' in line), None)
    if start is None:
        raise OpsmithError("nsys wrote no table of kernels by NVTX range")
    kernels = []
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name, total = row.get("Kernel Name"), row.get("Total Time (ns)")
        if name and total:
            count = int(row.get("Kern Inst") or 0)
            kernels.append(GpuKernel((row["NVTX Range"] or "").lstrip(":"), name, count, float(total) / 1e3))
    return sorted(kernels, key=lambda k: -k.us)


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """An NVTX range, where the library is installed; nothing elsewhere."""
    path = ctypes.util.find_library("nvToolsExt")
    library = ctypes.CDLL(path) if path else None
    if library is not None:
        library.nvtxRangePushA(name.encode())
    try:
        yield
    finally:
        if library is not None:
            library.nvtxRangePop()


def main() -> None:
    """The process that nsys watches."""
    from opsmith import store
    from opsmith.timing.peers.ort import OnnxRuntime

    order = json.loads(sys.argv[1])
    data = store.read_test_data(Path(order["inputs"]) / "model.onnx")[0]
    model = OnnxRuntime(Path(order["model"]), int(order["threads"]), {"device": "cuda"})
    for _ in range(3):
        model.run(data.inputs)
    for _ in range(int(order["runs"])):
        with nvtx_range(RANGE):
            model.run(data.inputs)


if __name__ == "__main__":
    main()
