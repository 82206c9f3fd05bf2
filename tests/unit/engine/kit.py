"""An engine on stage: real scheduler, memory and text in simulated time; a token takes a second; answers are kept.

A token is a byte, so prompts and answers read as text. Messages come at the times that a script gives them. Every tick
checks the memory, and a time at which the engine could do nothing for ever fails instead of hanging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.unit.api.byte_text import END, VOCAB_SIZE, byte_text
from tests.unit.kv.kit import full_groups, make_layout

from plait.assembly import CHUNKS, Drafting, DraftModel, Policy, assemble
from plait.core.client import Delta
from plait.core.clock import SimClock, WaitSource
from plait.core.errors import RequestError
from plait.core.events import Event, EventSink
from plait.core.executor import Executor, ExecutorInfo, StepForm
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.profiling import PhaseSink, unheard
from plait.core.request import Request, ServiceClass, Slo
from plait.core.sampling import SamplingParams
from plait.core.step import Chunk, SeqResult, SeqStatus, StepPlan, StepResult, StepShape, TokenLogprob
from plait.cost.model import Bound, CostModel, StepPrice
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Abort, Arrive, Inbox, Message
from plait.exec.foretold import TokenSource
from plait.exec.paired import PairedExecutor
from plait.exec.roster import GroupSlots
from plait.exec.simulated import SimulatedExecutor
from plait.text.stream import text_stream_factory

Kind = TypeVar("Kind", bound=Event)

VOCAB = VOCAB_SIZE
EOS = END
BLOCK_TOKENS = 4
PLAIN = SamplingParams()
INFO = ExecutorInfo(
    name="simulated",
    lanes=(LaneId(0), LaneId(1)),
    share_units=1,
    forms=(StepForm.FUSED,),
    queue_depth=2,
    max_step_tokens=64,
    max_rows=64,
    memory_bytes=0,
    formats=(),
    fingerprint="simulated",
    bit_exact=False,
    pools=True,
    drafts=True,
)


class OneSecondPerToken:
    """A `CostModel` whose prices can be added up in one's head."""

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        return StepPrice(float(shape.num_tokens), float(shape.num_tokens), Bound.COMPUTE)


def letter_at(seq: SeqId, position: int) -> int:
    """Every sequence says the alphabet: "a" at position 0, "b" at 1, ..."""
    return ord("a") + position % 26


def says(text: str) -> TokenSource:
    """Every sequence has this text from position 0 on, prompt included, and then its end."""
    tokens = [*text.encode(), EOS]
    return lambda seq, position: tokens[min(position, len(tokens) - 1)]


def ask(
    name: str,
    prompt: str | Sequence[int] = "abc",
    *,
    max_tokens: int | None = 4,
    sampling: SamplingParams = PLAIN,
    n: int = 1,
    service_class: ServiceClass = ServiceClass.ONLINE,
    priority: int = 0,
    deadline_s: float | None = None,
    cache_prefix: bool = True,
    tenant: str = "",
) -> Request:
    return Request(
        id=RequestId(name),
        prompt=tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt),
        sampling=replace(sampling, max_tokens=max_tokens),
        n=n,
        service_class=service_class,
        priority=priority,
        deadline_s=deadline_s,
        cache_prefix=cache_prefix,
        tenant=tenant,
    )


@dataclass(slots=True)
class Answers:
    """An outbox that keeps everything. `batches` are the flushes that delivered something: (time, answers)."""

    now: Callable[[], float]
    by_request: dict[str, list[Delta | RequestError]] = field(default_factory=dict)
    batches: list[tuple[float, int]] = field(default_factory=list)
    num_flushes: int = 0
    _pending: int = 0

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        self.by_request.setdefault(request, []).append(answer)
        self._pending += 1

    def flush(self) -> None:
        self.num_flushes += 1
        if self._pending:
            self.batches.append((self.now(), self._pending))
        self._pending = 0

    def deltas(self, request: str, choice: int = 0) -> list[Delta]:
        given = self.by_request.get(request, [])
        return [answer for answer in given if isinstance(answer, Delta) and answer.choice == choice]

    def text(self, request: str, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas(request, choice))

    def tokens(self, request: str, choice: int = 0) -> list[int]:
        return [token for delta in self.deltas(request, choice) for token in delta.tokens]

    def last(self, request: str, choice: int = 0) -> Delta:
        return self.deltas(request, choice)[-1]

    def refusal(self, request: str) -> RequestError:
        (answer,) = self.by_request[request]
        assert isinstance(answer, RequestError), f"{request} was not refused: {answer}"
        return answer


Edit = Callable[[StepPlan, StepResult], StepResult]


class EditedExecutor:
    """The simulated executor, with results changed on their way: a device that has troubles or gives several tokens."""

    def __init__(self, inner: SimulatedExecutor, edit: Edit) -> None:
        self._inner = inner
        self._edit = edit
        self._plans: dict[StepId, StepPlan] = {}

    @property
    def info(self) -> ExecutorInfo:
        return self._inner.info

    def submit(self, plan: StepPlan) -> None:
        self._inner.submit(plan)
        self._plans[plan.step] = plan

    def assign(self, shares: Mapping[LaneId, tuple[int, ...]], *, may_help: bool = False) -> None:
        self._inner.assign(shares, may_help=may_help)

    def suspend(self, lane: LaneId) -> None:
        self._inner.suspend(lane)

    def resume(self, lane: LaneId) -> None:
        self._inner.resume(lane)

    def cancel(self, step: StepId, seqs: Sequence[SeqId]) -> None:
        self._inner.cancel(step, seqs)

    def collect(self) -> list[StepResult]:
        return [self._edit(self._plans.pop(result.step), result) for result in self._inner.collect()]

    def close(self) -> None:
        self._inner.close()

    def ready(self) -> bool:
        return self._inner.ready()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._inner.subscribe(wake)

    def next_s(self) -> float | None:
        return self._inner.next_s()


def unchanged(plan: StepPlan, result: StepResult) -> StepResult:
    return result


def failing(*seqs: int) -> Edit:
    """The device cannot compute these sequences."""

    def edit(plan: StepPlan, result: StepResult) -> StepResult:
        return replace(result, seqs=tuple(failed(one) if one.seq in seqs else one for one in result.seqs))

    def failed(one: SeqResult) -> SeqResult:
        return SeqResult(one.seq, SeqStatus.FAILED, error="a logit is not a number")

    return edit


def in_bursts(count: int, token_at: TokenSource = letter_at) -> Edit:
    """The device gives `count` tokens where others give one, as one with a drafter does. Where they end is not known
    before, so no step may be planned ahead: `queue_depth` is 1.
    """

    def edit(plan: StepPlan, result: StepResult) -> StepResult:
        return replace(result, seqs=tuple(map(more, plan.chunks, result.seqs)))

    def more(chunk: Chunk, one: SeqResult) -> SeqResult:
        if not one.tokens:
            return one
        tokens = tuple(token_at(chunk.seq, chunk.end + place) for place in range(count))
        logprobs = tuple(TokenLogprob(token, -1.0) for token in tokens) if one.logprobs else ()
        return one._replace(tokens=tokens, logprobs=logprobs)

    return edit


@dataclass(frozen=True, slots=True)
class DraftPlay:
    """A draft model on stage: what it says, and what its steps take."""

    token_at: TokenSource
    cost: CostModel
    edit: Edit = unchanged
    weight_share: float = 0.1
    max_positions: int = 100


class Script:
    """Messages that come at their times. A `WaitSource` that is ready when the next one is due."""

    def __init__(self, inbox: Inbox, clock: SimClock) -> None:
        self._inbox = inbox
        self._clock = clock
        self._due: list[tuple[float, int, Message]] = []

    def at(self, at_s: float, message: Message) -> None:
        self._due.append((at_s, len(self._due), message))
        self._due.sort(key=lambda entry: entry[:2])

    def deliver(self) -> None:
        while self.ready():
            self._inbox.put(self._due.pop(0)[2])

    def ready(self) -> bool:
        return bool(self._due) and self._due[0][0] <= self._clock.now()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Nothing to do: the script goes on by time alone."""

    def next_s(self) -> float | None:
        return self._due[0][0] if self._due else None


class Stage:
    """See the module. A block holds four tokens."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_step_tokens: int = 16,
        max_rows: int = 4,
        max_model_tokens: int = 100,
        enable_prefix: bool = True,
        token_at: TokenSource = letter_at,
        edit: Edit = unchanged,
        step_limit_s: float = 1e6,
        queue_depth: int = 2,
        seed: int = 0,
        has_text: bool = True,
        listener: EventSink | None = None,
        phases: PhaseSink = unheard,
        pools: bool = True,
        slos: Mapping[ServiceClass, Slo] | None = None,
        policy: Policy = CHUNKS,
        share_units: int = 1,
        cost: CostModel | None = None,
        drafting: Drafting | None = None,
        draft: DraftPlay | None = None,
        checks: bool = True,
        plans_first: bool = False,
    ) -> None:
        self._checks = checks
        self.sim_clock = SimClock()
        self.events: list[Event] = []
        self.answers = Answers(self.sim_clock.now)
        self.inbox = Inbox()
        self.script = Script(self.inbox, self.sim_clock)
        self._listener = listener
        groups = [GroupSlots(num_blocks=num_blocks, tokens_per_block=BLOCK_TOKENS)]
        info = replace(INFO, max_step_tokens=max_step_tokens, max_rows=max_rows, queue_depth=queue_depth, pools=pools)
        if share_units > 1:
            lanes = tuple(map(LaneId, range(3)))
            info = replace(info, share_units=share_units, lanes=lanes, forms=(StepForm.FUSED, StepForm.LANES))
        self.device = SimulatedExecutor(info, groups, self.sim_clock, cost or OneSecondPerToken(), token_at)
        executor: Executor = EditedExecutor(self.device, edit)
        layout = make_layout(num_blocks, full_groups(1), 1, BLOCK_TOKENS)
        if draft is not None and drafting is not None:
            beside = SimulatedExecutor(info, groups, self.sim_clock, draft.cost, draft.token_at)
            executor = PairedExecutor(executor, EditedExecutor(beside, draft.edit))  # type: ignore[arg-type]
            drafting = replace(drafting, model=DraftModel(layout, draft.weight_share, draft.max_positions))
        streams = text_stream_factory(byte_text().tokenizer) if has_text else None
        parts = assemble(
            EngineConfig(VOCAB, max_model_tokens, seed, step_limit_s, 0.0, slos or {}, plans_first),
            layout,
            executor,
            self,
            Ports(self.inbox, self.answers, self._tell, streams, phases),
            eos_token_ids=(EOS,),
            enable_prefix=enable_prefix,
            policy=policy,
            drafting=drafting,
        )
        self.engine, self.scheduler, self.kv = parts.engine, parts.scheduler, parts.kv

    # The engine's clock: simulated time, in which the script plays. Nothing left to do ends a wait.

    def now(self) -> float:
        return self.sim_clock.now()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if self._checks:
            self.kv.check()
            self.scheduler.check()
        if not (self.is_idle and self.script.next_s() is None):
            self.sim_clock.wait(*sources, self.script, until=until)
        self.script.deliver()

    # What a test does.

    def arrive(self, *requests: Request, at_s: float = 0.0) -> None:
        for request in requests:
            self.script.at(at_s, Arrive(request))

    def abort(self, request: str, at_s: float = 0.0) -> None:
        self.script.at(at_s, Abort(RequestId(request)))

    @property
    def is_idle(self) -> bool:
        scheduler = self.scheduler
        return not (self.inbox.ready() or scheduler.num_waiting or scheduler.num_running or scheduler.num_in_flight)

    def tick(self, count: int = 1) -> None:
        self.script.deliver()
        for _ in range(count):
            self.engine.tick()

    def run(self, max_ticks: int = 100_000) -> None:
        """Until the script is over and nothing waits, runs or is in flight."""
        self.script.deliver()
        for _ in range(max_ticks):
            if self.is_idle and self.script.next_s() is None:
                return
            self.engine.tick()
        raise AssertionError(f"not done after {max_ticks} ticks")

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def assert_memory_is_empty(self) -> None:
        """Nothing but the prefix index holds blocks, and it lets them go."""
        self.kv.reset_prefix_index()
        usage = self.kv.usage()
        assert usage.free_bytes == usage.total_bytes

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        if self._listener is not None:
            self._listener(event)
