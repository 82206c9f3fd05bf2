"""Random plans through every executor: what comes back is what the model says, however it was cut and interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from tests.conformance.drive import Drive, apply
from tests.conformance.executors import EXECUTORS, NOTHING_KNOWN, Bench, Foretold
from tests.conformance.models import VISIBILITIES, TinyModel, model_named
from tests.conformance.oracle import Doubles, Question, expect
from tests.conformance.scene import PATIENCE_TURNS
from tests.conformance.stories import Answer, Story
from tests.conformance.traffic import Traffic

from plait.core.decision import Decision
from plait.core.ids import StepId
from plait.core.plan_hash import plan_hash
from plait.core.step import OutputKind, StepResult
from plait.model.ops import KEY_TILE

NUM_PAGES = 110
SEEDS = range(3)


def drive(executor: str, model: TinyModel, seed: int) -> Drive:
    layout = model.layout(NUM_PAGES)
    bench = EXECUTORS[executor](model, layout, NOTHING_KNOWN)
    made = Drive(bench, Traffic(seed, layout), np.random.default_rng(seed))
    made.run()
    bench.executor.close()
    return made


def check_story(story: Story, model: TinyModel) -> Counter[str]:
    """Every answer against the oracle. Counts how many there were, and how many needed the tolerance."""
    expected = expect(model, story.tokens)
    counts: Counter[str] = Counter()
    for answer in story.answers:
        logits, tolerance = expected.logits[answer.row], float(expected.tolerance[answer.row])
        what = f"{answer.kind} behind token {answer.row} of sequence {story.id}"
        if answer.kind is OutputKind.SAMPLE:
            question = Question(answer.join, tuple(story.tokens[: answer.row + 1]), answer.allowed)
            if answer.token != question.answer(logits):
                counts["near ties"] += 1
                assert answer.token in question.answers(logits, tolerance), f"{what}: {answer.token}"
        if answer.logprob is not None:
            check_logprob(answer, expected.log_probabilities(answer.row), tolerance, what)
        counts["answers"] += 1
    return counts


def check_logprob(answer: Answer, exact: Doubles, tolerance: float, what: str) -> None:
    """A log-probability is off by at most twice what a logit is; alternatives are the largest, descending."""
    given = answer.logprob
    assert given is not None
    assert given.token == answer.token
    assert abs(given.logprob - exact[given.token]) <= 2 * tolerance, what
    assert len(given.top) == answer.num_top
    values = [value for _, value in given.top]
    assert values == sorted(values, reverse=True)
    largest = np.sort(exact)[::-1]
    for place, (token, value) in enumerate(given.top):
        assert abs(value - exact[token]) <= 2 * tolerance, what
        assert exact[token] >= largest[place] - 2 * tolerance, f"{what}: token {token} is not number {place}"


def check_foretold(story: Story) -> Counter[str]:
    """Tokens stand where they were foretold, and are certain."""
    for answer in story.answers:
        if answer.kind is OutputKind.SAMPLE:
            assert answer.token == NOTHING_KNOWN.token(story.id, answer.row + 1)
        assert answer.logprob is None or answer.logprob.logprob == 0.0
    return Counter(answers=len(story.answers))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", VISIBILITIES)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_answer_is_what_the_whole_text_gives(executor: str, model: str, seed: int) -> None:
    tiny = model_named(model)
    made = drive(executor, tiny, seed)
    counts: Counter[str] = Counter()
    for story in made.traffic.stories:
        counts += check_story(story, tiny) if made.bench.computes else check_foretold(story)
    assert counts["answers"] > 100
    assert counts["near ties"] <= 1


HAPPENS = (
    "blocks behind the window",
    "cancelled chunks",
    "cancelled with one behind",
    "changes of lane",
    "copied tails",
    "masks",
    "plans without chunks",
    "preemptions",
    "preemptions in flight",
    "results behind a leave",
    "shared prefixes",
    "starved lanes",
    "suspends",
    "tokens from the device",
)


def test_traffic_is_made_of_everything_that_plans_can_say() -> None:
    """Guards the tests above: each of these happens, and no seed is without most of them."""
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        made = drive("reference", model_named("window beside causal"), seed)
        happened += made.traffic.happened
        assert len(made.plans) > 30
        assert max(answer.row for story in made.traffic.stories for answer in story.answers) > KEY_TILE
    assert all(happened[what] >= 3 for what in HAPPENS), happened


def test_equal_seeds_give_equal_plans_and_equal_answers() -> None:
    first, second = (drive("reference", model_named("causal"), 7) for _ in range(2))
    assert plan_hash(first.plans) == plan_hash(second.plans)
    assert [result.seqs for result in first.results] == [result.seqs for result in second.results]


def replay(log: Sequence[Decision | StepResult], bench: Bench) -> list[tuple[StepResult, StepResult]]:
    """Ask for the same things in the same order. Pairs of what came back then and what comes back now."""
    ahead: dict[StepId, StepResult] = {}
    pairs = []
    for entry in log:
        if not isinstance(entry, StepResult):
            apply(bench.executor, entry)
            continue
        turns = 0
        while entry.step not in ahead:
            bench.advance()
            ahead |= {result.step: result for result in bench.executor.collect()}
            turns += 1
            assert turns < PATIENCE_TURNS, f"step {entry.step} never ends"
        pairs.append((entry, ahead.pop(entry.step)))
    bench.executor.close()
    return pairs


@pytest.mark.parametrize("model", VISIBILITIES)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_same_plans_give_the_same_tokens_on_every_executor(executor: str, model: str) -> None:
    tiny = model_named(model)
    layout = tiny.layout(NUM_PAGES)
    recorded = Drive(
        EXECUTORS["reference"](tiny, layout, NOTHING_KNOWN),
        Traffic(11, layout),
        np.random.default_rng(11),
        cancels=False,
    )
    recorded.run()
    texts = {(s.id, at): token for s in recorded.traffic.stories for at, token in enumerate(s.tokens)}
    bench = EXECUTORS[executor](tiny, layout, Foretold(texts))
    pairs = replay(recorded.log, bench)
    assert len(pairs) == len(recorded.plans)
    for then, now in pairs:
        assert (now.step, now.lane, now.status) == (then.step, then.lane, then.status)
        for one, other in zip(then.seqs, now.seqs, strict=True):
            assert (other.seq, other.num_computed) == (one.seq, one.num_computed)
            assert len(other.tokens) == len(one.tokens)
            assert other.tokens == one.tokens or not bench.computes
