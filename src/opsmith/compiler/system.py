"""The systems that libraries are built for: Linux, Windows, macOS, each with what its libraries are called and how zig names it."""

from __future__ import annotations

import dataclasses
import platform
import re

from opsmith.errors import OpsmithError, no_such

NAMES = ("linux", "windows", "macos")


@dataclasses.dataclass(frozen=True)
class System:
    name: str  # of NAMES
    architecture: str  # x86_64 or aarch64
    glibc: str | None = None  # the oldest that the library is to run on; None: that of the compiler

    @property
    def runs_here(self) -> bool:
        return dataclasses.replace(self, glibc=None) == here()

    @property
    def triple(self) -> str:
        """The system as zig names it."""
        abi = {"linux": f"linux-gnu{f'.{self.glibc}' if self.glibc else ''}", "windows": "windows-gnu"}
        return f"{self.architecture}-{abi.get(self.name, self.name)}"

    def library(self, name: str) -> str:
        """The file name of a library."""
        return {"windows": f"{name}.dll", "macos": f"lib{name}.dylib"}.get(self.name, f"lib{name}.so")

    def __str__(self) -> str:
        return f"{self.name} on {self.architecture}" + (f" with glibc {self.glibc}" if self.glibc else "")


def here() -> System:
    names = {"Windows": "windows", "Darwin": "macos"}
    architecture = platform.machine().lower()
    return System(
        names.get(platform.system(), "linux"), {"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture)
    )


def find_system(name: str | None, glibc: str | None, architectures: set[str]) -> System:
    """The system to build for; what is None is as on this machine."""
    if name is not None and name not in NAMES:
        raise no_such("system", name, NAMES, " to compile for")
    if len(architectures) > 1:
        raise OpsmithError(
            f"one library cannot hold code for {' and '.join(sorted(architectures))}",
            "compile for one architecture at a time",
        )
    chosen = System(name or here().name, architectures.pop(), glibc)
    if glibc is not None and (chosen.name != "linux" or not re.fullmatch(r"2\.\d{1,2}", glibc)):
        raise OpsmithError(f"--glibc {glibc} is not a version of Linux's C library", "an example: --glibc 2.17")
    if chosen.name == "windows" and chosen.architecture != "x86_64":
        raise OpsmithError("Windows is built for on x86-64 only", "name a CPU such as x86-64-v3")
    return chosen
