"""Random requests that come, are aborted, fail, stop and run late at random times: nothing leaks, nobody is forgotten.

The stage checks the memory at every tick, and a moment at which nothing could ever happen again fails.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.kit import BLOCK_TOKENS, Stage, ask, failing, in_bursts, unchanged

from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.events import Arrived, Emitted, Finished, Preempted, Refused
from plait.core.request import FinishReason, Pooling, Request, ServiceClass, Task
from plait.core.sampling import SamplingParams

ALPHABET = "abcdefghijklmnopqrstuvwxyz" * 3
PROMPTS = (
    "a",
    "abc",
    "abcd",
    "abcdefgh",
    "abcdefghi",
    "abcdefghijklm",
    "abcdxyz",
    "xyzxyzxyzxyz",
    "b" * 30,
    "",
    "c" * 101,
)
STOPS = ("gh", "kl", "z", "mnopq")


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, when it comes, and when it is aborted, if it is."""

    request: Request
    at_s: float
    abort_s: float | None


def make_visit(number: int, rng: random.Random) -> Visit:
    at_s = rng.choice((0.0, rng.uniform(0, 60)))
    sampling = SamplingParams(
        stop=(rng.choice(STOPS),) if rng.random() < 0.3 else (),
        logprobs=rng.choice((None, 0)),
        seed=rng.choice((None, 5)),
        prompt_logprobs=rng.choice((None, None, None, 0)),
    )
    request = ask(
        f"r{number}",
        rng.choice(PROMPTS),
        max_tokens=rng.choice((None, 1, 2, 7, 20)) if rng.random() < 0.9 else 0,
        sampling=sampling,
        n=rng.choice((1, 1, 1, 2, 3)),
        service_class=rng.choice((ServiceClass.ONLINE, ServiceClass.BATCH)),
        priority=rng.choice((0, 0, 1)),
        deadline_s=at_s + rng.uniform(-1, 30) if rng.random() < 0.2 else None,
        cache_prefix=rng.random() < 0.9,
        tenant=rng.choice(("", "", "red")),
    )
    if rng.random() < 0.15:
        request = replace(request, n=1, task=Task.EMBED, pooling=rng.choice(tuple(Pooling)))
    return Visit(request, at_s, at_s + rng.uniform(-1, 40) if rng.random() < 0.4 else None)


def make_stage(rng: random.Random) -> Stage:
    edits = (unchanged, unchanged, in_bursts(3), failing(*rng.sample(range(20), 4)))
    edit = rng.choice(edits)
    return Stage(
        num_blocks=rng.choice((8, 12, 40)),
        max_step_tokens=rng.choice((3, 8, 16)),
        max_rows=rng.choice((1, 2, 4)),
        max_model_tokens=rng.choice((20, 32)),
        enable_prefix=rng.random() < 0.8,
        edit=edit,
        queue_depth=1 if edit is edits[2] else rng.choice((1, 2, 2, 3)),
        plans_first=rng.random() < 0.5,
    )


def check_answers(stage: Stage, request: Request) -> None:
    """One refusal and nothing else, or one last delta per choice and nothing behind it."""
    given_answers = stage.answers.by_request[request.id]
    if isinstance(given_answers[0], RequestError):
        assert len(given_answers) == 1
        return
    assert all(isinstance(answer, Delta) for answer in given_answers)
    for choice in range(request.n):
        deltas = stage.answers.deltas(request.id, choice)
        assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        if request.task is Task.EMBED:
            check_embedding(stage, request)
        else:
            check_text(stage, request, choice)
            check_scores(stage, request, choice)
    assert {answer.choice for answer in given_answers if isinstance(answer, Delta)} == set(range(request.n))


def check_embedding(stage: Stage, request: Request) -> None:
    """Nothing but a vector, if the end was a good one."""
    last = stage.answers.last(request.id)
    assert stage.answers.tokens(request.id) == []
    assert (last.pooled is not None) == (last.finish_reason is FinishReason.STOP)


def check_scores(stage: Stage, request: Request, choice: int) -> None:
    """Of the first choice, every prompt token but the first, once, and before any output."""
    deltas = stage.answers.deltas(request.id, choice)
    scored = tuple(one.token for delta in deltas for one in delta.prompt_logprobs)
    wanted = request.prompt[1:] if request.sampling.prompt_logprobs is not None and choice == 0 else ()
    assert scored == wanted[: len(scored)]
    if stage.answers.tokens(request.id, choice):
        assert scored == wanted


def check_text(stage: Stage, request: Request, choice: int) -> None:
    """A choice says the alphabet from the end of its prompt on, up to its end."""
    start, tokens, last = (
        len(request.prompt),
        stage.answers.tokens(request.id, choice),
        stage.answers.last(request.id, choice),
    )
    said = ALPHABET[start : start + len(tokens)]
    assert bytes(tokens).decode() == said
    if last.finish_reason is FinishReason.STOP:
        (stop,) = request.sampling.stop
        assert last.stop_reason == stop
        assert stage.answers.text(request.id, choice) == said.removesuffix(stop)
        assert said.count(stop) == 1
    else:
        assert stage.answers.text(request.id, choice) == said, "nothing is held back at the end"
        assert not any(stop in said for stop in request.sampling.stop)
    if last.finish_reason is FinishReason.LENGTH:
        assert len(tokens) == request.sampling.max_tokens or request.sampling.max_tokens is None
    if request.sampling.logprobs is not None:
        deltas = stage.answers.deltas(request.id, choice)
        assert [one.token for delta in deltas for one in delta.logprobs] == tokens


def check_events(stage: Stage) -> None:
    arrived = Counter(event.seq for event in stage.of(Arrived))
    finished = Counter(event.seq for event in stage.of(Finished))
    assert arrived == finished
    assert set(arrived.values()) <= {1}
    emitted: Counter[int] = Counter()
    for event in stage.of(Emitted):
        emitted[event.seq] += event.num_tokens
    assert emitted == Counter({event.seq: event.num_output for event in stage.of(Finished) if event.num_output})


def check_nothing_is_left(stage: Stage, visits: list[Visit]) -> None:
    """Memory and rows are free, and no hold outlives its holder: everything can be asked again and is answered."""
    stage.assert_memory_is_empty()
    again = [visit.request for visit in visits if visit.request.deadline_s is None]
    for request in again:
        stage.answers.by_request[request.id].clear()
        stage.arrive(request, at_s=stage.now())
    stage.run()
    for request in again:
        assert stage.answers.by_request[request.id]
    stage.assert_memory_is_empty()


def visited(stage: Stage, rng: random.Random, num_visits: int) -> list[Visit]:
    """Random visits of a stage, to their end."""
    visits = [make_visit(number, rng) for number in range(num_visits)]
    for visit in visits:
        stage.arrive(visit.request, at_s=visit.at_s)
        if visit.abort_s is not None:
            stage.abort(visit.request.id, at_s=visit.abort_s)
    stage.run()
    return visits


def play(seed: int, num_visits: int) -> tuple[Stage, list[Visit]]:
    rng = random.Random(seed)
    stage = make_stage(rng)
    return stage, visited(stage, rng, num_visits)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), num_visits=st.integers(1, 14))
def test_everyone_is_answered_once_and_nothing_leaks(seed: int, num_visits: int) -> None:
    stage, visits = play(seed, num_visits)
    for visit in visits:
        check_answers(stage, visit.request)
    check_events(stage)
    check_nothing_is_left(stage, visits)


def test_the_dice_get_everywhere() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        stage, _ = play(seed, 14)
        seen.update(event.reason for event in stage.of(Finished))
        seen["refused"] += len(stage.of(Refused))
        seen["preempted"] += len(stage.of(Preempted))
        seen["cached"] += sum(event.num_cached >= BLOCK_TOKENS for event in stage.of(Finished))
        seen["embedded"] += sum(delta.pooled is not None for delta in all_deltas(stage))
        seen["scored"] += sum(bool(delta.prompt_logprobs) for delta in all_deltas(stage))
        seen["late"] += sum("deadline" in (answer.error or "") for answer in all_deltas(stage))
    rare = {
        what: seen[what]
        for what in (*FinishReason, "refused", "preempted", "cached", "embedded", "scored", "late")
        if seen[what] < 20
    }
    assert not rare


def all_deltas(stage: Stage) -> list[Delta]:
    return [answer for given in stage.answers.by_request.values() for answer in given if isinstance(answer, Delta)]


def test_equal_dice_give_equal_events() -> None:
    assert play(7, 14)[0].events == play(7, 14)[0].events
