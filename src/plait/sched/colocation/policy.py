"""Policy: how much offline work goes beside online traffic, and who of it gives way first.

Owns the bounds of a step that both classes share, of one that offline work has alone, and of what offline work may
hold. Plans nothing (`plait.sched.chunked` does), and says nothing as long as nobody was online: then a job runs as if
there were no such thing.
Invariants: an online row is never left out for an offline one; with targets and prices, the worst case of a step with
offline rows holds the targets of its online ones; without, offline rows make online steps longer by a bounded share.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as AnySequence
from collections.abc import Set as AnySet
from dataclasses import dataclass

from plait.core.ids import SeqId, StepId
from plait.core.request import Sequence
from plait.core.step import ChunkShape, SeqStatus, StepPlan, StepResult, StepShape
from plait.cost.model import CostModel
from plait.kv.cache import Hit
from plait.sched.colocation.demand import WINDOW_S, OnlineDemand
from plait.sched.colocation.times import StepTimes
from plait.sched.lives import Lives
from plait.sched.open_step import OpenStep
from plait.sched.waiting import has_reserve, is_offline, num_online

FIRST_TOKENS = 16
"""Of a step without online rows while nobody knows how long steps take."""
FREE_TOKENS = 256
"""So many tokens more cost no less than a step by itself, whatever was measured with fewer."""
MOST_CREDIT_S = 1.0


@dataclass(frozen=True, slots=True)
class ColocationConfig:
    """How much online traffic is made to wait for offline work. Seconds, and parts of a step's time."""

    share: float = 0.005
    """By which offline rows may make steps with online ones longer, on average, where no targets bound them."""
    urgent_share: float = 0.25
    """The same while an offline job is about to miss its end."""
    step_share: float = 0.15
    """Of one step, where more than one token is at stake."""
    alone_s: float = 0.0125
    """Of a step without online rows: whoever arrives waits for its end. Twice as long, and the batch gets a sixteenth
    more, but two in a hundred more online requests are late (docs/lab/2026-11-30-batches-on-real-cores.md).
    """
    ttft_part: float = 0.05
    """Of the tightest target of first tokens, instead of `alone_s` where that is more."""


COLOCATED = ColocationConfig()


class Colocation:
    """Of one lane. `cost`: prices of steps, if anybody knows them, on `units` share units."""

    def __init__(self, config: ColocationConfig, lives: Lives, cost: CostModel | None = None, units: int = 1) -> None:
        self._config = config
        self._lives = lives
        self._cost, self._units = cost, units
        self._times = StepTimes()
        self._credit_s = 0.0
        """By which online steps may still be made longer."""
        self._memory = OnlineDemand(lives.capacity_tokens, lives.max_model_tokens)
        self._rows = OnlineDemand(lives.max_rows, 1)
        self._ttft_s: float | None = None
        """The tightest target of a first token so far."""
        self._flights: dict[StepId, tuple[StepPlan, bool]] = {}
        """Steps in flight, and whether any rows of them are online."""
        self._last_online_s = -math.inf
        """When somebody online was last seen."""
        self._held = self._held_rows = 0
        """By those online, at the last sample."""

    def arrived(self, seq: Sequence, now: float) -> None:
        if is_offline(seq):
            return
        self._last_online_s = now
        self.sample(now)
        target = seq.request.slo.first_token_s(seq.num_prompt)
        if target is not None:
            self._ttft_s = target if self._ttft_s is None else min(self._ttft_s, target)

    def is_shared(self, now: float) -> bool:
        """Whether there is offline work, and anybody was online of late: else it has everything, at its pace."""
        lives = self._lives
        if lives.waiting.num_online or num_online(lives.running):
            self._last_online_s = now
        if not self._is_active(now):
            return False
        has_offline = lives.waiting.num_online < len(lives.waiting) or (lives.running and is_offline(lives.running[-1]))
        if has_offline:
            self.sample(now)
        return bool(has_offline)

    def sample(self, now: float) -> None:
        """Look at what online sequences hold: whenever there is offline work, and when somebody comes or goes."""
        if not self._is_active(now):
            return
        online = self._lives.running[: num_online(self._lives.running)]
        self._held, self._held_rows = sum([seq.num_slots for seq in online]), len(online)
        self._memory.sample(self._held, now)
        self._rows.sample(self._held_rows, now)

    def _is_active(self, now: float) -> bool:
        return now - self._last_online_s < WINDOW_S

    # What a step may have.

    def beside(self, step: OpenStep, online: AnySequence[Sequence], offline: AnySequence[Sequence], now: float) -> int:
        """Tokens of offline rows beside the online ones that are in the step."""
        most = step.budget
        if not step.chunks or most <= 0:
            return 0
        limit_s = self._limit_s(step, online, now)
        if limit_s is None or self._cost is None:
            return self._by_share(step, offline, most)
        first = tuple(ChunkShape(one.start, one.num_tokens, one.num_outputs) for one in step.chunks.values())
        worst = self._cost.price

        def is_too_long(num_tokens: int) -> bool:
            return worst(StepShape((*first, *_rows_of(offline, num_tokens))), self._units).worst_s > limit_s

        return bisect_left(range(1, most + 1), True, key=is_too_long)

    def rode(self, num_tokens: int) -> None:
        """So many tokens of offline rows are in a step with online ones."""
        self._credit_s = max(0.0, self._credit_s - self._token_s() * num_tokens)

    def alone(self, most: int) -> int:
        """Tokens of a step that has no online rows."""
        if not self._times.is_known:
            return min(most, FIRST_TOKENS)
        limit_s = max(self._config.alone_s, self._config.ttft_part * (self._ttft_s or 0.0))
        return self._times.tokens_within(max(limit_s, 2 * self._times.seconds(1)), most)

    def _by_share(self, step: OpenStep, offline: AnySequence[Sequence], most: int) -> int:
        token_s = self._token_s()
        if token_s <= 0:
            return 0
        base_s = self._times.seconds(sum([chunk.num_tokens for chunk in step.chunks.values()]))
        step_share = 1.0 if self._is_urgent(offline) else self._config.step_share
        return min(most, int(self._credit_s / token_s), max(1, int(step_share * base_s / token_s)))

    def _token_s(self) -> float:
        """Where nothing is known to come of more tokens, they are taken to cost what a few cost all the same."""
        base_s, token_s = self._times.line()
        return max(token_s, base_s / FREE_TOKENS)

    def _is_urgent(self, offline: AnySequence[Sequence]) -> bool:
        return any([seq.request.is_urgent for seq in offline])

    def _limit_s(self, step: OpenStep, online: AnySequence[Sequence], now: float) -> float | None:
        """How long the step may last by the targets of who is in it; None: somebody has none.

        A gap between tokens is a step: the one before has been planned already, and this one begins when it ends.
        """
        limits = []
        for seq in online:
            chunk = step.chunks.get(seq.id)
            if chunk is None:
                continue
            slo = seq.request.slo
            if seq.num_output or chunk.start >= seq.num_prompt:
                gaps = [gap for gap in (slo.itl_s, slo.tpot_s) if gap is not None]
                limits.append(min(gaps) if gaps else None)
            elif chunk.start + chunk.num_tokens < len(seq.tokens):
                # The rest of its prompt goes on in the next step, and may need all of it.
                return 0.0
            else:
                target = slo.first_token_s(seq.num_prompt)
                limits.append(None if target is None else seq.arrival_s + target - now - self._ahead_s)
        found = [limit for limit in limits if limit is not None]
        return min(found) if found and len(found) == len(limits) else None

    @property
    def _ahead_s(self) -> float:
        """Until what is in flight has ended, as far as is known."""
        return sum([self._times.seconds(_num_tokens(plan)) for plan, _ in self._flights.values()])

    # What offline work may hold.

    def may_start(self, seq: Sequence, hit: Hit) -> bool:
        """Whether an offline sequence leaves enough for a burst of online ones. Alone, it may always: it gives way."""
        lives = self._lives
        if not self._held_rows and not any([is_offline(one) for one in lives.running]):
            return True
        rows = max(1, self._rows.kept - self._held_rows)
        if lives.max_rows - len(lives.running) <= rows:
            return False
        length = (
            seq.num_prompt + seq.max_output_tokens if has_reserve(seq) else len(seq.tokens) + lives.tokens_per_block
        )
        promised = sum([_left_of(one) for one in lives.running if has_reserve(one)])
        return lives.available_tokens - (length - hit.num_reused) >= self._kept + promised

    @property
    def _kept(self) -> int:
        """Beside what online sequences hold already."""
        return max(0, self._memory.kept - self._held)

    def holds_too_much(self) -> bool:
        """Whether offline answers have grown into what is kept for a burst, half of it and more, and somebody could
        leave who has no reserve.
        """
        if not self._held_rows or 2 * self._lives.available_tokens >= self._kept:
            return False
        return any([is_offline(one) and not one.num_scheduled and not has_reserve(one) for one in self._lives.running])

    # What came of it.

    def submitted(self, plan: StepPlan, *, has_online: bool) -> None:
        self._flights[plan.step] = (plan, has_online)

    def committed(self, result: StepResult) -> None:
        plan, has_online = self._flights.pop(result.step)
        gone = {one.seq for one in result.seqs if one.status is SeqStatus.CANCELLED}
        # As limits count them: a draft that was wrong took as long as one that was right.
        num_tokens = _num_tokens(plan, gone)
        if not num_tokens:
            return
        seconds, start_s = result.end_s - result.start_s, result.start_s
        for end_s in result.ends_s or (result.end_s,):
            self._times.took(num_tokens // result.num_steps, end_s - start_s)
            start_s = end_s
        if has_online:
            share = self._config.urgent_share if self._is_urgent(self._lives.running) else self._config.share
            self._credit_s = min(self._credit_s + share * seconds, MOST_CREDIT_S)


def _num_tokens(plan: StepPlan, without: AnySet[SeqId] = frozenset()) -> int:
    """That a step computes, drafts among them."""
    return sum([chunk.num_tokens for chunk in plan.chunks if chunk.seq not in without])


def _rows_of(offline: AnySequence[Sequence], num_tokens: int) -> Iterator[ChunkShape]:
    """What so many tokens of offline rows would be: those in decode first, then a prompt."""
    start = 0
    for seq in offline:
        if num_tokens <= 0:
            return
        start = seq.num_computed + seq.num_scheduled
        if seq.num_plannable == 1:
            num_tokens -= 1
            yield ChunkShape(start, 1, 1)
    if num_tokens > 0:
        yield ChunkShape(start, num_tokens, 0)


def _left_of(seq: Sequence) -> int:
    """Tokens that it will have and has no memory for."""
    return max(0, seq.num_prompt + seq.max_output_tokens - seq.num_slots)
