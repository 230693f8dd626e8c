"""What a type checker sees of the verbs, in a script such as a user writes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import opsmith

ROOT = Path(__file__).parents[1]

# verb -> a right call of it
CALLS = {
    "Variant": 'Variant(Path("models/gpt2/original"))',
    "accelerate": "accelerate(Pipeline(), search=1)",
    "bench": 'bench(["a", Path("b")], peer=["openvino"], seconds=5, shapes={"batch": 2, "x": [1, 3]})',
    "compare": 'compare("a", "b", threads=2)',
    "compile": 'compile("a.onnx", "b", search=1, shapes={"x": [1, 3]}, strict=True)',
    "compile_ep": 'compile_ep("a.onnx", search=1, strict=True)',
    "create_stable_diffusion": 'create_stable_diffusion("sd", height=512, low_memory=True)',
    "distill": 'distill("a", "b", pattern="attention", max=2)',
    "explain_session": 'explain_session("a.onnx")',
    "export": 'export("gpt2", "models/gpt2", random_weights=True)',
    "inspect": 'inspect("a", dims={"batch": 2})',
    "load": 'load("a", threads=1)',
    "map": 'map("models/bert", "texts.txt", "vectors.parquet", keep=["id"], processes=2)',
    "optimize": 'optimize("a", "b", level=3, only=["gelu"])',
    "profile": 'profile(["a", "b"], iterations=3)',
    "prune": 'prune("a", "b", ratio=0.2)',
    "quantize": 'quantize("a", "b", method="blocks", bits=4, exclude=["lm_head"])',
    "register": "register()",
    "report": 'report("models/gpt2", seconds=5)',
    "restore": "restore(Pipeline())",
    "session_options": 'session_options("a.onnx", compile=True, threads=2)',
    "swap": 'swap(load("a"), "b.onnx")'.replace("load", "opsmith.load"),
    "verify": 'verify("a", "b", rtol=1e-3, shapes=[{"batch": 1}])',
    "pack": 'pack("a", "a.opsmith.zip")',
    "weights": 'weights("a", "b.onnx", "c", verify=False)',
    "weights_ep": 'weights_ep("a.onnx", "b.onnx")',
}
WRONG = ('verify("a", "b", tolerance=1e-3)', 'compile("a", "b", search="deep")', "nosuchverb()")
# ONNX Runtime ships no types. A stub stands in, so that what it would give counts as a type and not as `Any`.
RUNTIME_STUB = """
class SessionOptions: ...
class InferenceSession: ...
class OrtEpDevice: ...
"""
CONFIG = """
[mypy]
strict = true
ignore_missing_imports = true
[mypy-opsmith.*]
ignore_errors = true
[mypy-torch.*,transformers.*,diffusers.*]
follow_imports = skip
"""


def _said(folder: Path) -> dict[str, list[str]]:
    """line of the script -> what mypy said about it."""
    lines = ["from pathlib import Path", "import opsmith", "class Pipeline: ..."]
    lines += [f"reveal_type(opsmith.{verb})" for verb in CALLS]
    lines += [f"reveal_type(opsmith.{call})" for call in CALLS.values()]
    lines += [f"opsmith.{call}" for call in WRONG]
    (folder / "script.py").write_text("\n".join(lines) + "\n")
    (folder / "mypy.ini").write_text(CONFIG)
    (folder / "onnxruntime.pyi").write_text(RUNTIME_STUB)
    paths = os.pathsep.join([str(folder), str(ROOT / "src")])
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", ROOT / ".mypy_cache" / "verbs"]
    run = subprocess.run(
        [*command, "script.py"], cwd=folder, env={**os.environ, "MYPYPATH": paths}, capture_output=True, text=True
    )
    assert run.returncode in (0, 1), run.stderr
    remarks: dict[str, list[str]] = {line: [] for line in lines}
    for number, remark in re.findall(r"^script\.py:(\d+): (.*)$", run.stdout, re.MULTILINE):
        remarks[lines[int(number) - 1]].append(remark)
    return remarks


def test_verbs_and_results_have_real_types_and_a_wrong_call_is_an_error(tmp_path: Path) -> None:
    """One test, so that mypy, which reads all of opsmith for it, runs once."""
    said = _said(tmp_path)
    for verb, call in CALLS.items():
        for line in (f"reveal_type(opsmith.{verb})", f"reveal_type(opsmith.{call})"):
            (revealed,) = said[line]
            assert revealed.startswith("note: Revealed type is")
            assert not re.search(r"\bAny\b", revealed)
    for call in WRONG:
        assert said[f"opsmith.{call}"][0].startswith("error:")


def test_every_verb_is_called_here() -> None:
    assert {*CALLS, "NotTheSame", "OpsmithError", "__version__"} == set(opsmith.__all__)


def test_a_console_completes_the_verbs_and_tells_the_nearest_one() -> None:
    assert set(opsmith.__all__) <= set(dir(opsmith))
    script = "import opsmith; opsmith.inspct"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "Did you mean: 'inspect'?" in done.stderr


def test_what_a_type_checker_sees_is_what_is_imported_lazily() -> None:
    tree = ast.parse((ROOT / "src/opsmith/__init__.py").read_text())
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(branch.test) == "TYPE_CHECKING"
    seen = {
        alias.asname: statement.module
        for statement in branch.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname == alias.name
    }
    (table,) = (s.value for s in branch.orelse if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "_LAZY")
    assert seen == ast.literal_eval(table)
    assert len(seen) == len(branch.body)
