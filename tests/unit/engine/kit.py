"""An engine on stage: the real scheduler and memory, the simulated executor at one second a token, answers kept in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plait.core.client import Delta
from plait.core.clock import SimClock
from plait.core.errors import RequestError
from plait.core.events import Event
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import LaneId, RequestId, SeqId
from plait.core.sampling import SamplingParams
from plait.core.step import StepShape
from plait.cost.model import Bound, StepPrice
from plait.engine.engine import Engine, EngineConfig, Ports
from plait.engine.inbox import Inbox
from plait.exec.roster import GroupSlots
from plait.exec.simulated import SimulatedExecutor
from plait.kv.cache import KVCache
from plait.sched.chunked import ChunkedConfig, ChunkedScheduler
from tests.unit.kv.kit import make_kv

VOCAB = 2_000
EOS = 1_999
INFO = ExecutorInfo(
    name="simulated",
    lanes=(LaneId(0), LaneId(1)),
    share_units=1,
    forms=(StepForm.FUSED,),
    queue_depth=2,
    max_step_tokens=16,
    max_rows=4,
    memory_bytes=0,
    formats=(),
    fingerprint="simulated",
    bit_exact=True,
)


class OneSecondPerToken:
    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        return StepPrice(float(shape.num_tokens), float(shape.num_tokens), Bound.COMPUTE)


def letter_at(seq: SeqId, position: int) -> int:
    """Every sequence says "abcdefgh..." from position 0 on."""
    return ord("a") + position % 26


@dataclass(frozen=True, slots=True)
class Said:
    text: str
    matched: str | None = None
    num_tokens: int = 0


@dataclass(slots=True)
class Letters:
    """A text stream in which a token is a letter, and a stop string is found where it ends."""

    stops: tuple[str, ...]
    text: str = ""
    shown: int = 0

    def push(self, ids: Sequence[int]) -> Said:
        for count, token in enumerate(ids, start=1):
            self.text += chr(token)
            for stop in self.stops:
                if self.text.endswith(stop):
                    return Said(self._show(len(self.text) - len(stop)), stop, count)
        held = max((len(stop) for stop in self.stops), default=1) - 1
        return Said(self._show(max(self.shown, len(self.text) - held)), None, len(ids))

    def finish(self) -> Said:
        return Said(self._show(len(self.text)))

    def _show(self, end: int) -> str:
        new, self.shown = self.text[self.shown : end], end
        return new


@dataclass(slots=True)
class Answers:
    """An outbox that keeps everything. `batches` are the flushes that delivered something."""

    by_request: dict[str, list[Delta | RequestError]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    pending: int = 0

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        self.by_request.setdefault(request, []).append(answer)
        self.pending += 1

    def flush(self) -> None:
        if self.pending:
            self.batches.append(self.pending)
        self.pending = 0

    def deltas(self, request: str) -> list[Delta]:
        return [answer for answer in self.by_request.get(request, []) if isinstance(answer, Delta)]

    def text(self, request: str, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas(request) if delta.choice == choice)

    def refusal(self, request: str) -> RequestError:
        (answer,) = self.by_request[request]
        assert isinstance(answer, RequestError)
        return answer


class Stage:
    """An engine whose time is simulated. `token_at` says what every sequence says."""

    def __init__(
        self, *, num_blocks: int = 64, token_at: Callable[[SeqId, int], int] = letter_at, step_limit_s: float = 1e6
    ) -> None:
        self.clock = SimClock()
        self.events: list[Event] = []
        self.answers = Answers()
        self.inbox = Inbox()
        self.kv: KVCache = make_kv(num_blocks)
        groups = [GroupSlots(num_blocks=num_blocks, tokens_per_block=4)]
        self.executor = SimulatedExecutor(INFO, groups, self.clock, OneSecondPerToken(), token_at)
        chunked = ChunkedConfig(max_step_tokens=16, max_rows=4, max_model_tokens=100, eos_token_ids=(EOS,))
        scheduler = ChunkedScheduler(chunked, self.kv, 4, self.events.append)
        ports = Ports(self.inbox, self.answers, self.events.append, self._stream)
        config = EngineConfig(vocab_size=VOCAB, max_model_tokens=100, step_limit_s=step_limit_s)
        self.engine = Engine(config, self.clock, scheduler, self.executor, ports)
        self.scheduler = scheduler

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.tick()

    def settle(self) -> None:
        """Tick until nothing waits or runs; then the inbox alone could wake the engine."""
        while True:
            if not self.inbox.ready() and not (
                self.scheduler.num_waiting or self.scheduler.num_running or self.scheduler.num_in_flight
            ):
                return
            self.engine.tick_without_wait() if False else self._tick_if_work()

    def _tick_if_work(self) -> None:
        self.engine.tick()

    def _stream(self, sampling: SamplingParams) -> Letters:
        return Letters(sampling.stop)
