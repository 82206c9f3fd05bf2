"""Serving figures while an engine works: what is asked and found at every moment, lanes, nothing kept of the gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conformance.drafting import Guesser
from tests.unit.engine.kit import INFO, Stage, ask, letter_at

from plait.assembly import Drafting
from plait.core.decision import Assign, Resume, Suspend
from plait.core.events import Applied, Event, Started
from plait.core.ids import LaneId, SeqId
from plait.draft.depth import FixedDepth
from plait.metrics.serving_figures import ServingFigures


def test_at_no_moment_more_tokens_were_found_than_were_looked_up() -> None:
    figures = ServingFigures()
    seen: list[tuple[int, int]] = []

    def listen(event: Event) -> None:
        figures(event)
        seen.append((figures.cached_tokens, figures.queried_tokens))

    stage = Stage(listener=listen)
    stage.arrive(ask("first", "abcdefghijkl"))
    stage.arrive(*(ask(str(number), "abcdefghijkl") for number in range(5)), at_s=30.0)
    stage.run()
    assert all(cached <= queried for cached, queried in seen)
    assert (figures.prompt_tokens, figures.queried_tokens) == (72, 72)
    assert figures.cached_tokens > 0


@pytest.mark.parametrize("leaves_s", [0.0, 5.0, 14.0])
def test_whoever_leaves_is_forgotten_and_counted_once(leaves_s: float) -> None:
    figures = ServingFigures()
    stage = Stage(listener=figures, max_rows=1)
    stage.arrive(ask("stays", "abcdefgh"), ask("leaves", "xyzxyz"))
    stage.abort("leaves", leaves_s)
    stage.run()
    assert sum(figures.finished.values()) == 2
    assert figures.prompt_tokens in (8, 14)
    for kept in (figures._arrived_s, figures._num_prompt, figures._last_s, figures.slos._open):
        assert kept == {}


def test_steps_and_their_time_are_told_by_lane() -> None:
    figures = ServingFigures()
    stage = Stage(listener=figures)
    stage.arrive(ask("a", "abc", max_tokens=3))
    stage.run()
    ((name, lane),) = figures.lanes.items()
    # Three tokens of prompt, then two more steps of one: a token takes a second.
    assert (name, lane.steps, lane.busy_s, lane.workers) == (0, 3, 5.0, 1)
    assert (figures.steps, figures.busy_s) == (3, 5.0)
    # Nobody has given it less than everything.
    assert (lane.units, lane.unit_s(8.0)) == (figures.share_units, 8.0 * figures.share_units)


def test_shares_are_told_by_lane_with_how_long_lanes_had_them() -> None:
    figures = ServingFigures()
    first, second, third = map(LaneId, range(3))
    figures(Started(0.0, replace(INFO, share_units=4, lanes=(first, second, third))))
    for at_s, decision in (
        (2.0, Assign({first: (3,), second: (0, 1, 2), third: ()})),
        (4.0, Suspend(second)),
        (5.0, Assign({first: (2, 3), second: (), third: (0, 1)})),
        (6.0, Assign({first: (2, 3), second: (0, 1), third: ()})),
        (7.0, Resume(second)),
    ):
        figures(Applied(at_s, decision))
    assert {lane: (one.units, one.unit_s(9.0)) for lane, one in figures.lanes.items()} == {
        first: (2, 4 * 2.0 + 1 * 3.0 + 2 * 4.0),
        second: (2, 3 * 2.0 + 2 * 2.0),
        third: (0, 2 * 1.0),
    }
    assert (figures.share_units, figures.share_changes) == (4, 3)


def test_drafts_are_counted_when_they_go_out_and_when_they_were_right() -> None:
    figures = ServingFigures()
    guesses = Guesser(lambda tokens, most: [letter_at(SeqId(0), len(tokens)), ord("!")])
    stage = Stage(listener=figures, drafting=Drafting(guesses, FixedDepth()))
    stage.arrive(ask("a", "abc", max_tokens=8))
    stage.run()
    assert stage.answers.text("a") == "defghijk"
    # Two tokens without drafts, then two by two.
    assert (figures.num_drafts, figures.draft_tokens) == (3, 5)
    assert (figures.accepted_tokens, figures.accepted_by_place) == (3, [3])
