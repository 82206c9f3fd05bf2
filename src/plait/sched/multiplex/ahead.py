"""Ahead: the step behind the one in flight, decided as if that had ended.

Owns whom such a step can hold, and the situation at the moment when the step in flight is to end. Forms and chunks are
`plait.sched.multiplex.decide`'s; what has to be decided when that moment has come is left to it.
Invariant: a step that is planned ahead runs on all units; whoever lacks memory for it is left out, and the step behind
it is not planned ahead, so that somebody can leave.

A device with nothing to do waits for the engine to see an end, to take its tokens and to plan: half a millisecond as a
rule, three in one time of a hundred on cores that others use too. With the next step behind it the device goes on, and
an end that is seen late makes one gap longer and the next one shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.core.decision import Blocked
from plait.core.ids import LaneId, SeqId
from plait.core.request import SeqState, Sequence
from plait.core.step import ChunkShape, StepShape
from plait.sched.lives import Lives
from plait.sched.multiplex.beginning import Beginning
from plait.sched.multiplex.decide import Setting, decide
from plait.sched.multiplex.situation import Choice, Form, Pace, Prompt, Reason, Situation
from plait.sched.multiplex.viewing import View
from plait.sched.open_step import OpenStep


class Behind(NamedTuple):
    step: OpenStep
    choice: Choice
    is_short: bool
    """Somebody found no memory, so that somebody else may have to leave, whom no step names then."""


@dataclass(frozen=True, slots=True)
class End:
    """Of the step in flight: when it is to be, what was chosen for it, and how steps go."""

    at_s: float
    choice: Choice
    paces: Mapping[Form, Pace] | None


class Ahead:
    """`by_id`: everybody who waits or runs. `max_prefill_tokens`: of a step of prompts alone."""

    def __init__(
        self,
        lives: Lives,
        view: View,
        beginning: Beginning,
        setting: Setting,
        by_id: Mapping[SeqId, Sequence],
        max_prefill_tokens: int,
    ) -> None:
        self._lives = lives
        self._view = view
        self._beginning = beginning
        self._setting = setting
        self._by_id = by_id
        self._max_prefill_tokens = max_prefill_tokens
        self.situation: Situation | None = None
        """Of the last step that was decided, not only taken for granted."""

    def step(self, lane: LaneId, end: End, now: float) -> Behind | None:
        """The one behind that in flight on `lane`, which has every unit; None: it is decided when that has ended."""
        running, self.situation = self._lives.running, None
        if not running or self._lives.is_memory_coming or not all([_is_known(seq, lane) for seq in running]):
            return None
        is_alone = end.choice.form is Form.DECODE and end.choice.reason is Reason.ALONE
        if is_alone and not self._beginning.is_near:
            return self._filled(lane, end.choice, (), now)
        if Form.FUSED not in self._setting.preset.forms or self._setting.preset.reserve is not None:
            return None
        units = self._setting.prices.units
        prompts = self._beginning.prompts(lane, units, now, ahead=True)
        if self._beginning.needs_idle_row:
            return None
        num_together, prefill = self._beginning.prefill(prompts, units, self._max_prefill_tokens)
        rows = _rows(running)
        self.situation = Situation(
            now_s=end.at_s,
            decoding=self._view.decoding_after(rows, end.at_s),
            decode=StepShape(tuple([ChunkShape.of_one(seq.num_computed + seq.num_scheduled) for seq in rows])),
            prefill=prefill,
            waiting=prompts[num_together:],
            form=end.choice.form,
            units=end.choice.units,
            paces=end.paces,
        )
        choice = decide(self.situation, self._setting)
        is_whole = choice.form is Form.FUSED or (choice.form is Form.DECODE and choice.reason is Reason.ALONE)
        return self._filled(lane, choice, prompts, now) if is_whole else None

    def _filled(self, lane: LaneId, choice: Choice, prompts: AnySequence[Prompt], now: float) -> Behind | None:
        rows = _rows(self._lives.running)
        if len(rows) > self._setting.max_step_tokens:
            return None
        step = OpenStep(lane, len(rows))
        has_room = [self._lives.go_on(step, seq, 1, now) for seq in rows]
        step.budget = min(self._setting.max_step_tokens - len(rows), choice.chunk_tokens)
        for prompt in prompts:
            if step.budget <= 0:
                break
            seq = self._by_id[prompt.seq]
            if seq.state is SeqState.RUNNING:
                has_room.append(self._lives.go_on(step, seq, seq.num_plannable, now))
            elif self._beginning.begin(step, seq, now) not in (None, Blocked.BY_PREFIX):
                break
        return Behind(step, choice, not all(has_room)) if step.chunks else None


def _is_known(seq: Sequence, lane: LaneId) -> bool:
    """Whether it is clear what somebody who runs does behind the step in flight: he goes on with his prompt, or with
    the token that it says, or it says his last one.
    """
    num_plannable = seq.num_plannable
    if not num_plannable:
        return seq.constraint is None
    return seq.lane == lane and (num_plannable > 1 or seq.num_scheduled > 0)


def _rows(running: AnySequence[Sequence]) -> list[Sequence]:
    return [seq for seq in running if seq.num_plannable == 1]
