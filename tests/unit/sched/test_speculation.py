"""Drafts in the engine: fewer steps and the same answers, whatever ends them; nothing of a rejected draft stays."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.drafting import Guesser, GuessOf, spoiled
from tests.unit.engine.kit import EOS, OneSecondPerToken, Stage, ask, failing, says

from plait.assembly import CHUNKS, Drafting, Policy
from plait.core.events import Collected, Finished, Submitted
from plait.core.ids import SeqId
from plait.core.request import FinishReason, SeqState, ServiceClass, Slo
from plait.core.request import Sequence as Seq
from plait.core.sampling import SamplingParams
from plait.core.step import StepPlan, StepShape
from plait.cost.model import Bound, StepPrice
from plait.draft.depth import FixedDepth, Made, NextStep, PricedDepth
from plait.draft.ngram import NgramDrafts
from plait.sched.chunked import ChunkedScheduler
from plait.sched.multiplex.presets import CHUNKED, Preset, preset_of
from plait.sched.speculation import Speculation

SONG = "abc, and so it goes on and on until it ends."
TOKENS = [*SONG.encode(), EOS]


def right(tokens: Sequence[int], most: int) -> Sequence[int]:
    return TOKENS[len(tokens) : len(tokens) + most]


def wrong(tokens: Sequence[int], most: int) -> Sequence[int]:
    return [ord("#")] * most


def verified(guess_of: GuessOf, most: int = 4) -> Drafting:
    return Drafting(Guesser(guess_of), FixedDepth(most))


def stage(drafting: Drafting | None, *, policy: Policy = CHUNKS, **how: int) -> Stage:
    return Stage(token_at=says(SONG), drafting=drafting, max_model_tokens=100, policy=policy, **how)


def plans(played: Stage) -> list[StepPlan]:
    return [event.plan for event in played.of(Submitted)]


@pytest.mark.parametrize("guess_of", [right, wrong])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 7, 30, None])
def test_an_answer_has_the_length_and_the_end_that_it_has_without(guess_of: GuessOf, max_tokens: int | None) -> None:
    played = [stage(drafting) for drafting in (None, verified(guess_of))]
    for one in played:
        one.arrive(ask("a", max_tokens=max_tokens))
        one.run()
        one.assert_memory_is_empty()
    plain, drafted = played
    assert drafted.answers.tokens("a") == plain.answers.tokens("a")
    assert drafted.answers.text("a") == plain.answers.text("a")
    assert drafted.answers.last("a").finish_reason == plain.answers.last("a").finish_reason
    ends = [[(event.reason, event.num_output) for event in one.of(Finished)] for one in played]
    assert ends[0] == ends[1]


def test_five_tokens_come_from_a_step_whose_drafts_are_right() -> None:
    played = stage(verified(right))
    played.arrive(ask("a", max_tokens=11))
    played.run()
    chunks = [(chunk.start, chunk.num_drafts) for plan in plans(played) for chunk in plan.chunks]
    assert chunks == [(0, 0), (3, 0), (4, 4), (9, 3)]


def test_nothing_is_planned_behind_drafts_and_what_was_rejected_is_written_again() -> None:
    played = stage(verified(wrong))
    played.arrive(ask("a", max_tokens=4))
    played.run()
    order = [type(event) for event in played.events if isinstance(event, Submitted | Collected)]
    assert order == [Submitted, Submitted, Collected, Collected, *[Submitted, Collected] * 2]
    starts = [(chunk.start, chunk.num_drafts) for plan in plans(played) for chunk in plan.chunks]
    assert starts == [(0, 0), (3, 0), (4, 1), (5, 0)]


def test_a_stop_string_among_accepted_drafts_ends_the_answer_there() -> None:
    played = [stage(drafting) for drafting in (None, verified(right, 16))]
    for one in played:
        one.arrive(ask("a", max_tokens=None, sampling=SamplingParams(stop=("goes",))))
        one.run()
    plain, drafted = played
    assert drafted.answers.text("a") == plain.answers.text("a") == ", and so it "
    assert drafted.answers.tokens("a") == plain.answers.tokens("a")
    assert drafted.answers.last("a").finish_reason is FinishReason.STOP


def test_what_was_rejected_is_in_no_index() -> None:
    played = stage(verified(wrong, 8))
    played.arrive(ask("a", max_tokens=20))
    played.run()
    guessed = SONG[:4] + "#" * 12
    played.arrive(ask("b", guessed + "?", max_tokens=1), at_s=1000.0)
    played.arrive(ask("c", SONG[:20] + "?", max_tokens=1), at_s=2000.0)
    played.run()
    assert played.answers.last("b").num_cached == 4
    assert played.answers.last("c").num_cached == 20


def test_who_can_have_no_memory_for_drafts_goes_on_without() -> None:
    played = stage(verified(right, 16), num_blocks=4)
    played.arrive(ask("a", max_tokens=12))
    played.run()
    assert played.answers.text("a") == SONG[3:15]
    assert max(chunk.end for plan in plans(played) for chunk in plan.chunks) <= 16


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(14, 40), st.integers(1, 12), st.sampled_from([2, 5, 16]), st.booleans())
def test_any_load_with_any_drafts_is_answered_as_without_and_leaves_nothing(
    seed: int, num_blocks: int, most: int, budget: int, enable_prefix: bool
) -> None:
    """Memory for one long answer at least, so that sequences are preempted; every tick looks through memory."""
    answers = []
    for drafting in (None, verified(spoiled(right, 256), most)):
        dice = Random(seed)
        played = stage(drafting, num_blocks=num_blocks, max_step_tokens=budget, enable_prefix=enable_prefix)
        for number in range(dice.randint(1, 6)):
            prompt = SONG[: dice.randint(1, 12)]
            sampling = SamplingParams(stop=dice.choice(((), (), ("on",), (", a", "ends"))))
            request = ask(
                str(number), prompt, max_tokens=dice.randint(1, 40), sampling=sampling, n=dice.choice((1, 1, 2))
            )
            played.arrive(request, at_s=dice.uniform(0, 60))
        played.abort("0", dice.uniform(0, 80))
        played.run()
        played.assert_memory_is_empty()
        told = [name for name in played.answers.by_request if name != "0"]
        choices = [(name, choice) for name in sorted(told) for choice in range(2)]
        answers.append([(played.answers.text(*one), played.answers.tokens(*one)) for one in choices])
    assert answers[0] == answers[1]


class MemoryBound(OneSecondPerToken):
    """Eight rows for the price of one."""

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = max(1.0, shape.num_tokens / 8)
        return StepPrice(seconds, seconds, Bound.MEMORY)


def seconds(guess_of: GuessOf | None, cost: OneSecondPerToken, preset: Preset = CHUNKED) -> float:
    """Until three long answers have been given, one after another."""
    drafting = None if guess_of is None else Drafting(Guesser(guess_of), PricedDepth())
    text = "abc" + "0123456789" * 60
    played = Stage(
        token_at=says(text),
        drafting=drafting,
        cost=cost,
        policy=Policy(preset, cost),
        num_blocks=150,
        max_model_tokens=600,
        max_step_tokens=64,
        checks=False,
    )
    for number in range(3):
        played.arrive(ask(str(number), max_tokens=500), at_s=played.now())
        played.run()
        assert played.answers.text(str(number)) == text[3:503]
    return played.now()


def counts_on(tokens: Sequence[int], most: int) -> Sequence[int]:
    return [ord("0") + (len(tokens) - 3 + place) % 10 for place in range(most)]


def test_where_rows_are_free_right_drafts_make_answers_fast() -> None:
    assert seconds(counts_on, MemoryBound()) < seconds(None, MemoryBound()) / 3


@pytest.mark.parametrize("cost", [MemoryBound(), OneSecondPerToken()])
def test_drafts_that_are_never_right_cost_less_than_a_hundredth(cost: OneSecondPerToken) -> None:
    assert seconds(wrong, cost) < 1.01 * seconds(None, cost)


def test_where_every_row_costs_as_much_right_drafts_are_left_alone() -> None:
    assert seconds(counts_on, OneSecondPerToken()) == seconds(None, OneSecondPerToken())


def half_copied(num_chars: int, dice: Random) -> str:
    """New words, and now and then a part of what was said before."""
    text = "abc"
    while len(text) < num_chars:
        if dice.random() < 0.3 and len(text) > 40:
            start = dice.randrange(len(text) - 30)
            text += text[start : start + dice.randint(3, 30)]
        else:
            text += "".join(dice.choices("abcdefghijklmnopqrstuvwxyz     ", k=dice.randint(3, 30)))
    return text[:num_chars]


@dataclass
class Shaken:
    """A `CostModel` whose prices are those of another but for spells, jitter and steps that are held up."""

    inner: OneSecondPerToken
    dice: Random
    spell: float = 1.0

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        clean_s = self.inner.price(shape, share, beside).expected_s
        self.spell = 1.0 + 0.98 * (self.spell - 1.0) + self.dice.gauss(0.0, 0.015)
        held_up = self.dice.uniform(1.5, 4.0) if self.dice.random() < 0.01 else 1.0
        seconds = clean_s * self.spell * max(self.dice.gauss(1.0, 0.06), 0.5) * held_up
        return StepPrice(seconds, seconds, Bound.MEMORY)


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("rows", ["free", "cheap", "dear"])
def test_in_whatever_noise_drafts_never_lose_more_than_two_hundredths(rows: str, streams: int) -> None:
    """Counted in prices without the noise, so that only what was chosen in it counts."""
    inner = {"free": MemoryBound(), "cheap": CheapRows(), "dear": OneSecondPerToken()}[rows]
    text, size = half_copied(1100, Random(11)), 500 if streams == 1 else 200
    spent = []
    for drafting in (None, Drafting(NgramDrafts(), PricedDepth())):
        played = Stage(
            token_at=says(text),
            drafting=drafting,
            cost=Shaken(inner, Random(12)),
            num_blocks=4000,
            max_model_tokens=1200,
            enable_prefix=False,
            checks=False,
        )
        # Each answers another part of the text.
        asked = [ask(str(number), text[: 3 + 60 * number], max_tokens=size) for number in range(streams)]
        played.arrive(*asked)
        played.run()
        assert [played.answers.text(one.id) for one in asked] == [
            text[len(one.prompt) : len(one.prompt) + size] for one in asked
        ]
        spent.append(sum(inner.price(plan.shape(), 1).expected_s for plan in plans(played)))
    assert spent[1] <= spent[0] / 0.98
    if rows == "free" and streams == 1:
        assert spent[1] < 0.8 * spent[0]


class CheapRows(OneSecondPerToken):
    """Eight rows for the price of one, and a sixteenth of it for each further one."""

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = 1.0 + max(shape.num_tokens - 8, 0) / 16
        return StepPrice(seconds, seconds, Bound.MEMORY)


@pytest.mark.parametrize(("itl_s", "rows"), [(1.4, {14}), (None, {15, 16, 17})])
def test_nobody_waits_longer_for_a_token_than_he_was_promised(itl_s: float | None, rows: set[int]) -> None:
    """A step of fourteen rows takes 1.375 seconds, one of fifteen more."""
    promised = Slo(itl_s=itl_s)
    drafting = Drafting(Guesser(counts_on), PricedDepth())
    played = Stage(
        token_at=says("abc" + "0123456789" * 60),
        drafting=drafting,
        cost=CheapRows(),
        num_blocks=150,
        max_model_tokens=600,
        checks=False,
    )
    played.arrive(replace(ask("a", max_tokens=400), slo=promised))
    played.run()
    assert max(sum(chunk.num_tokens for chunk in plan.chunks) for plan in plans(played)) in rows


@pytest.mark.parametrize("name", ["bullet", "muxwise", "plait", "temporal", "xyserve"])
@pytest.mark.parametrize("guess_of", [right, wrong])
def test_policies_that_price_steps_verify_drafts_too_and_change_no_answer(name: str, guess_of: GuessOf) -> None:
    for drafting in (None, verified(guess_of)):
        played = stage(drafting, policy=Policy(preset_of(name, ()), OneSecondPerToken()), share_units=4)
        for number, size in enumerate((3, 7, 3, 12)):
            played.arrive(ask(str(number), SONG[:size], max_tokens=14), at_s=9.0 * number)
        played.run()
        played.assert_memory_is_empty()
        assert [played.answers.text(str(number)) for number in range(4)] == [SONG[n : n + 14] for n in (3, 7, 3, 12)]
        num_drafts = sum(chunk.num_drafts for plan in plans(played) for chunk in plan.chunks)
        assert (num_drafts > 20) is (drafting is not None)


def test_such_a_policy_gains_where_rows_are_free_and_loses_little_where_guesses_are_wrong() -> None:
    plait = preset_of("plait", ())
    plain_s = seconds(None, MemoryBound(), plait)
    assert seconds(counts_on, MemoryBound(), plait) < plain_s / 3
    assert plain_s <= seconds(wrong, MemoryBound(), plait) < 1.01 * plain_s
    assert seconds(counts_on, OneSecondPerToken(), plait) == seconds(None, OneSecondPerToken(), plait)


def has_prompt(plan: StepPlan) -> bool:
    return any(chunk.num_tokens - chunk.num_drafts > 1 for chunk in plan.chunks)


def has_drafts(plan: StepPlan) -> bool:
    return any(chunk.num_drafts for chunk in plan.chunks)


@pytest.mark.parametrize("short_of", ["rows", "memory"])
@pytest.mark.parametrize("end", ["length", "stop", "abort", "deadline"])
def test_whoever_takes_the_place_of_one_who_ended_meets_no_drafts(short_of: str, end: str) -> None:
    """One long answer, and a line of others who take turns beside it."""
    limits = {"max_rows": 2} if short_of == "rows" else {"num_blocks": 18, "max_rows": 8}
    drafting = Drafting(Guesser(right), FixedDepth(1, beside_prompts=False))
    played = stage(drafting, enable_prefix=False, **limits)
    prompt = SONG[:3] if short_of == "rows" else SONG[:16]
    played.arrive(ask("long", max_tokens=40))
    for number in range(8):
        at_s = 30.0 + 9 * number
        sampling = SamplingParams(stop=("it", "so") if end == "stop" else ())
        request = ask(str(number), prompt, max_tokens=5 if end == "length" else 24, sampling=sampling)
        played.arrive(replace(request, deadline_s=at_s) if end == "deadline" else request)
        if end == "abort":
            played.abort(str(number), at_s)
    played.run()
    assert sum(map(has_drafts, plans(played))) >= 5
    assert sum(map(has_prompt, plans(played))) >= 4
    assert not [plan.step for plan in plans(played) if has_drafts(plan) and has_prompt(plan)]


@dataclass
class Booked:
    """A `Depth` that keeps what it is told."""

    inner: FixedDepth
    made: list[Made] = field(default_factory=list)

    @property
    def most(self) -> int:
        return self.inner.most

    @property
    def beside_prompts(self) -> bool:
        return self.inner.beside_prompts

    @property
    def follows_prices(self) -> bool:
        return self.inner.follows_prices

    def may_pay(self, step: NextStep, reached: float = 1.0, chance: float = 1.0) -> bool:
        return True

    def may_wait(self, step: NextStep, reached: Sequence[float], chances: Sequence[Sequence[float]]) -> bool:
        return self.inner.may_wait(step, reached, chances)

    def choose(self, step: NextStep, chances: Sequence[Sequence[float]]) -> list[int]:
        return self.inner.choose(step, chances)

    def note(self, made: Made) -> None:
        self.made.append(made)

    def note_plain(self, num_sequences: int, seconds: Sequence[float]) -> None:
        self.made += [Made(num_sequences, 0, 0, one) for one in seconds]


def test_every_drafted_step_is_booked_whatever_else_is_in_it_and_whoever_fails() -> None:
    depth = Booked(FixedDepth(3))
    played = stage(Drafting(Guesser(right), depth), max_rows=2, edit=failing(2), enable_prefix=False)
    played.arrive(ask("long", max_tokens=40), *[ask(str(number), SONG[:5], max_tokens=4) for number in range(5)])
    played.run()
    drafted = [plan for plan in plans(played) if has_drafts(plan)]
    booked = [made for made in depth.made if made.num_drafts]
    rows = [sum(chunk.num_tokens - chunk.num_drafts for chunk in plan.chunks) - len(plan.chunks) for plan in drafted]
    assert [made.num_drafts for made in booked] == [sum(chunk.num_drafts for chunk in plan.chunks) for plan in drafted]
    assert [made.num_rows_beside or 0 for made in booked] == rows
    assert {0, 4} & set(rows)
    assert 4 in rows


@dataclass
class Hopeless:
    """A `Depth` that knows that nothing pays, or finds it out each time that it looks."""

    knows: bool
    num_looks: int = 0
    most: int = 4
    beside_prompts: bool = False
    follows_prices: bool = False

    def may_pay(self, step: NextStep, reached: float = 1.0, chance: float = 1.0) -> bool:
        return not self.knows

    def may_wait(self, step: NextStep, reached: Sequence[float], chances: Sequence[Sequence[float]]) -> bool:
        self.num_looks += 1
        return False

    def choose(self, step: NextStep, chances: Sequence[Sequence[float]]) -> list[int]:
        self.num_looks += 1
        return [0] * len(chances)

    def note(self, made: Made) -> None:
        """It knows enough."""

    def note_plain(self, num_sequences: int, seconds: Sequence[float]) -> None:
        """It knows enough."""


def in_turn(played: Stage) -> list[tuple[str, StepPlan | int]]:
    """Every step as it was submitted, and when each was collected."""
    return [
        ("submitted", event.plan) if isinstance(event, Submitted) else ("collected", event.result.step)
        for event in played.events
        if isinstance(event, Submitted | Collected)
    ]


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("streams", [1, 8])
def test_where_no_draft_pays_every_step_is_planned_when_and_as_it_is_without(streams: int, knows: bool) -> None:
    depth = Hopeless(knows)
    guesser = Guesser(right)
    played = []
    for drafting in (None, Drafting(guesser, depth)):
        one = Stage(
            token_at=says(SONG * 4), drafting=drafting, max_model_tokens=200, num_blocks=500, enable_prefix=False
        )
        one.arrive(*[ask(str(number), SONG[: 3 + number], max_tokens=120) for number in range(streams)])
        one.run()
        played.append(one)
    plain, drafted = played
    assert in_turn(drafted) == in_turn(plain)
    in_flight, ahead = 0, 0
    for kind, _ in in_turn(drafted):
        ahead += kind == "submitted" and in_flight == 1
        in_flight += 1 if kind == "submitted" else -1
    assert ahead >= len(plans(drafted)) - 1 - streams
    if knows:
        assert guesser.num_guessed == depth.num_looks == 0
    elif streams > 1:
        # While eight run, there is a look in eight steps, once a few have found nothing; when fewer do, more.
        assert depth.num_looks < len(plans(drafted)) / 3


@dataclass
class Sudden(Hopeless):
    """A `Depth` for which drafts begin to pay at the fourth look while nothing of it was known before."""

    knows: bool = False

    def may_wait(self, step: NextStep, reached: Sequence[float], chances: Sequence[Sequence[float]]) -> bool:
        self.num_looks += 1
        return self.num_looks > 3

    def choose(self, step: NextStep, chances: Sequence[Sequence[float]]) -> list[int]:
        return FixedDepth(2).choose(step, chances)


def test_a_token_that_was_waited_for_is_drafted_behind_however_long_nobody_was_asked() -> None:
    depth = Sudden()
    played = stage(Drafting(Guesser(right), depth), max_rows=8, max_step_tokens=64, num_blocks=200)
    played.arrive(*[ask(str(number), max_tokens=40) for number in range(6)])
    played.run()
    in_flight, late = 0, []
    for kind, plan in in_turn(played):
        if kind == "submitted" and not in_flight:
            late.append(plan)
        in_flight += 1 if kind == "submitted" else -1
    # The first begins everything, and at their ends sequences have room for no drafts.
    waited_for = [plan for plan in late[1:] if isinstance(plan, StepPlan)]
    assert len(waited_for) > 5
    assert all(map(has_drafts, waited_for[:-2]))


@pytest.mark.parametrize("streams", [4, 32])
def test_where_nothing_pays_drafts_cost_a_step_a_few_calls_however_many_run(streams: int) -> None:
    calls = []
    for drafting in (None, Drafting(Guesser(right), Hopeless(knows=True))):
        played = Stage(
            token_at=says(SONG * 4),
            drafting=drafting,
            max_model_tokens=200,
            num_blocks=64 * streams,
            max_rows=streams,
            max_step_tokens=256,
            enable_prefix=False,
            checks=False,
        )
        played.arrive(*[ask(str(number), max_tokens=100) for number in range(streams)])
        profile = cProfile.Profile()
        profile.enable()
        played.run()
        profile.disable()
        calls.append(pstats.Stats(profile).total_calls / len(plans(played)))
    assert 0 < calls[1] - calls[0] < 60


def test_drafts_that_are_switched_off_are_as_if_there_were_none() -> None:
    plain, switched = stage(None), stage(verified(right))
    scheduler = switched.scheduler
    assert isinstance(scheduler, ChunkedScheduler)
    for name, is_on in (("a", False), ("b", True), ("c", False)):
        scheduler.draft(is_on)
        for one in (plain, switched):
            one.arrive(ask(name, max_tokens=30), at_s=one.now())
            one.run()
    assert [switched.answers.tokens(name) for name in "abc"] == [plain.answers.tokens(name) for name in "abc"]
    by_seq = {event.seq: event.request for event in switched.of(Finished)}
    assert {by_seq[chunk.seq] for plan in plans(switched) for chunk in plan.chunks if chunk.num_drafts} == {"b"}


class Foreign:
    """A form whose tokenizer has more ids than the model has outputs."""

    is_over = False

    def mask(self) -> bytes:
        return b"\xff" * 2

    def accept(self, token: int) -> None:
        """It has no state."""

    def likely(self) -> tuple[int, ...]:
        return (3, 4, 10, 5)

    def masks_behind(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        return (self.mask(),) * len(tokens)


def test_what_a_form_leaves_no_choice_about_is_a_token_of_the_model_all_the_same() -> None:
    speculation = Speculation(Guesser(right), FixedDepth(4), vocab_size=10)
    seq = Seq(SeqId(0), ask("a", [1], max_tokens=20), 0, 0, 20, 0.0, [1, 2], SeqState.RUNNING, 1, constraint=Foreign())
    assert speculation.choose([seq], 8, False)[seq.id].tokens == (3, 4)


@pytest.mark.parametrize("num_jobs", [1, 6])
def test_online_rows_have_drafts_beside_offline_work_as_without(num_jobs: int) -> None:
    """Offline prompts come in by a few tokens for a long time, and more wait: no reason to draft for nobody."""
    played = stage(Drafting(Guesser(right), FixedDepth(4, False)), max_rows=3)
    played.arrive(ask("a", max_tokens=36))
    for number in range(num_jobs):
        played.arrive(ask(f"job{number}", SONG[:6], max_tokens=12, service_class=ServiceClass.BATCH))
    played.run()
    assert sum(c.num_drafts for plan in plans(played) for c in plan.chunks if c.seq == 0) >= 25
    assert len(played.of(Finished)) == 1 + num_jobs
    played.assert_memory_is_empty()
