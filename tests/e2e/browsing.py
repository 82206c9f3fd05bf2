"""A real browser for tests: chromium under playwright, and pages with all that they asked for and complained of.

Skips the test where either is not there. `STATUS_SHOTS=FOLDER` keeps pictures of what was seen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def opened_browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as driver:
        # As root, and in containers, there is no sandbox to be had.
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


class Watched:
    """A page, and all that it asked for and complained of."""

    def __init__(self, browser: Any, address: str, scheme: str = "light", width: int = 1200) -> None:
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.goto(address)

    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def number(self, tile: str) -> float:
        """The large number of a tile."""
        text = self.page.locator(".tile", has=self.page.get_by_text(tile, exact=True)).locator("b").inner_text()
        return float(text.removesuffix(" %").replace(",", "").replace("\N{EN DASH}", "0"))

    def shoot(self, name: str) -> None:
        if folder := os.environ.get("STATUS_SHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
