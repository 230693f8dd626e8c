"""The instruction sets that kernels are built for, one row each: what kernels/simd_<name>.hpp states, for Python.

tests/kernels/test_geometry.py compiles every row against its header.
"""

from __future__ import annotations

import dataclasses

from opsmith import machine
from opsmith.compiler.system import here
from opsmith.errors import no_such

NATIVE = "native"


@dataclasses.dataclass(frozen=True)
class InstructionSet:
    name: str
    lanes: int  # floats in a vector: W
    gemm_mr: int  # rows of the microkernel's tile
    gemm_nv: int  # vectors of columns of that tile
    attention_mr: int
    attention_nv: int
    features: frozenset[str] = frozenset()  # what the CPU must have, as machine.cpu_features spells it
    flags: tuple[str, ...] = ()  # what makes g++ build for it on any machine of its architecture
    multiplies_bf16: bool = False  # the CPU has PairDot as an instruction: activations are worth rounding for it
    multiplies_tiles: bool = False  # of bf16 and of bytes, by one instruction: no detour saves products then

    @property
    def panel_columns(self) -> int:
        """How many columns of B the GEMM microkernel takes at a time: gemm_nr."""
        return self.gemm_nv * self.lanes

    @property
    def header(self) -> str:
        return f"simd_{self.name}.hpp"

    @property
    def choice(self) -> str:
        """The flag that makes simd.hpp take its header."""
        return f'-DOPSMITH_SIMD_HEADER="{self.header}"'

    def padded(self, columns: int) -> int:
        """Columns, filled up to whole vectors."""
        return -(-columns // self.lanes) * self.lanes


_X86_64_V3 = frozenset({"avx2", "fma", "f16c"})
AVX512 = InstructionSet("avx512", 16, 8, 3, 8, 3, _X86_64_V3 | {"avx512f"}, ("-mavx512f", "-mavx2", "-mfma", "-mf16c"))
AVX2 = InstructionSet("avx2", 8, 6, 2, 6, 2, _X86_64_V3, ("-mavx2", "-mfma", "-mf16c"))
NEON = InstructionSet("neon", 4, 8, 3, 8, 3, frozenset({"asimd"}))
GENERIC = InstructionSet("generic", 4, 4, 3, 4, 2)
SCALAR = InstructionSet("scalar", 1, 4, 3, 4, 2)

_BF16 = {AVX512: frozenset({"avx512_bf16", "avx512bw"}), NEON: frozenset({"bf16"})}
_TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
SETS = {s.name: s for s in (AVX512, AVX2, NEON, GENERIC, SCALAR)}  # the best first


# CPUs that can be built for on another one, by the name that users write. The levels are those of the x86-64 psABI.
_V3 = _X86_64_V3 | {"avx", "bmi1", "bmi2"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
CPUS = {
    "x86-64-v3": dataclasses.replace(AVX2, features=_V3, flags=("-march=x86-64-v3",)),
    "x86-64-v4": dataclasses.replace(AVX512, features=_V4, flags=("-march=x86-64-v4",)),
    "zen4": dataclasses.replace(
        AVX512,
        features=_V4 | {"avx512_vnni", "avx512_bf16"},
        flags=("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),  # -march=znver4 is newer than g++ 12
        multiplies_bf16=True,
    ),
    "sapphirerapids": dataclasses.replace(
        AVX512,
        features=_V4 | {"avx512_vnni", "avx512_bf16"} | _TILES,
        flags=("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        multiplies_bf16=True,
        multiplies_tiles=True,
    ),
    "aarch64": dataclasses.replace(NEON, flags=("-mcpu=generic",)),
}


def for_cpu(name: str) -> InstructionSet:
    """What to build for: this CPU's best for `native`."""
    if name == NATIVE:
        return native()
    if name not in CPUS:
        raise no_such("CPU", name, (NATIVE, *CPUS), " to compile for")
    return CPUS[name]


def architecture(name: str) -> str:
    """Of a CPU that users can name."""
    if name == NATIVE:
        return here().architecture
    return "aarch64" if for_cpu(name).name == NEON.name else "x86_64"


def best_first(names: str) -> tuple[str, ...]:
    """CPUs, separated by commas, in the order in which a library tries them: the one that asks for most first."""
    wanted = dict.fromkeys(name.strip() for name in names.split(","))
    return tuple(sorted(wanted, key=lambda name: -len(needed(for_cpu(name)))))


def needed(isa: InstructionSet) -> frozenset[str]:
    """The CPU features that a library needs. What is built for this CPU may use all that it has."""
    return machine.cpu_features() if isa == native() else isa.features


def native() -> InstructionSet:
    """The best instruction set that this CPU has."""
    features = machine.cpu_features()
    best = next(s for s in SETS.values() if s.features <= features)
    fast = best in _BF16 and _BF16[best] <= features
    tiles = fast and features >= _TILES  # with products on vectors beside them, for systems that refuse tiles
    return dataclasses.replace(best, multiplies_bf16=True, multiplies_tiles=tiles) if fast else best
