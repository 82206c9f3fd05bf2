"""Several engines under one clock."""

from __future__ import annotations

import pytest
from tests.unit.sim.kit import SPEC, VOCAB, plans

from plait.core.errors import UsageError
from plait.core.events import Event, Refused
from plait.core.ids import RequestId
from plait.core.plan_hash import plan_hash
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.sim.arrivals import Lengths, arrivals_of, poisson_trace
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.driver import simulate
from plait.sim.form import Form, Role, parse_form
from plait.sim.replica import replica
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
