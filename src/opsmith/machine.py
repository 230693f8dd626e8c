"""What this machine is: CPU, features, cores, memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import platform
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def cpu_name() -> str:
    info = _cpuinfo()
    return info.get("model name") or info.get("CPU part") or platform.processor() or platform.machine()


def cpu_model() -> str:
    """The name with family, model and stepping: clouds give many CPUs one name."""
    info = _cpuinfo()
    numbers = [info[k] for k in ("cpu family", "model", "stepping", "CPU variant", "CPU revision") if k in info]
    return f"{cpu_name()} ({'/'.join(numbers)})" if numbers else cpu_name()


# The features that the kernels use, as /proc/cpuinfo spells them. A compiled library needs those of the
# machine it was built on.
_USED = """
    avx avx2 fma f16c bmi1 bmi2 avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 amx_tile amx_bf16
    amx_int8 asimd asimdhp asimddp bf16
""".split()


@functools.cache
def cpu_features() -> frozenset[str]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    if "amx_tile" in flags and not _gives_tiles():
        flags = {f for f in flags if not f.startswith("amx_")}
    return frozenset(f for f in _USED if f in flags)


def _gives_tiles() -> bool:
    """Linux gives the registers of AMX to processes that ask, unless it is old or a sandbox forbids it: kernels/simd_amx.hpp."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    try:
        return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)
    except (OSError, AttributeError):
        return False


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def peak_memory() -> int:
    """The most that this process held so far, in bytes; mapped files that were read count."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def only_memory_that_is_there() -> Iterator[None]:
    """An allocation beyond the memory that is free now fails, as an exception with a clear line, where Linux would grant it
    and kill the process once it is used. Memory-mapped files do not count. For commands: the limit is the whole process's."""
    lines = _meminfo("/proc/meminfo"), _meminfo("/proc/self/status")
    free, own = (found.get(key) for found, key in zip(lines, ("MemAvailable", "VmData")))
    if free is None or own is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [own + free * 9 // 10]  # others live here, too
    if before[0] != resource.RLIM_INFINITY:
        limits.append(before[0])
    with contextlib.suppress(OSError, ValueError):  # "max", or no such file: no container, or one without a limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _meminfo(file: str) -> dict[str, int]:
    """The lines of a file that count kB, in bytes."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {key: 1024 * int(value.split()[0]) for key, value in pairs}


def release_memory() -> None:
    """Give back to the system what is not used any more: graphs that refer to themselves and hold their weights, and memory that
    glibc would keep for the next allocation."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
