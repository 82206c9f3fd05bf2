"""Serving: the whole engine on an executor, turn by turn and without a thread of its own.

Owns the executor under `plait.assembly`, and the clock that gives it time to work. A run is the same every time: on the
native executor too, unless its workers are left to themselves (`native_rooms.py`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.assembly import CHUNKS, Drafting, DraftModel, Policy, assemble
from plait.core.client import Delta
from plait.core.clock import Clock, WaitSource
from plait.core.errors import RequestError, UsageError
from plait.core.events import Collected, Event, Preempted, Submitted
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.core.step import DRAFT_PROGRAM, STEP_PROGRAM, TokenLogprob
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Abort, Arrive, Inbox
from plait.exec.loading import LoadableExecutor
from plait.exec.paired import PairedExecutor
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.kv.cache import KVCache
from plait.kv.layouts.serving import Cutting, cut, cut_pair
from plait.kv.rules import ALL_RULES, MemoryRules
from plait.model.cache_layout import plan_layout, token_bytes
from plait.model.cache_type import CacheType
from plait.model.keeping import keep_all_tokens
from plait.model.program import GroupKind, Program
from plait.weights.table import WeightTable

MOST_TICKS = 100_000
PROMISED = 1e-5

EVEN_BLAS = platform.machine() in ("x86_64", "AMD64")
"""Where OpenBLAS is known to round every column of a product alike (docs/concepts/numerics.md, The reference executor).
Elsewhere nobody has measured, so tokens and the tolerance are asserted there, and not the last bit.
"""
"""Largest difference of a log-probability that the reference executor allows itself (docs/concepts/numerics.md)."""
AnswerKey = tuple[RequestId, int]
"""A request and one of its choices."""


@dataclass(frozen=True, slots=True)
class Served:
    """What is served."""

    program: Program
    weights: WeightTable
    tokens_per_block: int
    max_model_tokens: int
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Setup:
    """The part of the load that an operator chooses."""

    max_step_tokens: int = 64
    cache_tokens: int = 4096
    enable_prefix: bool = False
    max_rows: int = 16
    kv_layout: str | None = None
    """As --kv-layout says it; None: the program's groups as they are."""
    rules: MemoryRules = ALL_RULES
    make_room: Callable[[Setup], Room] | None = None
    """None: the reference executor."""
    policy: Policy = CHUNKS
    drafting: Drafting | None = None
    draft: Served | None = None
    """A draft model for `drafting`."""
    plans_first: bool = False
    """As `EngineConfig` says it."""


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """An executor that has not loaded a model yet, and how time passes beside it."""

    executor: LoadableExecutor
    clock: Clock
    cache_type: CacheType = CacheType.F32
    """Of a number in the cache."""
    make_draft: Callable[[], LoadableExecutor] | None = None
    """An executor that has the cache memory of `executor`, once that is loaded, too. None: there is no such."""


@dataclass(slots=True)
class Answer:
    """All that one choice got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    pooled: tuple[float, ...] | None = None
    finish_reason: FinishReason | None = None
    num_cached: int = 0
    error: str | None = None


class TurnClock:
    """Time passes by a millisecond whenever somebody waits, and the executor works meanwhile."""

    def __init__(self, advance: Callable[[], bool]) -> None:
        self._now_s = 0.0
        self._advance = advance

    def now(self) -> float:
        return self._now_s

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        self._now_s += 0.001
        while not any(source.ready() for source in sources) and self._advance():
            pass


def reference_room(setup: Setup) -> Room:
    config = ReferenceConfig(setup.max_step_tokens, setup.max_rows, threaded=False, poison=True)
    executor = ReferenceExecutor(config, lambda: 0.0)
    return Room(executor, TurnClock(executor.advance))


class Serving:
    """An engine that serves waves of requests. `answers` and the counts below are of the newest wave."""

    def __init__(self, served: Served, setup: Setup) -> None:
        self.answers: dict[AnswerKey, Answer] = {}
        self.num_preemptions = 0
        self.most_chunks = 0
        """Sequences in one step at most."""
        self.num_drafts = self.num_accepted = self.num_rounds = 0
        """`num_rounds`: steps of the draft model."""
        self._inbox = Inbox()
        room = (setup.make_room or reference_room)(setup)
        size = room.cache_type
        program = keep_all_tokens(served.program) if setup.kv_layout == "uniform" else served.program
        cutting = Cutting("as it is", program, served.tokens_per_block, size)
        if setup.kv_layout is not None:
            cutting = cut(program, setup.kv_layout, served.tokens_per_block, size)
        if setup.draft is not None:
            cutting = cut_pair(program, setup.draft.program, "paged", served.tokens_per_block, size)
        memory_bytes = setup.cache_tokens * unit_bytes(served.program, size)
        layout = cutting.plan(memory_bytes)
        self._executor = room.executor
        self._executor.load({STEP_PROGRAM: cutting.program}, served.weights, layout)
        drafting = setup.drafting
        if setup.draft is not None and drafting is not None:
            drafting = self._with_draft(room, setup.draft, drafting, cutting, memory_bytes)
        parts = assemble(
            EngineConfig(served.program.vocab_size, served.max_model_tokens, seed=17, plans_first=setup.plans_first),
            layout,
            self._executor,
            room.clock,
            Ports(self._inbox, self, self._note),
            eos_token_ids=served.eos_token_ids,
            enable_prefix=setup.enable_prefix,
            rules=cutting.rules(setup.rules),
            policy=setup.policy,
            drafting=drafting,
        )
        self._engine, self.kv = parts.engine, parts.kv

    def _with_draft(
        self, room: Room, draft: Served, drafting: Drafting, cutting: Cutting, memory_bytes: int
    ) -> Drafting:
        assert room.make_draft is not None
        assert cutting.draft is not None
        layout = cutting.plan_pair(memory_bytes)[1]
        executor = room.make_draft()
        executor.load({STEP_PROGRAM: cutting.draft}, draft.weights, layout)
        self._executor = PairedExecutor(self._executor, executor)
        return replace(drafting, model=DraftModel(layout, 0.5, draft.max_model_tokens))

    def close(self) -> None:
        self._executor.close()

    def serve(
        self,
        requests: Sequence[Request],
        *,
        ticks_between: int = 0,
        aborted: Mapping[RequestId, int] | None = None,
    ) -> dict[AnswerKey, Answer]:
        """Answers by request and choice. One request arrives every so many ticks; `aborted` says at which tick which
        requests are given up.
        """
        self.answers = {(one.id, choice): Answer() for one in requests for choice in range(one.n)}
        self.num_preemptions = self.most_chunks = self.num_drafts = self.num_accepted = self.num_rounds = 0
        arriving = list(requests)
        giving_up = dict(aborted or {})
        for tick in range(MOST_TICKS):
            while arriving and (not ticks_between or tick % ticks_between == 0):
                self._inbox.put(Arrive(arriving.pop(0)))
                if ticks_between:
                    break
            for request in [one for one, at in giving_up.items() if at == tick]:
                self._inbox.put(Abort(request))
            self._engine.tick()
            if all(answer.finish_reason is not None for answer in self.answers.values()):
                self._rest()
                return self.answers
        raise AssertionError(f"no answer after {MOST_TICKS} ticks: {self.kv.explain()}")

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        if isinstance(answer, RequestError):
            raise answer
        known = self.answers[request, answer.choice]
        known.tokens += answer.tokens
        known.logprobs += answer.logprobs
        known.prompt_logprobs += answer.prompt_logprobs
        known.pooled = answer.pooled
        known.finish_reason = answer.finish_reason
        known.num_cached = answer.num_cached
        known.error = answer.error

    def flush(self) -> None:
        """Nothing waits for a flush: answers are read when a wave is over."""

    def _rest(self) -> None:
        """Collect what is still in flight (of aborted requests), and look into the memory."""
        for _ in range(3):
            self._engine.tick()
        self.kv.check()
        assert self.kv.usage().used_bytes == 0
        assert self.kv.drafts.num_pages == 0

    def _note(self, event: Event) -> None:
        match event:
            case Preempted():
                self.num_preemptions += 1
            case Submitted(plan=plan):
                self.num_drafts += sum(chunk.num_drafts for chunk in plan.chunks)
                self.num_rounds += plan.program == DRAFT_PROGRAM
            case Collected(_, result):
                self.most_chunks = max(self.most_chunks, len(result.seqs))
                self.num_accepted += sum(one.num_accepted for one in result.seqs)


def unit_bytes(program: Program, cache_type: CacheType) -> int:
    """Of a token; where no layer keeps tokens, of a quarter of a state."""
    states = sum(group.elements_per_state for group in program.cache_groups)
    return token_bytes(program, cache_type) or states * CacheType.F32.number_bytes // 4


def least_cache_tokens(served: Served, num_tokens: int) -> int:
    """The smallest `Setup.cache_tokens` that serve one sequence of so many tokens: fewer, where layers have windows."""
    for cache_tokens in range(served.tokens_per_block, 2 * num_tokens + 1, served.tokens_per_block):
        memory_bytes = cache_tokens * unit_bytes(served.program, CacheType.F32)
        try:
            layout = plan_layout(served.program, memory_bytes=memory_bytes, tokens_per_block=served.tokens_per_block)
        except UsageError:
            continue
        if KVCache(layout, served.program.cache_groups).capacity_tokens >= num_tokens:
            return cache_tokens
    raise AssertionError(f"{num_tokens} tokens do not fit into twice as many")


def grows(served: Served) -> bool:
    """Whether a sequence needs more memory the longer it gets, without end."""
    return any(group.kind is GroupKind.FULL for group in served.program.cache_groups)


def alone(serving: Serving, requests: Iterable[Request]) -> dict[AnswerKey, Answer]:
    """Every request by itself, the next one when the last has been answered."""
    return {key: answer for request in requests for key, answer in serving.serve([request]).items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How near two sets of answers are: `num_equal` of `num_logprobs` are equal to the last bit."""

    num_answers: int
    num_tokens: int
    num_logprobs: int
    num_equal: int
    largest: float
    """The largest difference of a log-probability."""

    def plus(self, other: Comparison) -> Comparison:
        return Comparison(
            self.num_answers + other.num_answers,
            self.num_tokens + other.num_tokens,
            self.num_logprobs + other.num_logprobs,
            self.num_equal + other.num_equal,
            max(self.largest, other.largest),
        )

    def __str__(self) -> str:
        bits = "all" if self.num_equal == self.num_logprobs else f"{self.num_equal:,} of"
        return (
            f"{self.num_tokens:,} tokens of {self.num_answers} answers as alone; {bits} {self.num_logprobs:,}"
            f" log-probabilities to the last bit, the largest difference {self.largest:.1e}"
        )


NOTHING_COMPARED = Comparison(0, 0, 0, 0, 0.0)


class Ledger:
    """Comparisons against the answers that requests got alone, and what they add up to."""

    def __init__(self, expected: Mapping[AnswerKey, Answer]) -> None:
        self._expected = expected
        self.total = NOTHING_COMPARED

    def check(self, answers: Mapping[AnswerKey, Answer]) -> None:
        """Same tokens and endings; log-probabilities equal to the last bit where the BLAS allows it."""
        found = compare(answers, self._expected)
        self.total = self.total.plus(found)
        assert found.largest <= PROMISED, found
        if EVEN_BLAS:
            assert found.num_equal == found.num_logprobs, found


def compare(answers: Mapping[AnswerKey, Answer], expected: Mapping[AnswerKey, Answer]) -> Comparison:
    """Asserts equal tokens and endings; measures the log-probabilities."""
    differences: list[float] = []
    num_tokens = 0
    for key, answer in answers.items():
        right = expected[key]
        assert answer.error is None
        assert (key, answer.tokens, answer.finish_reason) == (key, right.tokens, right.finish_reason)
        num_tokens += len(answer.tokens)
        for given, known in zip(answer.logprobs, right.logprobs, strict=True):
            differences.append(abs(given.logprob - known.logprob))
            assert len(given.top) == len(known.top)
            # Alternatives that are equally likely but for rounding may change places.
            pairs = zip(given.top, known.top, strict=True)
            differences += [abs(value - other) for (_, value), (_, other) in pairs]
    num_equal = sum(difference == 0 for difference in differences)
    return Comparison(len(answers), num_tokens, len(differences), num_equal, max(differences, default=0.0))
