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
from serving import Hold, Running

from opsmith import starter
from opsmith.pipelines import edit, grammar, masks, pictures
from opsmith.pipelines.diffusion import DiffusionApp

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
    beside = json.loads(file.with_suffix(".json").read_text())
    assert beside.pop("album")["id"] == picture["id"]
    assert beside == settings
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


def test_removing_paints_as_the_command_does(running: Running, visitor: httpx.Client) -> None:
    """The same picture, mask and seed through Studio and through `edit.edit` as `opsmith edit` calls it: the same pixels."""
    before = made(running, visitor)
    where = (30, 30, 60, 60)
    body = {"picture": before["id"], "mask": mask(where), "change": "remove it", "steps": 10, "seed": 3}
    job = running.done(visitor, visitor.post("/api/edits", json=body))
    assert job["state"] == "done", job["error"]
    after = job["result"]["pictures"][0]
    assert job["result"]["remarks"][0].startswith("filled from the surroundings, then painted by pictures, unet ")
    image = Image.open(running.studio.album.folder / before["file"]).convert("RGB")
    app, _ = edit.painter(grammar.parse("remove it"), lambda: DiffusionApp(starter.folder("pictures")))
    area = masks.from_box(image, where)
    wanted, painted = edit.edit(image, area, grammar.parse("remove it"), app=app, steps=10, seed=3)
    assert painted is not None
    assert np.abs(np.asarray(wanted, int) - pixels(visitor, after)).max() <= 2
    assert after["settings"]["edits"][0]["kind"] == "remove"
    assert after["settings"]["edits"][0]["steps"] == 10


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
    sure = job["result"]["sure"]
    assert 0.5 < sure < 0.9
    assert job["result"]["doubt"] == ("" if sure >= 0.7 else f"'apple' is {sure:.0%} sure, below 70%")
    body = {"picture": picture["id"], "words": "submarine", "threshold": 0.5}
    strange = running.done(visitor, visitor.post("/api/select", json=body))
    assert strange["result"]["doubt"] == "the mask model was never shown 'submarine'"


@pytest.mark.parametrize(
    ("path", "body", "words", "field"),
    [
        ("pictures", {"prompt": " "}, "the prompt is empty", "prompt"),
        ("pictures", {"prompt": "x", "negative": "y" * 2001}, "longer than 2000 characters", "negative"),
        ("pictures", {"prompt": "x", "steps": 1000}, "1000 steps are not possible", "steps"),
        ("pictures", {"prompt": "x", "width": 8192}, "8192x96 is not possible", "width"),
        ("pictures", {"prompt": "x", "n": 50}, "50 pictures at once are not possible", "n"),
        ("pictures", {"prompt": "x", "guidance": -1}, "a guidance of -1.0 is not possible", "guidance"),
        ("pictures", {"prompt": "x", "seed": -1}, "the seed -1 is not possible", "seed"),
        ("pictures", {"prompt": "x", "variant": "../../x"}, "there is no variant '../../x'", "variant"),
        ("pictures", {"prompt": ["x"]}, "prompt: Input should be a valid string", "prompt"),
        ("ideas", {"keyword": ""}, "the idea is empty", "keyword"),
        ("select", {"picture": "none", "words": "x"}, "no longer in the gallery", None),
        ("edits", {"picture": "none", "mask": "", "change": "x"}, "no longer in the gallery", None),
        ("report", {"part": "../../x"}, "there is no part", None),
        ("compile", {"precision": "fp4"}, "the precision 'fp4' is unknown", "precision"),
        ("models/look", {"source": " "}, "the model's name is empty", "source"),
        ("models/look", {"source": "no such place"}, "neither a folder nor a Hugging Face id", "source"),
        ("models/look", {"source": "/"}, "is no picture model", "source"),
        ("models/use", {"source": "/etc"}, "there is no picture model '/etc'", None),
        ("pictures/none/delete", {}, "no longer in the gallery", None),
        ("jobs/none/clear", {}, "this job is no longer known", None),
    ],
)
def test_wishes_that_cannot_be_granted_are_refused_at_once_and_say_where(
    visitor: httpx.Client, path: str, body: dict[str, Any], words: str, field: str | None
) -> None:
    answer = visitor.post(f"/api/{path}", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("more", "words", "field"),
    [
        ({"change": "sing it a song"}, "is not understood", "change"),
        ({"mask": mask((0, 0, 0, 0))}, "nothing is selected", "mask"),
        ({"mask": mask((0, 0, 9, 9), (16, 16))}, "the mask is 16x16, the picture 96x96", None),
        ({"mask": "@@@"}, "the mask is not base64", None),
        ({"mask": base64.b64encode(b"text").decode()}, "not a readable picture", None),
    ],
)
def test_edits_that_make_no_sense_are_refused(
    running: Running, visitor: httpx.Client, more: dict[str, Any], words: str, field: str | None
) -> None:
    picture = made(running, visitor)
    body = {"picture": picture["id"], "mask": mask((30, 30, 60, 60)), "change": "make it blue", **more}
    answer = visitor.post("/api/edits", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == field


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


def test_words_that_the_model_was_never_shown_are_told_before_a_picture_is_made(visitor: httpx.Client) -> None:
    known = "a drawing of a big red apple next to a tiny owl, under the stars"
    assert visitor.post("/api/words", json={"prompt": known}).json() == {"unknown": [], "remark": ""}
    answer = visitor.post("/api/words", json={"prompt": "a Violin and a submarine on the grass"}).json()
    assert answer["unknown"] == ["violin", "submarine"]
    remark = "this model was never shown 'violin' and 'submarine': the picture may show something else"
    assert answer["remark"] == remark


def test_what_was_deleted_is_gone_from_the_gallery_and_from_the_disk(running: Running) -> None:
    with running.visitor() as owner, running.visitor() as stranger:
        picture = made(running, owner)
        file = running.studio.album.folder / picture["file"]
        assert stranger.post(f"/api/pictures/{picture['id']}/delete").status_code == 400
        assert file.is_file()
        assert owner.post(f"/api/pictures/{picture['id']}/delete").status_code == 200
        assert not file.exists()
        assert not file.with_suffix(".json").exists()
        assert dict(events(owner, until="gallery"))["gallery"] == []


def test_a_cancelled_job_can_be_cleared_and_a_running_one_cannot(
    running: Running, visitor: httpx.Client, hold: Hold
) -> None:
    hold.at(2)
    job = visitor.post("/api/pictures", json={**FAST, "steps": 9}).json()
    hold.reached()
    refused = visitor.post(f"/api/jobs/{job['id']}/clear")
    assert "this job has not ended yet" in refused.json()["error"]["message"]
    assert visitor.post(f"/api/jobs/{job['id']}/cancel").json()["stopping"]
    hold.release()
    while visitor.get(f"/api/jobs/{job['id']}").json()["state"] == "running":
        time.sleep(0.01)
    assert visitor.post(f"/api/jobs/{job['id']}/clear").status_code == 200
    assert dict(events(visitor, until="jobs"))["jobs"] == []
