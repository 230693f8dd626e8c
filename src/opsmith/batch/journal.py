"""What of a job is done, on disk, so that it can be killed at any moment and goes on where it was.

    OUTPUT.job/job.json         which job this is, how it is cut into parts, and the summary once it is finished
    OUTPUT.job/journal.jsonl    one line per finished part
    OUTPUT.job/parts/           the parts; removed when the output stands
    OUTPUT.job/errors.jsonl     rows without a result, and why; written with the output

A part is written beside its place, moved there whole, and then entered in the journal; what is not entered does not count. The output
is written from the parts, moved into place, and only then is the job marked as finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opsmith.batch.rows import PartData, Sink
from opsmith.errors import OpsmithError


class Journal:
    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(f"{output.name}.job")
        self.parts = self.folder / "parts"
        self.errors = self.folder / "errors.jsonl"
        self.done: dict[int, tuple[int, int]] = {}  # part -> rows with a result, rows without

    # --- the job ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time works on a job."""
        if not self.read() and self.output.exists() and not _empty(self.output):
            raise OpsmithError(f"{self.output} exists and is not from this job", "delete it, or choose another name")
        with writing(self.output):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise OpsmithError(f"another process is writing {self.output}", "wait for it, or end it") from error
            try:
                yield
            finally:
                if not self.read():  # it did not begin
                    shutil.rmtree(self.folder, ignore_errors=True)

    def read(self) -> dict[str, Any]:
        """job.json; empty if the job has not begun."""
        file = self.folder / "job.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise OpsmithError(f"{file} cannot be read: {error}", f"delete {self.folder} to begin anew") from error
        return found if isinstance(found, dict) else {}

    def begin(self, record: Mapping[str, Any]) -> None:
        with writing(self.output):
            self._write_file(self.folder / "job.json", json.dumps(record, indent=2).encode())
            self.parts.mkdir(exist_ok=True)

    def resume(self, suffix: str) -> None:
        """Read what is done; a last line that was cut short does not count, nor does a part that is not there."""
        file = self.folder / "journal.jsonl"
        for line in file.read_bytes().splitlines() if file.exists() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                part = int(entry["part"])
                if self.place(part, suffix).stat().st_size == entry["bytes"]:
                    self.done[part] = (int(entry["rows"]), int(entry["failed"]))
        if file.exists() and not file.read_bytes().endswith(b"\n"):
            with file.open("ab") as end:
                end.write(b"\n")

    def place(self, part: int, suffix: str) -> Path:
        return self.parts / f"{part:09d}{suffix}"

    # --- parts --------------------------------------------------------------------------------------------

    def write(self, data: PartData, suffix: str) -> None:
        with writing(self.output):
            for name, content in data.files.items():
                self.output.mkdir(exist_ok=True)
                self._write_file(self.output / name, content, sync=False)
            if data.failed:
                failed = [json.dumps({"row": row, "reason": reason}, ensure_ascii=False) for row, reason in data.failed]
                self._write_file(self.place(data.part, ".errors"), ("\n".join(failed) + "\n").encode())
            self._write_file(self.place(data.part, suffix), data.data)
            entry = {"part": data.part, "rows": data.rows, "failed": len(data.failed), "bytes": len(data.data)}
            with (self.folder / "journal.jsonl").open("ab") as journal:
                journal.write(json.dumps(entry).encode() + b"\n")
                journal.flush()
                os.fsync(journal.fileno())
        self.done[data.part] = (data.rows, len(data.failed))

    def _write_file(self, path: Path, content: bytes, sync: bool = True) -> None:
        self._in_place(path, lambda temporary: temporary.write_bytes(content), sync)

    def _in_place(self, path: Path, write: Callable[[Path], object], sync: bool = True) -> None:
        """Whole or not at all."""
        temporary = self.folder / f".{path.name}.new"
        try:
            write(temporary)
            if sync:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    # --- the end ------------------------------------------------------------------------------------------

    def finish(self, sink: Sink, target: Path, summary: Mapping[str, Any]) -> None:
        """TARGET is the output, or the file in it that says what it holds."""
        order = sorted(self.done)
        with writing(self.output):
            target.parent.mkdir(exist_ok=True)
            failed = [part for part in order if self.done[part][1]]
            if failed:
                self._in_place(self.errors, lambda file: _join([self.place(p, ".errors") for p in failed], file))
            self._in_place(target, lambda file: sink.finish([self.place(p, sink.suffix) for p in order], file))
            record = {**self.read(), "finished": dict(summary), "bytes": target.stat().st_size}
            self._write_file(self.folder / "job.json", json.dumps(record, indent=2).encode())
            self.sweep()

    def sweep(self) -> None:
        """Drop what a finished job no longer needs."""
        shutil.rmtree(self.parts, ignore_errors=True)
        (self.folder / "journal.jsonl").unlink(missing_ok=True)
        (self.folder / "input.txt").unlink(missing_ok=True)


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """A full disk, a read-only folder: one line. What was finished stays, and the next run goes on from it."""
    try:
        yield
    except OSError as error:
        raise OpsmithError(
            f"{output} cannot be written: {error.strerror or error}", "what is done is kept; the same command goes on"
        ) from error


def _join(files: list[Path], target: Path) -> None:
    with target.open("wb") as whole:
        for file in files:
            whole.write(file.read_bytes())


def _empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
