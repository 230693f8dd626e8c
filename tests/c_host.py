"""examples/c_host.c, built and run by the tests of all that programs without Python do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).parent.parent / "examples" / "c_host.c"
TYPES = {np.dtype(np.float32): "f32", np.dtype(np.int64): "i64"}


def build(program: Path, *compiler: str) -> Path:
    libraries = [] if program.suffix == ".exe" else ["-ldl"]
    subprocess.run([*(compiler or ("cc",)), "-Wall", "-Werror", EXAMPLE, "-o", program, *libraries], check=True)
    return program


def run(
    host: Sequence[str | Path],
    runtime: Path,
    library: Path,
    model: Path,
    feed: Mapping[str, np.ndarray],
    folder: Path,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """HOST is the program, behind an emulator where one is needed. Outputs go into FOLDER, what the kernels count into `calls`."""
    arguments = []
    for name, array in feed.items():
        array.tofile(folder / f"{name}.bin")
        arguments.append(f"{name}={TYPES[array.dtype]}:{'x'.join(map(str, array.shape))}:{name}.bin")
    (folder / "calls").unlink(missing_ok=True)
    own = {"PATH": os.environ["PATH"], "OPSMITH_PROFILE": "1", "OPSMITH_PROFILE_FILE": "calls"}
    command = [*host, runtime, library, model, *arguments]
    return subprocess.run(
        list(map(str, command)), cwd=folder, env=own | environment, capture_output=True, text=True, check=False
    )


def compiled_code_ran(folder: Path) -> bool:
    return '"region":"region0"' in (folder / "calls").read_text()
