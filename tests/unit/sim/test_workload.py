"""Workloads: when requests come, how often, what they share, and sessions that wait for answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import pytest

from plait.core.errors import UsageError
from plait.core.ids import RequestId
from plait.core.request import Request, Slo
from plait.sim.load import Load
from plait.sim.traces.request import TraceRequest
from plait.sim.workload import Pace, Workload, measure

VOCAB = 1000


@dataclass(frozen=True)
class Listed:
    """A source of given requests."""

    all: list[TraceRequest]

    def requests(self) -> Iterator[TraceRequest]:
        return iter(self.all)


def workload(requests: list[TraceRequest], pace: Pace) -> Workload:
    source = Listed(requests)
    return Workload(source, measure(source), pace)


def taken(load: Load) -> list[tuple[float, Request]]:
    """Everything that comes without an answer."""
    found = []
    while (at_s := load.next_s()) is not None:
        arrival = load.take()
        assert arrival.at_s == at_s
        found.append((at_s, arrival.request))
    return found


def times(requests: list[TraceRequest], pace: Pace) -> list[float]:
    return [at_s for at_s, _ in taken(workload(requests, pace).load(VOCAB, Slo()))]


THREE = [TraceRequest(10.0, 5, 2), TraceRequest(11.0, 6, 3), TraceRequest(14.0, 7, 4)]


def test_a_trace_is_played_from_its_first_request_on() -> None:
    slo = Slo(ttft_s=1.0)
    found = taken(workload(THREE, Pace()).load(VOCAB, slo))
    assert [at_s for at_s, _ in found] == [0.0, 1.0, 4.0]
    assert [len(request.prompt) for _, request in found] == [5, 6, 7]
    assert [request.sampling.max_tokens for _, request in found] == [2, 3, 4]
    assert all(request.slo is slo and request.sampling.ignore_eos for _, request in found)


def test_a_trace_can_be_played_faster_or_at_a_rate() -> None:
    assert times(THREE, Pace(speed=2.0)) == [0.0, 0.5, 2.0]
    assert times(THREE, Pace(rate=1.0)) == [0.0, 0.5, 2.0], "two gaps in two seconds"


def test_a_short_trace_is_repeated_with_later_times_and_other_blocks() -> None:
    shared = [replace(one, blocks=(7,), block_tokens=4) for one in THREE]
    found = taken(workload(shared, Pace(requests=5)).load(VOCAB, Slo()))
    assert [at_s for at_s, _ in found] == [0.0, 1.0, 4.0, 6.0, 7.0]
    heads = [request.prompt[:4] for _, request in found]
    assert heads[0] == heads[1] == heads[2] != heads[3] == heads[4]
    assert len({request.id for _, request in found}) == 5


def test_part_of_a_trace_can_be_taken() -> None:
    assert times(THREE, Pace(requests=2)) == [0.0, 1.0]


def test_lengths_alone_need_a_rate_and_get_independent_arrivals() -> None:
    bare = [TraceRequest(None, 5, 2)]
    with pytest.raises(UsageError, match="give --rate R, in requests a second"):
        workload(bare, Pace())
    found = times(bare, Pace(rate=5.0, requests=2000, seed=3))
    assert found == times(bare, Pace(rate=5.0, requests=2000, seed=3)) != times(bare, Pace(rate=5.0, requests=2000))
    assert found == sorted(found)
    assert found[-1] / 2000 == pytest.approx(0.2, rel=0.1)


def test_offline_load_is_there_at_once_unless_a_rate_is_asked_for() -> None:
    batch = [TraceRequest(0.0, 5, 2)] * 100
    assert times(batch, Pace()) == [0.0] * 100
    assert fmean(times(batch, Pace(rate=10.0))) == pytest.approx(5.0, rel=0.3)


def test_prompts_share_exactly_their_blocks() -> None:
    one = TraceRequest(0.0, 11, 1, (3, 4), 4)
    same, longer, other = one, replace(one, num_prompt=20, blocks=(3, 4, 5)), replace(one, blocks=(3, 9))
    prompts = [request.prompt for _, request in taken(workload([one, same, longer, other], Pace()).load(VOCAB, Slo()))]
    assert [len(prompt) for prompt in prompts] == [11, 11, 20, 11]
    assert prompts[0][:8] == prompts[1][:8] == prompts[2][:8]
    assert prompts[0][8] != prompts[1][8], "the ending is a request's own"
    assert prompts[3][:4] == prompts[0][:4]
    assert prompts[3][4] != prompts[0][4]
    assert all(0 <= token < VOCAB for prompt in prompts for token in prompt)


def test_blocks_beyond_the_prompt_are_cut() -> None:
    (_, request), *_ = taken(workload([TraceRequest(0.0, 6, 1, (1, 2, 3), 4)], Pace()).load(VOCAB, Slo()))
    assert len(request.prompt) == 6


def test_lengths_can_be_divided_and_stay_shared() -> None:
    long = [TraceRequest(0.0, 100, 33, (1, 2), 32), TraceRequest(1.0, 90, 1, (1, 2), 32)]
    (_, first), (_, second) = taken(workload(long, Pace(length_divisor=16)).load(VOCAB, Slo()))
    assert (len(first.prompt), first.sampling.max_tokens, len(second.prompt)) == (7, 3, 6)
    assert first.prompt[:4] == second.prompt[:4]
    with pytest.raises(UsageError, match="--length-divisor is 5, but the blocks of this trace have 32 tokens"):
        taken(workload(long, Pace(length_divisor=5)).load(VOCAB, Slo()))


def test_a_prompt_that_nobody_can_serve_is_not_made_whole() -> None:
    (_, request), *_ = taken(workload([TraceRequest(0.0, 1 << 30, 1)], Pace()).load(VOCAB, Slo(), max_tokens=50))
    assert len(request.prompt) == 51


SESSIONS = [
    TraceRequest(None, 10, 2, session="a"),
    TraceRequest(None, 14, 2, session="a", think_s=3.0),
    TraceRequest(None, 18, 2, session="a", think_s=0.0),
    TraceRequest(None, 20, 2, session="b"),
]


def test_a_session_goes_on_its_pause_after_each_answer() -> None:
    load = workload(SESSIONS, Pace(rate=1.0)).load(VOCAB, Slo())
    assert not load.is_open
    first = load.take()
    assert len(first.request.prompt) == 10
    second = load.take()
    assert len(second.request.prompt) == 20, "the other session does not wait for the first"
    assert load.next_s() is None
    load.ended(first.request.id, 50.0)
    assert load.next_s() == 53.0
    third = load.take()
    assert len(third.request.prompt) == 14
    load.ended(second.request.id, 54.0)
    assert load.next_s() is None, "that session is over"
    load.ended(third.request.id, 60.0)
    assert (load.next_s(), len(load.take().request.prompt), load.next_s()) == (60.0, 18, None)


def test_sessions_are_cut_where_enough_requests_are_taken() -> None:
    load = workload(SESSIONS, Pace(rate=1.0, requests=2)).load(VOCAB, Slo())
    first = load.take()
    assert load.next_s() is None
    load.ended(first.request.id, 1.0)
    last = load.take()
    load.ended(last.request.id, 9.0)
    assert load.next_s() is None


def test_a_load_that_never_waits_says_so() -> None:
    load = workload(THREE, Pace()).load(VOCAB, Slo())
    assert load.is_open
    load.ended(RequestId("trace-0"), 1.0)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "holds no request"),
        (
            [TraceRequest(1.0, 1, 1), TraceRequest(None, 1, 1)],
            "request 2 of the trace has no arrival time, unlike those before it",
        ),
        ([TraceRequest(None, 1, 1), TraceRequest(1.0, 1, 1)], "request 2 of the trace has an arrival time"),
    ],
)
def test_a_trace_has_requests_and_all_or_no_times(requests: list[TraceRequest], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measure(Listed(requests))


def test_a_trace_of_no_length_comes_all_at_once_and_is_drawn_at_a_rate() -> None:
    requests = [TraceRequest(0.0, 5, 2), TraceRequest(5e-324, 5, 2)]
    assert measure(Listed(requests)).rate is None
    moments = [at_s for at_s, _ in taken(workload(requests, Pace(rate=2.0)).load(VOCAB, Slo()))]
    assert moments[1] > moments[0] > 0


def test_a_moment_beyond_simulated_time_is_refused() -> None:
    requests = [TraceRequest(0.0, 5, 2), TraceRequest(1e11, 5, 2)]
    assert len(taken(workload(requests, Pace()).load(VOCAB, Slo()))) == 2
    with pytest.raises(UsageError, match=r"1e\+16 s, and simulated time ends at 1e\+11; play the trace faster"):
        taken(workload(requests, Pace(speed=1e-5)).load(VOCAB, Slo()))
