"""The whole flow in a real browser: from a keyword to a saved edit, cancel, a bad upload, two browsers at once."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from serving import Running

from opsmith.pipelines import pictures

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, Route, expect

LONG = 180_000  # milliseconds: the machine may be busy
Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, running: Running) -> Iterator[Open]:
    """Pages in fresh profiles. At the end: no script error, no request to another host."""
    contexts, problems, requests = [], list[str](), list[str]()

    def opened(width: int = 1280, height: int = 900, scheme: str = "light", where: Running = running) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(LONG)
        contexts.append(context)
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.goto(where.url)
        expect(page.locator(".variant").first).to_be_visible(timeout=LONG)
        return page

    yield opened
    for context in contexts:
        context.close()
    hosts = {urlsplit(url).hostname for url in requests if urlsplit(url).scheme not in ("data", "blob")}
    assert hosts == {"127.0.0.1"}, f"the page asked {hosts}"
    expected = re.compile(r"status of 400")  # what a refused upload writes to the console
    assert [p for p in problems if not expected.search(p)] == []


def make(page: Page, prompt: str, steps: int = 4, seed: int | None = 5, side: int = 96) -> None:
    page.fill("#prompt", prompt)
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#steps", str(steps))
    page.fill("#width", str(side))
    page.fill("#height", str(side))
    page.fill("#seed", "" if seed is None else str(seed))
    page.click("#go")


def make_slowly(page: Page, prompt: str) -> None:
    """A picture that takes seconds on any machine; one of 96 pixels is done before a click arrives."""
    make(page, prompt, steps=150, side=384)


def finished(page: Page, number: int) -> None:
    """NUMBER pictures are in the gallery, and the stage shows one that can be selected in."""
    expect(page.locator(".thumb:not(.pending):not(.ghost)")).to_have_count(number, timeout=LONG)
    expect(page.locator("#progress")).to_be_hidden(timeout=LONG)
    expect(page.locator("#overlay")).to_be_visible(timeout=LONG)


def test_from_a_keyword_to_a_saved_edit(open_page: Open, artefacts: Path, tmp_path: Path) -> None:
    page = open_page()
    # 1 idea: three prompts, one is picked
    page.fill("#keyword", "frog")
    page.press("#keyword", "Enter")
    cards = page.locator(".idea-card:not(.writing)")
    expect(cards).to_have_count(3, timeout=LONG)
    assert all("frog" in text for text in cards.all_inner_texts())
    cards.nth(1).click()
    expect(page.locator("#prompt")).to_have_value(cards.nth(1).inner_text())
    # 2 picture: within 15 seconds
    page.fill("#prompt", "a red apple on a yellow background")
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#seed", "7")
    started = time.monotonic()
    page.click("#go")
    finished(page, 1)
    seconds = time.monotonic() - started
    print(f"first picture after {seconds:.1f} s")
    expect(page.locator("#caption")).to_have_text("a red apple on a yellow background")
    # 3 select: by words, threshold adjusted until something is found, then by a click and with the brush
    page.fill("#words", "apple")
    page.press("#words", "Enter")
    expect(page.locator("#sure-row")).to_be_visible(timeout=LONG)
    page.evaluate("const s = document.getElementById('sure'); s.value = 5; s.dispatchEvent(new Event('change'))")
    expect(page.locator("#share")).to_have_text(re.compile(r"[\d.]+ % selected"), timeout=LONG)
    page.click("#clear")
    expect(page.locator("#share")).to_have_text("no selection")
    box = page.locator("#overlay").bounding_box()
    assert box is not None
    page.click("[data-tool=brush]")
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=4)
    page.mouse.up()
    expect(page.locator("#share")).to_have_text(re.compile(r"[\d.]+ % selected"))
    page.screenshot(path=artefacts / "selected.png")
    # 4 edit: recolour, look at before and after, undo, redo, then say it in words
    page.click("[title='make it blue']")
    finished(page, 2)
    expect(page.locator("#caption")).to_have_text("a red apple on a yellow background — make it blue")
    page.click("#compare-before")
    expect(page.locator("#before")).to_be_visible()
    page.locator("#split").fill("30")
    assert "70%" in str(page.locator("#before").get_attribute("style"))
    page.screenshot(path=artefacts / "before-after.png")
    page.click("#undo")
    expect(page.locator("#caption")).to_have_text("a red apple on a yellow background")
    page.click("#redo")
    expect(page.locator("#caption")).to_have_text(re.compile("make it blue"))
    expect(page.locator("#overlay")).to_be_visible()
    page.click("#all")
    page.fill("#say", "make it a little darker")
    page.press("#say", "Enter")
    finished(page, 3)
    # 5 save: the PNG holds the settings; dropped on a new page it restores them
    with page.expect_download() as download:
        page.click("#save")
    target = tmp_path / "saved.png"
    download.value.save_as(target)
    settings = pictures.settings_of(target)
    assert settings["prompt"] == "a red apple on a yellow background"
    assert [e["change"] for e in settings["edits"]] == ["make it blue", "make it a little darker"]
    other = open_page()
    drop(other, target.read_bytes(), "saved.png")
    expect(other.locator("#prompt")).to_have_value(settings["prompt"], timeout=LONG)
    expect(other.locator("#seed")).to_have_value(str(settings["seed"]))
    assert seconds < 15


def drop(page: Page, data: bytes, name: str) -> None:
    """As if a file was dropped on the page."""
    page.evaluate(
        """([text, name]) => {
            const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            const files = new DataTransfer();
            files.items.add(new File([bytes], name, { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
        }""",
        [base64.b64encode(data).decode(), name],
    )


def test_replace_from_the_page(open_page: Open) -> None:
    page = open_page()
    make(page, "a red apple")
    finished(page, 1)
    page.click("#all")
    page.fill("#replace", "a frog")
    page.press("#replace", "Enter")
    finished(page, 2)
    expect(page.locator("#caption")).to_have_text("a red apple — replace it with a frog")


def test_cancel_keeps_the_last_preview_and_the_next_picture_works(
    open_page: Open, running: Running, artefacts: Path
) -> None:
    page = open_page()
    make_slowly(page, "a red apple")
    expect(page.locator("#shown.preview")).to_be_visible(timeout=LONG)
    expect(page.locator("#progress-text")).to_have_text(re.compile(r"step \d+ of 150( · .* left)?"), timeout=LONG)
    page.screenshot(path=artefacts / "making.png")
    page.click("#cancel")
    expect(page.locator("#progress")).to_be_hidden(timeout=5000)
    expect(page.locator(".thumb.ghost")).to_be_visible()
    assert running.studio.jobs.busy()["pictures"] == 0
    make(page, "a red apple")
    finished(page, 1)


def test_a_reloaded_page_comes_back_to_its_job(open_page: Open) -> None:
    page = open_page()
    make_slowly(page, "a red apple")
    expect(page.locator("#shown.preview")).to_be_visible(timeout=LONG)
    page.reload()
    expect(page.locator("#shown.preview")).to_be_visible(timeout=LONG)
    expect(page.locator("#progress-text")).to_have_text(re.compile(r"step \d+ of 150"), timeout=LONG)
    page.keyboard.press("Escape")
    expect(page.locator("#progress")).to_be_hidden(timeout=LONG)


def test_a_bad_upload_says_why_and_a_good_one_works(open_page: Open) -> None:
    page = open_page()
    page.set_input_files("#file", {"name": "../../x.png", "mimeType": "image/png", "buffer": b"no picture at all"})
    expect(page.locator(".toast")).to_contain_text("the file is not a readable picture", timeout=LONG)
    good = io.BytesIO()
    Image.fromarray(np.full((60, 80, 3), (10, 200, 30), np.uint8)).save(good, "PNG")
    page.set_input_files("#file", {"name": "good.png", "mimeType": "image/png", "buffer": good.getvalue()})
    finished(page, 1)
    page.click("#overlay", position={"x": 30, "y": 30})  # the wand: one colour, so all of it
    expect(page.locator("#share")).to_have_text("100 % selected")


def test_two_browsers_at_once_wait_for_each_other(open_page: Open) -> None:
    one, two = open_page(), open_page()
    make_slowly(one, "a red apple")
    expect(one.locator("#shown.preview")).to_be_visible(timeout=LONG)
    make(two, "a green frog")
    expect(two.locator("#progress-text")).to_have_text("waiting: 1 before this one", timeout=LONG)
    finished(one, 1)
    finished(two, 1)
    expect(two.locator("#caption")).to_have_text("a green frog")
    assert one.locator(".thumb").count() == 1  # each has a gallery of its own


def test_nothing_can_be_selected_before_the_picture_has_arrived(open_page: Open) -> None:
    page = open_page()
    held = list[Route]()
    page.route("**/api/pictures/*.png", lambda route: held.append(route))
    make(page, "a red apple")
    expect(page.locator("#caption")).to_have_text("a red apple", timeout=LONG)
    expect(page.locator("#progress")).to_be_hidden(timeout=LONG)
    expect(page.locator("#overlay")).to_be_hidden()
    for route in held:
        route.continue_()
    page.unroute("**/api/pictures/*.png")
    finished(page, 1)


def test_the_keyboard_is_enough(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("#prompt").focus()
    page.evaluate("document.getElementById('steps').value = 4")
    page.keyboard.type("a red apple")
    page.keyboard.press("Control+Enter")
    finished(page, 1)
    page.locator("#overlay").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#share")).to_have_text(re.compile(r"[\d.]+ % selected"))
    page.locator("#say").focus()
    page.keyboard.type("make it green")
    page.keyboard.press("Enter")
    finished(page, 2)
    page.locator("#undo").focus()
    page.keyboard.press("Control+z")
    expect(page.locator("#caption")).to_have_text("a red apple")
    page.locator("#tab-make").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#bench")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_readable_at_every_width_in_light_and_dark(open_page: Open, artefacts: Path, width: int, scheme: str) -> None:
    page = open_page(width, 900 if width > 500 else 844, scheme)
    make(page, "a red apple on a yellow background")
    finished(page, 1)
    for view in ("make", "bench"):
        page.click(f"#tab-{view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it can be scrolled sideways"
        page.screenshot(path=artefacts / f"{view}-{width}-{scheme}.png", full_page=True)
        for style in page.evaluate(CONTRASTS):
            assert style["ratio"] >= 4.5, style
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in re.findall(r"\d+", background)[:3]) > 384) == (scheme == "light")


# Text against the background that is painted behind it, as WCAG counts contrast. Disabled controls are left out.
CONTRASTS = """() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; })
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  for (const node of document.querySelectorAll("h2, p, label, button, legend, summary, .soft, .value, .caption, small")) {
    if (!node.checkVisibility() || !node.innerText.trim() || node.closest(":disabled, .off, [disabled], .swatches")) continue;
    let behind = node;
    while (behind && channels(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    if (!behind) continue;
    const a = light(channels(getComputedStyle(node).color)), b = light(channels(getComputedStyle(behind).backgroundColor));
    found.push({ text: node.innerText.slice(0, 30), ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) });
  }
  return found;
}"""


def test_bench_compares_variants_and_shows_the_report(open_page: Open, running_two: Running, artefacts: Path) -> None:
    from opsmith.measure.report import report

    # What `Measure` runs in a process of its own for half a minute, here with less to do.
    target = running_two.studio.models.report_file("text_encoder")
    report(running_two.studio.models.parts()["text_encoder"], target, seconds=0.5, rounds=2, processes=1, iterations=2)
    page = open_page(where=running_two)
    page.click("#tab-bench")
    page.evaluate("document.getElementById('steps').value = 5")
    page.click("#compare-form button")
    expect(page.locator("#compare-result figure")).to_have_count(3, timeout=LONG)
    expect(page.locator("#compare-result")).to_contain_text("a step")
    expect(page.locator("#speeds .bar")).to_have_count(2)
    page.click("[data-part=text_encoder]")
    inside = page.frame_locator("#report")
    expect(inside.locator("h2").first).to_have_text("Speed", timeout=LONG)
    expect(inside.locator("body")).to_contain_text("Where the time goes")
    page.screenshot(path=artefacts / "bench.png", full_page=True)
    state = json.loads(page.evaluate("fetch('api/state').then((answer) => answer.text())"))
    assert all(v["seconds_per_step"] for v in state["variants"])


def test_the_password_is_asked_for(browser: Browser, home: Path) -> None:
    from serving import begin

    from opsmith.studio.core import Studio
    from opsmith.studio.models import Models

    locked = begin(Studio(Models(), home / "door"), password="open sesame")
    context: Any = browser.new_context()
    try:
        page = context.new_page()
        page.goto(locked.url)
        page.fill("[name=password]", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator(".wrong")).to_be_visible(timeout=LONG)
        page.fill("[name=password]", "open sesame")
        page.keyboard.press("Enter")
        expect(page.locator(".variant").first).to_be_visible(timeout=LONG)
    finally:
        context.close()
        locked.stop()
