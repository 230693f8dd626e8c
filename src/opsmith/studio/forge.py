"""The forge: parts are compiled one after the other, with an estimate of the time before and on the way.

    seconds of a part = its nodes x seconds per node

Seconds per node are those of what was compiled on this machine before; before anything was, those of a reference machine,
times how much longer this one's compiler takes for a small program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import onnx

from opsmith import store
from opsmith.compiler.build import find_compiler
from opsmith.errors import OpsmithError
from opsmith.studio.verbs import run_opsmith

# The reference: two cores of an AMD EPYC, g++ 12.
SECONDS_PER_NODE, PROBE_SECONDS = 0.08, 0.6
PROBE = """
#include <algorithm>
#include <map>
#include <string>
#include <vector>
int main(int count, char **words) {
  std::map<std::string, std::vector<double>> found;
  for (int i = 0; i < count; ++i) found[words[i]].push_back(i);
  for (auto &row : found) std::sort(row.second.begin(), row.second.end());
  return int(found.size());
}
"""
ALMOST = 0.95  # of a part that takes longer than estimated


@dataclasses.dataclass(frozen=True)
class Part:
    """A model folder that is to get a compiled variant."""

    name: str
    original: store.Variant


@dataclasses.dataclass(frozen=True)
class Progress:
    share: float  # 0 to 1
    seconds_left: float
    note: str


Tell = Callable[[Progress], None]  # it raises to stop


class Forge:
    def __init__(self, file: Path) -> None:
        self.file = file
        self._nodes: dict[Path, int] = {}
        self._rate: float | None = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            self._rate = float(json.loads(file.read_text(encoding="utf-8"))["seconds_per_node"])

    def estimate(self, parts: Sequence[Part]) -> float | None:
        """Seconds; None before this machine was probed."""
        return None if self._rate is None else self._rate * sum(self._size(part) for part in parts)

    def probe(self) -> None:
        """How fast this machine's compiler is, unless that is known already."""
        if self._rate is not None:
            return
        with tempfile.TemporaryDirectory(prefix="opsmith-probe-") as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text(PROBE, encoding="utf-8")
            command = [*find_compiler().command, "-O2", "-c", str(source), "-o", str(source.with_suffix(".o"))]
            started = time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=False)
            seconds = time.perf_counter() - started
        if done.returncode == 0:
            self._keep(SECONDS_PER_NODE * seconds / PROBE_SECONDS)

    def compile(
        self,
        parts: Sequence[Part],
        precision: str,
        tell: Tell,
        stopped: Callable[[], bool],
        needed: Collection[str] = (),
    ) -> list[str]:
        """Each by a process of its own. Returns remarks on those that could not be; what is NEEDED raises."""
        self.probe()
        expected = [self._rate * self._size(part) if self._rate else 1.0 for part in parts]
        spent, nodes, remarks = 0.0, 0, []
        for i, part in enumerate(parts):
            note = f"compiling {part.name.replace('_', ' ')}, {i + 1} of {len(parts)}"
            watch = _Watch(tell, stopped, note, expected, i)
            try:
                self._compile(part, precision, watch)
            except OpsmithError as error:
                if stopped() or part.name in needed:
                    raise
                remarks.append(f"{part.name} stays as it is: {error}")
                continue
            spent, nodes = spent + time.monotonic() - watch.started, nodes + self._size(part)
        if nodes:
            self._keep(spent / nodes)
        return remarks

    @staticmethod
    def _compile(part: Part, precision: str, watch: _Watch) -> None:
        suffix = "compiled" if precision == "fp32" else f"compiled_{precision}"
        dest = part.original.folder.with_name(f"{part.original.name}_{suffix}")
        run_opsmith(["compile", str(part.original.folder), str(dest), "--precision", precision], watch)

    def _size(self, part: Part) -> int:
        path = part.original.path
        if path not in self._nodes:
            self._nodes[path] = len(onnx.load(path, load_external_data=False).graph.node)
        return self._nodes[path]

    def _keep(self, rate: float) -> None:
        self._rate = rate
        with contextlib.suppress(OSError):
            partial = self.file.with_name(f".{self.file.name}.{os.getpid()}.tmp")
            partial.write_text(json.dumps({"seconds_per_node": rate}), encoding="utf-8")
            partial.replace(self.file)


class _Watch:
    """Asked while a part is compiled: moves the bar by the time that went by, and says whether to stop."""

    def __init__(
        self, tell: Tell, stopped: Callable[[], bool], note: str, expected: Sequence[float], index: int
    ) -> None:
        self.tell, self.stopped, self.note = tell, stopped, note
        self.before, self.now = sum(expected[:index]), expected[index]
        self.after = sum(expected[index + 1 :])
        self.started = time.monotonic()
        self()

    def __call__(self) -> bool:
        spent = min(time.monotonic() - self.started, ALMOST * self.now)
        whole = self.before + self.now + self.after
        self.tell(Progress((self.before + spent) / whole, self.now - spent + self.after, self.note))
        return self.stopped()
