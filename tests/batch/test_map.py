"""`opsmith map`: every row once, whatever its form, and however often the run is ended."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_models import mlp, save

import opsmith
import opsmith.progress
from opsmith import starter
from opsmith.batch import plan
from opsmith.batch.local import Layout, Local, core_groups
from opsmith.batch.plan import Wishes, layouts
from opsmith.batch.rows import Chunk
from opsmith.batch.sources import open_source
from opsmith.batch.sources.spool import spool
from opsmith.batch.work import Task
from opsmith.cli import main
from opsmith.errors import OpsmithError
from opsmith.pipelines.embed import TextEncoder

ENCODER = starter.folder("clip") / "text_model"
WORDS = "a small frog beside big red castle under the stars on yellow background".split()


def some_texts(count: int) -> list[str]:
    source = random.Random(1)
    return [" ".join(source.choices(WORDS, k=source.randint(1, 9))) for _ in range(count)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(some_texts(60)) + "\n")
    return file


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return TextEncoder(ENCODER).embed(some_texts(60))


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in ("map", *args)])
    return int(stop.value.code or 0)


def vectors(file: Path) -> np.ndarray:
    table = pq.read_table(file)
    assert table["row"].to_pylist() == list(range(table.num_rows))
    return np.array(table["embedding"].to_pylist())


def test_lines_become_vectors_as_fixed_size_lists(texts: Path, expected: np.ndarray) -> None:
    made = opsmith.map(ENCODER, texts, texts.with_suffix(".parquet"), part=16)
    assert (made.rows, made.failed, made.computed, made.kind) == (60, 0, 60, "encoder")
    assert pq.read_schema(made.output).field("embedding").type == pa.list_(pa.float32(), 128)
    np.testing.assert_allclose(vectors(made.output), expected, atol=1e-6)


def test_the_result_does_not_depend_on_batch_or_processes(texts: Path, expected: np.ndarray) -> None:
    made = opsmith.map(ENCODER, texts, texts.with_suffix(".parquet"), part=7, batch=64, processes=2, threads=1)
    assert (made.plan.processes, made.plan.threads, made.plan.batch) == (2, 1, 64)
    np.testing.assert_allclose(vectors(made.output), expected, atol=1e-6)


def test_a_finished_run_is_a_no_op_and_another_job_is_refused(texts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = texts.with_suffix(".jsonl")
    assert run(ENCODER, texts, "-o", output, "-q") == 0
    stamp = output.stat().st_mtime_ns
    capfd.readouterr()
    assert run(ENCODER, texts, "-o", output, "--json") == 0
    assert json.loads(capfd.readouterr().out)["computed"] == 0
    assert output.stat().st_mtime_ns == stamp
    texts.write_text("another\n")
    assert run(ENCODER, texts, "-o", output) == 2
    assert "is from another job: another input" in capfd.readouterr().err
    foreign = texts.with_name("foreign.jsonl")
    foreign.write_text("mine\n")
    assert run(ENCODER, texts, "-o", foreign) == 2
    assert "exists and is not from this job" in capfd.readouterr().err
    assert foreign.read_text() == "mine\n" and not foreign.with_name("foreign.jsonl.job").exists()


def test_rows_that_fail_are_listed_with_their_reasons(texts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts.write_text("a frog\n\n" + "frog " * 40 + "\na castle\n")
    output = texts.with_suffix(".jsonl")
    for word in ("--stop-on-error", "--strict"):  # the latter is the older one
        assert run(ENCODER, texts, "-o", output, word) == 2
        assert "row 1 failed: text is empty" in capfd.readouterr().err
        assert not output.exists()
    assert run(ENCODER, texts, "-o", output) == 1
    assert [json.loads(line)["row"] for line in output.read_text().splitlines()] == [0, 3]
    errors = [json.loads(line) for line in Path(f"{output}.job/errors.jsonl").read_text().splitlines()]
    assert [e["row"] for e in errors] == [1, 2]
    assert "the model holds 32" in errors[1]["reason"]
    cut = texts.with_name("cut.jsonl")
    assert run(ENCODER, texts, "-o", cut, "--set", "truncate=true") == 1
    assert [json.loads(line)["row"] for line in cut.read_text().splitlines()] == [0, 2, 3]


def test_a_killed_run_goes_on_and_has_each_row_once(texts: Path, expected: np.ndarray) -> None:
    output = texts.with_suffix(".parquet")
    command = [sys.executable, "-m", "opsmith", "map", ENCODER, texts, "-o", output, "--part", "2", "--processes", "1"]
    env = {**os.environ, "PYTHONPATH": str(Path(opsmith.__file__).parents[1])}
    process = subprocess.Popen([*map(str, command), "-q"], env=env)
    journal = Path(f"{output}.job/journal.jsonl")
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()
    with journal.open("ab") as file:
        file.write(b'{"part": 29, "ro')  # as if it had been cut short in the middle of a line
    done = sum(json.loads(line)["rows"] for line in journal.read_bytes().splitlines()[:-1])
    made = opsmith.map(ENCODER, texts, output, part=2)
    assert made.rows == 60 and made.computed == 60 - done < 60
    np.testing.assert_allclose(vectors(output), expected, atol=1e-6)


def test_a_table_needs_the_column_or_is_told_which(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    table.write_text('id,body\n7,"a frog, green"\n8,a castle\n9,one,too many\n')
    output = tmp_path / "out.jsonl"
    assert run(ENCODER, table, "-o", output) == 2
    assert "no column 'text'; it has id, body (--column text=COLUMN)" in capfd.readouterr().err
    assert run(ENCODER, table, "-o", output, "--column", "text=bodi") == 2
    assert "did you mean body?" in capfd.readouterr().err
    assert not Path(f"{output}.job").exists()
    assert run(ENCODER, table, "-o", output, "--column", "text=body", "--keep", "id") == 1
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(r["row"], r["id"]) for r in rows] == [(0, "7"), (1, "8")]
    assert "3 fields in a table of 2 columns" in Path(f"{output}.job/errors.jsonl").read_text()
    alone = TextEncoder(ENCODER).embed(["a frog, green"])[0]
    np.testing.assert_allclose(rows[0]["embedding"], alone, atol=1e-6)


def test_every_form_of_input_gives_the_same_rows(tmp_path: Path) -> None:
    lines = some_texts(6)
    pq.write_table(pa.table({"id": range(6), "text": lines}), tmp_path / "t.parquet", row_group_size=2)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in lines))
    (tmp_path / "t.csv").write_text("\ufefftext\n" + "\n".join(lines) + "\n")
    (tmp_path / "folder").mkdir()
    for i, line in enumerate(lines):
        (tmp_path / "folder" / f"{i}.txt").write_text(line)
    sources = [open_source(tmp_path / name) for name in ("t.parquet", "t.jsonl", "t.csv", "folder")]
    sources.append(spool(io.BytesIO("\n".join(lines).encode()), tmp_path))
    for source in sources:
        chunks = list(source.chunks(["text"], 4))
        assert [(c.part, c.first, c.count) for c in chunks] == [(0, 0, 4), (1, 4, 2)] and source.rows == 6
        assert [text for c in chunks for text in c.columns["text"]] == lines


def test_standard_input_can_go_on_with_the_same_lines_only(
    tmp_path: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stdin.txt"
    for lines, computed in ((some_texts(6), 6), (some_texts(6), 0)):
        file.write_text("\n".join(lines))
        with file.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            made = opsmith.map(ENCODER, "-", tmp_path / "out.parquet")
        assert made.computed == computed
        np.testing.assert_allclose(vectors(made.output), expected[:6], atol=1e-6)
    with file.open() as stdin, pytest.raises(OpsmithError, match="another input"):
        stdin.readline()
        stdin.seek(3)
        monkeypatch.setattr(sys, "stdin", stdin)
        opsmith.map(ENCODER, "-", tmp_path / "out.parquet")


def test_the_plan_is_measured_where_it_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps({"x": [i, 1, 2, 3]}) + "\n" for i in range(40)))
    model = save(mlp(width=4), tmp_path / "mlp" / "original")
    monkeypatch.setattr(plan, "WORTH_IT", 0.0)
    monkeypatch.setattr(plan, "TURN", 0.02)
    monkeypatch.setattr("opsmith.machine.cores", lambda: 2)
    said: list[str] = []
    with opsmith.progress.watch(lambda title, message, done, total: said.append(f"{title}: {message}")):
        made = opsmith.map(model, table, tmp_path / "out.jsonl", part=8)
    tried = [line for line in said if line.startswith("measuring")]
    assert [line.split(":")[1] for line in tried[:4]] == [f" 1 x 2 threads, batch {b}" for b in (32, 1, 8, 128)]
    assert tried[4].startswith("measuring: 2 x 1 threads")
    rates = {line.split(":")[1]: int(line.split()[-2]) for line in tried}
    chosen = f" {made.plan.processes} x {made.plan.threads} threads, batch {made.plan.batch}"
    assert chosen in rates and made.plan.rate is not None
    assert json.loads((tmp_path / "out.jsonl.job" / "job.json").read_text())["plan"]["batch"] == made.plan.batch
    assert [json.loads(line)["row"] for line in made.output.read_text().splitlines()] == list(range(40))


def test_a_worker_that_dies_is_replaced_and_its_rows_are_done(tmp_path: Path) -> None:
    model = save(mlp(width=4), tmp_path / "mlp" / "original")
    engine = Local(Layout(1, 1), Task(model, None, "out.jsonl", {"x": "x"}, {}, ()))
    try:
        first = engine.processes[0].pid
        os.kill(first, signal.SIGKILL)
        chunks = [Chunk(part, part * 2, 2, {"x": [[1, 2, 3, 4]] * 2}) for part in range(3)]
        assert [(data.part, data.rows) for data in engine.run(iter(chunks), 8)] == [(0, 2), (1, 2), (2, 2)]
        assert engine.processes[0].pid != first
    finally:
        engine.end()


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("empty.txt", b"", "holds no rows"),
        ("empty.csv", b"text\n", "holds no rows"),
        ("bad.parquet", b"PAR1 but no more", "is not a readable Parquet file"),
        ("bad.txt", b"\xff\xfe\xff\n", "is not UTF-8 text"),
        ("bad.jsonl", b"[1]\n", "no line of"),
        ("picture.xyz", b"", "is not an input that map reads"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, content: bytes, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(ENCODER, tmp_path / name, "-o", tmp_path / "out.jsonl") == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1
    assert [f.name for f in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(texts: Path) -> None:
    output = texts.with_suffix(".jsonl")
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40000, -1)); "
    limited += "from opsmith.cli import main; main(sys.argv[1:])"
    env = {**os.environ, "PYTHONPATH": str(Path(opsmith.__file__).parents[1])}
    words = ["map", ENCODER, texts, "-o", output, "--part", "8"]
    done = subprocess.run([sys.executable, "-c", limited, *map(str, words)], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "cannot be written: File too large" in done.stderr, done.stderr
    assert not output.exists()
    assert opsmith.map(ENCODER, texts, output, part=8).rows == 60
    assert [json.loads(line)["row"] for line in output.read_text().splitlines()] == list(range(60))


def test_layouts_fill_the_cores() -> None:
    assert [(w.processes, w.threads) for w in layouts(4, Wishes())] == [(1, 4), (2, 2), (4, 1)]
    assert [(w.processes, w.threads) for w in layouts(4, Wishes(processes=2))] == [(2, 2)]
    assert [(w.processes, w.threads) for w in layouts(4, Wishes(threads=1))] == [(4, 1)]
    every = sorted(cpu for group in core_groups(2) for cpu in group)
    assert not every or every == sorted(os.sched_getaffinity(0))


def test_wrong_wishes_are_refused(texts: Path) -> None:
    for wish, said in (
        ({"processes": 0}, "processes 0 is not possible"),
        ({"engine": "spark"}, "there is no engine 'spark'"),
        ({"constants": {"steps": 3}}, "the model has no option 'steps' .it has: truncate"),
        ({"columns": {"words": "text"}}, "the model has no input 'words'"),
        ({"keep": ["id"]}, "the input has no column 'id'"),
    ):
        with pytest.raises(OpsmithError, match=said):
            opsmith.map(ENCODER, texts, texts.with_suffix(".jsonl"), **wish)


@pytest.mark.slow
def test_twenty_kills_at_random_moments_leave_each_row_once(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps({"x": [i, 1, 2, 3]}) + "\n" for i in range(3000)))
    model = save(mlp(width=4), tmp_path / "mlp" / "original")
    whole = opsmith.map(model, table, tmp_path / "whole.jsonl", part=10, batch=8, processes=1).output.read_bytes()
    env = {**os.environ, "PYTHONPATH": str(Path(opsmith.__file__).parents[1])}
    moments, kills, finished = random.Random(24), 0, 0
    while kills < 20:
        output = tmp_path / f"{finished}.jsonl"
        words = [
            sys.executable,
            "-m",
            "opsmith",
            "map",
            model,
            table,
            "-o",
            output,
            "--part",
            "10",
            "--batch",
            "8",
            "-q",
        ]
        process = subprocess.Popen([*map(str, words), "--processes", "2"], env=env, stdout=subprocess.DEVNULL)
        try:
            assert process.wait(moments.uniform(0.1, 8)) == 0
            assert output.read_bytes() == whole
            finished += 1
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    output = tmp_path / f"{finished}.jsonl"
    opsmith.map(model, table, output, part=10, batch=8, processes=2)
    assert output.read_bytes() == whole
    assert [json.loads(line)["row"] for line in output.read_text().splitlines()] == list(range(3000))
