"""Drafts together with all that may happen at once: any scheduler, steps planned ahead or not, lanes, every form of
attention and states, requests given up, too little memory, guesses of every kind at any price.

On a simulated device, where thousands of loads take seconds, every sequence says a text that is known; on the native
runtime every answer is compared with the one that the request gets alone and without drafts, to the last bit. Either
fails where anything hangs, and where memory is not empty at the end.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.drafting import Guesser, adversaries
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Served, Serving, Setup, alone, least_cache_tokens
from tests.properties import test_engine_random as engine_random
from tests.properties import test_load_forms as forms
from tests.properties import test_load_state_drafts as states
from tests.properties.test_policies_answers import AnyPrice
from tests.properties.test_policies_random import PRESETS, make_slo
from tests.unit.engine.kit import OneSecondPerToken, Stage, failing, letter_at, unchanged

from plait.assembly import CHUNKS, Drafting, Policy
from plait.build import LANES
from plait.core.events import Collected, Preempted, Submitted
from plait.core.ids import RequestId, StepId
from plait.core.request import Request, ServiceClass, Slo
from plait.core.sampling import SamplingParams
from plait.core.step import StepPlan, StepShape
from plait.cost.model import Bound, StepPrice
from plait.draft.depth import Depth, FixedDepth, PricedDepth
from plait.draft.ngram import NgramDrafts
from plait.sched.multiplex.presets import mechanisms_of

BIG = 2_000
"""Loads of a run on request, and a tenth of that natively."""


class MemoryBound(OneSecondPerToken):
    """Rows up to some number are free, as on machines whose memory is what takes time."""

    def __init__(self, num_free: int) -> None:
        self._num_free = num_free

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = max(1.0, shape.num_tokens / self._num_free) / max(share / 4, 0.25)
        return StepPrice(seconds, seconds, Bound.MEMORY)


def make_depth(dice: random.Random) -> Depth:
    most, beside_prompts, follows_prices = dice.randint(1, 6), dice.random() < 0.5, dice.random() < 0.3
    return dice.choice((PricedDepth(), FixedDepth(most, beside_prompts, follows_prices)))


# On a simulated device.


def make_guesser(dice: random.Random) -> Guesser:
    """Right with some chance each, or right and wrong by turns, so that credit comes and goes."""
    share_right, period = dice.random(), dice.choice((0, dice.randint(3, 9)))

    def guess(tokens: Sequence[int], most: int) -> Sequence[int]:
        if period:
            count = most * (len(tokens) // period % 2 == 0)
            return [letter_at(0, len(tokens) + place) for place in range(count)]
        own = random.Random(zlib.crc32(repr(tuple(tokens)).encode()))
        return [letter_at(0, len(tokens) + place) if own.random() < share_right else 7 for place in range(most)]

    return Guesser(guess, (dice.choice((0.3, 0.6, 0.9)),))


def make_stage(dice: random.Random) -> Stage:
    cost, most_tokens = MemoryBound(dice.choice((2, 4, 8, 16))), dice.choice((20, 32, 64))
    policy = CHUNKS
    if dice.random() < 0.75:
        preset = dice.choice(PRESETS)
        known = mechanisms_of(preset.name)
        policy = Policy(
            preset.without(dice.sample(known, dice.randint(0, min(3, len(known))))),
            cost,
            num_spans=dice.choice((1, 4)),
            has_lanes=dice.random() < 0.9,
            runs_ahead=dice.random() < 0.7,
            margin_s=dice.choice((None, 0.5)),
        )
    return Stage(
        num_blocks=max(dice.choice((8, 12, 40, 80)), most_tokens // 4 + 1),
        max_step_tokens=dice.choice((3, 8, 16, 32)),
        max_rows=dice.choice((1, 2, 4, 8)),
        max_model_tokens=most_tokens,
        enable_prefix=dice.random() < 0.8,
        edit=dice.choice((unchanged, unchanged, failing(*dice.sample(range(20), 4)))),
        queue_depth=dice.choice((1, 2, 2, 3)),
        slos={one: make_slo(dice) for one in ServiceClass},
        cost=cost,
        policy=policy,
        share_units=4 if policy is not CHUNKS else 1,
        drafting=Drafting(make_guesser(dice), make_depth(dice)),
    )


def check_nothing_is_planned_behind_drafts(stage: Stage) -> None:
    """Nobody knows where they end. Steps of other lanes have nothing to do with them."""
    in_flight: dict[StepId, StepPlan] = {}
    for event in stage.events:
        if isinstance(event, Submitted):
            drafted = [seq.seq for plan in in_flight.values() for seq in plan.chunks if seq.num_drafts]
            assert not set(drafted) & {chunk.seq for chunk in event.plan.chunks}
            in_flight[event.plan.step] = event.plan
        elif isinstance(event, Collected):
            in_flight.pop(event.result.step)


def play(seed: int, num_visits: int) -> Stage:
    dice = random.Random(seed)
    stage = make_stage(dice)
    visits = engine_random.visited(stage, dice, num_visits)
    for visit in visits:
        engine_random.check_answers(stage, visit.request)
    engine_random.check_events(stage)
    check_nothing_is_planned_behind_drafts(stage)
    engine_random.check_nothing_is_left(stage, visits)
    return stage


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), num_visits=st.integers(1, 14))
def test_simulated_answers_are_those_without_drafts(seed: int, num_visits: int) -> None:
    play(seed, num_visits)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=BIG)
@given(seed=st.integers(2**33, 2**40), num_visits=st.integers(4, 24))
def test_so_they_are_under_thousands_of_loads(seed: int, num_visits: int) -> None:
    play(seed, num_visits)


def test_the_dice_get_everywhere() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        stage = play(seed, 14)
        plans = [event.plan for event in stage.of(Submitted)]
        seen["drafts"] += sum(chunk.num_drafts for plan in plans for chunk in plan.chunks)
        seen["accepted"] += sum(one.num_accepted for event in stage.of(Collected) for one in event.result.seqs)
        seen["preempted"] += len(stage.of(Preempted))
        seen["beside"] += sum(
            any(one.num_drafts for one in plan.chunks)
            and any(one.num_tokens > 1 + one.num_drafts for one in plan.chunks)
            for plan in plans
        )
        seen["planned ahead"] += sum(chunk.is_unknown for plan in plans for chunk in plan.chunks)
    assert min(seen.values()) >= 3, seen
    assert seen["drafts"] > 500
    assert seen["accepted"] > 200


# On the native runtime.

VISIBILITIES = ("causal", "window beside causal", "chunked beside window", "windows in tables", "states only")
SUBJECTS = (*VISIBILITIES, "states beside attention")
NUM_ASKED = 10
KINDS = ("right to some place", "right to some place", "always right", "over-long", "n-grams", "out of the vocabulary")
NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Known:
    """A model, what is asked of it, and what it answers to each alone and without drafts."""

    served: Served
    requests: tuple[Request, ...]
    answers: Mapping[AnswerKey, Answer]
    texts: tuple[tuple[int, ...], ...]
    least_tokens: int


@cache
def known(subject: str) -> Known:
    if subject == "states beside attention":
        served, longest = states.served("bamba"), 200
        requests = (*states.asked("bamba")[:6], *states.asked("bamba")[-4:])
        least_tokens = 6 * states.states.PAGE_TOKENS
    else:
        served, longest = forms.served(subject), forms.LONGEST
        written = forms.write_requests(SUBJECTS.index(subject))
        requests = (*written[: NUM_ASKED - len(forms.GROWING)], *forms.GROWING)
        # Enough for any one of them, not for the answers of several.
        least_tokens = least_cache_tokens(served, longest) + forms.BLOCK
    quiet = Serving(served, Setup(max_step_tokens=512, make_room=Treatment(threads=1)))
    answers = alone(quiet, requests)
    quiet.close()
    prompts = {one.id: one.prompt for one in requests}
    texts = tuple([(*prompts[request], *answer.tokens) for (request, _), answer in answers.items()])
    return Known(served, requests, answers, texts, least_tokens)


def make_policy(dice: random.Random, subject: Known) -> Policy:
    if dice.random() < 0.4:
        return CHUNKS
    return Policy(
        dice.choice(PRESETS),
        AnyPrice(dice.randrange(1 << 20)),
        num_spans=len(subject.served.program.spans),
        has_lanes=dice.random() < 0.6,
        runs_ahead=dice.random() < 0.7,
        margin_s=dice.choice((None, 1e-3)),
    )


def make_drafting(dice: random.Random, subject: Known) -> Drafting:
    if dice.random() < 0.15:
        return Drafting(NgramDrafts(), make_depth(dice))
    source = adversaries(subject.texts, subject.served.program.vocab_size)[dice.choice(KINDS)].source
    return Drafting(source, make_depth(dice))


def slo_of(dice: random.Random) -> Slo:
    return Slo(ttft_s=dice.choice((None, 1e4)), itl_s=dice.choice((None, 0.01)), tpot_s=dice.choice((None, 0.01)))


def serve(seed: int) -> Serving:
    """A random load on the native runtime; two are given up on the way, and the rest compared."""
    dice = random.Random(seed)
    subject = known(dice.choice(SUBJECTS))
    policy = make_policy(dice, subject)
    is_chunked = policy is CHUNKS
    # Whose steps run side by side cannot be told to wait by a test.
    room = Treatment(
        threads=dice.randint(1, 2) if is_chunked else 3,
        lanes=2 if is_chunked else LANES,
        blocking_seed=dice.randrange(1 << 20),
        meddling_seed=dice.choice((None, seed)) if is_chunked else None,
        paced=is_chunked,
    )
    setup = Setup(
        dice.choice((3, 16, 48, 512)),
        cache_tokens=dice.choice((subject.least_tokens, 8192)),
        enable_prefix=dice.random() < 0.7,
        max_rows=dice.choice((2, 4, 16)),
        make_room=room,
        policy=policy,
        drafting=make_drafting(dice, subject),
    )
    asked = [
        replace(one, slo=slo_of(dice), service_class=dice.choice(tuple(ServiceClass)), priority=dice.choice((0, 0, 1)))
        for one in dice.sample(subject.requests, len(subject.requests))
    ]
    vocab = subject.served.program.vocab_size
    going = [
        Request(
            RequestId(f"{NOISE}-{number}"),
            tuple(dice.randrange(4, vocab) for _ in range(dice.randint(1, 40))),
            SamplingParams(max_tokens=60, seed=number, ignore_eos=True),
        )
        for number in range(2)
    ]
    serving = Serving(subject.served, setup)
    for _ in range(2):
        wave = [*asked, *going]
        dice.shuffle(wave)
        aborted = {one.id: dice.randrange(1, 80) for one in going}
        serving.serve(wave, aborted=aborted, ticks_between=dice.choice((0, 1, 3)))
        forms.check_all({key: one for key, one in serving.answers.items() if key in subject.answers}, subject.answers)
    serving.close()
    return serving


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_native_answers_are_those_without_drafts_to_the_last_bit(seed: int) -> None:
    serve(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=BIG // 10)
@given(seed=st.integers(2**33, 2**40))
def test_so_they_are_under_hundreds_of_native_loads(seed: int) -> None:
    serve(seed)
