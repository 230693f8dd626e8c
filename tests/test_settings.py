"""Settings: which layer wins, and what a typing mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsmith import settings
from opsmith.errors import OpsmithError


@pytest.fixture()
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in ("CACHE", "THREADS", "SEARCH", "COMPILER"):
        monkeypatch.delenv(f"OPSMITH_{key}", raising=False)
    path = tmp_path / "config.toml"
    path.write_text("")
    monkeypatch.setenv("OPSMITH_CONFIG", str(path))
    return path


def test_defaults_when_nothing_is_set(config: Path) -> None:
    found = settings.get()
    assert (found.threads, found.search, found.compiler) == (None, 0, None)
    assert found.cache.name == "opsmith" and found.sources == {}


def test_command_line_wins_over_environment_over_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('threads = 1\nsearch = 1\ncompiler = "from-file"\ncache = "~/here"\n')
    monkeypatch.setenv("OPSMITH_THREADS", "2")
    monkeypatch.setenv("OPSMITH_SEARCH", "2")
    found = settings.get(threads=3, search=None)
    assert (found.threads, found.search, found.compiler) == (3, 2, "from-file")
    assert found.cache == Path.home() / "here"
    assert found.sources["threads"] == "the command line" and found.sources["search"] == "the environment"
    assert found.sources["compiler"] == str(config)


def test_an_unknown_key_names_the_nearest_known_one(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("thread = 1\n")
    with pytest.raises(OpsmithError, match=r"unknown key 'thread'.*did you mean threads"):
        settings.get()
    config.write_text("")
    monkeypatch.setenv("OPSMITH_COMPILR", "g++")
    with pytest.raises(OpsmithError, match="did you mean OPSMITH_COMPILER"):
        settings.get()


def test_variables_that_compiled_libraries_read_are_known(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPSMITH_CPU", "OPSMITH_PROFILE", "OPSMITH_PROFILE_FILE", "OPSMITH_STUDIO_PASSWORD"):
        monkeypatch.setenv(name, "1")
    assert settings.get().sources == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("threads = 0", "from 1 up"),
        ("threads = 1.5", "a whole number"),
        ("threads = true", "a whole number"),
        ("search = 3", "0, 1 or 2"),
        ("cache = 3", "a folder"),
        ("compiler = []", "a compiler"),
        ("threads = ", "not valid TOML"),
    ],
)
def test_bad_values_say_what_was_expected(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    with pytest.raises(OpsmithError, match=message):
        settings.get()


def test_a_named_file_must_exist(config: Path) -> None:
    config.unlink()
    with pytest.raises(OpsmithError, match="does not exist"):
        settings.get()


def test_cache_folders_are_made_and_marked(config: Path, tmp_path: Path) -> None:
    config.write_text(f'cache = "{tmp_path / "c"}"')
    folder = settings.cache_folder("build")
    assert folder == tmp_path / "c" / "build" and folder.is_dir()
    assert (tmp_path / "c" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
