"""Requests and sequences: what a client asked, and the streams of tokens that answer it.

Owns `Request` (a value, complete when the engine gets it) and `Sequence` (mutable: the engine makes it, and from then
on the scheduler alone changes it).
Invariant: 0 <= num_computed <= len(tokens), and a sequence is in flight only while it is RUNNING.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from plait.core.constraint import Constraint, ConstraintSource
from plait.core.errors import RequestError
from plait.core.ids import LaneId, RequestId, SeqId
from plait.core.sampling import SamplingParams, check_token_ids

MAX_CHOICES = 128
"""Largest `n`, as in the OpenAI API."""


class ServiceClass(StrEnum):
    """How a request is weighed against others. ONLINE has a person waiting; BATCH has until the end of a window."""

    ONLINE = "online"
    BATCH = "batch"


class Task(StrEnum):
    """What the engine is to return: a continuation, or a pooled embedding of the prompt."""

    GENERATE = "generate"
    EMBED = "embed"


class Pooling(StrEnum):
    """Which rows of a prompt an embedding is the mean of."""

    LAST = "last"
    MEAN = "mean"
    """All of them, so that none may be skipped: nothing is read from the prefix index (docs/concepts/numerics.md)."""


class FinishReason(StrEnum):
    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string; of an embedding, that it is there."""
    LENGTH = "length"
    """max_tokens or the model's context was reached."""
    ABORT = "abort"
    """The client left or the engine is closing."""
    ERROR = "error"
    """This sequence could not be computed; `SeqUpdate.error` says why. Nobody else is affected."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets of a request, seconds. None: no target of that kind.

    `itl_s` bounds every gap between two tokens; `tpot_s` bounds their mean. A sequence with `itl_s` is never delayed
    on purpose.
    """

    ttft_s: float | None = None
    ttft_s_per_token: float | None = None
    """TTFT target per prompt token; the looser of it and `ttft_s` holds when both are given."""
    itl_s: float | None = None
    tpot_s: float | None = None
    percentile_fraction: float = 0.99
    """Share of requests that must meet the target."""

    def first_token_s(self, num_prompt: int) -> float | None:
        """The TTFT target of a prompt of so many tokens."""
        if self.ttft_s_per_token is None:
            return self.ttft_s
        return max(self.ttft_s or 0.0, self.ttft_s_per_token * num_prompt)

    def over(self, default: Slo) -> Slo:
        """These targets, and the default's where there are none of a kind."""
        if self.ttft_s is None and self.ttft_s_per_token is None:
            ttft_s, per_token = default.ttft_s, default.ttft_s_per_token
        else:
            ttft_s, per_token = self.ttft_s, self.ttft_s_per_token
        return Slo(
            ttft_s,
            per_token,
            default.itl_s if self.itl_s is None else self.itl_s,
            default.tpot_s if self.tpot_s is None else self.tpot_s,
            self.percentile_fraction,
        )


DEFAULT_SAMPLING = SamplingParams()
NO_SLO = Slo()


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a prompt: `content_hash` keys caches, `start` is the first placeholder token, `num_tokens` how many
    there are.
    """

    content_hash: bytes
    start: int
    num_tokens: int
    num_rows: int = 0
    """Rows that the encoder makes of it; 0: as many as there are placeholders."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked. `tenant` salts the prefix index: nothing is shared between different tenants."""

    id: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams = DEFAULT_SAMPLING
    n: int = 1
    task: Task = Task.GENERATE
    service_class: ServiceClass = ServiceClass.ONLINE
    tenant: str = ""
    priority: int = 0
    """Lower runs sooner among requests of one class."""
    is_urgent: bool = False
    """Of a batch that is about to miss its end: before others of its class, and with more beside online ones."""
    deadline_s: float | None = None
    """On the engine's clock: the answer is worthless afterwards (the end of a batch window), so whoever is not finished
    by then ends with an error.
    """
    slo: Slo = NO_SLO
    adapter: str | None = None
    images: tuple[Image, ...] = ()
    constraint: ConstraintSource | None = None
    """The form that every choice must have."""
    pooling: Pooling = Pooling.LAST
    """Read for `Task.EMBED` only."""
    num_imported: int = 0
    """Leading tokens of the prompt whose keys and values another engine computed and sent along: not computed again,
    unless the sequence loses them to a preemption.
    """
    cache_prefix: bool = True
    """May read and write the prefix index; False computes every token anew and publishes nothing."""
    ids_below: int | None = None
    """Whoever made the prompt has made sure that its ids lie in [0, ids_below); None: nobody has, so they are looked
    through.
    """

    def validate(self, vocab_size: int) -> None:
        """Raise `RequestError` for the first value that no engine with this vocabulary could serve."""
        if not 1 <= self.n <= MAX_CHOICES:
            raise RequestError(f"n is {self.n}; it must lie in [1, {MAX_CHOICES}]", param="n")
        if self.task is Task.EMBED and self.n != 1:
            raise RequestError(f"n is {self.n}; a prompt has one embedding: leave it out", param="n")
        if self.deadline_s is not None and math.isnan(self.deadline_s):
            raise RequestError("the deadline is not a number; give seconds or leave it out", param="deadline_s")
        if not 0 <= self.num_imported <= max(len(self.prompt) - 1, 0):
            raise RequestError(
                f"{self.num_imported} of {len(self.prompt)} prompt tokens are said to be computed; leave one at least",
                param="prompt",
            )
        self.sampling.validate(vocab_size)
        if self.ids_below is None or self.ids_below > vocab_size:
            check_token_ids("prompt", self.prompt, vocab_size)


class SeqState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream of tokens being extended; `choice` counts the `n` sequences of a request from 0.

    Times are seconds on the engine's clock: arrival, scheduled (first planned). What follows from the request alone is
    worked out once: it is asked for in every step.
    """

    id: SeqId
    request: Request
    choice: int
    seed: int
    max_output_tokens: int
    """The request's max_tokens, or what is left of the model's context; 0 for an embedding."""
    arrival_s: float
    tokens: list[int] = field(default_factory=list)
    """Prompt tokens, then output tokens."""
    state: SeqState = SeqState.WAITING
    num_computed: int = 0
    """Tokens whose KV exists and is committed."""
    num_scheduled: int = 0
    """Tokens planned in steps that are not collected yet, to be computed or copied. Above 0: the sequence is in flight.
    """
    num_cached: int = 0
    """Prompt tokens found in the prefix index at first admission, copied ones too; what usage reports."""
    mask: bytes | None = None
    """Tokens that may be drawn, as in `RowMask.allowed`; None: every one."""
    num_scored: int = 0
    """Prompt tokens whose log-probabilities were reported, the first one too, which has none. Only if they are wanted.
    """
    num_preemptions: int = 0
    lane: LaneId | None = None
    row: int | None = None
    """The executor row while joined."""
    scheduled_s: float | None = None
    constraint: Constraint | None = None
    num_slots: int = 0
    """Tokens that it has memory for: so far it need not ask. 0 while it waits."""
    num_prompt: int = field(init=False)
    num_inputs: int = field(init=False)
    """Tokens that are computed before an answer of full length is whole: nobody computes the last one."""
    num_to_score: int = field(init=False)
    """Prompt tokens whose log-probabilities are wanted: all or none. Those of all choices are equal."""
    is_steered: bool = field(init=False)
    """Whether something says which tokens may come next."""
    ends_by_length: bool = field(init=False)
    """Nothing that it samples can end it before its length, be written down or change what may come next."""

    def __post_init__(self) -> None:
        request = self.request
        self.num_prompt = len(request.prompt)
        self.num_inputs = self.num_prompt + self.max_output_tokens - 1
        scores = request.sampling.prompt_logprobs is not None and self.choice == 0 and request.task is Task.GENERATE
        self.num_to_score = self.num_prompt if scores else 0
        self.is_steered = self.mask is not None or self.constraint is not None
        sampling = request.sampling
        plain = sampling.ignore_eos and not sampling.stop_token_ids and not sampling.stop and sampling.logprobs is None
        self.ends_by_length = plain and not self.is_steered and request.task is Task.GENERATE

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def next_mask(self) -> bytes | None:
        """Tokens that may come next, as in `RowMask.allowed`; None: every one."""
        return self.mask if self.constraint is None else self.masked(self.constraint.mask())

    def masked(self, formed: bytes) -> bytes:
        """Tokens that a form allows and the request, too."""
        if self.mask is None:
            return formed
        both = int.from_bytes(formed, "little") & int.from_bytes(self.mask, "little")
        return both.to_bytes(max(len(formed), len(self.mask)), "little")

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be reported."""
        return self.num_scored < self.num_to_score

    @property
    def needs_every_row(self) -> bool:
        """Whether its result depends on the row of every token, so that cached ones are of no use."""
        if self.request.task is Task.EMBED:
            return self.request.pooling is Pooling.MEAN
        return self.scores_prompt

    @property
    def num_uncomputed(self) -> int:
        """Known tokens still to be planned: neither computed nor in flight. Below 0: so many tokens are in flight that
        only the device knows.
        """
        return len(self.tokens) - self.num_computed - self.num_scheduled

    @property
    def num_plannable(self) -> int:
        """Tokens that a running sequence could be given to compute now. When every known one is computed or in flight
        it is the one that the newest step in flight will sample, unless that is certain to be the last.
        """
        planned_end = self.num_computed + self.num_scheduled
        num_known = len(self.tokens) - planned_end
        if num_known > 0:
            return num_known
        if self.constraint is not None:
            # What may come next depends on what came last.
            return 0
        return 1 if planned_end < self.num_inputs else 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]
