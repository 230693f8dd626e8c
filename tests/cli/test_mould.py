"""Every command is of one mould: --json with documented keys, --quiet, the same exit codes, the same words for faster.

OPSMITH_UPDATE_DOCS=1 writes the table of keys in docs/json.md anew.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from quick import own_cache
from small_models import mlp, save
from test_cli import commands

from opsmith.cli import imagine, main, modules
from opsmith.compiler.task import Candidate, Measured, Outcome, Task
from opsmith.compiler.tune.database import Database
from opsmith.measure import units
from opsmith.plain import plain

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def documented() -> dict[str, dict[str, str]]:
    """command -> the keys of its JSON and what they mean."""
    found: dict[str, dict[str, str]] = {}
    for name, module in modules():
        if hasattr(module, "app"):
            found |= {f"{name} {inner}": keys for inner, keys in module.JSON.items()}
        else:
            found[name] = module.JSON
    return found


def with_options() -> dict[str, dict[str, dict[str, str]]]:
    """command -> option -> the keys of its JSON with that option."""
    return {name: module.JSON_WITH for name, module in modules() if hasattr(module, "JSON_WITH")}


def key_table(keys: dict[str, str]) -> list[str]:
    return ["| key | |", "|---|---|", *(f"| `{key}` | {meaning} |" for key, meaning in keys.items()), ""]


def test_every_command_takes_json_and_quiet_and_says_what_its_keys_mean() -> None:
    assert set(documented()) == set(commands())
    for name, command in commands().items():
        options = {option for param in command.params for option in param.opts}
        assert {"--json", "--quiet", "-q", "--verbose", "-v"} <= options, name


def test_the_page_lists_the_keys() -> None:
    lines = []
    for name, keys in sorted(documented().items()):
        lines += [f"## opsmith {name}", "", *key_table(keys)]
        for option, instead in with_options().get(name, {}).items():
            also = keys.items() <= instead.items()
            added = dict(instead.items() - keys.items()) if also else instead
            shown = re.sub(r"--[a-z]+", r"`\g<0>`", option)
            lines += [f"With {shown}{', also' if also else ', instead'}:", "", *key_table(added)]
    page = PAGE.read_text(encoding="utf-8")
    head, _, _ = page.partition("<!-- keys -->")
    new = f"{head}<!-- keys -->\n\n" + "\n".join(lines)
    if os.environ.get("OPSMITH_UPDATE_DOCS"):
        PAGE.write_text(new, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == new


def run(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in args])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return int(stop.value.code or 0), out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its compiled variant, the model rewritten."""
    home = tmp_path_factory.mktemp("models") / "mlp"
    save(mlp(), home / "original")
    with pytest.raises(SystemExit):
        main(["compile", str(home / "original"), str(home / "compiled"), "--regions", "all", "--quiet"])
    return home


CALLS: list[tuple[str, list[Any]]] = [
    ("inspect", ["{}/original"]),
    ("verify", ["{}/original", "{}/compiled", "--shapes", "1"]),
    ("bench", ["{}/original", "{}/compiled", "--rounds", "2", "--processes", "1"]),
    ("profile", ["{}/original", "{}/compiled", "--iterations", "3"]),
    ("optimize", ["{}/original", "{}/rewritten", "--quick"]),
    ("compile", ["{}/original", "{}/again", "--regions", "all"]),
    ("quantize", ["{}/original", "{}/int8", "--method", "fp16", "--samples", "1"]),
    ("distill", ["{}/original", "{}/../parts", "--function", "MatMul", "--name", "product", "--max", "1"]),
    ("weights", ["{}/compiled", "{}/original", "{}/swapped"]),
    ("tune", ["--show"]),
    ("doctor", []),
]


@pytest.mark.parametrize(("verb", "args"), CALLS, ids=[verb for verb, _ in CALLS])
def test_json_has_the_documented_keys(
    verb: str, args: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out = run(capfd, verb, *(a.format(folder) for a in args), "--json")
    assert code == 0
    assert set(json.loads(out)) == set(documented()[verb])
    if verb == "distill":
        assert (folder.parent / "parts" / "product_0" / "original").is_dir()


OTHER_CALLS: list[tuple[str, str, list[str]]] = [
    ("compile", "--explain", ["{}/original", "--explain", "matmul0"]),
    ("compile", "--ep", ["{}/original/mlp_original.onnx", "--ep", "--regions", "all"]),
    ("optimize", "--explain", ["{}/original", "--explain", "silu"]),
    ("optimize", "--list", ["--list"]),
    ("tune", "--export", ["--export", "{new}"]),
    ("tune", "--import", ["--import", "{results}"]),
    ("tune", "--merge", ["--merge", "{results}"]),
    ("doctor", "--clean", ["--clean", "tuning"]),
    ("imagine", "--explain", ["a frog", "--fast", "2", "--explain"]),
    ("edit", "", ["{picture}", "--box", "4,4,20,20", "--change", "blur it"]),
]


@pytest.fixture()
def own_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What OTHER_CALLS name, and a cache of which a part may be removed."""
    Image.new("RGB", (32, 32), "green").save(tmp_path / "picture.png")
    tuned = Database(tmp_path / "tuned.sqlite")
    best = {"gemm_f32": Measured(Candidate("gemm_f32", 6, 3), 1e-4)}
    tuned.put(Task.of("gemm", {"m": 1, "n": 2, "k": 3, "storage": "f32"}), 2, Outcome(2, best, {"gemm_f32": 2e-4}, 7))
    tuned.export(tmp_path / "results.jsonl")
    monkeypatch.setenv("OPSMITH_CACHE", str(own_cache(tmp_path / "cache")))
    return {
        name: str(tmp_path / file)
        for name, file in (("picture", "picture.png"), ("results", "results.jsonl"), ("new", "new.jsonl"))
    }


@pytest.mark.parametrize(("verb", "option", "args"), OTHER_CALLS, ids=[f"{verb}{o}" for verb, o, _ in OTHER_CALLS])
def test_json_with_an_option_has_the_keys_that_are_documented_for_it(
    verb: str, option: str, args: list[str], folder: Path, own_files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    code, out = run(capfd, verb, *(a.format(folder, **own_files) for a in args), "--json")
    assert code == 0
    assert set(json.loads(out)) == set(with_options()[verb][option] if option else documented()[verb])


def test_no_command_answers_with_keys_that_are_nowhere_documented() -> None:
    for name, module in modules():
        told = [keys for n, keys in documented().items() if n.split()[0] == name] + [
            *with_options().get(name, {}).values()
        ]
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if (
                isinstance(call, ast.Call)
                and ast.unparse(call.func) == "console.answer"
                and isinstance(call.args[0], ast.Dict)
            ):
                keys = {key.value for key in call.args[0].keys if isinstance(key, ast.Constant)}
                assert any(keys <= set(known) for known in told), f"{name}: {keys}"


def test_quiet_prints_the_path_that_was_written_and_nothing_else(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for verb, dest in (("optimize", folder / "quiet_o"), ("compile", folder / "quiet_c")):
        code, out = run(capfd, verb, folder / "original", dest, "--quiet")
        written = Path(out.removesuffix("\n"))
        assert code == 0 and "\n" not in str(written) and (written == dest or written.parent == dest)
        shutil.rmtree(dest)
    alone = folder.parent / "new" / "alone.onnx"  # also where no other file lies beside it
    assert run(capfd, "compile", folder / "original", alone, "--quiet") == (0, f"{alone}\n")
    shutil.rmtree(alone.parent)
    assert run(capfd, "--quiet", "verify", folder / "original", folder / "compiled", "--shapes", "1") == (
        0,
        "the same\n",
    )


def test_what_differs_ends_with_1_and_what_is_wrong_with_2(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(mlp(seed=1), folder.parent / "other" / "original")
    assert run(capfd, "verify", folder / "original", folder.parent / "other" / "original", "-q") == (1, "differs\n")
    assert run(capfd, "verify", folder / "original", folder / "nowhere", "--json") == (2, "")


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.28, "1.28x faster"), (0.9, "0.90x: slower"), (1.0, "1.00x: as fast"), (12.0, "12.00x faster")],
)
def test_above_one_is_faster(ratio: float, words: str) -> None:
    assert units.faster(ratio) == words


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.5e6, "2.5 MB"), (3.4e9, "3.4 GB"), (5e12, "5e+03 GB")],
)
def test_a_megabyte_is_a_million_bytes(count: float, text: str) -> None:
    assert units.size(count) == text


def test_no_page_and_no_message_counts_megabytes_otherwise() -> None:
    source = Path(units.__file__).parents[1]
    assert [f.name for f in source.rglob("*.py") if re.search(r"2\*\*20[^}]*\} ?MB", f.read_text())] == []


def test_plain_data_has_no_infinity() -> None:
    assert plain({"a": float("inf"), "b": (np.float32(1.5), Path("x")), "c": {1}}) == {
        "a": None,
        "b": [1.5, "x"],
        "c": [1],
    }
    with pytest.raises(TypeError, match="no plain form"):
        plain(np.zeros(2))


def test_an_unknown_variable_or_setting_is_an_error_of_every_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for verb in ("inspect", "verify"):
        monkeypatch.setenv("OPSMITH_THREAD", "2")
        assert run(capfd, verb, folder / "original") == (2, "")
        monkeypatch.delenv("OPSMITH_THREAD")
    (tmp_path / "config.toml").write_text("thread = 2\n")
    monkeypatch.setenv("OPSMITH_CONFIG", str(tmp_path / "config.toml"))
    assert run(capfd, "inspect", folder / "original") == (2, "")


def test_compiling_what_is_compiled_says_so(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compile", str(folder / "compiled"), str(folder / "twice")])
    assert re.search(r"is compiled already: .*\(compile what it was made from: .*original", capfd.readouterr().err)
    assert not (folder / "twice").exists()


@pytest.mark.parametrize(
    ("steps", "pictures", "words"), [(1, 1, "1 step"), (2, 1, "2 steps"), (4, 2, "4 steps for 2 pictures")]
)
def test_one_step_is_not_several(steps: int, pictures: int, words: str) -> None:
    assert imagine._steps({"step_seconds": [1.0] * steps, "pictures": ["p"] * pictures}) == words


@pytest.mark.parametrize(
    ("done", "n", "batch", "words"),
    [
        (1, 1, 1, "step 1 of 4"),
        (4, 2, 1, "picture 1 of 2, step 4 of 4"),
        (5, 2, 1, "picture 2 of 2, step 1 of 4"),
        (2, 3, 2, "pictures 1 to 2 of 3, step 2 of 4"),
        (5, 3, 2, "picture 3 of 3, step 1 of 4"),
    ],
)
def test_steps_are_counted_per_picture(done: int, n: int, batch: int, words: str) -> None:
    assert imagine._place(done, 4 * -(-n // batch), n, batch) == words
