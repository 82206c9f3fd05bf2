"""The contest: verdicts that can be worked out by hand, and the workloads on engines with known manners."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.unit.cli.load.stub_server import Manner, StubServer
from tests.unit.cli.load.test_figures import answer

from plait.cli.load.contest import ORDER, QUICK, WORKLOADS, Sample, Sizes, gaps_within, judge
from plait.cli.load.server import Server, parse_url
from plait.cli.load.words import whole_words


def test_a_difference_is_one_if_it_is_larger_than_the_spread_in_every_cycle() -> None:
    verdict = judge([[200, 210], [190, 200]], [[100, 101], [99, 100]], larger_is_better=True)
    assert verdict.ratio == pytest.approx(2.0, rel=0.05)
    assert verdict.spread == pytest.approx(200 / 190)
    assert verdict.is_difference
    assert verdict.sentence().startswith("the first is ")
    assert (verdict.first, verdict.other, verdict.num_cycles) == (200, 100, 2)


def test_where_less_is_better_the_ratio_is_turned_over() -> None:
    verdict = judge([[4.0, 4.0]], [[2.0, 2.0]], larger_is_better=False)
    assert verdict.ratio == pytest.approx(0.5)
    assert verdict.sentence() == "the other is 2.00 times as good"


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ([[100.0, 150.0]], [[110.0, 110.0]]),  # an engine differs more from itself
        ([[100.0, 130.0], [100.0, 130.0]], [[100.0, 105.0], [100.0, 105.0]]),
        ([[100.0, 100.0], [100.0, 100.0]], [[100.0, 100.0], [100.0, 100.0]]),
        ([[120.0, 120.0], [120.0, 120.0], [90.0, 90.0]], [[100.0, 100.0]] * 3),  # not in every cycle
    ],
)
def test_what_lies_inside_the_spread_is_no_difference(first: list[list[float]], other: list[list[float]]) -> None:
    verdict = judge(first, other, larger_is_better=True)
    assert not verdict.is_difference
    assert verdict.sentence() == "no difference beyond the spread"


def test_a_cycle_without_all_its_samples_counts_for_nothing() -> None:
    verdict = judge([[100.0, None], [100.0, 100.0]], [[50.0, 50.0], [50.0, 50.0]], larger_is_better=True)
    assert verdict.num_cycles == 1
    nothing = judge([[None, None]], [[50.0, 50.0]], larger_is_better=True)
    assert (nothing.ratio, nothing.sentence(), nothing.is_difference) == (None, "not measured", False)


def test_each_engine_is_first_and_last_as_often() -> None:
    assert sum(place * side for place, side in enumerate(ORDER)) * 2 == sum(range(len(ORDER)))


def test_gaps_that_any_part_of_the_time_belongs_to() -> None:
    streams = [answer(pieces=(0.0, 1.0, 2.0, 5.0, 6.0)), answer(pieces=(0.0, 9.0))]
    assert sorted(gaps_within(streams, 1.5, 4.0)) == [1.0, 3.0, 9.0]


def test_sizes_fit_an_engine_of_short_contexts() -> None:
    small = Sizes().fitted(256)
    assert (small.medium_prompt, small.long_prompt) == (248, 248)
    assert small.prompt_tokens + small.output_tokens <= 256
    assert small.prompt_tokens + small.stream_output <= 256
    assert Sizes().fitted(None) == Sizes().fitted(1 << 20) == Sizes()


def samples(manner: Manner) -> dict[str, Sample]:
    async def run(url: str) -> dict[str, Sample]:
        server, words = Server(parse_url(url), "m"), whole_words(None)
        return {one.name: await one.run(server, QUICK, words, random.Random(1)) for one in WORKLOADS}

    with StubServer(manner) as stub:
        return asyncio.run(run(stub.url))


def test_workloads_measure_what_they_say() -> None:
    found = samples(Manner(first_s=0.03, gap_s=0.01))
    assert all(not sample.errors for sample in found.values())
    alone, first, crowd, gap = (found[one.name].value for one in WORKLOADS)
    assert alone is not None
    assert alone <= 1 / 0.01
    assert first is not None
    assert first >= 0.03
    assert crowd is not None
    assert crowd <= QUICK.at_once * QUICK.crowd_output / (0.03 + 7 * 0.01)
    assert gap is not None
    assert gap >= 0.01
    late = found["a long prompt arrives"].answers[-1]
    assert late.num_prompt == QUICK.long_prompt
    assert len(found["a long prompt arrives"].answers) == QUICK.streams + 1


@pytest.mark.parametrize("manner", [Manner(status=500), Manner(breaks_after=1), Manner(most_tokens=1)])
def test_an_engine_that_fails_gives_no_figure_and_keeps_nobody_waiting(manner: Manner) -> None:
    found = samples(manner)
    assert found["a long prompt arrives"].value is None
    assert found["one answer"].value is None
