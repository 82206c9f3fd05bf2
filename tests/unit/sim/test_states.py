"""Models with states in simulated time: where checkpoints are made decides what is hit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import DEVICE

from plait.core.events import Event, Scheduled
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.kv.checkpoints import ByUse, CheckpointPolicy, EveryTokens
from plait.model.cost import Formats
from plait.model.program import Program
from plait.reproduce.shapes import Mixer, Shape, StateShape, program_of
from plait.sim.arrivals import Arrival
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica
from plait.sim.report import Report

END = 7
"""The token that ends a message."""
HYBRID = program_of(
    Shape("hybrid", (Mixer.MAMBA, Mixer.FULL, Mixer.MAMBA), 32, 4, 2, 8, 64, 1000, state=StateShape(64, 4, 4, 8))
)
WINDOWED = program_of(
    Shape(
        "windowed hybrid",
        (Mixer.MAMBA, Mixer.WINDOW, Mixer.FULL),
        32,
        4,
        2,
        8,
        64,
        1000,
        size=40,
        state=StateShape(64, 4, 4, 8),
    )
)
SPEC = ReplicaSpec(
    HYBRID,
    Formats(),
    DEVICE,
    cache_bytes=4_000_000,
    tokens_per_block=16,
    max_step_tokens=64,
    max_rows=8,
    max_model_tokens=2048,
    end_tokens=(END,),
)


def asked(at_s: float, prompt: list[int], num_output: int = 4) -> Arrival:
    sampling = SamplingParams(seed=0, max_tokens=num_output, ignore_eos=True)
    return Arrival(at_s, Request(RequestId(f"at {at_s}"), tuple(prompt), sampling))


def text(seed: int, num_tokens: int) -> list[int]:
    return [8 + (seed * 131 + place * 7) % 900 for place in range(num_tokens)]


def hits(arrivals: list[Arrival], spec: ReplicaSpec = SPEC) -> tuple[list[int], Report]:
    """Tokens that each request found, in order of arrival."""
    found: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, Scheduled):
            found.append(event.num_cached)

    report = simulate(arrivals, replica(spec), listen)
    assert not report.num_failed
    assert not report.num_refused
    return found, report


@pytest.mark.parametrize("length", [20, 33, 48, 100, 256, 600])
@pytest.mark.parametrize("program", [HYBRID, WINDOWED], ids=lambda program: program.name)
def test_a_short_prompt_again_is_hit_to_its_last_block(length: int, program: object) -> None:
    spec = replace(SPEC, program=program)
    found, _ = hits([asked(0.0, text(1, length)), asked(9.0, text(1, length))], spec)
    assert found == [0, (length - 1) // 16 * 16]
    every, _ = hits(
        [asked(0.0, text(1, length)), asked(9.0, text(1, length))], replace(spec, checkpoints=EveryTokens(512))
    )
    assert every == [0, 512 if length > 512 else 0]


ALONE = program_of(
    Shape("states alone", (Mixer.MAMBA, Mixer.MAMBA), 32, 4, 2, 8, 64, 1000, state=StateShape(64, 4, 4, 8))
)


@pytest.mark.parametrize(
    ("program", "lengths", "found"),
    [
        (HYBRID, [20, 33, 100, 600], [19, 32, 96, 576]),
        (WINDOWED, [20, 33, 100, 600], [19, 32, 96, 576]),
        (ALONE, [20, 33, 100, 600], [19, 32, 99, 599]),
        (ALONE, [2, 3, 32, 65], [1, 2, 31, 64]),
        (HYBRID, [2, 3, 32, 65], [1, 2, 31, 64]),
    ],
    ids=str,
)
def test_a_prompt_of_less_than_a_block_is_hit_but_for_its_last_token(
    program: Program, lengths: list[int], found: list[int]
) -> None:
    """Beside attention once the first answer has filled the block; where there are states alone, every prompt is."""
    spec = replace(SPEC, program=program, tokens_per_block=32)
    for length, tokens in zip(lengths, found, strict=True):
        again = [asked(0.0, text(1, length), 40), asked(9.0, text(1, length), 40)]
        assert hits(again, spec)[0] == [0, tokens]


def test_a_question_behind_a_common_prefix_is_hit_from_the_third_time_on() -> None:
    """The second one shows where they branch off; a copy is made there."""
    common = text(1, 200)
    arrivals = [asked(9.0 * n, common + text(n + 2, 30)) for n in range(4)]
    found, _ = hits(arrivals)
    assert found == [0, 0, 192, 192]


def test_where_a_message_ends_the_second_one_is_hit_already() -> None:
    common = [*text(1, 207), END]
    arrivals = [asked(9.0 * n, common + text(n + 2, 30)) for n in range(3)]
    assert hits(arrivals)[0] == [0, 208, 208]


def test_the_next_turn_goes_on_behind_the_last_prompt() -> None:
    first = [*text(1, 90), END]
    second = [*first, *text(2, 20), END, *text(3, 40)]
    assert hits([asked(0.0, first), asked(9.0, second)])[0] == [0, 80]


@pytest.mark.parametrize("policy", [ByUse(), EveryTokens(64)], ids=str)
def test_short_memory_costs_hits_and_never_a_request(policy: CheckpointPolicy) -> None:
    """Room for hardly more than what runs: checkpoints give way."""
    arrivals = [asked(0.1 * n, text(n % 5, 100 + 30 * (n % 7)), 40) for n in range(60)]
    tight = replace(SPEC, cache_bytes=200_000, checkpoints=policy)
    _, report = hits(arrivals, tight)
    assert report.num_finished == 60
    _, roomy = hits(arrivals, replace(SPEC, checkpoints=policy))
    assert roomy.prefix_hit_fraction > report.prefix_hit_fraction
    assert roomy.num_preemptions == 0
