"""Pages of `plait sim` in a real browser: they ask nobody for anything, nothing is wrong, and every plot is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.browsing import Watched, opened_browser

from plait.cli.main import main

pytestmark = pytest.mark.slow
SMALL = ["--model", "meta-llama/Llama-3.2-1B", "--hardware", "l4-24g", "--card", "mmlu", "--quiet"]
TARGETS = ["--ttft-slo", "1s", "--tpot-slo", "50ms"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("run", ["sim", *SMALL, *TARGETS, "--rate", "4", "--requests", "60", "--replicas", "disagg:1x1"]),
        ("goodput", ["sim", "goodput", *SMALL, *TARGETS, "--repeats", "1"]),
    ],
)
def test_a_page_needs_nothing_else_and_is_drawn(
    name: str, call: list[str], scheme: str, browser: Any, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    assert main([*call, "--html", str(path)]) == 0
    watched = Watched(browser, path.as_uri(), scheme)
    assert watched.asked == [path.as_uri()]
    assert watched.complaints == []
    plots = watched.page.locator("svg")
    assert plots.count() >= 3
    for place in range(plots.count()):
        box = plots.nth(place).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 50, f"plot {place} is nothing to look at: {box}"
        assert plots.nth(place).locator("path, polyline, rect, line, circle").count() > 0
    assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert "NaN" not in watched.text()
    watched.shoot(f"sim-{name}-{scheme}")
