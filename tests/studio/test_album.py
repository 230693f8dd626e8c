"""The gallery on disk: another start finds it, whose picture is whose, and files that are no part of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from opsmith.errors import OpsmithError
from opsmith.studio.album import Album

IMAGE = Image.new("RGB", (16, 8), "red")


def test_another_start_finds_the_pictures_of_each_owner(tmp_path: Path) -> None:
    album = Album(tmp_path)
    first = album.add(IMAGE, {"prompt": "a red apple"}, "browser one", "made")
    second = album.add(IMAGE, {"prompt": "a red apple", "edits": []}, "browser one", "edited", first)
    other = album.add(IMAGE, {}, "browser two", "upload")
    again = Album(tmp_path)
    assert again.of("browser one") == [first, second]
    assert again.of("browser two") == [other]
    assert again.get(second.id, "browser one").parent == first.id
    with pytest.raises(OpsmithError, match="no longer in the gallery"):
        again.get(first.id, "browser two")


def test_what_a_browser_proves_itself_with_is_not_on_disk(tmp_path: Path) -> None:
    made = Album(tmp_path).add(IMAGE, {}, "browser secret-cookie", "made")
    assert "secret-cookie" not in made.path.with_suffix(".json").read_text()
    assert b"secret-cookie" not in made.path.read_bytes()


def test_deleted_pictures_and_other_files_do_not_come_back(tmp_path: Path) -> None:
    album = Album(tmp_path)
    kept, deleted, lost = (album.add(IMAGE, {}, "one", "made") for _ in range(3))
    album.delete(deleted.id, "one")
    lost.path.unlink()
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text("{")
    wrong = json.loads(kept.path.with_suffix(".json").read_text())
    wrong["album"]["id"] = "../../etc"
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    (tmp_path / "wrong.png").write_bytes(kept.path.read_bytes())
    assert album.of("one") == [kept]
    assert Album(tmp_path).of("one") == [kept]
    with pytest.raises(OpsmithError, match="no longer in the gallery"):
        album.delete(deleted.id, "one")
