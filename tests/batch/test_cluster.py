"""The ray engine: the same rows as the local one, also when a node dies; and what a model needs on other machines."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_models import mlp, save

import opsmith
from opsmith import starter, store
from opsmith.batch import cluster, place
from opsmith.batch.rows import Chunk
from opsmith.batch.runners import open_runner
from opsmith.batch.work import Task, Worker
from opsmith.errors import OpsmithError

ENCODER, VISION = (starter.folder("clip") / name for name in ("text_model", "vision_model"))
ENV = {**os.environ, **cluster.QUIET, **cluster.OWN, "PYTHONPATH": str(Path(opsmith.__file__).parents[1])}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [{"x": [i / 7, 1.0, -i, 2.0]} for i in range(60)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_cluster_of_this_machine_gives_the_same_bytes_and_listens_on_loopback_only(
    table: Path, tmp_path: Path
) -> None:
    model = save(mlp(width=4), tmp_path / "mlp" / "original")
    local = opsmith.map(model, table, tmp_path / "local.jsonl", part=10, batch=8, processes=1)
    # In a process of its own: Ray reads its settings when it is imported, and stays in the process.
    script = """
import sys, json
from opsmith import batch
from opsmith.batch import cluster
def listening():
    tables = [open(f).read().splitlines()[1:] for f in ("/proc/net/tcp", "/proc/net/tcp6")]
    return {line.split()[9]: line.split()[1] for lines in tables for line in lines if line.split()[3] == "0A"}
def drive(*args, inner=batch._drive):
    seen.append(sorted({address for inode, address in listening().items() if inode not in before}))
    inner(*args)
seen, before = [], listening()
batch._drive = drive
made = batch.map(sys.argv[1], sys.argv[2], sys.argv[3], engine="ray", part=10, batch=8)
print(json.dumps([made.rows, made.engine, seen[0]]))
"""
    words = [sys.executable, "-c", script, model, table, tmp_path / "ray.jsonl"]
    done = subprocess.run([*map(str, words)], env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows, engine, addresses = json.loads(done.stdout.splitlines()[-1])
    assert (rows, engine) == (60, "ray")
    assert (tmp_path / "ray.jsonl").read_bytes() == local.output.read_bytes()
    assert addresses
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")
    assert [a for a in addresses if not a.startswith(loopback)] == []


def test_no_cluster_at_the_address_is_one_line(table: Path, tmp_path: Path) -> None:
    model = save(mlp(width=4), tmp_path / "mlp" / "original")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address, said in ((f"127.0.0.1:{port}", "there is no Ray cluster at"), ("nowhere", "is not an address")):
        with pytest.raises(OpsmithError, match=said):
            opsmith.map(model, table, tmp_path / "out.jsonl", engine="ray", address=address)
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "out.jsonl.job").exists()
    with pytest.raises(OpsmithError, match="an address is for the ray engine"):
        opsmith.map(model, table, tmp_path / "out.jsonl", address="127.0.0.1:1")


def test_a_node_keeps_a_copy_of_a_model_that_it_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "cache"))
    shutil.copytree(starter.folder("clip"), tmp_path / "clip")
    parcel = place.pack(tmp_path / "clip" / "text_model", None)
    assert place.is_here(parcel)
    assert place.unpack(parcel, lambda name: pytest.fail("it is here")) == tmp_path / "clip" / parcel.model
    (tmp_path / "clip").rename(tmp_path / "elsewhere")
    assert not place.is_here(parcel)
    fetched: list[str] = []

    def read(name: str) -> bytes:
        fetched.append(name)
        return (tmp_path / "elsewhere" / name).read_bytes()

    model = place.unpack(parcel, read)
    assert sorted(fetched) == sorted(parcel.files) and any(name.endswith("tokenizer.json") for name in fetched)
    rows = [{"text": "a frog", "truncate": False}]
    (mine,) = open_runner(model, None, 1).run(rows, 64)
    (theirs,) = open_runner(ENCODER, None, 1).run(rows, 64)
    assert isinstance(mine, dict) and isinstance(theirs, dict)
    assert (mine["embedding"] == theirs["embedding"]).all()
    fetched.clear()
    assert place.unpack(parcel, read) == model and not fetched  # once


def test_pictures_that_a_table_names_are_read_where_the_table_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has neither the files nor the folder that the command was given in."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)).save("a.png")
    (name,) = open_runner(VISION, None, 1).traits.pictures
    chunk = Chunk(0, 0, 2, {"path": ["a.png", "missing.png"]})
    task = Task(VISION, None, "out.jsonl", {name: "path"}, {}, ("path",))
    mine = Worker(task, 1).work(chunk, 4)
    sent = pickle.loads(pickle.dumps(cluster.with_contents(chunk, frozenset({"path"}))))
    (tmp_path / "a.png").unlink()
    assert Worker(task, 1).work(sent, 4) == mine
    assert mine.rows == 1 and json.loads(mine.data)["path"] == "a.png"
    assert mine.failed == ((1, "missing.png does not exist"),)


@pytest.mark.slow
def test_a_variant_for_another_cpu_is_compiled_once_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "mlp"
    save(mlp(width=16), home / "original")
    opsmith.compile(home / "original", home / "compiled", regions="all")
    record = home / "compiled" / "opsmith.json"
    told = json.loads(record.read_text())
    told["compiled"]["cpu_features"].append("avx1024")
    record.write_text(json.dumps(told))
    with pytest.raises(OpsmithError, match="avx1024, which this CPU lacks"):
        open_runner(home / "compiled", None, 1)
    parcel = place.pack(home / "compiled", None)
    built = place.unpack(parcel, lambda name: pytest.fail("it is here"))
    assert built != home / "compiled" and "compiled" in store.read_record(built)
    stamp = built.stat().st_mtime_ns
    assert place.unpack(parcel, lambda name: b"") == built and built.stat().st_mtime_ns == stamp
    rows = [{"x": [0.5] * 16}]
    (mine,), (theirs,) = (open_runner(m, None, 1).run(rows, 1) for m in (built, home / "original"))
    assert isinstance(mine, dict) and isinstance(theirs, dict)
    assert abs(mine["y"] - theirs["y"]).max() < 1e-5


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A head without CPUs and two nodes with one each: processes of their own on this machine."""
    for name, value in {**cluster.QUIET, **cluster.OWN}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", ENV["PYTHONPATH"])
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": 100_000_000, "include_dashboard": False},
    )
    nodes = [made.add_node(num_cpus=1, object_store_memory=100_000_000) for _ in range(2)]
    made.wait_for_nodes()
    yield made, nodes
    made.shutdown()


@pytest.mark.parametrize(("count", "part"), [(800, 10), pytest.param(3000, 50, marks=pytest.mark.slow)])
def test_a_cluster_that_loses_a_node_gives_what_one_machine_gives(
    tmp_path: Path, two_nodes: Any, count: int, part: int
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"a frog and {i} castles\n" for i in range(count)))
    local = opsmith.map(ENCODER, texts, tmp_path / "local.parquet", part=part, batch=512, processes=1, threads=1)
    made, nodes = two_nodes
    journal = tmp_path / "ray.parquet.job" / "journal.jsonl"
    killed: list[int] = []

    def kill() -> None:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 10:
            time.sleep(0.01)
        made.remove_node(nodes[0], allow_graceful=False)
        killed.append(journal.read_bytes().count(b"\n"))

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    ray = opsmith.map(
        ENCODER, texts, tmp_path / "ray.parquet", part=part, batch=512, engine="ray", address=made.address
    )
    killer.join(60)
    assert killed and killed[0] < count // part  # in the middle
    assert ray.plan.processes == 2 and ray.rows == count
    assert pq.read_table(ray.output).equals(pq.read_table(local.output))


@pytest.mark.slow
def test_five_hundred_pictures_are_the_same_files_from_both_engines(tmp_path: Path) -> None:
    objects, tints = list(starter.OBJECTS), list(starter.TINTS)
    lines = [f"a {tints[i % len(tints)]} {objects[i % len(objects)]},{i}" for i in range(500)]
    (tmp_path / "prompts.csv").write_text("prompt,seed\n" + "\n".join(lines) + "\n")
    words = [sys.executable, "-m", "opsmith", "map", starter.folder("pictures"), tmp_path / "prompts.csv"]
    for engine in ("local", "ray"):
        more = ["-o", tmp_path / engine, "--engine", engine, "--set", "steps=4", "-q"]
        subprocess.run([*map(str, words), *map(str, more)], env=ENV, check=True, timeout=3000)
    names = sorted(f.name for f in (tmp_path / "local").iterdir())
    assert len(names) == 501 and names == sorted(f.name for f in (tmp_path / "ray").iterdir())
    for name in names:
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes(), name


@pytest.mark.slow
def test_a_fleet_is_tuned_on_one_node_of_each_kind(tmp_path: Path) -> None:
    model = save(mlp(width=64), tmp_path / "mlp" / "original")
    env = {**ENV, "OPSMITH_CACHE": str(tmp_path / "cache")}
    words = [sys.executable, "-m", "opsmith", "tune"]
    done = subprocess.run([*words, str(model), "--engine", "ray", "--json"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (count,) = json.loads(done.stdout)["cpus"].values()
    shown = subprocess.run([*words, "--show", "--json"], env=env, capture_output=True, text=True, check=True)
    results = json.loads(shown.stdout)["results"]
    assert len(results) == count > 0 and all(r["current"] and r["level"] == 2 for r in results)
