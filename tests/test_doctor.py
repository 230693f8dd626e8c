"""doctor: what it finds, what it advises, and what --clean may remove."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from opsmith import machine, settings
from opsmith.cli import main
from opsmith.doctor import clean_cache, doctor
from opsmith.errors import OpsmithError


@pytest.fixture()
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "c"))
    return tmp_path / "c"


def test_the_machine_is_described(cache: Path) -> None:
    found = {(f.topic, f.name): f for f in doctor()}
    for key in (("machine", "cores"), ("compiler", "g++"), ("runtime", "onnxruntime"), ("extras", "view")):
        assert found[key].value
    assert found["settings", "cache"].value == f"{cache}, from the environment"


def test_no_compiler_comes_with_advice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("opsmith.doctor.importlib.util.find_spec", lambda name: None)
    found = {(f.topic, f.name): f for f in doctor()}
    assert found["compiler", "any"].ok is False and ".[toolchain]" in str(found["compiler", "any"].advice)
    assert ".[toolchain]" in str(found["extras", "toolchain"].advice)
    assert ".[export]" in str(found["extras", "export"].advice)


def test_bad_settings_are_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSMITH_THREADS", "many")
    found = {(f.topic, f.name): f for f in doctor()}
    assert found["settings", "file"].ok is False and "threads" in str(found["settings", "file"].advice)


def test_clean_empties_the_cache_and_only_a_cache(cache: Path) -> None:
    (settings.cache_folder("build") / "kernel.so").write_bytes(b"x" * 100)
    info = clean_cache()
    assert info.files == 2 and info.size > 100 and not cache.exists()
    assert clean_cache().files == 0
    cache.mkdir()
    (cache / "thesis.txt").write_text("years of work")
    with pytest.raises(OpsmithError, match="left alone"):
        clean_cache()
    assert (cache / "thesis.txt").exists()


def test_clean_removes_one_kind_and_says_how_much(cache: Path) -> None:
    for name in ("objects", "tuning", "studio"):
        (settings.cache_folder(name) / "file").write_bytes(b"x" * 100_000)
    shown = {f.name: f.value for f in doctor() if f.topic == "cache"}
    assert shown["kernels"].startswith("1 file, 0.1 MB") and "--clean kernels" in shown["kernels"]
    assert clean_cache("kernels").size == 100_000
    assert not (cache / "objects").exists() and (cache / "tuning" / "file").exists() and (cache / "studio").exists()
    with pytest.raises(OpsmithError, match="kernels, tuning, pipelines, figures"):
        clean_cache("everything")


def test_every_folder_of_the_cache_is_of_a_kind() -> None:
    source = Path(settings.__file__).parent
    used = {m for f in source.rglob("*.py") for m in re.findall(r'cache_folder\("(\w+)"\)', f.read_text())}
    listed = [name for folders in settings.CACHE_KINDS.values() for name in folders]
    assert used == set(listed) and len(listed) == len(set(listed))


def test_clean_does_not_follow_links(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    (settings.cache_folder("build") / "link").symlink_to(tmp_path / "precious")
    clean_cache()
    assert (tmp_path / "precious" / "file").read_text() == "keep"
    cache.symlink_to(tmp_path / "precious")
    with pytest.raises(OpsmithError, match="left alone"):
        clean_cache()
    assert (tmp_path / "precious" / "file").exists()


def test_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["doctor"], ["doctor", "--json"], ["doctor", "--clean", "all"]):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert not stop.value.code
        said = capsys.readouterr().out
        assert said
        if "--json" in args:
            assert {f["topic"] for f in json.loads(said)["findings"]} >= {
                "machine",
                "compiler",
                "runtime",
                "settings",
                "extras",
            }


def test_tiles_that_the_system_refuses_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: {"flags": "avx2 avx512_bf16 amx_tile amx_bf16 amx_int8"})
    for given, tiles in ((True, {"amx_tile", "amx_bf16", "amx_int8"}), (False, set())):
        monkeypatch.setattr(machine, "_gives_tiles", lambda given=given: given)
        assert machine.cpu_features.__wrapped__() == {"avx2", "avx512_bf16"} | tiles
