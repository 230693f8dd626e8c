"""docs/pictures/studio.png, from a real run: python benchmarks/studio_picture.py

Starts `opsmith studio` with the starter models in a temporary folder, walks from an idea to a selection in a headless browser, and
takes a picture of the page. Needs the extra `test` (playwright) and chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "pictures" / "studio.png"
KEYWORD, PROMPT, THING, SEED = "frog", "a big green frog beside a red apple, on a yellow background", "frog", "3"
WIDTH, HEIGHT = 1280, 860
PATIENCE = 300_000  # milliseconds
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking".split()


def walk(page: Page) -> None:
    """An idea becomes prompts, a prompt a picture, a word a selection."""
    page.fill("#keyword", KEYWORD)
    page.press("#keyword", "Enter")
    expect(page.locator(".idea-card:not(.writing)")).to_have_count(3)
    page.fill("#prompt", PROMPT)
    page.evaluate("document.getElementById('settings').open = true")
    page.fill("#seed", SEED)
    page.evaluate("document.getElementById('settings').open = false")
    page.click("#go")
    expect(page.locator(".thumb:not(.pending):not(.ghost)")).to_have_count(1)
    expect(page.locator("#progress")).to_be_hidden()
    page.fill("#words", THING)
    page.press("#words", "Enter")
    expect(page.locator("#share")).to_contain_text("% selected")
    page.evaluate("window.scrollTo(0, 0)")


def take(url: str, target: Path) -> None:
    browser_path = next(p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name)))
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as player, tempfile.TemporaryDirectory() as scratch:
        browser = player.chromium.launch(executable_path=browser_path, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        expect(page.locator(".variant").first).to_be_visible()
        walk(page)
        page.screenshot(path=Path(scratch) / "page.png")
        browser.close()
        Image.open(Path(scratch) / "page.png").convert("RGB").save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TARGET)
    target = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "opsmith", "studio", "--no-browser", "--port", "0", "--quiet"]
        environment = {**os.environ, "OPSMITH_CACHE": f"{folder}/cache", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                take(server.stdout.readline().strip(), target)
            finally:
                server.terminate()
    print(target)


if __name__ == "__main__":
    main()
