"""Outlook: when a prompt that has just arrived would have its first token, and whether it is worth waiting for.

Owns the forecast and the words of a refusal. The forecast is what the policy itself would do with everybody who is
there now, at prices; who comes later is not foreseen.
Invariant: nobody is refused who has no target for his first token, who could not meet it alone either, or who belongs
to a batch.

    prompts    (what is left of begun prompts + prompts that go first + its own) / the part of the device that they get
    places     sequences that must end first, where rows, memory or time are short, times the mean time between two ends
    wait       the longer of `prompts`, and of `places` with its own prompt behind it

Where steps are watched, prompts take as many times their prices as steps took lately, and the part of the device that
they get is what the policy leaves them at the present pace.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from math import ceil

from plait.core.errors import OVERLOADED, RequestError
from plait.core.request import Sequence, ServiceClass
from plait.sched.lives import Lives
from plait.sched.multiplex.decide import Setting, counted_s, decide
from plait.sched.multiplex.pacing import Pacing
from plait.sched.multiplex.pricing import cut
from plait.sched.multiplex.situation import Choice, Decoding, Form, Prefill, Prompt, Situation
from plait.sched.multiplex.time_room import TimeRoom, decodes, tightest_gap_s
from plait.sched.multiplex.viewing import LOOKED_AT, View, decode_shape

NEW_PART = 0.1
"""Of the mean stay, that of the sequence which ended last."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_rows: int
    max_prefill_tokens: int
    """Of a step of prompts alone."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a first token, in seconds from now. `alone_s`: if nobody else were there."""

    wait_s: float
    alone_s: float


class Outlook:
    """Of one scheduler. `room` None: time is nothing that sequences wait for."""

    def __init__(self, lives: Lives, view: View, setting: Setting, room: TimeRoom | None, limits: Limits) -> None:
        self._lives = lives
        self._view = view
        self._setting = setting
        self._room = room
        self._limits = limits
        self._stay_s: float | None = None
        """How long a sequence runs, on average; None: none has ended."""

    def ended(self, seq: Sequence, now_s: float) -> None:
        """It runs no more."""
        if seq.scheduled_s is None or not decodes(seq):
            return
        stay_s = now_s - seq.scheduled_s
        self._stay_s = stay_s if self._stay_s is None else self._stay_s + NEW_PART * (stay_s - self._stay_s)

    def refusal(
        self, seq: Sequence, prefills: AnySequence[Prefill], pacing: Pacing | None, now_s: float
    ) -> RequestError | None:
        """Of a sequence that has just begun to wait; None: it may go on waiting. `prefills`: those in flight."""
        target_s = seq.request.slo.first_token_s(seq.num_prompt)
        if target_s is None or seq.request.service_class is not ServiceClass.ONLINE or seq.choice:
            return None
        found = self.forecast(seq, prefills, pacing, now_s)
        if found.wait_s <= target_s or found.alone_s > target_s:
            return None
        after_s = found.wait_s - target_s
        return RequestError(
            f"too much is under way: the first token would come in {found.wait_s:.3g} s and is wanted within "
            f"{target_s:.3g} s; try again in {after_s:.3g} s, or give it more time with slo.ttft_s",
            status=429,
            kind="rate_limit_error",
            code=OVERLOADED,
            retry_after_s=after_s,
        )

    def forecast(self, seq: Sequence, prefills: AnySequence[Prefill], pacing: Pacing | None, now_s: float) -> Forecast:
        prices, begun_s = self._setting.prices, self._begun_s(prefills)
        prompts, num_unseen = self._up_to(seq, now_s + begun_s)
        seconds = [prices.prompt_s(one, prices.units) for one in prompts]
        work_s = begun_s + sum(seconds) + num_unseen * sum(seconds) / len(seconds)
        rows = [one for one in self._lives.running if decodes(one)]
        speed = self._speed(rows, prompts, pacing, now_s)
        num_lacking = self._num_lacking(rows, prompts, seq, num_unseen)
        if not speed:
            # Decode leaves nothing for prompts until somebody has ended.
            speed, num_lacking = 1.0, max(1, num_lacking)
        places_s = num_lacking * self._between_ends_s(rows, now_s)
        slowness = 1.0 if pacing is None else pacing.slowness
        prompts_s, own_s = slowness * work_s / speed, slowness * seconds[-1] / speed
        return Forecast(max(prompts_s, places_s + own_s), slowness * seconds[-1])

    def _between_ends_s(self, rows: AnySequence[Sequence], now_s: float) -> float:
        """Of those who run: their mean stay by their number. It is as long as they have been there, at least."""
        if not rows:
            return 0.0
        ages_s = sum(now_s - (now_s if one.scheduled_s is None else one.scheduled_s) for one in rows)
        return max(self._stay_s or 0.0, ages_s / len(rows)) / len(rows)

    def _up_to(self, seq: Sequence, start_s: float) -> tuple[tuple[Prompt, ...], int]:
        """Who waits and goes first, in order, and `seq` itself as the last; and how many go first of whom no more is
        known than that they are there.
        """
        ordered = self._view.waiting(self._setting.prices.units, start_s)
        place = next((place for place, one in enumerate(ordered) if one.seq == seq.id), None)
        if place is not None:
            return ordered[: place + 1], 0
        return (*ordered, self._view.waiting_prompt(seq)), max(0, self._lives.waiting.place(seq) - LOOKED_AT)

    def _begun_s(self, prefills: AnySequence[Prefill]) -> float:
        """What prompts that have begun would still take on all units: steps in flight, and what comes behind them."""
        prices, found = self._setting.prices, 0.0
        for prefill in prefills:
            found += prefill.left * prices.prefill_s(prefill.shape, prices.units)
            found += sum(prices.prompt_s(rest, prices.units) for rest in prefill.rest())
        counted = {one.seq for prefill in prefills for one in prefill.prompts}
        begun = [one for one in self._lives.running if one.id not in counted and one.num_uncomputed > 1]
        return found + sum(prices.prompt_s(self._view.prompt(one), prices.units) for one in begun)

    def _speed(
        self, rows: AnySequence[Sequence], prompts: tuple[Prompt, ...], pacing: Pacing | None, now_s: float
    ) -> float:
        """Of prompts beside all who run, by that alone on the device: what the policy chooses if everybody has just
        said something. 0: decode leaves nothing.
        """
        prices, most = self._setting.prices, self._limits.max_prefill_tokens
        count = self._view.together(prompts, 0, prices.units, most)
        prefill = Prefill(prompts[:count], cut(prompts[:count], most))
        said = tuple(Decoding(one.id, now_s, now_s, 0, one.request.slo.itl_s, one.request.slo.tpot_s) for one in rows)
        paces = None if pacing is None else pacing.paces()
        now = Situation(now_s, said, decode_shape(rows), prefill=prefill, waiting=prompts[count:], paces=paces)
        alone = prefill.shape.num_tokens / prices.prefill_s(prefill.shape, prices.units)
        return min(1.0, self._rate(decide(now, self._setting), now, prefill, tightest_gap_s(rows)) / alone)

    def _rate(self, choice: Choice, now: Situation, prefill: Prefill, gap_s: float) -> float:
        """Prompt tokens a second."""
        prices, num_tokens = self._setting.prices, prefill.shape.num_tokens
        match choice.form:
            case Form.FUSED:
                chunk = cut((*prefill.prompts, *now.waiting), choice.chunk_tokens)
                return chunk.num_tokens / prices.fused(now.decode, chunk).expected_s if chunk.chunks else 0.0
            case Form.LANES:
                return num_tokens / prices.prefill_s(prefill.shape, prices.units - choice.units, now.decode)
            case Form.PREFILL:
                price = prices.decode(now.decode, prices.units)
                decode_s = counted_s(price, Form.DECODE, now, self._setting) if now.paces else price.expected_s
                decode_s = decode_s if now.decoding else 0.0
                return max(0.0, 1.0 - decode_s / gap_s) * num_tokens / prices.prefill_s(prefill.shape, prices.units)
            case Form.DECODE:
                return 0.0

    def _num_lacking(
        self, rows: AnySequence[Sequence], prompts: AnySequence[Prompt], seq: Sequence, num_unseen: int
    ) -> int:
        """Sequences that must have ended before it can begin."""
        lives = self._lives
        by_id = {one.id: one for one in (*lives.waiting.first(LOOKED_AT), seq)}
        first = [by_id[one.seq] for one in prompts]
        lacking = [len(lives.running) + len(first) + num_unseen - self._limits.max_rows]
        if self._room is not None:
            everybody = [*rows, *(one for one in first if decodes(one))]
            if (num_short := len(everybody) - self._room.num_fitting(everybody)) > 0:
                lacking.append(num_short + num_unseen)
        missing = sum(one.num_tokens for one in prompts) - lives.available_tokens
        if missing > 0 and lives.running:
            held = sum(len(one.tokens) for one in lives.running) / len(lives.running)
            lacking.append(ceil(missing / held) + num_unseen)
        return max(0, *lacking)
