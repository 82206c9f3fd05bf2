"""Speculation: which drafts go into a step, and whether a step waits for tokens to draft behind.

Owns a drafter for every sequence that runs and what is learned of its guesses; asks a `plait.draft.depth.Depth` how
many are worth it. Two sources: the drafter, and what a form leaves no choice about (`Constraint.likely`). A drafter
that is a model guesses in rounds (`plait.sched.rounds`), which begin when nothing else is in flight.
Invariant: what it hands out can be verified as it is: tokens of the vocabulary, as many as the answer still has room
for, and under a constraint with a mask behind each.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.core.ids import SeqId, StepId
from plait.core.request import SeqState, Sequence, Task
from plait.core.step import SAMPLES_ONE, Chunk, OutputKind, SeqStatus, StepPlan, StepResult
from plait.draft.acceptance import Acceptance, OwnAcceptance
from plait.draft.depth import NO_LIMIT, AskedRound, Depth, Made, NextStep
from plait.draft.draft_model import ModelDrafter
from plait.draft.drafter import NO_GUESS, Drafter, DrafterSource, Guess
from plait.sched.looks import Looks
from plait.sched.rounds import Asked, Rounds

_MOST_UNSETTLED = 64
"""Steps that have ended and are yet to be learned from."""

_LIKELY_RATE = 0.9
"""Of what forms leave no choice about, before anything was learned: a model may spell a text otherwise."""


class Drafted(NamedTuple):
    """Tokens to verify behind a sequence's last one. `masks[i]`: what may come behind token i, as in
    `RowMask.allowed`; empty if everything may.
    """

    tokens: tuple[int, ...]
    masks: tuple[bytes, ...] = ()

    def first(self, count: int) -> Drafted:
        return self if count >= len(self.tokens) else Drafted(self.tokens[:count], self.masks[:count])


class Offer(NamedTuple):
    """Guesses behind the last token of a sequence, for whoever chooses himself how many are verified. `chances[k]`:
    that guesses 0 to k are all right.
    """

    seq: Sequence
    tokens: tuple[int, ...]
    chances: AnySequence[float]

    def first(self, count: int) -> Drafted:
        return _drafted(self.seq, self.tokens[:count])


@dataclass(slots=True, eq=False)
class _Guessing:
    drafter: Drafter
    acceptance: OwnAcceptance
    guess: Guess = NO_GUESS
    num_tokens: int = 0
    """How many tokens there were when `guess` was made: whether it was right is still to come."""
    likely: tuple[int, ...] = ()
    """What the form said then."""


class _Flight(NamedTuple):
    plan: StepPlan
    num_drafts: int = 0
    follows: bool = False
    """Planned as soon as a step before it was committed, with nothing else in flight."""
    waited: bool = False
    """It could have been planned before that."""
    guess_s: float = 0.0
    """What steps of a draft model took before it."""


class _Ended(NamedTuple):
    flight: _Flight
    result: StepResult
    before_s: float | None
    """When the step before it ended."""


class Speculation:
    """Of one lane. `rounds`: of the draft model, if that is the source; then its drafters are `ModelDrafter`s."""

    def __init__(self, source: DrafterSource, depth: Depth, vocab_size: int, rounds: Rounds | None = None) -> None:
        self._rounds = rounds
        self._has_guessed = False
        """A round has ended, and no step was planned since."""
        self._round_follows = False
        """The round began as soon as a step before it was committed."""
        self._source = source
        self._depth = depth
        self._vocab_size = vocab_size
        self._likely_level = len(source.first_rates)
        self._acceptance = Acceptance((*source.first_rates, _LIKELY_RATE))
        self._guessing: dict[SeqId, _Guessing] = {}
        self._flights: dict[StepId, _Flight] = {}
        self._num_drafted = 0
        """Steps in flight that have drafts."""
        self._ended: tuple[float, float] | None = None
        """When the last step ended, and when it was committed."""
        self._unsettled: list[_Ended] = []
        """Steps that nothing was learned from yet: what they took is asked for at looks only, and is read faster there,
        several together, than between two steps.
        """
        self._rests = False
        """Whether nobody was asked before the next step."""
        self._holds = False
        self._waits_anyway = False
        """Whether the next step could not have been planned ahead, whatever anybody guesses."""
        self._looks = Looks()

    @property
    def follows_prices(self) -> bool:
        """Whether a policy that has prices of steps chooses how much is verified."""
        return self._depth.follows_prices

    # What a policy asks.

    def rests(self, running: AnySequence[Sequence]) -> bool:
        """Whether nobody need be asked before the next step, which is then planned as if there were no drafts. To be
        asked before anything else; takes a few microseconds.
        """
        self._prune(running)
        self._rests = False
        if self._rounds is not None or self._holds or self._num_drafted:
            return False
        self._waits_anyway = not running
        self._rests = not running or not self._may_look(running) or not self._may_pay(running)
        return self._rests

    def is_due(self, running: AnySequence[Sequence]) -> bool:
        """Whether anybody need be asked by a policy that chooses himself how many are verified."""
        self._prune(running)
        return self._may_look(running)

    def waits(self, running: AnySequence[Sequence], has_prompts: bool) -> bool:
        """Whether the next step is better planned when the one in flight was collected: it has drafts, so that nobody
        knows where its sequences go on, or what it samples is likely to make drafts worth verifying.
        """
        self._settle()
        if self._num_drafted:
            self._holds = True
        elif self._flights and not (has_prompts and not self._depth.beside_prompts):
            self._holds = self._holds or self._is_worth_waiting(running)
        return self._holds and bool(self._flights)

    def draft(
        self,
        running: AnySequence[Sequence],
        has_prompts: bool,
        most_rows: int,
        take_id: Callable[[], StepId],
        now: float,
    ) -> StepPlan | None:
        """The next step of a draft model, of a round that is under way or begins now; None: there is none now."""
        rounds = self._rounds
        if rounds is None:
            return None
        self._settle()
        may_draft = not has_prompts or self._depth.beside_prompts
        if not rounds.is_under_way:
            rounds.prune(running)
            if self._flights or self._has_guessed or not may_draft:
                return None
            asked = self._asked(rounds, running)
            depth = self._round_depth(rounds, running, asked, most_rows)
            if depth < 1:
                return None
            self._round_follows = self._ended is not None and self._ended[1] == now
            rounds.begin(asked, depth, len(running))
        elif not may_draft:
            rounds.stop()
        plan = rounds.step(take_id)
        self._has_guessed = not rounds.is_under_way
        return plan

    @property
    def is_guessing(self) -> bool:
        """Whether the next step has to wait for a draft model."""
        return self._rounds is not None and self._rounds.is_under_way

    @property
    def num_in_flight(self) -> int:
        """Steps of a draft model."""
        return 0 if self._rounds is None else self._rounds.num_in_flight

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant of a draft model's rounds."""
        if self._rounds is not None:
            self._rounds.check()

    def guessed(self, result: StepResult) -> bool:
        """Whether a step that was collected was the draft model's."""
        if self._rounds is None or not self._rounds.commit(result):
            return False
        self._has_guessed = not self._rounds.is_under_way
        return True

    def choose(self, running: AnySequence[Sequence], most_rows: int, has_prompts: bool) -> dict[SeqId, Drafted]:
        """What to verify behind the last tokens of those who run and of whom nothing is in flight; at most `most_rows`
        rows beside theirs.
        """
        self._prune(running)
        self._settle()
        num_formed = sum([seq.constraint is not None for seq in running])
        # Under a form nobody is planned ahead, and behind a round everybody has waited already.
        self._waits_anyway = self._has_guessed or num_formed == len(running)
        if self._flights and not num_formed:
            return {}  # they are in flight; who was left out for want of memory has none for drafts
        num_rows = sum([seq.num_plannable > 0 for seq in running])
        if most_rows < 1 or num_rows < 1 or (has_prompts and not self._depth.beside_prompts):
            return {}
        step = NextStep(num_rows, most_rows, _tightest_s(running), self._waits_anyway)
        if self._rounds is None and not self._depth.may_pay(step):
            return {}
        able = [seq for seq in running if not seq.num_scheduled and _can_verify(seq)]
        guesses = self._guesses(able, 0, lambda reached, chance: self._depth.may_pay(step, reached, chance))
        depths = self._depth.choose(step, [chances for _, _, chances in guesses]) if guesses else []
        if able:
            self._looks.came_to(len(running), 0, nothing=not any(depths))
        chosen = {}
        for (seq, guess, _), depth in zip(guesses, depths, strict=True):
            drafted = _drafted(seq, guess.tokens[:depth])
            if drafted.tokens:
                chosen[seq.id] = drafted
        return chosen

    def offers(self, running: AnySequence[Sequence], may_pay: Callable[[float], bool]) -> list[Offer]:
        """For those who run and of whom nothing is in flight, as far as there are any guesses. None if drafts of which
        none is likelier than the likeliest first one are worth nothing, as `may_pay` says of its chance.
        """
        self._prune(running)
        able = [seq for seq in running if not seq.num_scheduled and _can_verify(seq)]
        guesses = self._guesses(able, 0, lambda reached, chance: may_pay(chance))
        if able:
            # Whether drafts are taken is another question, whose answer may change with the next prompt.
            self._looks.came_to(len(running), 0, nothing=not guesses)
        return [Offer(seq, guess.tokens, chances) for seq, guess, chances in guesses if guess.tokens]

    def passed(self) -> None:
        """A step was planned by a policy that chooses himself."""
        self._looks.passed()

    def submitted(self, plan: StepPlan, now: float) -> None:
        self._looks.passed()
        if self._rests and self._flights:  # planned ahead, as if there were no drafts
            self._flights[plan.step] = _Flight(plan)
            return
        num_drafts = sum([chunk.num_drafts for chunk in plan.chunks])
        is_next = self._ended is not None and (self._ended[1] == now or self._round_follows)
        follows = not self._flights and is_next and not self._waits_anyway
        guess_s = 0.0 if self._rounds is None else self._rounds.take_spent_s()
        self._has_guessed = self._round_follows = False
        self._flights[plan.step] = _Flight(plan, num_drafts, follows, self._holds, guess_s)
        self._num_drafted += num_drafts > 0
        self._holds = False

    def committed(self, result: StepResult, now: float) -> None:
        flight = self._flights.pop(result.step, None)
        if flight is None:  # submitted while nothing was to be drafted
            return
        self._num_drafted -= flight.num_drafts > 0
        before, self._ended = self._ended, (result.end_s, now)
        self._unsettled.append(_Ended(flight, result, None if before is None else before[0]))
        if len(self._unsettled) >= _MOST_UNSETTLED:
            self._settle()

    def rest(self) -> None:
        """Nobody will say what becomes of the steps in flight: for a while nothing is to be drafted."""
        self._flights.clear()
        self._num_drafted = 0
        self._ended, self._holds, self._has_guessed = None, False, False

    # What it does for that.

    def _settle(self) -> None:
        """Learn from the steps that have ended."""
        plain: list[float] = []
        num_rows = 0
        for flight, result, before_s in self._unsettled:
            chunks = flight.plan.chunks
            if plain and len(chunks) != num_rows:
                self._depth.note_plain(num_rows, plain)
                plain = []
            if _is_plain(flight, result):
                num_rows = len(chunks)
                plain.append(result.end_s - result.start_s)
            else:
                if plain:
                    self._depth.note_plain(num_rows, plain)
                    plain = []
                self._note(flight, result, before_s)
        if plain:
            self._depth.note_plain(num_rows, plain)
        self._unsettled.clear()

    def _note(self, flight: _Flight, result: StepResult, before_s: float | None) -> None:
        chunks = flight.plan.chunks
        num_prompt_rows, is_mixed = 0, any([one.status is not SeqStatus.OK for one in result.seqs])
        if not all([chunk.num_tokens == 1 and chunk.outputs is SAMPLES_ONE for chunk in chunks]):
            num_prompt_rows = sum([chunk.num_tokens for chunk in chunks]) - flight.num_drafts - len(chunks)
            has_prompts = any([chunk.num_tokens - chunk.num_drafts != 1 or not _samples(chunk) for chunk in chunks])
            is_mixed = is_mixed or has_prompts
        if is_mixed and not (flight.num_drafts or flight.waited or flight.guess_s):
            return
        waited_s = None
        if flight.follows and before_s is not None:
            waited_s = max(result.start_s - before_s - flight.guess_s, 0.0)
        num_accepted = sum([one.num_accepted for one in result.seqs]) if flight.num_drafts else 0
        self._depth.note(
            Made(
                len(chunks),
                flight.num_drafts,
                num_accepted,
                result.end_s - result.start_s,
                waited_s,
                flight.waited,
                num_prompt_rows if is_mixed else None,
                flight.guess_s,
            )
        )

    def _may_pay(self, running: AnySequence[Sequence]) -> bool:
        """Whether drafts could be worth anything, whatever is guessed."""
        if _has_form(running):
            return True
        self._settle()
        return self._depth.may_pay(NextStep(len(running)))

    def _is_worth_waiting(self, running: AnySequence[Sequence]) -> bool:
        if not running:
            return False
        if self._rounds is not None:
            asked = self._asked(self._rounds, running)
            return self._round_depth(self._rounds, running, asked, self._depth.most * len(running)) > 0
        step = NextStep(len(running), self._depth.most * len(running), _tightest_s(running))
        if not self._depth.may_pay(step):
            return False
        able = [seq for seq in running if seq.num_uncomputed == 0 and seq.constraint is None and _can_verify(seq)]
        # The first token is the one that the step in flight samples: if it is another, so are the ones behind it.
        guesses = self._guesses(able, 1, lambda reached, chance: self._depth.may_pay(step, reached, chance))
        reached = [one[0] if one else 0.0 for _, _, one in guesses]
        chances = [[chance / one[0] for chance in one[1:]] for _, _, one in guesses]
        is_worth = bool(guesses) and self._depth.may_wait(step, reached, chances)
        if able:
            self._looks.came_to(len(running), 1, nothing=not is_worth)
        return is_worth

    def _may_look(self, running: AnySequence[Sequence]) -> bool:
        """Whether nobody rests. What a form leaves no choice about is there for a few steps only, so under one nobody
        does.
        """
        return self._looks.are_due(len(running), 1 if self._flights else 0) or _has_form(running)

    def _guesses(
        self, able: AnySequence[Sequence], num_unknown: int, may_pay: Callable[[float, float], bool]
    ) -> list[tuple[Sequence, Guess, list[float]]]:
        """Of everybody, whose first `num_unknown` tokens are in flight, with the chances of its tokens. None where
        `may_pay` says no to how likely the likeliest first draft is reached, and is right then.
        """
        found, reached, chance = [], 0.0, 0.0
        for seq in able:
            guess = self._guess(seq, min(self._depth.most, _room(seq) - num_unknown) + num_unknown)
            acceptance = self._of(seq).acceptance
            found.append((seq, guess, acceptance))
            if len(guess.levels) > num_unknown:
                *before, first = acceptance.chances(guess.levels[: num_unknown + 1])
                its_reached = before[-1] if before else 1.0
                reached = max(reached, its_reached)
                chance = max(chance, first / (its_reached or 1.0))
        if not chance or not may_pay(reached, chance):
            return []
        return [(seq, guess, acceptance.chances(guess.levels)) for seq, guess, acceptance in found]

    def _asked(self, rounds: Rounds, running: AnySequence[Sequence]) -> list[Asked]:
        """For whom a draft model can guess."""
        asked = []
        for seq in running:
            if seq.constraint is not None or not _can_verify(seq):
                continue
            drafter, most = self._of(seq).drafter, min(self._depth.most, _room(seq), rounds.room(seq))
            if isinstance(drafter, ModelDrafter) and not drafter.is_broken and most > 0:
                if not rounds.has_memory(seq):  # others needed it
                    drafter.forget()
                asked.append(Asked(seq, drafter, most))
        return asked

    def _round_depth(
        self, rounds: Rounds, running: AnySequence[Sequence], asked: AnySequence[Asked], most_rows: int
    ) -> int:
        behind = [one.num_behind for one in asked]
        if not asked or not self._depth.may_pay(NextStep(len(running))):
            return 0
        # Of a sequence as many tokens are expected as it has said already.
        expected = sum([float(one.seq.num_output) for one, count in zip(asked, behind, strict=True) if count])
        return self._depth.choose_round(
            NextStep(sum([seq.num_plannable > 0 for seq in running]), most_rows, _tightest_s(running)),
            AskedRound(
                [one.drafter.rate for one in asked],
                [one.most for one in asked],
                sum(behind),
                expected,
                rounds.times.seconds,
                rounds.most_step_tokens,
            ),
        )

    def _of(self, seq: Sequence) -> _Guessing:
        found = self._guessing.get(seq.id)
        if found is None:
            found = self._guessing[seq.id] = _Guessing(self._source.begin(), OwnAcceptance(self._acceptance))
        return found

    def _guess(self, seq: Sequence, most: int) -> Guess:
        """Says, too, of the guess before how much of it came, verified or not: so nothing is verified just to learn."""
        if most < 1:
            return NO_GUESS
        guessing = self._of(seq)
        if guessing.num_tokens < len(seq.tokens):
            came = seq.tokens[guessing.num_tokens : guessing.num_tokens + len(guessing.guess.tokens)]
            for token, guessed, level in zip(came, *guessing.guess, strict=False):
                guessing.acceptance.note(level, token == guessed)
                if token != guessed:
                    break
            guessing.num_tokens = len(seq.tokens)
            guessing.likely = () if seq.constraint is None else seq.constraint.likely()
        likely = guessing.likely[:most]
        guess = Guess(likely, (self._likely_level,) * len(likely))
        # Forms are not trusted either: a tokenizer may have more ids than the model has outputs.
        guessing.guess = self._checked(guess if likely else guessing.drafter.guess(seq.tokens, most), most)
        return guessing.guess

    def _checked(self, guess: Guess, most: int) -> Guess:
        """As much of a guess as can be verified."""
        tokens, levels = guess
        if len(tokens) == len(levels) <= most and (not tokens or 0 <= min(tokens) <= max(tokens) < self._vocab_size):
            return guess
        wrong = next((place for place, token in enumerate(tokens) if not 0 <= token < self._vocab_size), len(tokens))
        size = min(most, wrong, len(levels))
        return Guess(tuple(tokens[:size]), tuple(levels[:size]))

    def _prune(self, running: AnySequence[Sequence]) -> None:
        """Who runs no more needs no drafter; if he comes again, he gets another."""
        if len(self._guessing) > len(running):
            kept = {seq.id for seq in running}
            self._guessing = {seq: one for seq, one in self._guessing.items() if seq in kept}


def _is_plain(flight: _Flight, result: StepResult) -> bool:
    """Whether it was planned ahead and did nothing but say a token of each."""
    return (
        not (flight.num_drafts or flight.follows or flight.waited or flight.guess_s)
        and all([chunk.num_tokens == 1 and chunk.outputs is SAMPLES_ONE for chunk in flight.plan.chunks])
        and all([one.status is SeqStatus.OK for one in result.seqs])
    )


def _has_form(running: AnySequence[Sequence]) -> bool:
    return any([seq.constraint is not None for seq in running])


def _can_verify(seq: Sequence) -> bool:
    """Whether its next chunk is one token that samples an output token behind others."""
    return (
        seq.state is SeqState.RUNNING
        and seq.request.task is Task.GENERATE
        and seq.num_output > 0
        and not seq.scores_prompt
        and seq.num_plannable == 1
    )


def _tightest_s(running: AnySequence[Sequence]) -> float:
    """The shortest gap between two tokens that somebody who runs was promised."""
    return min([NO_LIMIT if seq.request.slo.itl_s is None else seq.request.slo.itl_s for seq in running])


def _room(seq: Sequence) -> int:
    """Drafts that leave its answer a token behind them."""
    return seq.max_output_tokens - seq.num_output - 1


def _drafted(seq: Sequence, tokens: tuple[int, ...]) -> Drafted:
    if seq.constraint is not None and tokens:
        behind = seq.constraint.masks_behind(tokens)
        return Drafted(tokens[: len(behind)], tuple([seq.masked(mask) for mask in behind]))
    return Drafted(tokens, () if seq.mask is None else (seq.mask,) * len(tokens))


def _samples(chunk: Chunk) -> bool:
    return bool(chunk.outputs) and chunk.outputs[-1].kind is OutputKind.SAMPLE
