"""Page: one document that needs nothing else, with every text escaped and every chart told in words."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from plait.core.ids import LaneId
from plait.sim.curves import curve
from plait.sim.figures import EngineReport, MemoryFigures, MemorySample, StepSample
from plait.sim.form import Role
from plait.sim.goodput import Point, Search
from plait.sim.page import svg
from plait.sim.page.charts import Chart, batch_chart, goodput_chart, lane_chart, latency_chart, memory_chart
from plait.sim.page.page import BEGINNING, Figure, page

STEPS = tuple(StepSample(LaneId(0), at, at + 0.9, 1, at % 4, 100 if at % 3 == 0 else 0) for at in range(50))
LEVELS = tuple(MemorySample(float(at), at << 20, 5 << 20, (95 - at) << 20, 1 << 20) for at in range(50))
MEMORY = MemoryFigures(100 << 20, 0.25, 0.05, 0.7, 0.04, 0.5, 0, LEVELS)
ENGINE = EngineReport(Role.WHOLE, 50, 40, 45.0, 2000, 1.5, 0.3, "0" * 32, MEMORY, STEPS)
POINTS = tuple(
    Point(rate, 100, True, (part, part), (rate, rate), (True, True)) for rate, part in ((1.0, 1.0), (2.0, 0.4))
)
VOID = {"meta", "br"}


def charts() -> list[Chart]:
    found = [
        latency_chart({"TTFT": curve([0.1, 0.5, 2.0]), "TPOT": curve([0.0, 0.01])}, [("TTFT", 1.0)]),
        goodput_chart(Search(POINTS, 0.99, 1.0, is_monotone=True, is_enclosed=True)),
        lane_chart([ENGINE]),
        batch_chart([ENGINE]),
        memory_chart([ENGINE]),
    ]
    return [chart for chart in found if chart is not None]


class Outline(HTMLParser):
    """Checks that every element is closed, and keeps what could point outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.names: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [
            str(value) for name, value in attrs if name in ("href", "src", "action", "xlink:href", "data")
        ]
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_points_nowhere() -> None:
    text = page(
        "A <b>title</b>", "Simulated & true", [Figure("n", "1", "s")], charts(), [("model", "<script>x</script>")]
    )
    outline = Outline()
    outline.feed(text)
    assert text.startswith(BEGINNING)
    assert outline.open == []
    assert outline.addresses == []
    assert not set(outline.names) & {"script", "link", "img", "iframe", "object", "b"}
    assert "//" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert len(outline.ids) == len(set(outline.ids))
    assert "&lt;script&gt;" in text


def test_every_chart_is_a_picture_with_words_a_key_and_numbers() -> None:
    assert len(charts()) == 5
    for chart in charts():
        tree = ElementTree.fromstring(chart.picture)
        title, words = tree.find("title"), tree.find("desc")
        assert tree.get("role") == "img"
        assert title is not None
        assert title.text
        assert words is not None
        assert words.text
        assert chart.key
        assert all(len(row) == len(chart.heads) for row in chart.rows)
        assert "nan" not in chart.picture
        assert "inf" not in chart.picture
        for element in tree.iter("polyline"):
            points = [float(one) for one in re.split("[ ,]", str(element.get("points")))]
            assert all(-1 <= one <= svg.WIDTH + 1 for one in points)


def test_a_chart_with_nothing_to_show_is_left_out() -> None:
    assert latency_chart({}, []) is None
    assert lane_chart([]) is None
    assert batch_chart([]) is None
    assert memory_chart([]) is None


def test_a_curve_has_few_points_rises_and_keeps_its_end() -> None:
    values = [float(place) for place in range(10_000)]
    points = curve(values)
    assert len(points) <= 200
    assert list(points) == sorted(points)
    assert points[-1] == (9999.0, 1.0)
    assert curve([3.0]) == ((3.0, 1.0),)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (3.0, 114.0), (0.0, 1e-6), (5.0, 5.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    scale = svg.vertical(low, high)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 13
    assert all(scale.low - 1e-9 <= tick <= scale.high * (1 + 1e-9) for tick in ticks)


def test_a_logarithmic_axis_has_decades() -> None:
    scale = svg.horizontal(0.003, 20.0, is_log=True)
    assert scale.ticks() == pytest.approx([0.01, 0.1, 1.0, 10.0])
    assert math.isclose(scale(0.003), svg.LEFT)
    assert scale(0.0) == scale(0.003)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0 s"), (2e-5, "20 us"), (0.05, "50 ms"), (0.9999, "1 s"), (2.663, "2.66 s"), (1234.5, "1,234 s")],
)
def test_times_have_three_figures(value: float, words: str) -> None:
    assert svg.seconds(value) == words
