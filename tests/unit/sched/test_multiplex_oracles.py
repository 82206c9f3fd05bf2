"""Every preset decides as a page of code written from its paper does, in a thousand simulated decisions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from tests.unit.sched.oracles.bullet import Bullet
from tests.unit.sched.oracles.fused import temporal, timed_chunk
from tests.unit.sched.oracles.muxwise import MuxWise
from tests.unit.sched.oracles.stage import COST, LAYERS, SIZE, UNITS, Decisions, play

from plait.core.request import Slo
from plait.sched.multiplex.presets import BULLET, MUXWISE, TEMPORAL, Preset, timed_chunks
from plait.sched.multiplex.situation import Form, Reason

LOOSE = Slo(ttft_s_per_token=3e-3, tpot_s=0.15)
TIGHT = Slo(ttft_s_per_token=1.5e-3, tpot_s=0.02)
TIGHTER = Slo(ttft_s_per_token=1e-3, tpot_s=0.012)
PATIENT = Slo(ttft_s_per_token=1e-4, tpot_s=0.1)
TBT = Slo(itl_s=0.05, ttft_s_per_token=3e-3)
TBT_TIGHT = Slo(itl_s=0.012)


OF_BULLET = ((24.0, LOOSE), (30.0, TIGHT), (26.0, TIGHTER), (26.0, PATIENT))
OF_MUXWISE = ((24.0, TBT), (30.0, TBT_TIGHT), (36.0, TBT))


@cache
def gather(preset: Preset, *loads: tuple[float, Slo]) -> Decisions:
    """A thousand decisions, many of them about prompts beside decode."""
    found: Decisions = []
    for seed, (rate, slo) in enumerate(loads, 1):
        found += play(preset, rate, slo, seed=seed)[0]
    assert len(found) >= 1000
    assert sum(now.prefill is not None and bool(now.decoding) for now, _ in found) >= 400
    return found


def reasons(decisions: Decisions) -> set[Reason]:
    return {choice.reason for _, choice in decisions}


def test_bullet_decides_as_its_paper_says() -> None:
    decisions = gather(BULLET, *OF_BULLET)
    oracle = Bullet(COST, UNITS, LAYERS)
    for now, choice in decisions:
        what, units, until_s = oracle.decide(now)
        assert (str(choice.form), choice.units) == (what, units), now
        assert choice.until_s == pytest.approx(until_s, abs=1e-9)
    assert reasons(decisions) >= {
        Reason.ALONE,
        Reason.FEASIBLE,
        Reason.DELAYED,
        Reason.HAND_OVER,
        Reason.MOST_DECODE,
        Reason.BALANCED,
    }


def test_bullet_orders_its_queue_as_its_paper_says() -> None:
    decisions = gather(BULLET, *OF_BULLET)
    oracle, num_moved = Bullet(COST, UNITS, LAYERS), 0
    for now, _ in decisions:
        if not now.is_prefilling or now.prefill is None or len(now.waiting) < 2:
            continue
        arrived = sorted(now.waiting, key=lambda one: (one.arrival_s, one.seq))
        units = now.units if now.form is Form.LANES else 0
        whole_s = COST.price(now.prefill.shape, UNITS - units).expected_s
        ordered = oracle.order(arrived, units, now.now_s + now.prefill.left * whole_s)
        assert list(now.waiting) == ordered
        num_moved += ordered != arrived
    assert num_moved >= 20


def test_muxwise_decides_as_its_paper_says() -> None:
    decisions = gather(MUXWISE, *OF_MUXWISE)
    oracle = MuxWise(COST, UNITS, LAYERS)
    for now, choice in decisions:
        assert (str(choice.form), choice.units, choice.num_spans) == oracle.decide(now), now
    assert reasons(decisions) >= {Reason.ALONE, Reason.FEASIBLE, Reason.MOST_DECODE}
    # All of its partitions are used in a load that comes in bursts, and somebody overtakes.
    assert len({choice.units for _, choice in decisions if choice.form is Form.LANES}) >= 4
    assert any(now.suspended is not None for now, _ in decisions)


def test_muxwise_suspends_one_level() -> None:
    for now, _ in gather(MUXWISE, *OF_MUXWISE):
        if now.suspended is not None and now.prefill is not None:
            assert not {one.seq for one in now.suspended.prompts} & {one.seq for one in now.prefill.prompts}


def test_turns_are_taken_as_described() -> None:
    decisions = gather(TEMPORAL, (30.0, TBT), (36.0, replace(TBT, itl_s=0.03)), (36.0, replace(TBT, itl_s=0.02)))
    for now, choice in decisions:
        what, until_s = temporal(now, COST, UNITS, LAYERS)
        assert (str(choice.form), choice.until_s) == (what, pytest.approx(until_s, abs=1e-9)), now
    assert Counter(choice.form for _, choice in decisions).keys() == {Form.DECODE, Form.PREFILL}


def test_timed_chunks_are_as_long_as_their_time() -> None:
    seconds = 0.03
    decisions = gather(timed_chunks(seconds), (30.0, LOOSE), (36.0, LOOSE), (40.0, LOOSE), (44.0, LOOSE))
    for now, choice in decisions:
        if now.prefill is not None:
            assert choice.chunk_tokens == timed_chunk(now, COST, UNITS, seconds, SIZE), now
