"""The whole flow in a real browser: from a keyword to a saved edit, cancel, a bad upload, two browsers at once."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import models
import numpy as np
import pytest
from PIL import Image
from serving import Hold, Running, begin

from opsmith import starter
from opsmith.pipelines import pictures
from opsmith.studio.core import Studio
from opsmith.studio.models import Models

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Page, Route, expect

LONG = 180_000  # milliseconds: the machine may be busy
expect.set_options(timeout=LONG)
Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, running: Running) -> Iterator[Open]:
    """Pages in fresh profiles. At the end: no script error, no request to another host."""
    contexts, problems, requests = [], list[str](), list[str]()

    def opened(
        width: int = 1280, height: int = 900, scheme: str = "light", where: Running = running, touch: bool = False
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True, has_touch=touch
        )
        context.set_default_timeout(LONG)
        contexts.append(context)
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.goto(where.url)
        expect(page.locator(".variant").first).to_be_visible()
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


def finished(page: Page, number: int) -> None:
    """NUMBER pictures are in the gallery, and the stage shows one that can be selected in."""
    expect(page.locator(".thumb:not(.pending):not(.ghost)")).to_have_count(number)
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#overlay")).to_be_visible()


def test_from_a_keyword_to_a_saved_edit(open_page: Open, artefacts: Path, tmp_path: Path) -> None:
    page = open_page()
    # 1 idea: three prompts, one is picked
    page.fill("#keyword", "frog")
    page.press("#keyword", "Enter")
    cards = page.locator(".idea-card:not(.writing)")
    expect(cards).to_have_count(3)
    assert all("frog" in text for text in cards.all_inner_texts())
    cards.nth(1).click()
    expect(page.locator("#prompt")).to_have_value(cards.nth(1).inner_text())
    # 2 picture: within 15 seconds on two idle cores
    page.fill("#prompt", "a red apple on a yellow background")
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#seed", "7")
    started = time.process_time()  # the server is in this process; other programs do not count
    page.click("#go")
    finished(page, 1)
    assert time.process_time() - started < 30
    expect(page.locator("#caption")).to_have_text("a red apple on a yellow background")
    # 3 select: by words, threshold adjusted until something is found, then by a click and with the brush
    page.fill("#words", "apple")
    page.press("#words", "Enter")
    expect(page.locator("#sure-row")).to_be_visible()
    page.evaluate("const s = document.getElementById('sure'); s.value = 5; s.dispatchEvent(new Event('change'))")
    expect(page.locator("#share")).to_have_text(re.compile(r"[\d.]+ % selected"))
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
    selected = page.locator("#share").inner_text()
    page.screenshot(path=artefacts / "selected.png")
    # 4 edit: recolour, look at before and after, undo, redo, then say it in words
    page.click("[title='make it blue']")
    finished(page, 2)
    expect(page.locator("#caption")).to_have_text("a red apple on a yellow background — make it blue")
    expect(page.locator("#share")).to_have_text(selected)  # the selection stays
    page.click("#compare-before")
    expect(page.locator("#before")).to_be_visible()
    page.locator("#split").fill("30")
    assert "70%" in str(page.locator("#before").get_attribute("style"))
    # the line is dragged on the picture itself
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.4, steps=3)
    page.mouse.up()
    expect(page.locator("#split")).to_have_value("80")
    expect(page.locator("#open")).to_be_visible()
    page.screenshot(path=artefacts / "before-after.png")
    page.click("#undo")
    expect(page.locator("#caption")).to_have_text("a red apple on a yellow background")
    expect(page.locator("#overlay")).to_be_visible()
    expect(page.locator("#share")).to_have_text(selected)
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
    expect(other.locator("#prompt")).to_have_value(settings["prompt"])
    expect(other.locator("#seed")).to_have_value(str(settings["seed"]))


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


def test_cancel_at_the_first_click_and_what_is_left_can_be_cleared(
    open_page: Open, running: Running, artefacts: Path, hold: Hold
) -> None:
    page = open_page()
    hold.at(3)
    make(page, "a red apple", steps=20)
    hold.reached()
    expect(page.locator("#shown.preview")).to_be_visible()
    expect(page.locator("#progress-text")).to_have_text(re.compile(r"step 3 of 20( · .* left)?"))
    page.screenshot(path=artefacts / "making.png")
    page.evaluate("window.item = document.querySelector('#thumbs li')")
    page.locator(".end").click()
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator(".thumb.ghost")).to_be_visible()
    assert running.studio.jobs.busy()["pictures"] == 0
    page.click("#clear-cancelled")
    expect(page.locator("#thumbs li")).to_have_count(0)
    expect(page.locator("#clear-cancelled")).to_be_hidden()
    page.reload()
    expect(page.locator(".variant").first).to_be_visible()
    expect(page.locator("#thumbs li")).to_have_count(0)
    make(page, "a red apple")
    finished(page, 1)


def test_thumbnails_change_in_place_and_keep_the_focus(open_page: Open, hold: Hold) -> None:
    page = open_page()
    hold.at(2)
    make(page, "a red apple", steps=8)
    hold.reached()
    expect(page.locator("#thumbs .badge")).to_have_text("2/8")
    page.locator(".thumb.pending").focus()
    page.evaluate("window.item = document.querySelector('#thumbs li')")
    hold.at(5)
    expect(page.locator("#thumbs .badge")).to_have_text("5/8")
    assert page.evaluate("window.item.isConnected && window.item.contains(document.activeElement)")
    hold.release()
    finished(page, 1)
    expect(page.locator("#thumbs .thumb")).to_be_focused()  # the picture that took its place


def test_a_reloaded_page_comes_back_to_its_job_its_prompt_and_its_settings(open_page: Open, hold: Hold) -> None:
    page = open_page()
    hold.at(4)
    page.click("#settings summary")
    page.fill("#negative", "blue")
    make(page, "a red apple", steps=17, seed=12)
    hold.reached()
    page.reload()
    expect(page.locator("#shown.preview")).to_be_visible()
    expect(page.locator("#progress-text")).to_have_text(re.compile(r"step 4 of 17"))
    for field, value in {"prompt": "a red apple", "steps": "17", "seed": "12", "negative": "blue"}.items():
        expect(page.locator(f"#{field}")).to_have_value(value)
    page.keyboard.press("Escape")
    expect(page.locator("#progress")).to_be_hidden()


def test_wrong_values_are_told_at_their_field_and_the_settings_open(open_page: Open) -> None:
    page = open_page()
    page.click("#go")
    expect(page.locator("#prompt-problem")).to_contain_text("Say what the picture shows")
    page.fill("#prompt", "a red apple")
    expect(page.locator("#prompt-problem")).to_have_count(0)
    page.click("summary:has-text('Settings')")
    page.fill("#steps", "999")
    page.click("summary:has-text('Settings')")
    expect(page.locator("#steps")).to_be_hidden()
    page.click("#go")
    expect(page.locator("#steps")).to_be_focused()
    expect(page.locator("#steps-problem")).to_contain_text("150")
    assert page.locator("#steps").get_attribute("aria-invalid") == "true"
    page.fill("#steps", "3")
    expect(page.locator("#steps-problem")).to_have_count(0)
    page.press("#prompt", "Control+Enter")
    finished(page, 1)
    page.fill("#say", "sing it a song")
    page.press("#say", "Enter")
    expect(page.locator("#words-problem")).to_contain_text("Nothing is selected")
    page.click("#all")
    expect(page.locator("#words-problem")).to_have_count(0)
    page.press("#say", "Enter")
    expect(page.locator("#say-problem")).to_contain_text("is not understood")
    page.fill("#say", "make it green")
    expect(page.locator("#say-problem")).to_have_count(0)
    page.press("#say", "Enter")
    finished(page, 2)


def test_chips_say_what_can_be_drawn_and_unknown_words_are_told_before(open_page: Open) -> None:
    page = open_page()
    chips = page.locator(".chip")
    assert chips.count() == sum(map(len, starter.draws().values()))
    for name in ("apple", "red", "frog", "on the grass", "big"):
        page.get_by_role("button", name=name, exact=True).click()
    expect(page.locator("#prompt")).to_have_value("a red apple and a big frog, on the grass")
    page.get_by_role("button", name="in the sky", exact=True).click()
    page.get_by_role("button", name="orange", exact=True).click()
    expect(page.locator("#prompt")).to_have_value("a red apple and a big orange frog, in the sky")
    expect(page.locator("#unknown")).to_be_hidden()
    page.fill("#prompt", "a violin in the sky")
    expect(page.locator("#unknown")).to_have_text(
        "This model was never shown 'violin': the picture may show something else."
    )
    expect(page.locator("#thumbs li")).to_have_count(0)  # nothing was made for that
    page.fill("#prompt", "a frog in the sky")
    expect(page.locator("#unknown")).to_be_hidden()


def test_the_gallery_comes_back_after_a_restart_and_pictures_can_be_deleted(
    browser: Browser, open_page: Open, home: Path, tmp_path: Path
) -> None:
    first = begin(Studio(Models(), tmp_path))
    page = open_page(where=first)
    make(page, "a red apple", steps=3)
    finished(page, 1)
    make(page, "a green frog", steps=3)
    finished(page, 2)
    page.goto("about:blank")
    first.stop()
    first.studio.jobs.close()
    second = begin(Studio(Models(), tmp_path))
    page.goto(second.url)
    finished(page, 2)
    expect(page.locator("#caption")).to_have_text("a green frog")
    page.click("#delete")
    page.keyboard.press("Escape")
    expect(page.locator("#thumbs li")).to_have_count(2)
    page.click("#delete")
    page.click("#really-delete")
    finished(page, 1)
    expect(page.locator("#caption")).to_have_text("a red apple")
    assert len(list(tmp_path.glob("*.png"))) == 1
    page.locator(".thumb").focus()
    page.keyboard.press("Delete")
    page.locator("#really-delete").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#empty")).to_be_visible()
    assert list(tmp_path.iterdir()) == []
    page.goto("about:blank")
    second.stop()
    second.studio.jobs.close()


def test_a_model_is_added_by_its_folder_and_used(open_page: Open, tmp_path: Path, home: Path) -> None:
    shutil.copytree(models.tiny_pipeline("dynamo"), tmp_path / "tiny")
    (tmp_path / "tiny" / "LICENSE").write_text("MIT License\n")
    alone = begin(Studio(Models(), tmp_path / "pictures"))
    page = open_page(where=alone)
    page.click("#add-model")
    page.fill("#source", str(tmp_path / "nothing"))
    page.click("#look")
    expect(page.locator("#source-problem")).to_contain_text("neither a folder nor a Hugging Face id")
    page.fill("#source", str(tmp_path / "tiny"))
    page.press("#source", "Enter")
    expect(page.locator(".facts")).to_contain_text("MIT License")
    expect(page.locator(".facts")).to_contain_text("MB")
    page.click("#take-model")
    expect(page.locator("#model-dialog")).to_be_hidden()
    expect(page.locator("#width")).to_have_value("32")
    expect(page.locator("#model")).to_have_value(str(tmp_path / "tiny"))
    expect(page.locator("#chips")).to_be_hidden()
    make(page, "a red apple", steps=2, side=32)
    finished(page, 1)
    page.select_option("#model", "starter")
    expect(page.locator("#width")).to_have_value("96")
    expect(page.locator("#chips")).to_be_visible()
    page.goto("about:blank")
    alone.stop()
    alone.studio.jobs.close()


def test_a_bad_upload_says_why_and_a_good_one_works(open_page: Open) -> None:
    page = open_page()
    page.set_input_files("#file", {"name": "../../x.png", "mimeType": "image/png", "buffer": b"no picture at all"})
    expect(page.locator("#file-problem")).to_contain_text("The file is not a readable picture")
    good = io.BytesIO()
    Image.fromarray(np.full((60, 80, 3), (10, 200, 30), np.uint8)).save(good, "PNG")
    page.set_input_files("#file", {"name": "good.png", "mimeType": "image/png", "buffer": good.getvalue()})
    finished(page, 1)
    expect(page.locator("#file-problem")).to_have_count(0)
    page.click("#overlay", position={"x": 30, "y": 30})  # the wand: one colour, so all of it
    expect(page.locator("#share")).to_have_text("100 % selected")


def test_two_browsers_at_once_wait_for_each_other(open_page: Open, hold: Hold) -> None:
    one, two = open_page(), open_page()
    hold.at(2)
    make(one, "a red apple")
    hold.reached()
    expect(one.locator("#shown.preview")).to_be_visible()
    make(two, "a green frog")
    expect(two.locator("#progress-text")).to_have_text("waiting: 1 before this one")
    hold.release()
    finished(one, 1)
    finished(two, 1)
    expect(two.locator("#caption")).to_have_text("a green frog")
    assert one.locator(".thumb").count() == 1  # each has a gallery of its own


def test_while_a_picture_is_made_the_stage_speaks_of_that_one_and_any_other_can_be_looked_at(
    open_page: Open, hold: Hold
) -> None:
    page = open_page()
    expect(page.locator("#no-pictures")).to_be_visible()
    expect(page.locator("#no-stage")).to_be_visible()
    make(page, "a red apple")
    finished(page, 1)
    expect(page.locator("#no-pictures")).to_be_hidden()
    expect(page.locator("#no-stage")).to_be_hidden()
    hold.at(3)
    make(page, "a green frog", steps=8)
    hold.reached()
    expect(page.locator("#shown.preview")).to_be_visible()
    expect(page.locator("#caption")).to_have_text("a green frog")
    expect(page.locator("#save")).to_be_hidden()  # it would save the apple
    page.locator(".thumb:not(.pending)").click()
    expect(page.locator("#caption")).to_have_text("a red apple")
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#overlay")).to_be_visible()
    hold.release()
    finished(page, 2)
    expect(page.locator("#caption")).to_have_text("a red apple")  # the frog does not take its place
    expect(page.locator("#save")).to_be_visible()


def test_a_selection_leaves_the_colours_of_what_is_selected_as_they_are(open_page: Open) -> None:
    page = open_page()
    make(page, "a red apple")
    finished(page, 1)
    page.click("#all")
    inside = "document.getElementById('overlay').getContext('2d').getImageData(48, 48, 1, 1).data[3]"
    assert page.evaluate(inside) == 0


def test_the_picture_is_brought_into_view_when_the_button_stands_far_below_it(open_page: Open) -> None:
    page = open_page(height=500)
    page.fill("#prompt", "a red apple")
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#steps", "2")
    page.locator("#negative").press("Enter")
    finished(page, 1)
    for _ in range(100):  # it scrolls smoothly; the page's policy allows no function to wait for
        top = page.evaluate("document.getElementById('board').getBoundingClientRect().top")
        if top >= -1:
            break
        page.wait_for_timeout(50)
    assert top >= -1


def test_nothing_can_be_selected_before_the_picture_has_arrived(open_page: Open) -> None:
    page = open_page()
    held = list[Route]()
    page.route("**/api/pictures/*.png", lambda route: held.append(route))
    make(page, "a red apple")
    expect(page.locator("#caption")).to_have_text("a red apple")
    expect(page.locator("#progress")).to_be_hidden()
    expect(page.locator("#overlay")).to_be_hidden()
    for route in held:
        route.continue_()
    page.unroute("**/api/pictures/*.png")
    finished(page, 1)


def tab_to(page: Page, selector: str, back: bool = False) -> None:
    """Press Tab until SELECTOR has the focus: whatever is needed must be in the order of the page."""
    for _ in range(150):
        if page.evaluate("(selector) => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"{selector} cannot be reached with Tab")


@pytest.mark.usefixtures("sure_eye")
def test_the_whole_flow_with_the_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    press, write = page.keyboard.press, page.keyboard.type
    press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    # 1 idea
    tab_to(page, "#keyword")
    write("frog")
    press("Enter")
    expect(page.locator(".idea-card:not(.writing)")).to_have_count(3)
    tab_to(page, ".idea-card")
    press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    # 2 settings, a chip, the picture
    press("Control+a")
    press("Delete")
    tab_to(page, ".chip")
    press("Enter")
    expect(page.locator("#prompt")).to_have_value("an apple")
    tab_to(page, "#settings summary")
    press("Enter")
    tab_to(page, "#steps")
    press("Control+a")
    write("4")
    press("Control+Enter")
    finished(page, 1)
    # 3 select: by words, then with a tool on the picture
    tab_to(page, "#words")
    write("apple")
    press("Enter")
    expect(page.locator("#doubt")).to_contain_text("sure")
    tab_to(page, "#clear")
    press("Enter")
    expect(page.locator("#share")).to_have_text("no selection")
    tab_to(page, "#overlay", back=True)
    press("ArrowRight")
    press("Space")
    expect(page.locator("#share")).to_have_text(re.compile(r"[\d.]+ % selected"))
    # 4 edit, undo, before and after, save
    tab_to(page, "#say")
    write("make it green")
    press("Enter")
    finished(page, 2)
    tab_to(page, "#compare-before", back=True)
    press("Enter")
    expect(page.locator("#split")).to_be_focused()
    press("ArrowRight")
    expect(page.locator("#split")).to_have_value("51")
    press("Control+z")
    expect(page.locator("#caption")).to_have_text("an apple")
    tab_to(page, "#save")
    with page.expect_download() as download:
        press("Enter")
    assert download.value.suggested_filename.endswith(".png")
    # 5 delete, and the other view
    tab_to(page, "#delete", back=True)
    press("Enter")
    tab_to(page, "#really-delete")
    press("Enter")
    finished(page, 1)
    tab_to(page, "#tab-make", back=True)
    press("ArrowRight")
    expect(page.locator("#bench")).to_be_visible()


@pytest.mark.usefixtures("sure_eye")
def test_the_whole_flow_on_a_phone(open_page: Open) -> None:
    page = open_page(390, 844, touch=True)
    expect(page.locator("#change")).to_be_hidden()  # nothing to select in yet
    page.fill("#keyword", "frog")
    page.tap("#suggest")
    expect(page.locator(".idea-card:not(.writing)")).to_have_count(3)
    page.locator(".idea-card").first.tap()
    page.locator("#settings summary").tap()
    page.fill("#steps", "4")
    page.tap("#go")
    finished(page, 1)
    expect(page.locator("#board")).to_be_in_viewport()
    page.fill("#words", "frog")
    page.tap("#select-form button")
    expect(page.locator("#doubt")).to_contain_text("sure")
    page.tap("#clear")
    page.tap("[data-tool=brush]")
    page.locator("#overlay").tap()
    expect(page.locator("#share")).to_have_text(re.compile(r"[\d.]+ % selected"))
    page.tap("[title='make it blue']")
    finished(page, 2)
    page.tap("#compare-before")
    expect(page.locator("#knob")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.tap("#undo")
    expect(page.locator("#redo")).to_be_enabled()
    page.tap("#tab-bench")
    expect(page.locator("#speeds")).to_be_visible()


@pytest.mark.usefixtures("sure_eye")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_axe_finds_nothing_in_any_state(open_page: Open, hold: Hold, artefacts: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python", reason="axe-core is not to be had: pip install axe-playwright-python"
    )
    page = open_page(width, 844, scheme)
    page.evaluate(next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text(encoding="utf-8"))
    seen = {}

    def look(state: str) -> None:
        page.evaluate(
            "Promise.all(document.getAnimations().filter((a) => a.effect.getTiming().iterations < 9).map((a) => a.finished.catch(() => null)))"
        )
        page.screenshot(path=artefacts / f"{state}-{width}-{scheme}.png", full_page=True)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        seen[state] = [(v["id"], [node["target"] for node in v["nodes"]]) for v in found]
        assert page.evaluate(SMALL_TARGETS) == [], state

    look("empty")
    page.fill("#keyword", "frog")
    page.click("#suggest")
    expect(page.locator(".idea-card:not(.writing)")).to_have_count(3)
    look("ideas")
    hold.at(2)
    make(page, "a red violin", steps=9)
    hold.reached()
    expect(page.locator("#shown.preview")).to_be_visible()
    expect(page.locator("#unknown")).to_be_visible()
    look("making")
    page.click("#cancel")
    expect(page.locator(".thumb.ghost")).to_be_visible()
    look("cancelled")
    make(page, "a red apple", steps=3)
    finished(page, 1)
    page.fill("#words", "apple")
    page.press("#words", "Enter")
    expect(page.locator("#doubt")).to_contain_text("sure")
    look("selected")
    page.click("[title='make it blue']")
    finished(page, 2)
    page.click("#compare-before")
    look("before-after")
    page.fill("#say", "sing it a song")
    page.press("#say", "Enter")
    expect(page.locator("#say-problem")).to_be_visible()
    page.fill("#steps", "999")
    page.click("#go")
    expect(page.locator("#steps-problem")).to_be_visible()
    look("wrong")
    page.click("#delete")
    look("delete")
    page.keyboard.press("Escape")
    page.click("#add-model")
    page.fill("#source", "/")
    page.click("#look")
    expect(page.locator("#source-problem")).to_be_visible()
    look("model")
    page.click("#close-model")
    page.click("#tab-bench")
    look("bench")
    assert {state: found for state, found in seen.items() if found} == {}
    assert page.locator("main").count() == 1
    assert page.locator("h1").count() == 1


def in_one_row(page: Page, one: str, other: str) -> bool:
    a, b = (page.locator(selector).first.bounding_box() for selector in (one, other))
    assert a is not None and b is not None
    return a["y"] < b["y"] + b["height"] and b["y"] < a["y"] + a["height"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_readable_at_every_width_in_light_and_dark(open_page: Open, artefacts: Path, width: int, scheme: str) -> None:
    page = open_page(width, 900 if width > 500 else 844, scheme)
    make(page, "a red apple on a yellow background")
    finished(page, 1)
    for view in ("make", "bench"):
        page.click(f"#tab-{view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it can be scrolled sideways"
        if view == "make" and width > 760:
            assert in_one_row(page, "#undo", "#save") and in_one_row(page, "#forge button", "#forge select")
        elif view == "bench":  # on a phone the prompt has a row of its own
            assert in_one_row(page, "#compare-prompt", "#compare-a") == (width > 760)
        page.screenshot(path=artefacts / f"{view}-{width}-{scheme}.png", full_page=True)
        for style in page.evaluate(CONTRASTS):
            assert style["ratio"] >= 4.5, style
        assert page.evaluate(SMALL_TARGETS) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in re.findall(r"\d+", background)[:3]) > 384) == (scheme == "light")


# What can be touched and is smaller than 40 pixels; a radio button is touched by its label, a hidden file input by its own.
SMALL_TARGETS = """() => [...document.querySelectorAll("button, a, input, select, textarea, summary, label.variant, label.button")]
  .filter((node) => node.checkVisibility() && !node.matches(".skip, .sr, [type=radio]"))
  .map((node) => [node.id || node.className || node.textContent, node.getBoundingClientRect()])
  .filter(([, box]) => box.width < 40 || box.height < 40).map(([name, box]) => `${name} ${box.width} x ${box.height}`)"""

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
    expect(page.locator("#compare-result figure")).to_have_count(3)
    expect(page.locator("#compare-result")).to_contain_text("a step")
    expect(page.locator("#speeds .bar")).to_have_count(2)
    assert [n.split(" (")[0] for n in page.locator("#speeds .name").all_inner_texts()] == ["original", "rewritten"]
    page.click("[data-part=text_encoder]")
    inside = page.frame_locator("#report")
    expect(inside.locator("h2").first).to_have_text("Speed")
    expect(inside.locator("body")).to_contain_text("Where the time goes")
    page.screenshot(path=artefacts / "bench.png", full_page=True)
    state = json.loads(page.evaluate("fetch('api/state').then((answer) => answer.text())"))
    assert all(v["seconds_per_step"] for v in state["variants"])


def test_the_password_is_asked_for(browser: Browser, home: Path) -> None:
    locked = begin(Studio(Models(), home / "door"), password="open sesame")
    context: Any = browser.new_context()
    try:
        page = context.new_page()
        page.goto(locked.url)
        page.fill("[name=password]", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator(".wrong")).to_be_visible()
        page.fill("[name=password]", "open sesame")
        page.keyboard.press("Enter")
        expect(page.locator(".variant").first).to_be_visible()
    finally:
        context.close()
        locked.stop()
