"""Several engines under one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC, TOKEN_BYTES, VOCAB, plans

from plait.core.errors import UsageError
from plait.core.events import Arrived, Event, Refused
from plait.core.ids import RequestId
from plait.core.plan_hash import plan_hash
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import ChunkShape, StepShape
from plait.cost.roofline import RooflineModel
from plait.sim.arrivals import Arrival, Lengths, TraceRow, arrivals_of, poisson_trace
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.driver import simulate
from plait.sim.form import Form, Role, parse_form
from plait.sim.replica import replica
from plait.sim.report import Outcome
from plait.sim.router import PREFIX_TOKENS, LeastTokens, PrefixAffinity, RoundRobin
from plait.sim.work import Work

ROWS = poisson_trace(400.0, 80, Lengths(60, 0.8, 500), Lengths(20, 0.7, 100), seed=1)


def test_a_cluster_of_one_is_the_simulation_of_one() -> None:
    events: list[Event] = []
    one = simulate(arrivals_of(ROWS, VOCAB), replica(SPEC), events.append)
    cluster = simulate_cluster(arrivals_of(ROWS, VOCAB), ClusterSpec(SPEC))
    assert cluster.whole == one
    assert cluster.plan_hash == plan_hash(plans(events))


def test_two_engines_are_faster_than_one_and_share_the_work() -> None:
    one = simulate_cluster(arrivals_of(ROWS, VOCAB), ClusterSpec(SPEC))
    two = simulate_cluster(arrivals_of(ROWS, VOCAB), ClusterSpec(SPEC, Form(2)))
    assert two.whole.num_finished == one.whole.num_finished == len(ROWS)
    assert two.whole.makespan_s < one.whole.makespan_s
    assert all(engine.computed_tokens > one.whole.computed_tokens / 4 for engine in two.engines)
    assert sum(engine.computed_tokens for engine in two.engines) == one.whole.computed_tokens


def test_equal_loads_give_equal_reports() -> None:
    first, again = (simulate_cluster(arrivals_of(ROWS, VOCAB), ClusterSpec(SPEC, Form(3))) for _ in range(2))
    assert first == again


def test_a_form_is_written_as_it_is_read() -> None:
    for text in ("1", "4", "disagg:1x1", "disagg:3x5"):
        assert str(parse_form(text)) == text
    assert parse_form("disagg:1x2").roles == (Role.PREFILL, Role.DECODE, Role.DECODE)


@pytest.mark.parametrize("text", ["", "0", "-1", "2x2", "disagg:", "disagg:1", "disagg:0x1", "disagg:1x", "9999"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_form(text)


def request(number: int, *prompt: int, max_tokens: int = 10) -> Request:
    return Request(RequestId(f"r{number}"), prompt, SamplingParams(max_tokens=max_tokens))


def test_least_tokens_takes_the_engine_with_the_least_to_do_and_round_robin_the_next() -> None:
    assert LeastTokens().choose(request(0, 1), [5, 3, 3]) == 1
    turns = RoundRobin()
    assert [turns.choose(request(0, 1), [0, 9, 0]) for _ in range(4)] == [0, 1, 2, 0]


def test_prefix_affinity_follows_the_prompt_until_its_engine_is_overloaded() -> None:
    affinity = PrefixAffinity()
    prompt = tuple(range(PREFIX_TOKENS))
    assert affinity.choose(request(0, *prompt, 1), [9, 3]) == 1
    assert affinity.choose(request(1, *prompt, 2), [0, 400]) == 1, "it has the prefix"
    assert affinity.choose(request(2, 7, *prompt), [0, 400]) == 0, "another prompt"
    assert affinity.choose(request(3, *prompt, 2), [0, 10**6]) == 0, "too much to do there"
    assert affinity.choose(request(4, *prompt, 2), [400, 0]) == 0, "the prefix is there now too"


def test_work_counts_requests_until_their_last_answer() -> None:
    work = Work((2, 4), LeastTokens())
    assert work.choose(request(0, 1, 2, 3, max_tokens=100)) == 2
    assert work.choose(request(1, 1, max_tokens=50)) == 4
    assert work.choose(request(2, 1, max_tokens=60)) == 4, "51 tokens are left there, 103 at the other"
    work.tell(2, Refused(0.0, RequestId("r0"), "code", "reason"))
    assert work.choose(request(3, 1)) == 2


DISAGG = ClusterSpec(SPEC, Form(1, 1), link_bytes_per_s=1e6, link_latency_s=0.005)


def test_a_prompt_is_computed_by_one_engine_and_continued_by_another() -> None:
    outcomes: list[Outcome] = []
    told: list[tuple[int, Event]] = []
    report = simulate_cluster(
        arrivals_of([TraceRow(1.0, 100, 4)], VOCAB),
        DISAGG,
        lambda engine, event: told.append((engine, event)),
        outcomes.append,
    )
    prefill, decode = report.engines
    assert (prefill.role, decode.role) == (Role.PREFILL, Role.DECODE)
    assert (prefill.computed_tokens, decode.computed_tokens) == (100, 3), "no token is computed twice"
    (outcome,) = outcomes
    assert (outcome.num_prompt, outcome.num_output, outcome.num_cached) == (100, 4, 0)
    prompt_s = price(0, 64, 0) + price(64, 36, 1)
    crossing_s = 100 * TOKEN_BYTES / 1e6 + 0.005
    assert outcome.ttft_s == pytest.approx(prompt_s)
    assert outcome.longest_gap_s == pytest.approx(crossing_s + price(100, 1, 1))
    assert outcome.end_s - 1.0 == pytest.approx(prompt_s + crossing_s + sum(price(n, 1, 1) for n in (100, 101, 102)))
    (arrived,) = [event for engine, event in told if engine == 1 and isinstance(event, Arrived)]
    assert arrived.num_prompt == 101
    assert arrived.at_s == pytest.approx(1.0 + prompt_s + crossing_s)


def test_hand_overs_of_one_engine_follow_each_other_on_the_link() -> None:
    outcomes: list[Outcome] = []
    simulate_cluster(arrivals_of([TraceRow(0.0, 32, 2)] * 2, VOCAB), DISAGG, outcomes=outcomes.append)
    first, second = sorted(outcome.longest_gap_s for outcome in outcomes)
    # Both prompts fit one step, so both first tokens come at once.
    assert second - first == pytest.approx(32 * TOKEN_BYTES / 1e6, rel=0.5)


def test_requests_of_one_token_never_reach_a_decode_engine() -> None:
    report = simulate_cluster(arrivals_of([TraceRow(0.0, 50, 1)] * 3, VOCAB), DISAGG)
    assert report.whole.num_finished == 3
    assert report.engines[1].num_steps == 0


def test_every_request_is_whole_in_a_disaggregated_cluster() -> None:
    rows = poisson_trace(300.0, 120, Lengths(60, 0.8, 500), Lengths(20, 0.7, 100), seed=7)
    outcomes: list[Outcome] = []
    report = simulate_cluster(arrivals_of(rows, VOCAB), replace(DISAGG, form=Form(2, 3)), outcomes=outcomes.append)
    assert report.whole.num_finished == len(outcomes) == 120
    assert sorted(o.num_output for o in outcomes) == sorted(row.num_output for row in rows)
    assert report.whole.computed_tokens == sum(row.num_prompt + row.num_output - 1 for row in rows)
    assert all(engine.num_steps for engine in report.engines)


def test_who_loses_imported_keys_to_a_shortage_computes_them_anew() -> None:
    tight = replace(SPEC, cache_bytes=704 * TOKEN_BYTES)
    rows = [TraceRow(0.0, 150, 300) for _ in range(4)]
    report = simulate_cluster(arrivals_of(rows, VOCAB), replace(DISAGG, replica=tight))
    assert report.whole.num_preemptions > 0
    assert report.whole.num_finished == 4
    assert report.engines[1].computed_tokens > 4 * 299


def test_a_form_with_hand_overs_needs_a_link_and_single_answers() -> None:
    with pytest.raises(UsageError, match="no link"):
        simulate_cluster([], ClusterSpec(SPEC, Form(1, 1)))
    many = Request(RequestId("r"), (1, 2), SamplingParams(max_tokens=2), n=2)
    with pytest.raises(UsageError, match="2 answers"):
        simulate_cluster([Arrival(0.0, many)], DISAGG)


def test_two_requests_with_one_id_at_once_are_refused() -> None:
    same = [Arrival(0.0, request(0, 1, 2)), Arrival(0.0, request(0, 1, 2))]
    with pytest.raises(UsageError, match="'r0' at once"):
        simulate_cluster(same, ClusterSpec(SPEC))


def price(start: int, num_tokens: int, num_outputs: int) -> float:
    model = RooflineModel(SPEC.program, SPEC.formats, SPEC.hardware)
    return model.price(StepShape((ChunkShape(start, num_tokens, num_outputs),)), 4).expected_s
