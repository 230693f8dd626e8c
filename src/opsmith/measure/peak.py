"""What this machine can do at most: fused multiply-adds per second, in fp32, bf16 and int8, and bytes per second.

A small C++ program is compiled for this CPU and run once with one thread and once with all of them; the result is
kept in the user's cache folder. `bench`, `profile` and `report` state speeds as shares of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from pathlib import Path

from opsmith import machine, settings
from opsmith.compiler.build import KERNELS, find_compiler
from opsmith.compiler.geometry import native
from opsmith.errors import OpsmithError
from opsmith.timing import contention

_FORMAT = 4  # raise it when the probe changes, so that old results are measured again

# Chains of independent multiply-adds in registers (compute), then sums and triads over buffers far larger than the
# caches (memory). Every figure is the best of several passes: neighbours only ever make a pass slower.
_PROBE = r"""
#include "gemm_tiles.hpp"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef float vec __attribute__((vector_size(LANES * 4)));
constexpr int CHAINS = 12, PASSES = 40, MEMORY_PASSES = 8;

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

struct Job {
  pthread_barrier_t* barrier;
  long steps;               // multiply-adds per chain
  size_t floats;            // of each buffer
  float *a, *b, *c;
  double seconds[5];        // best of: compute, read, triad, compute in int8, compute in bf16
  float keep;
};

static float compute(long steps) {
  vec acc[CHAINS], x = {}, y = {};
  for (int i = 0; i < LANES; ++i) x[i] = 0.999f, y[i] = 1e-3f;
  for (int i = 0; i < CHAINS; ++i) acc[i] = x + (float)i;
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; ++i) acc[i] = acc[i] * x + y;
  }
  vec sum = acc[0];
  for (int i = 1; i < CHAINS; ++i) sum += acc[i];
  return sum[0];
}

// Or the compiler finds that all chains are the same.
template <class V>
static inline __attribute__((always_inline)) void hold(V& x) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(x));
#else
  asm volatile("" : "+w"(x));
#endif
}

// As many products in tiles as `steps` are on vectors: four independent sums of 16 x 16, each of 16 words of bf16 or of bytes.
template <class T, class Number>
static float compute_tiles(long steps) {
  steps = steps * CHAINS * LANES / (4 * 16 * 16 * 16);
  alignas(64) static const uint8_t zeros[T::rows * T::row_bytes] = {};
  const opsmith::TilesInUse tiles;
  T::template zero<0>(), T::template zero<1>(), T::template zero<2>(), T::template zero<3>();
  T::template load<4>(zeros, T::row_bytes), T::template load<5>(zeros, T::row_bytes);
  for (long s = 0; s < steps; ++s) {
    T::template multiply<0, 4, 5>(Number{}), T::template multiply<1, 4, 5>(Number{});
    T::template multiply<2, 4, 5>(Number{}), T::template multiply<3, 4, 5>(Number{});
  }
  return 0;
}

static float compute_bf16(long steps) {
  using namespace opsmith;
  if constexpr (Tiles::exist)
    if (has_tiles) return compute_tiles<Tiles, bf16>(steps);
  F acc[CHAINS] = {};
  const I words = narrow_pairs(splat(0.999f), splat(1e-3f));
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; ++i) {
      acc[i] = PairDot::add_products(acc[i], words, words);
      hold(acc[i]);
    }
  }
  F sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < CHAINS; ++i) sum += acc[i];
  return sum[0];
}

static float compute_int8(long steps) {
  using namespace opsmith;
  if constexpr (Tiles::exist)
    if (has_tiles) return compute_tiles<Tiles, uint8_t>(steps);
  I acc[CHAINS] = {};
  const ByteDot::Value x = ByteDot::value(splat(0x01020304));
  const ByteDot::Columns b = ByteDot::columns(splat(0x01020304));
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; ++i) {
      acc[i] = ByteDot::add_products(acc[i], x, b);
      hold(acc[i]);
    }
  }
  I sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < CHAINS; ++i) sum += acc[i];
  return (float)sum[0];
}

static float read_all(const float* a, size_t n) {
  vec sum[8] = {};
  for (size_t i = 0; i + 8 * LANES <= n; i += 8 * LANES)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] += *(const vec*)(a + i + j * LANES);
  vec total = sum[0];
  for (int j = 1; j < 8; ++j) total += sum[j];
  return total[0];
}

static void triad(float* a, const float* b, const float* c, size_t n) {
  for (size_t i = 0; i + LANES <= n; i += LANES) *(vec*)(a + i) = *(const vec*)(b + i) + *(const vec*)(c + i) * 3.0f;
}

static void* work(void* argument) {
  Job* job = (Job*)argument;
  size_t bytes = job->floats * sizeof(float);
  float* buffers[3];
  for (int i = 0; i < 3; ++i) {
    if (posix_memalign((void**)&buffers[i], 4096, bytes)) exit(1);
    for (size_t k = 0; k < job->floats; ++k) buffers[i][k] = (float)(k % 7);
  }
  for (int what = 0; what < (opsmith::PairDot::fast ? 5 : 4); ++what) {
    job->seconds[what] = 1e30;
    for (int pass = 0; pass < (what == 1 || what == 2 ? MEMORY_PASSES : PASSES); ++pass) {
      pthread_barrier_wait(job->barrier);
      double start = now();
      if (what == 0) job->keep += compute(job->steps);
      if constexpr (opsmith::PairDot::fast)
        if (what == 4) job->keep += compute_bf16(job->steps);
      if (what == 3) job->keep += compute_int8(job->steps);
      if (what == 1) job->keep += read_all(buffers[0], job->floats);
      if (what == 2) triad(buffers[0], buffers[1], buffers[2], job->floats), job->keep += buffers[0][pass];
      pthread_barrier_wait(job->barrier);  // everyone's time is that of the slowest thread
      double seconds = now() - start;
      if (seconds < job->seconds[what]) job->seconds[what] = seconds;
    }
  }
  for (float* buffer : buffers) free(buffer);
  return nullptr;
}

int main(int count, char** arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 1;
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, threads);
  Job* jobs = (Job*)calloc(threads, sizeof(Job));
  pthread_t* ids = (pthread_t*)calloc(threads, sizeof(pthread_t));
  long steps = 3000000;  // about 10 ms
  size_t floats = ((size_t)192 << 20) / sizeof(float) / threads / 16 * 16;
  for (int t = 0; t < threads; ++t) {
    jobs[t].barrier = &barrier, jobs[t].steps = steps, jobs[t].floats = floats;
    pthread_create(&ids[t], nullptr, work, &jobs[t]);
  }
  for (int t = 0; t < threads; ++t) pthread_join(ids[t], nullptr);
  double flops = 2.0 * LANES * CHAINS * (double)steps * threads, bytes = 4.0 * floats * threads;
  double bf16 = opsmith::PairDot::fast ? 2 * flops / jobs[0].seconds[4] : 0;
  printf("{\"flops\": %.6g, \"read\": %.6g, \"triad\": %.6g, \"bf16\": %.6g, \"int8\": %.6g, \"keep\": %g}\n", flops / jobs[0].seconds[0],
         bytes / jobs[0].seconds[1], 3 * bytes / jobs[0].seconds[2], bf16, 4 * flops / jobs[0].seconds[3], jobs[0].keep);
}
"""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Floating-point operations and bytes per second that `threads` threads reach together."""

    threads: int
    flops: float
    read: float
    triad: float
    bf16: float = 0.0  # as flops, of products in bf16; 0 where the CPU has none
    int8: float = 0.0  # as flops, of products of bytes

    def arithmetic(self, precision: str) -> float:
        """The peak of products in this precision."""
        return {"bf16": self.bf16, "int8": self.int8}.get(precision, 0.0) or self.flops

    @property
    def bandwidth(self) -> float:
        return max(self.read, self.triad)


@dataclasses.dataclass(frozen=True)
class Peak:
    cpu: str
    limits: dict[int, Limits]
    others: float  # cores that other processes kept busy meanwhile: above a few per cent the peak is too low

    def at(self, threads: int) -> Limits:
        """The measured limits, or the ones of the nearest measured count scaled by the number of threads."""
        if threads in self.limits:
            return self.limits[threads]
        nearest = self.limits[min(self.limits, key=lambda n: abs(n - threads))]
        scale = threads / nearest.threads
        # Memory does not scale with threads beyond what all cores reached.
        memory = min(scale, 1.0)
        arithmetic = {"bf16": nearest.bf16 * scale, "int8": nearest.int8 * scale}
        return Limits(threads, nearest.flops * scale, nearest.read * memory, nearest.triad * memory, **arithmetic)


def cache_file() -> Path:
    return settings.get().cache / "machine" / "peak.json"


def cached() -> Peak | None:
    """The limits measured earlier on this CPU, if any."""
    try:
        data = json.loads(cache_file().read_text(encoding="utf-8"))
        if data["format"] != _FORMAT or data["cpu"] != machine.cpu_name() or data["cores"] != machine.cores():
            return None
        return Peak(data["cpu"], {e["threads"]: Limits(**e) for e in data["limits"]}, float(data["others"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure() -> Peak:
    """Compile and run the probe, and keep the best that was ever measured: neighbours only make it slower."""
    old = cached()
    counts = sorted({1, machine.cores()})
    with tempfile.TemporaryDirectory(prefix="opsmith-peak-") as folder:
        program = _build(Path(folder))
        before, before_probe = contention.read(), _children_seconds()
        limits = [_best(old, Limits(threads=n, **_run(program, n))) for n in counts]
        use = contention.between(before, contention.read())
        others = max(0.0, use.others - (_children_seconds() - before_probe)) / use.wall
    others = min(others, old.others) if old else others
    peak = Peak(machine.cpu_name(), {entry.threads: entry for entry in limits}, round(others, 3))
    data = {"format": _FORMAT, "cpu": peak.cpu, "cores": machine.cores(), "others": peak.others}
    file = settings.cache_folder("machine") / cache_file().name
    text = json.dumps({**data, "limits": [dataclasses.asdict(entry) for entry in limits]}, indent=2)
    file.write_text(text + "\n", encoding="utf-8")
    return peak


def _best(old: Peak | None, new: Limits) -> Limits:
    before = old.limits.get(new.threads) if old else None
    if before is None:
        return new
    figures = dataclasses.asdict(new)
    return Limits(**{name: max(value, getattr(before, name)) for name, value in figures.items()})


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _build(folder: Path) -> Path:
    source, program = folder / "peak.cpp", folder / "peak"
    source.write_text(_PROBE, encoding="utf-8")
    tool = find_compiler()
    flags = ["-x", "c++", "-std=c++20", "-O3", "-march=native", "-pthread", f"-DLANES={native().lanes}"]
    flags += ["-Wno-psabi", f"-I{KERNELS}"]
    # No part of the C++ library is used; linking zig's would take minutes the first time.
    flags += ["-nostdlib++"] if "ziglang" in tool.command else []
    command = [*tool.command, *flags, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise OpsmithError(f"the probe of the machine's peak did not compile: {last[0]}")
    return program


def _run(program: Path, threads: int) -> dict[str, float]:
    done = subprocess.run([str(program), str(threads)], capture_output=True, text=True)
    if done.returncode:
        raise OpsmithError(f"the probe of the machine's peak ended with code {done.returncode}")
    found = json.loads(done.stdout)
    return {key: float(found[key]) for key in ("flops", "read", "triad", "bf16", "int8")}
