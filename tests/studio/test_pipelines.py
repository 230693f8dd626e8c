"""The picture models to choose from: listed, looked at before anything is fetched, added, used."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import models
import pytest
from serving import begin, ended, visitor_of

from opsmith import starter
from opsmith.errors import OpsmithError
from opsmith.studio.core import Studio
from opsmith.studio.models import Models
from opsmith.studio.pipelines import Pipelines

FILES = {
    "model_index.json": 500,
    "README.md": 9_000,
    "unet/config.json": 1_000,
    "unet/diffusion_pytorch_model.safetensors": 3_000_000,
    "unet/diffusion_pytorch_model.fp16.safetensors": 1_500_000,
    "vae/diffusion_pytorch_model.safetensors": 300_000,
    "text_encoder/model.safetensors": 500_000,
    "safety_checker/model.safetensors": 9_000_000,
    "sd-v1-4.ckpt": 4_000_000,
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine that knows one picture model and one other; yields what was asked of it."""
    asked: list[str] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            files = {"one/pictures": FILES, "one/words": {"config.json": 10}}.get(self.path.split("?")[0][12:])
            body = {
                "id": self.path.split("?")[0][12:],
                "siblings": [],
                "cardData": {"license": "creativeml-openrail-m"},
            }
            if files is not None:
                body["siblings"] = [{"rfilename": name, "size": size} for name, size in files.items()]
            data = json.dumps(body if files is not None else {"error": "Repository not found"}).encode()
            self.send_response(200 if files is not None else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the suite is offline; this hub is on this machine
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield asked
    server.shutdown()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a working folder of this test's own."""
    monkeypatch.setenv("OPSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_size_and_licence_on_the_hub_are_told_before_anything_is_fetched(own: Path, hub: list[str]) -> None:
    offer = Pipelines().look("one/pictures")
    assert offer.licence == "creativeml-openrail-m"
    assert (offer.fetched, offer.exported) == (True, True)
    # what an export reads: no fp16 copies, no safety checker, no pickles, no README
    assert offer.bytes == 500 + 1_000 + 3_000_000 + 300_000 + 500_000
    assert any(path.startswith("/api/models/one/pictures") for path in hub)
    assert all(path.startswith("/api/") for path in hub)  # facts only; files lie elsewhere
    with pytest.raises(OpsmithError, match="one/words is no picture model"):
        Pipelines().look("one/words")
    with pytest.raises(OpsmithError, match="one/none cannot be looked up on the hub"):
        Pipelines().look("one/none")


def test_folders_are_listed_and_say_their_size_and_licence(own: Path) -> None:
    shutil.copytree(models.tiny_pipeline("dynamo"), own / "models" / "tiny")
    (own / "models" / "tiny" / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\nwords\n")
    (own / "models" / "other").mkdir()
    listed = Pipelines().all()
    assert [p.title for p in listed] == ["starter pictures", "tiny"]
    offer = Pipelines().look("models/tiny")
    assert (offer.licence, offer.fetched, offer.exported) == ("mit", False, False)
    assert (
        offer.bytes == listed[1].bytes == sum(f.stat().st_size for f in Path("models/tiny").rglob("*") if f.is_file())
    )
    source = Pipelines().look(str(models.tiny_source("stable-diffusion")))
    assert (source.exported, source.fetched, source.licence) == (True, False, "not stated")
    with pytest.raises(OpsmithError, match="is no picture model"):
        Pipelines().look("models/other")


def test_an_added_pipeline_is_used_by_all_and_found_again(own: Path) -> None:
    elsewhere = own / "elsewhere" / "tiny"
    shutil.copytree(models.tiny_pipeline("dynamo"), elsewhere)
    running = begin(Studio(Models(), own / "pictures"))
    with visitor_of(running.url) as client:
        job = ended(client, client.post("/api/models/add", json={"source": str(elsewhere)}))
        assert job["result"] == {"pipeline": str(elsewhere)}
        assert client.get("/api/state").json()["pipeline"] == "starter"  # added, not yet used
        assert ended(client, client.post("/api/models/use", json={"source": str(elsewhere)}))["state"] == "done"
        state = client.get("/api/state").json()
        assert (state["pipeline"], state["native"], state["draws"]) == (str(elsewhere), [32, 32], {})
        made = ended(client, client.post("/api/pictures", json={"prompt": "a frog", "steps": 2, "seed": 1}))
        picture = made["result"]["pictures"][0]
        assert (picture["width"], picture["settings"]["pipeline"]) == (32, "tiny")
        assert ended(client, client.post("/api/models/use", json={"source": "starter"}))["state"] == "done"
        assert client.get("/api/state").json()["native"] == [96, 96]
        bad = own / "elsewhere" / "bad"
        shutil.copytree(starter.folder("pictures"), bad)
        shutil.rmtree(bad / "tokenizer")
        job = ended(client, client.post("/api/models/add", json={"source": str(bad)}))
        assert job["state"] == "failed"
        assert "tokenizer" in job["error"]
    running.stop()
    assert [p.title for p in Pipelines().all()] == ["starter pictures", "tiny"]


def test_a_studio_that_others_reach_adds_nothing(own: Path) -> None:
    studio = Studio(Models(), own / "pictures")
    studio.pipelines.closed = "models are added on the machine that runs the studio, with --model"
    running = begin(studio)
    with visitor_of(running.url) as client:
        for path in ("look", "add"):
            answer: httpx.Response = client.post(f"/api/models/{path}", json={"source": "/"})
            assert answer.status_code == 400
            assert "on the machine that runs the studio" in answer.json()["error"]["message"]
    running.stop()


@pytest.mark.slow  # a real export of all components
def test_a_folder_in_hugging_face_s_layout_is_exported_first(own: Path) -> None:
    source = models.tiny_source("stable-diffusion")
    pipelines = Pipelines()
    folder = pipelines.add(str(source), lambda: False)
    assert folder.parent == (own / "cache" / "pipelines").resolve()  # where create_stable_diffusion finds it
    assert [p.id for p in pipelines.all()] == ["starter", str(folder)]
    assert Models(pictures=folder).native == (32, 32)
