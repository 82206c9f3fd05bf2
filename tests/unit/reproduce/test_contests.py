"""Contests between policies: what they rest on, and each case in its fast form, one seed and a short load."""

from __future__ import annotations

from statistics import fmean

import pytest

from plait.core.events import Emitted, Submitted
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import Slo
from plait.core.step import Chunk, StepPlan
from plait.cost.solo import decode_shape, prefill_shape
from plait.reproduce.cases import lanes_on_a100, muxwise_goodput, muxwise_violations
from plait.reproduce.cases.bullet_parts import BOTH, PARTITION, PARTS, played
from plait.reproduce.cases.lanes_controls import CHUNKED, few_sms
from plait.reproduce.cases.muxwise_parts import pool_out
from plait.reproduce.contests import Contestant, Gaps, arrivals, card_lengths, play
from plait.reproduce.stages import Lab
from plait.sched.multiplex.presets import MUXWISE

STAGE = lanes_on_a100.one_a100()


def test_a_device_differs_from_its_law_by_noise_and_by_a_slowdown_that_is_bounded() -> None:
    """And equal seeds give equal devices."""
    lab, law = Lab(STAGE, 3), STAGE.law()
    beside = (prefill_shape(4096),)
    ratios = [
        lab.device.price(shape, 28, beside).expected_s / law.price(shape, 28).expected_s
        for shape in (decode_shape(rows, 100 * rows) for rows in range(1, 120))
    ]
    assert 1.03 < fmean(ratios) < 1.2
    assert max(ratios) <= 1.2 * 1.11
    assert (
        ratios[7]
        == Lab(STAGE, 3).device.price(decode_shape(8, 800), 28, beside).expected_s
        / law.price(decode_shape(8, 800), 28).expected_s
    )


def test_estimators_see_samples_and_come_near() -> None:
    """Bullet's within 6 % on average beside prompts; MuxWise's bound above nearly all that it bounds."""
    lab = Lab(STAGE, 0)
    states = [
        (decode_shape(rows, context), share, (prefill_shape(tokens, 4096),))
        for rows, context, share, tokens in ((5, 3000, 28, 3000), (20, 2500, 44, 6000), (60, 9000, 60, 2100))
        for rows in (rows, rows + 7, rows + 30)
    ]
    true_s = [lab.device.price(*state).expected_s for state in states]
    expected = [lab.bullet.price(*state).expected_s for state in states]
    assert fmean(abs(one / true - 1) for one, true in zip(expected, true_s, strict=True)) < 0.08
    bounds = [lab.muxwise.price(*state).worst_s / true for state, true in zip(states, true_s, strict=True)]
    assert sum(bound >= 1.0 for bound in bounds) >= 8
    assert fmean(bounds) < 1.35


def test_a_first_gap_counts_from_when_a_sequence_joins() -> None:
    gaps, seq = Gaps(0.05), SeqId(1)
    gaps(0, Emitted(1.00, seq, 1))
    gaps(0, Submitted(1.04, StepPlan(StepId(2), LaneId(0), (), (), (), (Chunk.of_unknown(seq, 9),)), 0, 1))
    gaps(0, Emitted(1.08, seq, 1))
    gaps(0, Emitted(1.14, seq, 1))
    assert (gaps.num_all, gaps.num_late, gaps.num_late_said) == (2, 1, 2)


def test_without_the_guard_more_tokens_come_late_by_far() -> None:
    found = muxwise_violations.played(0, 40)
    guarded, bare = (found[name] for name in (muxwise_violations.WITH, muxwise_violations.WITHOUT))
    assert guarded.num_gaps == bare.num_gaps > 1000
    assert guarded.late_fraction < 0.01
    assert bare.late_fraction > 0.01
    assert bare.report.itl_s is not None
    assert bare.report.itl_s.p99 > muxwise_violations.TBT_S


def test_a_fixed_split_meets_fewer_targets_than_one_that_follows_the_load() -> None:
    found = played("azure_code", 0, 50, {name: PARTS[name] for name in (BOTH, PARTITION)})
    assert found[BOTH].attainment > found[PARTITION].attainment
    assert 0.0 < found[PARTITION].prefill_share < 1.0


def test_a_search_finds_the_rate_above_which_nothing_holds() -> None:
    contest = muxwise_goodput.MODELS[0]
    search = muxwise_goodput.Search(contest, 0, 8, launches=True)
    low = search.goodput(muxwise_goodput.CHUNKED, Contestant(step_tokens=256), 6.0)
    again = search.goodput(muxwise_goodput.CHUNKED, Contestant(step_tokens=256), 2.0)
    assert low in (0.0, *muxwise_goodput.RATES)
    assert low == again


def test_half_a_pool_hits_less() -> None:
    answer = pool_out([0], 90)
    (ratio,) = (sampled.mean for sampled in answer.values())  # type: ignore[union-attr]
    assert 0.0 < ratio < 0.95


def test_launches_are_what_the_short_step_lacks() -> None:
    assert lanes_on_a100.launch_s(80) == pytest.approx(0.0685, abs=1e-4)
    stage = lanes_on_a100.with_launches(STAGE)
    assert stage.launch_s == pytest.approx(0.0274, abs=1e-4)
    lab = Lab(stage, 0)
    whole, layered = (device.price(prefill_shape(64), 108).expected_s for device in (lab.whole_device, lab.device))
    assert whole - layered == pytest.approx((0.0274 - 0.004) * whole / (whole - 0.0), abs=3e-3)


def test_few_sms_are_an_a100_with_all_of_its_memory() -> None:
    device = few_sms()
    assert device.compute_rate(36) == pytest.approx(STAGE.hardware.compute_rate(36))
    assert device.memory_rate(30) == STAGE.hardware.bytes_per_s
    load = arrivals(card_lengths("sharegpt", 6, 0), 5.0, 0, STAGE.program.vocab_size)
    slo = Slo(itl_s=10.0)
    ours, chunked = (play(Lab(STAGE, 0), one, load, slo) for one in (Contestant(MUXWISE), CHUNKED))
    assert ours.num_gaps == chunked.num_gaps
    assert ours.attainment == chunked.attainment == 1.0
