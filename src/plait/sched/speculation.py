"""Speculation: which drafts go into a step, and whether a step waits for tokens to draft behind.

Owns a drafter for every sequence that runs and what is learned of its guesses; asks a `plait.draft.depth.Depth` how
many are worth it. Two sources: the drafter, and what a form leaves no choice about (`Constraint.likely`).
Invariant: what it hands out can be verified as it is: tokens of the vocabulary, as many as the answer still has room
for, and under a constraint with a mask behind each.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.core.ids import SeqId, StepId
from plait.core.request import SeqState, Sequence, Task
from plait.core.step import Chunk, OutputKind, SeqStatus, StepPlan, StepResult
from plait.draft.acceptance import Acceptance, OwnAcceptance
from plait.draft.depth import NO_LIMIT, Depth, Made
from plait.draft.drafter import NO_GUESS, Drafter, DrafterSource, Guess

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


@dataclass(frozen=True, slots=True)
class _Flight:
    num_drafts: int
    num_sequences: int
    num_prompt_rows: int
    has_prompts: bool
    follows: bool
    """Planned as soon as a step before it was committed, with nothing else in flight."""
    waited: bool
    """It could have been planned before that."""


class Speculation:
    """Of one lane."""

    def __init__(self, source: DrafterSource, depth: Depth, vocab_size: int) -> None:
        self._source = source
        self._depth = depth
        self._vocab_size = vocab_size
        self._likely_level = len(source.first_rates)
        self._acceptance = Acceptance((*source.first_rates, _LIKELY_RATE))
        self._guessing: dict[SeqId, _Guessing] = {}
        self._flights: dict[StepId, _Flight] = {}
        self._ended: tuple[float, float] | None = None
        """When the last step ended, and when it was committed."""
        self._holds = False

    @property
    def follows_prices(self) -> bool:
        """Whether a policy that has prices of steps chooses how much is verified."""
        return self._depth.follows_prices

    # What a policy asks.

    def waits(self, running: AnySequence[Sequence], has_prompts: bool) -> bool:
        """Whether the next step is better planned when the one in flight was collected: it has drafts, so that nobody
        knows where its sequences go on, or what it samples is likely to make drafts worth verifying.
        """
        if any(flight.num_drafts for flight in self._flights.values()):
            self._holds = True
        elif self._flights and not (has_prompts and not self._depth.beside_prompts):
            self._holds = self._holds or self._is_worth_waiting(running)
        return self._holds and bool(self._flights)

    def choose(self, running: AnySequence[Sequence], most_rows: int, has_prompts: bool) -> dict[SeqId, Drafted]:
        """What to verify behind the last tokens of those who run and of whom nothing is in flight; at most `most_rows`
        rows beside theirs.
        """
        self._prune(running)
        able = [seq for seq in running if not seq.num_scheduled and _can_verify(seq)]
        if most_rows < 1 or not able or (has_prompts and not self._depth.beside_prompts):
            return {}
        num_rows = sum([seq.num_plannable > 0 for seq in running])
        if not self._depth.may_pay(num_rows):
            return {}
        guesses = [self._guess(seq, min(self._depth.most, _room(seq))) for seq in able]
        chances = [self._of(seq).acceptance.chances(one.levels) for seq, one in zip(able, guesses, strict=True)]
        depths = self._depth.choose(num_rows, chances, most_rows, _tightest_s(running))
        chosen = {}
        for seq, guess, depth in zip(able, guesses, depths, strict=True):
            drafted = _drafted(seq, guess.tokens[:depth])
            if drafted.tokens:
                chosen[seq.id] = drafted
        return chosen

    def offers(self, running: AnySequence[Sequence]) -> list[Offer]:
        """For those who run and of whom nothing is in flight, as far as there are any guesses."""
        self._prune(running)
        able = [seq for seq in running if not seq.num_scheduled and _can_verify(seq)]
        guesses = [(seq, self._guess(seq, min(self._depth.most, _room(seq)))) for seq in able]
        return [
            Offer(seq, guess.tokens, self._of(seq).acceptance.chances(guess.levels))
            for seq, guess in guesses
            if guess.tokens
        ]

    def submitted(self, plan: StepPlan, now: float) -> None:
        num_drafts = sum([chunk.num_drafts for chunk in plan.chunks])
        has_prompts = any([chunk.num_tokens - chunk.num_drafts != 1 or not _samples(chunk) for chunk in plan.chunks])
        follows = not self._flights and self._ended is not None and self._ended[1] == now
        num_prompt_rows = sum([chunk.num_tokens for chunk in plan.chunks]) - num_drafts - len(plan.chunks)
        self._flights[plan.step] = _Flight(
            num_drafts, len(plan.chunks), num_prompt_rows, has_prompts, follows, self._holds
        )
        self._holds = False

    def committed(self, result: StepResult, now: float) -> None:
        flight = self._flights.pop(result.step)
        before, self._ended = self._ended, (result.end_s, now)
        is_mixed = flight.has_prompts or any([one.status is not SeqStatus.OK for one in result.seqs])
        if is_mixed and not (flight.num_drafts or flight.waited):
            return
        waited_s = max(result.start_s - before[0], 0.0) if flight.follows and before is not None else None
        num_accepted = sum([one.num_accepted for one in result.seqs])
        seconds = result.end_s - result.start_s
        beside = flight.num_prompt_rows if is_mixed else None
        self._depth.note(
            Made(flight.num_sequences, flight.num_drafts, num_accepted, seconds, waited_s, flight.waited, beside)
        )

    # What it does for that.

    def _is_worth_waiting(self, running: AnySequence[Sequence]) -> bool:
        if not running or not self._depth.may_pay(len(running)):
            return False
        able = [seq for seq in running if seq.num_uncomputed == 0 and seq.constraint is None and _can_verify(seq)]
        guesses = [self._guess(seq, min(self._depth.most, _room(seq) - 1) + 1) for seq in able]
        # The first token is the one that the step in flight samples: if it is another, so are the ones behind it.
        chances = [self._of(seq).acceptance.chances(one.levels)[1:] for seq, one in zip(able, guesses, strict=True)]
        most_rows = self._depth.most * len(running)
        return any(self._depth.choose(len(running), chances, most_rows, _tightest_s(running)))

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
        came = seq.tokens[guessing.num_tokens : guessing.num_tokens + len(guessing.guess.tokens)]
        for token, guessed, level in zip(came, *guessing.guess, strict=False):
            guessing.acceptance.note(level, token == guessed)
            if token != guessed:
                break
        likely = () if seq.constraint is None else seq.constraint.likely()[:most]
        guess = Guess(likely, (self._likely_level,) * len(likely))
        # Forms are not trusted either: a tokenizer may have more ids than the model has outputs.
        guessing.guess = self._checked(guess if likely else guessing.drafter.guess(seq.tokens, most), most)
        guessing.num_tokens = len(seq.tokens)
        return guessing.guess

    def _checked(self, guess: Guess, most: int) -> Guess:
        """As much of a guess as can be verified."""
        tokens, levels = guess
        wrong = next((place for place, token in enumerate(tokens) if not 0 <= token < self._vocab_size), len(tokens))
        size = min(most, wrong, len(levels))
        return guess if size == len(tokens) == len(levels) else Guess(tuple(tokens[:size]), tuple(levels[:size]))

    def _prune(self, running: AnySequence[Sequence]) -> None:
        """Who runs no more needs no drafter; if he comes again, he gets another."""
        if len(self._guessing) > len(running):
            kept = {seq.id for seq in running}
            self._guessing = {seq: one for seq, one in self._guessing.items() if seq in kept}


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
