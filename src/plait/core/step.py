"""Steps: the one closed type that goes from control to device, and the one that comes back.

Owns `StepPlan` and its parts, `StepResult`, and `StepShape`, from which steps are priced. A plan has no phase: a
chunk of one token is decode, of five hundred is prefill, of one token and four drafts is verify. Nothing else may be
sent beside a plan.
Invariant: a plan is frozen when built.

Order inside a step: roster and blocks -> moves -> encodes -> chunks -> snapshots -> sampling.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams


class FromDevice(Enum):
    """Marks an input token that control does not know yet: the token the row sampled last."""

    LAST_SAMPLED = "last sampled"


FROM_DEVICE = FromDevice.LAST_SAMPLED

STEP_PROGRAM = "step"
"""The program of a model's own steps; every executor has it."""

DRAFT_PROGRAM = "draft"
"""The program of a draft model, where there is one."""


class OutputKind(StrEnum):
    SAMPLE = "sample"
    """Each row yields a token by the row's sampling parameters (and log-probabilities if they ask for them)."""
    LOGPROBS = "logprobs"
    """Each row yields the log-probability of its given target and of `top` alternatives: echo, scoring, perplexity."""
    POOL = "pool"
    """Rows are added, in token order, to the sequence's running pool, which begins empty when it joins."""
    TAPS = "taps"
    """Rows' tapped hidden states are kept on the device for a drafter."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Rows [first, first + num_rows) of a chunk give outputs of one kind. `targets`: one token id per row (LOGPROBS
    only).
    """

    first: int
    num_rows: int
    kind: OutputKind
    targets: tuple[int, ...] = ()
    top: int = 0


SAMPLES_ONE = (Outputs(0, 1, OutputKind.SAMPLE),)
"""What nearly every chunk gives, one that computes one token; made once, so that it is quickly compared."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Guessed tokens behind a chunk's last known token. `parents[i]` is the index of draft i's parent, -1 for the
    known token.
    """

    ids: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.ids) - 1))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """After the chunk's token at `offset`, copy the running state of `group` into `block`, bit for bit."""

    offset: int
    group: GroupId
    block: BlockId


class Chunk(NamedTuple):
    """The part of one sequence computed in one step: slots [start, start + num_tokens) of its block tables.

    `tokens` are the known ids, or FROM_DEVICE for a single unknown one; `num_tokens` counts them and the drafts.
    `positions` are rope positions where they differ from slots (draft trees); None means start, start + 1, ...
    """

    seq: SeqId
    start: int
    num_tokens: int
    tokens: tuple[int, ...] | FromDevice
    drafts: Drafts | None = None
    outputs: tuple[Outputs, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    positions: tuple[int, ...] | None = None

    @classmethod
    def of_unknown(cls, seq: SeqId, start: int, num_tokens: int = 1) -> Chunk:
        """One that computes the token that was sampled last and samples the next, as nearly all do; in a run,
        `num_tokens` times. Made without the constructor, whose reading of arguments costs more than the rest.
        """
        return tuple.__new__(cls, (seq, start, num_tokens, FROM_DEVICE, None, SAMPLES_ONE, (), None))

    @property
    def is_unknown(self) -> bool:
        """Whether it is like one that `of_unknown` makes."""
        return self[3:] == UNKNOWN

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def num_drafts(self) -> int:
        return 0 if self.drafts is None else len(self.drafts.ids)

    @property
    def num_outputs(self) -> int:
        outputs = self.outputs
        return outputs[0].num_rows if len(outputs) == 1 else sum(out.num_rows for out in outputs)


UNKNOWN = (FROM_DEVICE, None, SAMPLES_ONE, (), None)
"""What follows `num_tokens` in a chunk that `Chunk.of_unknown` makes."""


@dataclass(frozen=True, slots=True)
class Join:
    """From this step on the sequence owns an executor row: sampling parameters, random key, penalty counts, last token.

    `history`: tokens that penalties must know and no chunk will bring (prefix hit, earlier outputs after a
    preemption); empty when the parameters have no penalty. Its first `num_prompt` tokens, counted from the start of
    the sequence, are prompt.
    """

    seq: SeqId
    row: int
    params: SamplingParams
    seed: int
    choice: int
    num_prompt: int
    history: tuple[int, ...] = ()
    adapter: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that `min_tokens` forbids: every end-of-sequence token and the request's stop tokens."""
    num_imported: int = 0
    """Slots of the granted blocks, from the first on, that were filled from another device before this step begins."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The row is free from this step on. Preemption is leaving now and joining later."""

    seq: SeqId


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """Entries [first, first + len(blocks)) of the sequence's block table of `group`. Tables live with the row: a join
    sends all of it.
    """

    seq: SeqId
    group: GroupId
    first: int
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `num_tokens` token slots of every layer of `group` before any chunk runs (copy-on-write of a partly
    matched block). A state is one token in slot 0: such a move restores a checkpoint or rolls a draft back.
    """

    group: GroupId
    src_block: BlockId
    src_slot: int
    dst_block: BlockId
    dst_slot: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Encode:
    """Run the encoder program over one image and keep its `num_rows` rows in `blocks` of an embedding or cross group.

    How the image itself reaches the device is left open until there is a family with an encoder (docs/adr/0005).
    """

    seq: SeqId
    content_hash: bytes
    num_rows: int
    group: GroupId
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class RowMask:
    """Allowed tokens of one SAMPLE row: bit t of `allowed` (little-endian bytes) permits token t."""

    seq: SeqId
    row: int
    allowed: bytes


class ChunkShape(NamedTuple):
    start: int
    num_tokens: int
    num_outputs: int
    num_snapshots: int = 0
    """Places inside the chunk at which running states are kept."""
    num_drafts: int = 0
    """Of `num_tokens`, those that are guesses."""

    @classmethod
    def of_one(cls, start: int) -> ChunkShape:
        """Of a chunk that computes one token and samples the next; made as `Chunk.of_unknown` is."""
        return tuple.__new__(cls, (start, 1, 1, 0, 0))

    @classmethod
    def of_verify(cls, start: int, num_drafts: int, num_snapshots: int = 0) -> ChunkShape:
        """Of a chunk that computes one token and verifies guesses behind it."""
        return cls(start, 1 + num_drafts, 1 + num_drafts, num_snapshots, num_drafts)

    @property
    def is_decode(self) -> bool:
        """Whether it goes on behind one known token, with guesses or without."""
        return self.num_tokens - self.num_drafts == 1


@dataclass(frozen=True, slots=True)
class StepShape:
    """All that a price depends on; windows cannot be priced from counts alone, so every chunk is there."""

    chunks: tuple[ChunkShape, ...]
    encoded_rows: tuple[int, ...] = ()
    """Rows of each image that is encoded."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)
    """Once asked for: prices are kept by shape, and one shape is looked for again and again. 0: not asked for yet."""

    def __hash__(self) -> int:
        known = self._hash
        if not known:
            known = hash((self.chunks, self.encoded_rows)) or 1
            object.__setattr__(self, "_hash", known)
        return known

    @property
    def num_tokens(self) -> int:
        return sum([chunk.num_tokens for chunk in self.chunks])

    @property
    def num_outputs(self) -> int:
        return sum([chunk.num_outputs for chunk in self.chunks])

    @property
    def num_snapshots(self) -> int:
        return sum([chunk.num_snapshots for chunk in self.chunks])


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that a device does in one launch on one lane. `program` names one of the loaded programs: "step", or "draft"
    for a draft model, whose sequences, rows and cache groups are its own.

    With `num_steps` above 1 it is a run (docs/adr/0013): so many steps in a row, of which each computes one token of
    every chunk, taken from the device. `blocks` are those of all its steps, in order; everything else is the first's.
    """

    step: StepId
    lane: LaneId
    roster: tuple[Join | Leave, ...]
    blocks: tuple[BlockGrant, ...]
    moves: tuple[Move, ...]
    chunks: tuple[Chunk, ...]
    encodes: tuple[Encode, ...] = ()
    sampling: tuple[RowMask, ...] = ()
    program: str = STEP_PROGRAM
    num_steps: int = 1

    @property
    def last_step(self) -> StepId:
        """The steps of a run have ids of their own, from `step` to this."""
        return StepId(self.step + self.num_steps - 1)

    def shape(self, place: int = 0) -> StepShape:
        """Of the step, or of the one at `place` in a run."""
        new, kind = tuple.__new__, ChunkShape  # as `ChunkShape.of_one`, without a call for each
        if self.num_steps > 1:
            return StepShape(tuple([new(kind, (c[1] + place, 1, 1, 0, 0)) for c in self.chunks]))
        chunks = [
            new(kind, (c.start, 1, 1, 0, 0))
            if c.num_tokens == 1 and c.outputs is SAMPLES_ONE and not c.snapshots
            else _shape_of(c)
            for c in self.chunks
        ]
        return StepShape(tuple(chunks), tuple([encode.num_rows for encode in self.encodes]))


def _shape_of(chunk: Chunk) -> ChunkShape:
    num_snapshots = len({snapshot.offset for snapshot in chunk.snapshots})
    return ChunkShape(chunk.start, chunk.num_tokens, chunk.num_outputs, num_snapshots, chunk.num_drafts)


class StepStatus(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """Every chunk was cancelled; nothing may be published."""
    FAILED = "failed"


class SeqStatus(StrEnum):
    OK = "ok"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of `token` and of the most likely tokens, descending, ties by lowest id."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SeqResult(NamedTuple):
    """What one chunk gave. `num_computed` counts slots written and accepted; `tokens` are the tokens sampled
    (accepted ones first).
    """

    seq: SeqId
    status: SeqStatus
    num_computed: int = 0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    num_accepted: int = 0
    pooled: tuple[float, ...] | None = None
    """The mean of all rows that were pooled since the sequence joined, if some were in this chunk."""
    error: str | None = None

    @classmethod
    def of_tokens(cls, seq: SeqId, num_computed: int, tokens: tuple[int, ...]) -> SeqResult:
        """Of a chunk that is OK and gave tokens alone, as nearly all do; made as `Chunk.of_unknown` is."""
        return tuple.__new__(cls, (seq, SeqStatus.OK, num_computed, tokens, (), (), 0, None, None))

    @property
    def is_token(self) -> bool:
        """Whether it is OK and gave one token, and nothing besides but its log-probabilities, as nearly all do."""
        _, status, num_computed, tokens, _, prompt_logprobs, _, pooled, _ = self
        is_one = num_computed == 1 and len(tokens) == 1
        return is_one and status is SeqStatus.OK and not prompt_logprobs and pooled is None


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished step, or run of steps. `start_s` and `end_s` are on the executor's clock; `workers` is how many
    workers took part.
    """

    step: StepId
    lane: LaneId
    status: StepStatus
    start_s: float
    end_s: float
    workers: int
    seqs: tuple[SeqResult, ...]
    ends_s: tuple[float, ...] = ()
    """Of a run: when each of its steps ended. Every sequence has a token of each."""

    @property
    def num_steps(self) -> int:
        return len(self.ends_s) or 1


def plan_fault(plan: StepPlan) -> str | None:
    """The first way in which a plan contradicts itself, or None. Executors refuse a faulty plan: it is our bug."""
    if len({chunk.seq for chunk in plan.chunks}) < len(plan.chunks):
        twice = next(seq for seq, count in Counter(chunk.seq for chunk in plan.chunks).items() if count > 1)
        return f"sequence {twice} has two chunks in step {plan.step}"
    if plan.num_steps != 1:
        return _run_fault(plan)
    for chunk in plan.chunks:
        if chunk.is_unknown and chunk.num_tokens == 1 and chunk.start >= 0:
            continue
        fault = _chunk_fault(chunk)
        if fault:
            return f"chunk of sequence {chunk.seq} in step {plan.step}: {fault}"
    return None


def _run_fault(plan: StepPlan) -> str | None:
    """Steps of a run differ in where their chunks start, and in nothing else."""
    extra = plan.moves or plan.encodes or plan.sampling
    if extra or any(isinstance(change, Join) for change in plan.roster):
        return f"step {plan.step} begins a run of {plan.num_steps} steps but joins, copies, encodes or masks something"
    for chunk in plan.chunks:
        known = chunk.tokens is not FROM_DEVICE or chunk.drafts or chunk.snapshots or chunk.positions
        if chunk.num_tokens != plan.num_steps or known or chunk.outputs != SAMPLES_ONE:
            return f"chunk of sequence {chunk.seq} does not sample one token in each of {plan.num_steps} steps"
    return None


def _chunk_fault(chunk: Chunk) -> str | None:
    known = 1 if isinstance(chunk.tokens, FromDevice) else len(chunk.tokens)
    drafted = len(chunk.drafts.ids) if chunk.drafts else 0
    if known < 1 or known + drafted != chunk.num_tokens:
        return f"{known} known and {drafted} draft tokens but num_tokens {chunk.num_tokens}"
    if chunk.start < 0:
        return f"start {chunk.start} is negative"
    if chunk.positions is not None and len(chunk.positions) != chunk.num_tokens:
        return f"{len(chunk.positions)} positions for {chunk.num_tokens} tokens"
    if chunk.drafts is not None and (fault := _draft_fault(chunk.drafts)):
        return fault
    for snapshot in chunk.snapshots:
        if not 0 <= snapshot.offset < chunk.num_tokens:
            return f"a snapshot behind token {snapshot.offset} of {chunk.num_tokens} tokens"
    for out in chunk.outputs:
        if out.first < 0 or out.num_rows < 1 or out.first + out.num_rows > chunk.num_tokens:
            return f"output rows [{out.first}, {out.first + out.num_rows}) lie outside {chunk.num_tokens} tokens"
        if out.kind is OutputKind.LOGPROBS and len(out.targets) != out.num_rows:
            return f"{len(out.targets)} targets for {out.num_rows} scored rows"
    return None


def _draft_fault(drafts: Drafts) -> str | None:
    if len(drafts.parents) != len(drafts.ids):
        return f"{len(drafts.parents)} parents for {len(drafts.ids)} drafts"
    for place, parent in enumerate(drafts.parents):
        if not -1 <= parent < place:
            return f"draft {place} has parent {parent}; a parent comes before its child"
    return None
