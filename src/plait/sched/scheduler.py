"""Scheduler: the interface between the engine's loop and a policy.

Owns the protocol. A scheduler is the only writer of `Sequence` and the only caller of `KVCache` verbs that change
memory. It never sees a tensor, a clock or a client: time comes in as an argument.
Invariant: for equal calls in equal order it returns equal decisions.
"""

from __future__ import annotations

from typing import Protocol

from plait.core.decision import Blocked, Decision, SeqUpdate
from plait.core.ids import SeqId
from plait.core.request import Sequence
from plait.core.step import StepResult


class Scheduler(Protocol):
    @property
    def num_waiting(self) -> int:
        """Admitted sequences without an executor row."""

    @property
    def num_running(self) -> int:
        """Sequences with an executor row."""

    @property
    def num_in_flight(self) -> int:
        """Submitted steps that are not committed yet."""

    @property
    def blocked(self) -> Blocked | None:
        """Why the last `plan` left sequences waiting; None if it left none."""

    def admit(self, seq: Sequence, now: float) -> None:
        """Take a new sequence into the queue. `RequestError` if it could never be served; then nothing has changed."""

    def plan(self, now: float) -> list[Decision]:
        """What to do now, in order, with one `Submit` at most, which counts as submitted when this returns. Apply it
        and ask again, so that a device has its step while the next one is planned. Empty: nothing can be done yet.
        """

    def commit(self, result: StepResult, now: float) -> list[SeqUpdate]:
        """Take a collected step: publish what it computed and say what it gave each sequence."""

    def expire(self, now: float) -> list[SeqUpdate]:
        """Finish the sequences whose deadline has passed, waiting or running; no further update names them."""

    def explain(self) -> str:
        """Who waits and runs and why, and how full the memory is, as one line for whoever looks for a fault."""

    def abort(self, seq: SeqId, now: float) -> None:
        """Stop working on a sequence; no further update names it. Unknown or finished ids are ignored."""

    def wake_at(self) -> float | None:
        """When `plan` or `expire` could do something although nothing arrives or finishes before; None: never."""
