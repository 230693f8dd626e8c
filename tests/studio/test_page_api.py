"""What the page asks: jobs, pictures on disk, selections, edits, the stream of events, sessions."""

from __future__ import annotations

import base64
import io
import json
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from serving import Running

from opsmith.pipelines import pictures

FAST = {"prompt": "a red apple on a yellow background", "steps": 3, "seed": 5}


def made(running: Running, client: httpx.Client, **more: Any) -> dict[str, Any]:
    job = running.done(client, client.post("/api/pictures", json={**FAST, **more}))
    assert job["state"] == "done", job["error"]
    found: dict[str, Any] = job["result"]["pictures"][0]
    return found


def mask(box: tuple[int, int, int, int], size: tuple[int, int] = (96, 96)) -> str:
    image = Image.new("L", size)
    image.paste(255, box)
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def pixels(client: httpx.Client, picture: dict[str, Any]) -> np.ndarray[Any, Any]:
    answer = client.get(f"/{picture['url']}")
    assert answer.headers["content-type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"), int)


def events(client: httpx.Client, until: str) -> list[tuple[str, Any]]:
    """What the stream says up to the first event called UNTIL."""
    found: list[tuple[str, Any]] = []
    with client.stream("GET", "/api/events") as stream:
        name = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                found.append((name, json.loads(line[6:])))
                if name == until:
                    break
    return found


def test_ideas_stream_in_and_contain_the_word(running: Running, visitor: httpx.Client) -> None:
    job = running.done(visitor, visitor.post("/api/ideas", json={"keyword": "frog", "seed": 1}))
    assert len(job["result"]["prompts"]) == 3
    assert all("frog" in text for text in job["result"]["prompts"])
    assert all(job["texts"])


def test_a_picture_lands_in_the_folder_with_its_settings(running: Running, visitor: httpx.Client) -> None:
    picture = made(running, visitor, n=2, negative="blue")
    folder: Path = running.studio.album.folder
    file = folder / picture["file"]
    settings = pictures.settings_of(file)
    assert (settings["prompt"], settings["seed"], settings["steps"]) == (FAST["prompt"], 5, 3)
    assert settings["negative_prompt"] == "blue"
    assert json.loads(file.with_suffix(".json").read_text()) == settings
    assert pixels(visitor, picture).shape == (96, 96, 3)
    saved = visitor.get(f"/{picture['url']}?download=true")
    assert picture["file"] in saved.headers["content-disposition"]
    assert saved.content == file.read_bytes()


def test_a_dropped_picture_restores_its_settings(running: Running, visitor: httpx.Client) -> None:
    picture = made(running, visitor)
    data = visitor.get(f"/{picture['url']}").content
    back = visitor.post("/api/uploads", content=data).json()
    assert back["restored"] is True
    assert {k: back["settings"][k] for k in FAST} == FAST
    plain = io.BytesIO()
    Image.new("RGB", (50, 40), "green").save(plain, "PNG")
    other = visitor.post("/api/uploads", content=plain.getvalue(), headers={"x-file-name": "../../x.png"}).json()
    assert (other["restored"], other["width"], other["height"]) == (False, 50, 40)
    assert (running.studio.album.folder / other["file"]).is_file()


def test_a_bad_upload_is_refused_and_the_next_one_works(running: Running, visitor: httpx.Client) -> None:
    answer = visitor.post("/api/uploads", content=b"not a picture")
    assert answer.status_code == 400
    assert "not a readable picture" in answer.json()["error"]["message"]
    assert made(running, visitor)


def test_edits_change_only_the_selection_and_can_be_followed_back(running: Running, visitor: httpx.Client) -> None:
    before = made(running, visitor)
    body = {"picture": before["id"], "mask": mask((30, 30, 60, 60)), "change": "make it blue", "feather": 0}
    job = running.done(visitor, visitor.post("/api/edits", json=body))
    after = job["result"]["pictures"][0]
    assert (after["parent"], after["kind"]) == (before["id"], "edited")
    assert after["settings"]["edits"][0]["change"] == "make it blue"
    assert after["settings"]["prompt"] == FAST["prompt"]  # dropping it restores the picture's own settings
    gap = np.abs(pixels(visitor, before) - pixels(visitor, after)).max(-1)
    assert gap[30:60, 30:60].min() >= 0
    assert gap[30:60, 30:60].max() > 10
    gap[30:60, 30:60] = 0
    assert gap.max() == 0


def test_replacing_paints_with_the_model(running: Running, visitor: httpx.Client) -> None:
    before = made(running, visitor)
    body = {"picture": before["id"], "mask": mask((30, 30, 60, 60)), "change": "replace it with a frog", "steps": 3}
    job = running.done(visitor, visitor.post("/api/edits", json=body))
    assert job["state"] == "done", job["error"]
    note = job["result"]["pictures"][0]["settings"]["edits"][0]
    assert (note["kind"], note["prompt"], note["steps"]) == ("replace", "a frog", 3)


@pytest.mark.usefixtures("sure_eye")
def test_a_selection_by_words_is_a_mask_of_the_pictures_size(running: Running, visitor: httpx.Client) -> None:
    picture = made(running, visitor)
    job = running.done(
        visitor, visitor.post("/api/select", json={"picture": picture["id"], "words": "apple", "threshold": 0.5})
    )
    data = base64.b64decode(job["result"]["mask"].split(",")[1])
    found = np.asarray(Image.open(io.BytesIO(data)))
    assert found.shape == (96, 96)
    assert set(np.unique(found)) <= {0, 255}
    assert job["result"]["share"] == pytest.approx((found > 0).mean())
    none = running.done(
        visitor, visitor.post("/api/select", json={"picture": picture["id"], "words": "apple", "threshold": 1.0})
    )
    assert none["state"] == "failed"
    assert "nothing like 'apple' was found: the best match has" in none["error"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("pictures", {"prompt": " "}, "the prompt is empty"),
        ("pictures", {"prompt": "x", "steps": 1000}, "1000 steps are not possible"),
        ("pictures", {"prompt": "x", "width": 8192}, "8192x96 is not possible"),
        ("pictures", {"prompt": "x", "n": 50}, "50 pictures at once are not possible"),
        ("pictures", {"prompt": "x", "guidance": -1}, "a guidance of -1.0 is not possible"),
        ("pictures", {"prompt": "x", "seed": -1}, "the seed -1 is not possible"),
        ("pictures", {"prompt": "x", "variant": "../../x"}, "there is no variant '../../x'"),
        ("pictures", {"prompt": ["x"]}, "prompt: Input should be a valid string"),
        ("ideas", {"keyword": ""}, "the idea is empty"),
        ("select", {"picture": "none", "words": "x"}, "no longer in the gallery"),
        ("edits", {"picture": "none", "mask": "", "change": "x"}, "no longer in the gallery"),
        ("report", {"part": "../../x"}, "there is no part"),
    ],
)
def test_wishes_that_cannot_be_granted_are_refused_at_once(
    visitor: httpx.Client, path: str, body: dict[str, Any], words: str
) -> None:
    answer = visitor.post(f"/api/{path}", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"change": "sing it a song"}, "is not understood"),
        ({"mask": mask((0, 0, 0, 0))}, "nothing is selected"),
        ({"mask": mask((0, 0, 9, 9), (16, 16))}, "the mask is 16x16, the picture 96x96"),
        ({"mask": "@@@"}, "the mask is not base64"),
        ({"mask": base64.b64encode(b"text").decode()}, "not a readable picture"),
    ],
)
def test_edits_that_make_no_sense_are_refused(
    running: Running, visitor: httpx.Client, more: dict[str, Any], words: str
) -> None:
    picture = made(running, visitor)
    body = {"picture": picture["id"], "mask": mask((30, 30, 60, 60)), "change": "make it blue", **more}
    answer = visitor.post("/api/edits", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_a_page_that_comes_back_sees_its_jobs_its_pictures_and_the_last_preview(running: Running) -> None:
    with running.visitor() as client:
        before = made(running, client)
        job = client.post("/api/pictures", json={**FAST, "steps": 150}).json()
        while not client.get(f"/api/jobs/{job['id']}").json()["preview"]:
            time.sleep(0.02)
        seen = dict(events(client, until="jobs"))  # as a page that is loaded now
        again = next(j for j in seen["jobs"] if j["id"] == job["id"])
        assert again["state"] == "running"
        assert 0 < again["step"] < 150
        assert client.get(f"/{again['preview']}").content.startswith(b"\xff\xd8")
        assert before["id"] in [p["id"] for p in seen["gallery"]]
        cancelled = time.monotonic()
        client.post(f"/api/jobs/{job['id']}/cancel")
        while client.get(f"/api/jobs/{job['id']}").json()["state"] == "running":
            time.sleep(0.01)
        assert time.monotonic() - cancelled < 3  # a step takes a twentieth of a second on a quiet machine
        left = client.get(f"/api/jobs/{job['id']}").json()
        assert (left["state"], left["preview"] is not None) == ("cancelled", True)
        assert made(running, client)  # the worker is free


def test_browsers_see_only_their_own_jobs_and_pictures(running: Running) -> None:
    with running.visitor() as one, running.visitor() as two:
        picture = made(running, one)
        job = one.post("/api/ideas", json={"keyword": "frog"}).json()
        assert two.get(f"/{picture['url']}").status_code == 400
        assert two.get(f"/api/jobs/{job['id']}").status_code == 400
        assert two.post(f"/api/jobs/{job['id']}/cancel").status_code == 400
        seen = dict(events(two, until="jobs"))
        assert (seen["gallery"], seen["jobs"]) == ([], [])
    stranger = httpx.get(f"{running.url}/api/events")
    assert stranger.status_code == 400
    assert "no session" in stranger.json()["error"]["message"]


def test_two_variants_of_one_seed_side_by_side(running_two: Running) -> None:
    with running_two.visitor() as client:
        names = [v["name"] for v in client.get("/api/state").json()["variants"]]
        assert len(names) == 2
        job = running_two.done(client, client.post("/api/compare", json={**FAST, "steps": 6, "variants": names}))
        assert job["state"] == "done", job["error"]
        result = job["result"]
        assert [s["variant"] for s in result["sides"]] == names
        a, b = (pixels(client, s["picture"]) for s in result["sides"])
        gap = pixels(client, result["difference"])
        assert np.array_equal(gap, np.clip(np.abs(a - b) * result["gain"], 0, 255))
        assert result["largest"] == np.abs(a - b).max() <= 2  # the same computation
        assert all(s["seconds_total"] > 0 and s["step_seconds"] > 0 for s in result["sides"])
        # both were measured on the way, and the page is told
        assert all(v["seconds_per_step"] > 0 for v in client.get("/api/state").json()["variants"])
