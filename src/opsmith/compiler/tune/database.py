"""What was measured on this machine, kept in the user's cache and shared by all processes: one SQLite file.

A row is keyed by the CPU's model, the number of threads, the text of the kernels (a hash of the headers that the family
includes), and the task. A result from a higher search level replaces one from a lower level, never the other way round; at the same level
the newer one stays, so that databases can be merged in any order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opsmith import machine, settings
from opsmith.compiler.build import KERNELS
from opsmith.compiler.task import Candidate, Measured, Outcome, Task
from opsmith.errors import OpsmithError

FORMAT = "opsmith tuning 1"
_COLUMNS = ("cpu", "threads", "version", "family", "task", "level", "outcome", "measured")
_CREATE = """CREATE TABLE IF NOT EXISTS tuned (
  cpu TEXT NOT NULL, threads INTEGER NOT NULL, version TEXT NOT NULL, family TEXT NOT NULL, task TEXT NOT NULL,
  level INTEGER NOT NULL, outcome TEXT NOT NULL, measured REAL NOT NULL,
  PRIMARY KEY (cpu, threads, version, family, task))"""
_PUT = f"""INSERT INTO tuned ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
  ON CONFLICT DO UPDATE SET level = excluded.level, outcome = excluded.outcome, measured = excluded.measured
  WHERE excluded.level > tuned.level OR (excluded.level = tuned.level AND excluded.measured >= tuned.measured)"""
_SQLITE = b"SQLite format 3\0"  # how every such file begins


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of `opsmith tune --show`."""

    cpu: str
    threads: int
    version: str
    task: Task
    outcome: Outcome
    measured: float  # seconds since 1970

    @property
    def current(self) -> bool:
        """Whether a compile on this machine would use it."""
        return self.cpu == machine.cpu_model() and self.version == kernel_version(self.task.family)


class Database:
    def __init__(self, path: Path | None = None) -> None:
        self.path = path or settings.cache_folder("tuning") / "tuning.sqlite"

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # Every access opens the file anew: other processes write to it too, and 30 s is ample for their turns.
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            with connection:  # commits, or rolls back
                connection.execute(_CREATE)
                yield connection
        except sqlite3.DatabaseError as error:
            raise OpsmithError(f"{self.path}: {error}", "delete the file; tuning fills it again") from error
        finally:
            connection.close()

    def get(self, task: Task, threads: int, level: int) -> Outcome | None:
        """The outcome of a search at LEVEL or above on this CPU with the kernels as they are now."""
        query = "SELECT outcome FROM tuned WHERE cpu=? AND threads=? AND version=? AND family=? AND task=? AND level>=?"
        key = (machine.cpu_model(), threads, kernel_version(task.family), task.family, str(task), level)
        with self._open() as connection:
            row = connection.execute(query, key).fetchone()
        return None if row is None else _outcome(json.loads(row[0]))

    def put(self, task: Task, threads: int, outcome: Outcome) -> None:
        version = kernel_version(task.family)
        text = json.dumps(_plain(outcome))
        row = (machine.cpu_model(), threads, version, task.family, str(task), outcome.level, text, time.time())
        with self._open() as connection:
            connection.execute(_PUT, row)

    def rows(self) -> list[Row]:
        with self._open() as connection:
            rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM tuned ORDER BY family, task, cpu").fetchall()
        return [
            Row(cpu, threads, version, Task.parse(family, task), _outcome(json.loads(outcome)), measured)
            for cpu, threads, version, family, task, _, outcome, measured in rows
        ]

    def export(self, path: Path) -> int:
        """All rows as JSON lines; the first line names the format."""
        with self._open() as connection:
            rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM tuned ORDER BY family, task, cpu").fetchall()
        lines = [json.dumps({"format": FORMAT})]
        for row in rows:
            record = dict(zip(_COLUMNS, row))
            lines.append(json.dumps({**record, "outcome": json.loads(record["outcome"])}))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return len(rows)

    def load(self, path: Path) -> int:
        """Add the rows of an exported file or of another machine's database, all of them or none."""
        rows = self._exported(path) if not _is_database(path) else Database(path)._records()
        with self._open() as connection:
            connection.executemany(_PUT, rows)
        return len(rows)

    def _records(self) -> list[tuple[Any, ...]]:
        """The rows as they are stored, checked as those of an export are."""
        with self._open() as connection:
            rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM tuned").fetchall()
        try:
            for row in rows:
                _outcome(json.loads(row[_COLUMNS.index("outcome")]))
        except (ValueError, KeyError, TypeError) as error:
            raise OpsmithError(f"{self.path} is not a database of opsmith tune: {error}") from error
        return rows

    @staticmethod
    def _exported(path: Path) -> list[tuple[Any, ...]]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise OpsmithError(f"{path} cannot be read: {error.strerror}") from error
        rows = []
        try:
            if json.loads(lines[0]).get("format") != FORMAT:
                raise ValueError(f"its first line is not {FORMAT!r}")
            for line in lines[1:]:
                record = json.loads(line)
                outcome = _outcome(record["outcome"])
                values = {**record, "level": outcome.level, "outcome": json.dumps(_plain(outcome))}
                rows.append(tuple(values[c] for c in _COLUMNS))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, UnicodeDecodeError) as error:
            raise OpsmithError(
                f"{path}, line {len(rows) + 2 if lines else 1}, is not an export of opsmith tune: {error}"
            ) from error
        return rows


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise OpsmithError(f"{path} cannot be read: {error.strerror}") from error


def _plain(outcome: Outcome) -> dict[str, Any]:
    best = {k: [m.candidate.rows, m.candidate.panels, m.seconds] for k, m in sorted(outcome.best.items())}
    return {
        "level": outcome.level,
        "best": best,
        "analytical": dict(sorted(outcome.analytical.items())),
        "tried": outcome.tried,
    }


def _outcome(plain: dict[str, Any]) -> Outcome:
    best = {k: Measured(Candidate(k, int(r), int(p)), float(s)) for k, (r, p, s) in plain["best"].items()}
    if not best:
        raise ValueError("an outcome without candidates")
    analytical = {k: float(s) for k, s in plain["analytical"].items()}
    return Outcome(int(plain["level"]), best, analytical, int(plain["tried"]))


_INCLUDE = re.compile(r'#include "([^"]+)"')


@functools.cache
def kernel_version(family: str) -> str:
    """A hash of the headers that a family's kernels are made of."""
    from opsmith.compiler.tune.families import FAMILIES

    headers: set[str] = set()
    todo = list(FAMILIES[family].headers)
    while todo:
        name = todo.pop()
        if name not in headers:
            headers.add(name)
            todo += _INCLUDE.findall((KERNELS / name).read_text(encoding="utf-8"))
    digest = hashlib.sha256()
    for name in sorted(headers):
        digest.update(name.encode() + (KERNELS / name).read_bytes())
    return digest.hexdigest()[:16]
