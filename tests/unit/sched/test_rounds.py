"""A draft model in the engine: rounds between steps, the same answers, and steps that are worth it or not made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.kit import EOS, DraftPlay, Edit, Stage, ask, failing, says

from plait.assembly import Drafting
from plait.core.events import Collected, Finished, Submitted
from plait.core.ids import SeqId
from plait.core.request import Slo
from plait.core.sampling import SamplingParams
from plait.core.step import DRAFT_PROGRAM, FROM_DEVICE, Chunk, Leave, SeqResult, StepPlan, StepResult, StepShape
from plait.cost.model import Bound, StepPrice
from plait.draft.depth import Depth, FixedDepth, PricedDepth
from plait.draft.draft_model import ModelDrafts

SONG = "abc, and so it goes on and on until it ends."
TOKENS = [*SONG.encode(), EOS]


@dataclass(frozen=True, slots=True)
class Steps:
    """So many seconds a step, and no more for up to eight rows."""

    seconds: float = 1.0

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = self.seconds * max(1.0, shape.num_tokens / 8)
        return StepPrice(seconds, seconds, Bound.MEMORY)


def mumbling(every: int) -> Edit:
    """The song, but for every so many letters."""

    def edit(plan: StepPlan, result: StepResult) -> StepResult:
        return replace(result, seqs=tuple(map(mumbled, plan.chunks, result.seqs)))

    def mumbled(chunk: Chunk, one: SeqResult) -> SeqResult:
        return one._replace(tokens=(ord("#"),)) if one.tokens and chunk.end % every == 0 else one

    return edit


SINGS = DraftPlay(says(SONG), Steps(0.1))
MUMBLES = DraftPlay(says(SONG), Steps(0.1), mumbling(3))
BABBLES = DraftPlay(says(SONG), Steps(0.1), mumbling(1))


def stage(draft: DraftPlay | None, depth: Depth | None = None, **how: int) -> Stage:
    drafting = None if draft is None else Drafting(ModelDrafts(), FixedDepth(4) if depth is None else depth)
    return Stage(token_at=says(SONG), cost=Steps(), drafting=drafting, draft=draft, **how)


def plans(played: Stage, program: str) -> list[StepPlan]:
    return [event.plan for event in played.of(Submitted) if event.plan.program == program]


def chunks(played: Stage, program: str = DRAFT_PROGRAM) -> list[list[tuple[int, int, int]]]:
    """Of every step, (sequence, start, tokens) of its chunks."""
    return [[(one.seq, one.start, one.num_tokens) for one in plan.chunks] for plan in plans(played, program)]


def test_a_round_reads_the_text_and_then_says_a_token_a_step() -> None:
    played = stage(SINGS)
    played.arrive(ask("a", max_tokens=11))
    played.run()
    assert chunks(played) == [
        [(0, 0, 5)],
        [(0, 5, 1)],
        [(0, 6, 1)],
        [(0, 7, 1)],
        [(0, 8, 2)],
        [(0, 10, 1)],
        [(0, 11, 1)],
    ]
    assert [(c.start, c.num_drafts) for plan in plans(played, "step") for c in plan.chunks] == [
        (0, 0),
        (3, 0),
        (4, 4),
        (9, 3),
    ]
    assert played.answers.text("a") == SONG[3:14]


def test_a_round_begins_when_nothing_is_in_flight_and_nothing_is_planned_beside_it() -> None:
    played = stage(SINGS)
    played.arrive(ask("a", max_tokens=20), ask("b", max_tokens=20))
    played.run()
    in_flight: dict[int, str] = {}
    for event in played.events:
        if isinstance(event, Submitted):
            in_flight[event.plan.step] = event.plan.program
            assert len(set(in_flight.values())) == 1
        elif isinstance(event, Collected):
            del in_flight[event.result.step]


def test_all_who_draft_do_so_in_one_step() -> None:
    played = stage(SINGS)
    played.arrive(*[ask(name, max_tokens=9) for name in "abc"])
    played.run()
    assert [len(step) for step in chunks(played)] == [3] * len(chunks(played))
    assert len(plans(played, "step")) == 4


def test_texts_longer_than_a_step_are_read_in_several() -> None:
    played = stage(SINGS, PricedAnyway(), max_step_tokens=8)
    played.arrive(ask("a", SONG[:12], max_tokens=20), ask("b", SONG[:11], max_tokens=20))
    played.run()
    assert chunks(played)[:5] == [
        [(0, 0, 8)],
        [(0, 8, 7), (1, 0, 1)],
        [(1, 1, 8)],
        [(1, 9, 3)],
        [(0, 15, 1), (1, 12, 1)],
    ]
    assert [played.answers.text(name) for name in "ab"] == [SONG[12:32], SONG[11:31]]


def test_behind_rejected_drafts_it_goes_back_to_the_first_wrong_one() -> None:
    played = stage(MUMBLES)
    played.arrive(ask("a", max_tokens=20))
    played.run()
    begun = [plan for plan in plans(played, DRAFT_PROGRAM) if plan.chunks[0].tokens is not FROM_DEVICE]
    # It says one right letter and a wrong one; the right one instead comes from the target.
    assert [(plan.chunks[0].start, plan.chunks[0].num_tokens) for plan in begun] == [
        (0, 5),
        *[(start, 1) for start in (6, 9, 12, 15, 18)],
    ]
    assert all(Leave(SeqId(0)) in plan.roster for plan in begun[1:])
    assert played.answers.text("a") == SONG[3:23]
    played.assert_memory_is_empty()


def test_an_arrival_ends_a_round_early() -> None:
    played = stage(SINGS, PricedAnyway())
    played.arrive(ask("a", max_tokens=40))
    played.arrive(ask("b", max_tokens=3), at_s=4.15)
    played.run()
    steps = [event.plan for event in played.of(Submitted)]
    joined = next(place for place, plan in enumerate(steps) if any(chunk.seq == 1 for chunk in plan.chunks))
    assert steps[joined].program == "step"
    assert not any(chunk.num_drafts for chunk in steps[joined].chunks)
    assert played.answers.text("a") == SONG[3:43]
    played.assert_memory_is_empty()


class PricedAnyway(FixedDepth):
    """Any price, but nothing beside prompts."""

    def __init__(self) -> None:
        super().__init__(4, beside_prompts=False)


def test_who_is_given_up_in_a_round_leaves_nothing() -> None:
    for at_s in (2.05, 2.15, 2.35):
        played = stage(SINGS)
        played.arrive(ask("a", max_tokens=40), ask("b", max_tokens=9))
        played.abort("a", at_s)
        played.run()
        assert played.answers.text("b") == SONG[3:12]
        played.assert_memory_is_empty()
        assert played.kv.drafts.num_pages == 0


def test_drafts_go_before_anybody_waits() -> None:
    """Room for both answers, but not for what the draft model keeps of them."""
    played = stage(SINGS, num_blocks=22)
    played.arrive(ask("a", max_tokens=40), ask("b", SONG[:7], max_tokens=37))
    played.run()
    assert played.kv.drafts.num_dropped > 0
    assert [event.num_preemptions for event in played.of(Finished)] == [0, 0]
    assert [played.answers.text(name) for name in "ab"] == [SONG[3:43], SONG[7:44]]


def test_nobody_is_kept_from_his_next_block_by_drafts() -> None:
    played = stage(SINGS, num_blocks=11)
    played.arrive(ask("a", max_tokens=40))
    played.run()
    assert played.answers.text("a") == SONG[3:43]
    assert [event.num_preemptions for event in played.of(Finished)] == [0]


def test_who_finds_no_memory_in_the_middle_of_a_text_keeps_nobody_waiting() -> None:
    """The first has read its text and waits for the second, which needs more than there is."""
    played = stage(SINGS, FixedDepth(4, True), num_blocks=18, max_step_tokens=16, queue_depth=1)
    played.arrive(ask("a", max_tokens=20), ask("b", SONG[:24], max_tokens=9))
    played.run()
    assert played.answers.text("a") == SONG[3:23]
    assert played.answers.text("b") == SONG[24:33]
    played.assert_memory_is_empty()


def test_blocks_of_who_lost_them_and_drafts_no_more_may_be_anothers() -> None:
    """The second has no token left to guess when its blocks are granted anew."""
    played = stage(SINGS, FixedDepth(4, True), num_blocks=22, max_step_tokens=16)
    played.arrive(ask("a", max_tokens=20), ask("b", SONG[:36], max_tokens=4))
    played.run()
    assert played.answers.text("a") == SONG[3:23]
    assert played.answers.text("b") == SONG[36:40]
    played.assert_memory_is_empty()


def test_a_draft_model_that_fails_behind_a_text_is_not_asked_about_it_again() -> None:
    played = stage(DraftPlay(says(SONG), Steps(0.1), failing(0)))
    played.arrive(ask("a", max_tokens=9), ask("b", max_tokens=9))
    played.run()
    assert sum(chunk.seq == 0 for plan in plans(played, DRAFT_PROGRAM) for chunk in plan.chunks) <= 2
    assert [played.answers.text(name) for name in "ab"] == [SONG[3:12]] * 2
    assert any(chunk.num_drafts for plan in plans(played, "step") for chunk in plan.chunks)
    played.assert_memory_is_empty()


def test_one_that_fails_in_the_middle_of_a_text_keeps_nobody_waiting() -> None:
    for failed in (0, 1):
        played = stage(DraftPlay(says(SONG), Steps(0.1), failing(failed)), PricedAnyway(), max_step_tokens=4)
        played.arrive(ask("a", SONG[:13], max_tokens=20), ask("b", SONG[:14], max_tokens=20))
        played.run()
        assert [played.answers.text(name) for name in "ab"] == [SONG[13:33], SONG[14:34]]
        assert any(chunk.num_drafts for plan in plans(played, "step") for chunk in plan.chunks)
        played.assert_memory_is_empty()


def test_it_is_not_asked_beyond_its_positions() -> None:
    played = stage(DraftPlay(says(SONG), Steps(0.1), max_positions=12))
    played.arrive(ask("a", max_tokens=40))
    played.run()
    assert max(chunk.start + chunk.num_tokens for plan in plans(played, DRAFT_PROGRAM) for chunk in plan.chunks) <= 12
    assert played.answers.text("a") == SONG[3:43]


def seconds(draft: DraftPlay | None, depth: Depth | None = None, num_streams: int = 1) -> float:
    played = stage(draft, depth)
    played.arrive(*[ask(str(number), max_tokens=40) for number in range(num_streams)])
    played.run()
    assert {played.answers.text(str(number)) for number in range(num_streams)} == {SONG[3:43]}
    return max(event.at_s for event in played.of(Finished))


def test_by_price_a_quick_draft_model_saves_time() -> None:
    assert seconds(SINGS, PricedDepth()) < 0.5 * seconds(None)
    assert seconds(MUMBLES, PricedDepth()) < 0.9 * seconds(None)


def test_by_price_one_that_is_never_right_or_as_slow_as_the_target_costs_little() -> None:
    plain = seconds(None)
    assert seconds(BABBLES, PricedDepth()) < plain + 5.0
    for share in (0.01, 1.0):  # what its weights promise may be wrong
        slow = DraftPlay(says(SONG), Steps(1.0), weight_share=share)
        assert seconds(slow, PricedDepth()) < plain + 5.0


def test_it_keeps_the_time_between_tokens_that_was_promised() -> None:
    def gaps(itl_s: float) -> int:
        played = stage(DraftPlay(says(SONG), Steps(0.3)), PricedDepth())
        request = ask("a", max_tokens=40)
        played.arrive(replace(request, slo=Slo(itl_s=itl_s)))
        played.run()
        return len(plans(played, DRAFT_PROGRAM))

    assert gaps(10.0) > 0
    assert gaps(1.2) == 0


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(14, 60),
    st.sampled_from([SINGS, MUMBLES, BABBLES]),
    st.sampled_from([2, 5, 16]),
    st.sampled_from(["fixed", "beside", "priced"]),
)
def test_any_load_is_answered_as_without_and_leaves_nothing(
    seed: int, num_blocks: int, draft: DraftPlay, budget: int, how: str
) -> None:
    """Memory for one long answer at least, so that sequences are preempted; every tick looks through memory."""
    answers = []
    for one in (None, draft):
        dice = Random(seed)
        depth = PricedDepth() if how == "priced" else FixedDepth(dice.randint(1, 9), how == "beside")
        played = stage(one, depth, num_blocks=num_blocks, max_step_tokens=budget, enable_prefix=bool(seed % 2))
        for number in range(dice.randint(1, 6)):
            sampling = SamplingParams(stop=dice.choice(((), (), ("on",), (", a", "ends"))))
            asked = ask(
                str(number),
                SONG[: dice.randint(1, 12)],
                max_tokens=dice.randint(1, 40),
                sampling=sampling,
                n=dice.choice((1, 1, 2)),
            )
            played.arrive(asked, at_s=dice.uniform(0, 60))
        played.abort("0", dice.uniform(0, 80))
        played.run()
        played.assert_memory_is_empty()
        assert played.kv.drafts.num_pages == 0
        told = [name for name in played.answers.by_request if name != "0"]
        choices = [(name, choice) for name in sorted(told) for choice in range(2)]
        answers.append([(played.answers.text(*choice), played.answers.tokens(*choice)) for choice in choices])
    assert answers[0] == answers[1]
