"""The OpenAI HTTP API, asked by the real client."""

from __future__ import annotations

import base64
import io
import time

import httpx
import numpy as np
import openai
import pytest
from PIL import Image
from serving import Running

FAST = {"steps": 3, "seed": 5}


@pytest.fixture(scope="module")
def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120)


def picture(data: str | None) -> Image.Image:
    assert data
    return Image.open(io.BytesIO(base64.b64decode(data)))


def png(image: Image.Image) -> tuple[str, bytes]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "../../etc/passwd", file.getvalue()  # a file name that must not matter


@pytest.fixture(scope="module")
def apple(client: openai.OpenAI) -> Image.Image:
    return picture(client.images.generate(prompt="a red apple", extra_body=FAST).data[0].b64_json)


def idle(running: Running, seconds: float = 15) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(running.studio.jobs.busy().values()):
            return True
        time.sleep(0.02)
    return False


def test_models(client: openai.OpenAI) -> None:
    names = [m.id for m in client.models.list()]
    assert names[0] == "pictures"
    assert "writer" in names
    assert any(name.startswith("pictures:") for name in names)
    assert client.models.retrieve("writer").id == "writer"
    assert client.models.retrieve("embedder").id == "embedder"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'"):
        client.models.retrieve("gpt-9")


def test_pictures_of_a_size_and_number_with_their_settings_inside(client: openai.OpenAI) -> None:
    made = client.images.generate(
        prompt="a red apple",
        n=2,
        size="64x48",
        response_format="b64_json",
        extra_body={**FAST, "guidance": 2.0, "negative_prompt": "blue"},
    )
    images = [picture(d.b64_json) for d in made.data]
    assert [i.size for i in images] == [(64, 48)] * 2
    assert np.any(np.asarray(images[0]) != np.asarray(images[1]))
    for word in ('"steps": 3', '"seed": 5', '"guidance": 2.0', '"negative_prompt": "blue"', '"prompt": "a red apple"'):
        assert word in images[0].info["opsmith"]


def test_the_same_seed_gives_the_same_picture(client: openai.OpenAI, apple: Image.Image) -> None:
    again = picture(client.images.generate(prompt="a red apple", model="pictures", extra_body=FAST).data[0].b64_json)
    assert np.array_equal(np.asarray(again), np.asarray(apple))


def test_partial_pictures_stream(client: openai.OpenAI, apple: Image.Image) -> None:
    stream = client.images.generate(prompt="a red apple", stream=True, partial_images=2, extra_body=FAST)
    events = list(stream)
    assert [e.type for e in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [e.partial_image_index for e in events[:2]] == [0, 1]
    last, partial = picture(events[-1].b64_json), picture(events[0].b64_json)
    assert np.array_equal(np.asarray(last), np.asarray(apple))
    assert np.any(np.asarray(partial) != np.asarray(last))
    assert events[-1].size == "96x96"


def test_edits_paint_only_where_the_mask_is_transparent(client: openai.OpenAI, apple: Image.Image) -> None:
    hole = np.asarray(apple.convert("RGBA")).copy()
    hole[20:60, 30:70, 3] = 0
    mask = Image.fromarray(hole)
    made = client.images.edit(image=png(apple), mask=png(mask), prompt="a frog", extra_body=FAST)
    gap = np.abs(np.asarray(picture(made.data[0].b64_json), int) - np.asarray(apple.convert("RGB"), int)).max(-1)
    assert gap[20:60, 30:70].max() > 0
    gap[20:60, 30:70] = 0
    assert gap.max() == 0
    # without a mask the picture's own transparency is taken
    same = client.images.edit(image=[png(mask)], prompt="a frog", extra_body=FAST)
    assert np.array_equal(
        np.asarray(picture(same.data[0].b64_json))[25, 40], np.asarray(picture(made.data[0].b64_json))[25, 40]
    )


def test_edits_stream_and_without_a_mask_start_from_the_picture(client: openai.OpenAI, apple: Image.Image) -> None:
    stream = client.images.edit(
        image=png(apple), prompt="a red apple", stream=True, partial_images=1, extra_body={**FAST, "strength": 0.4}
    )
    events = list(stream)
    assert events[-1].type == "image_edit.completed"
    assert picture(events[-1].b64_json).size == apple.size


def test_completions(client: openai.OpenAI, running: Running) -> None:
    asked = {"model": "writer", "prompt": "frog:", "max_tokens": 12, "seed": 3, "temperature": 0.7}
    whole = client.completions.create(**asked, n=2)
    assert len({c.text for c in whole.choices}) == 2
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert 2 <= whole.usage.completion_tokens <= 24
    stream = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    pieces = list(stream)
    assert "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
    assert [p.choices[0].finish_reason for p in pieces if p.choices][-1] == whole.choices[0].finish_reason
    assert pieces[-1].usage is not None
    short = client.completions.create(**{**asked, "prompt": ["frog:", "castle:"], "max_tokens": 2, "temperature": 0})
    assert [c.finish_reason for c in short.choices] == ["length"] * 2
    stopped = client.completions.create(**asked, stop=" a", echo=True)
    assert stopped.choices[0].text.startswith("frog:")
    assert idle(running)
    assert running.studio.jobs.of("api") == []  # nothing of the API's jobs is kept


def test_errors_are_the_clients_own_with_our_message(client: openai.OpenAI, apple: Image.Image) -> None:
    bad, gone = openai.BadRequestError, openai.NotFoundError
    with pytest.raises(gone, match="there is no model 'dall-e-9' for this .there are: pictures"):
        client.images.generate(prompt="x", model="dall-e-9")
    with pytest.raises(gone, match="there is no model 'pictures'"):
        client.completions.create(model="pictures", prompt="x")
    with pytest.raises(bad, match="97x97 is not possible .multiples of 8"):
        client.images.generate(prompt="x", size="97x97")
    with pytest.raises(bad, match="the size 'large' is not understood"):
        client.images.generate(prompt="x", size="large")
    for size in ("16x\u0661\u0666", "1_6x16", "+16x16", "9" * 5000 + "x8"):  # what int() takes for numbers
        with pytest.raises(bad, match="is not understood"):
            client.images.generate(prompt="x", size=size)  # type: ignore[arg-type]
    with pytest.raises(bad, match="0x0 is not possible"):
        client.images.generate(prompt="x", size="0x0")  # type: ignore[arg-type]
    with pytest.raises(bad, match="the prompt is empty"):
        client.images.generate(prompt=" ")
    with pytest.raises(bad, match="n: Input should be less than or equal to"):
        client.images.generate(prompt="x", n=99)
    with pytest.raises(bad, match="response_format 'url' is not possible"):
        client.images.generate(prompt="x", response_format="url")
    with pytest.raises(bad, match="not a readable picture"):
        client.images.edit(image=("a.png", b"no picture"), prompt="x")
    with pytest.raises(bad, match="the mask is 8x8, the picture 96x96"):
        client.images.edit(image=png(apple), mask=png(Image.new("RGBA", (8, 8))), prompt="x")
    with pytest.raises(bad, match="the mask has no transparent part"):
        client.images.edit(image=png(apple), mask=png(apple), prompt="x")
    with pytest.raises(bad, match="2 pictures were sent"):
        client.images.edit(image=[png(apple), png(apple)], prompt="x")
    for stream in (False, True):
        with pytest.raises(bad, match="exceed the context of 64 .ask for at most"):
            client.completions.create(model="writer", prompt="frog:", max_tokens=1000, stream=stream)
    with pytest.raises(bad, match="there is no token 5000"):
        client.completions.create(model="writer", prompt=[1, 2, 5000])
    with pytest.raises(bad, match="quality is not supported; only .auto. or .standard."):
        client.images.generate(prompt="x", quality="hd")
    with pytest.raises(bad, match="style is not supported"):
        client.images.edit(image=png(apple), prompt="x", extra_body={"style": "vivid"})
    assert client.completions.create(model="writer", prompt="frog:", max_tokens=1).choices  # and the next one works


def test_an_aborted_stream_frees_the_worker(client: openai.OpenAI, running: Running) -> None:
    stream = client.images.generate(
        prompt="a frog", stream=True, partial_images=3, extra_body={"steps": 150, "seed": 1}
    )
    next(iter(stream))
    assert running.studio.jobs.busy()["pictures"] == 1
    stream.close()
    assert idle(running, 5), "150 steps take longer than this"


def test_a_client_that_gives_up_frees_the_worker(client: openai.OpenAI, running: Running) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=httpx.Timeout(0.6)).images.generate(prompt="a frog", extra_body={"steps": 150})
    assert idle(running, 5), "150 steps take longer than this"


def test_the_password_is_the_key(running: Running) -> None:
    from opsmith.studio import server

    guarded = server.make_app(running.studio, password="open sesame")
    for key, right in (("open sesame", True), ("open barley", False)):
        http = httpx.Client(transport=_Local(guarded), base_url="http://127.0.0.1")
        client = openai.OpenAI(base_url="http://127.0.0.1/v1", api_key=key, max_retries=0, http_client=http)
        if right:
            assert list(client.models.list())
        else:
            with pytest.raises(openai.AuthenticationError, match="the password is missing or wrong"):
                client.models.list()


class _Local(httpx.BaseTransport):
    """Requests straight into the application."""

    def __init__(self, app: object) -> None:
        self.inner = httpx.ASGITransport(app)  # type: ignore[arg-type]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        import asyncio

        async def ask() -> httpx.Response:
            answer = await self.inner.handle_async_request(request)
            return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

        return asyncio.run(ask())
