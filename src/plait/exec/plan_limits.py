"""Plan limits: what an executor with a model's tables refuses in a plan, before any of it is carried out.

Owns the plans that ask for what neither the reference nor the native executor does, or look up what the tables do not
hold. What is wrong with a plan on any executor, simulated ones included, is for `plait.exec.intake` to find.
Invariant: a plan that passed can be carried out without a further check of its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plait.core.ids import GroupId
from plait.core.step import Chunk, Drafts, FromDevice, Join, OutputKind, RowMask, StepPlan
from plait.model.cache_layout import CacheLayout
from plait.model.ops import Embed, EmbedSource, Rope
from plait.model.pooling import has_pool
from plait.model.program import Program


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What the numbers in a plan may be: tables end where these do, and an index behind them must not be looked up."""

    num_entries: int
    """Token ids that can be embedded."""
    vocab_size: int
    """Token ids that can be sampled or scored."""
    num_positions: int
    pools: bool = False
    """Whether rows can be pooled."""
    num_states: Mapping[GroupId, int] = field(default_factory=dict)
    """Blocks of every group of states."""

    @classmethod
    def of(cls, program: Program, layout: CacheLayout) -> PlanLimits:
        by_token, by_position = [program.vocab_size], [1 << 62]
        for op in program.ops:
            if isinstance(op, Embed):
                sizes = by_token if op.source is EmbedSource.TOKENS else by_position
                sizes.append(program.weights[op.table].shape[0])
            elif isinstance(op, Rope):
                by_position.append(op.spec.max_positions)
        num_states = {one.group.id: one.num_blocks for one in layout.groups if one.group.is_state}
        return cls(min(by_token), program.vocab_size, min(by_position), has_pool(program), num_states)

    def fault(self, plan: StepPlan) -> str | None:
        """The first thing that no plan for this executor may ask. The plan does not contradict itself."""
        if plan.encodes:
            return f"step {plan.step} encodes images, which this executor does not"
        fault = next(self._faults(plan), None)
        return None if fault is None else f"step {plan.step}: {fault}"

    def _faults(self, plan: StepPlan) -> Iterator[str]:
        """Runs for every chunk of every step: texts are made only where something is wrong."""
        for change in plan.roster:
            if isinstance(change, Join) and (fault := self._join_fault(change)) is not None:
                yield fault
        for chunk in plan.chunks:
            if chunk.is_unknown and chunk.start + chunk.num_tokens <= self.num_positions:
                continue
            if (fault := self._chunk_fault(chunk)) is not None:
                yield f"chunk of sequence {chunk.seq} {fault}"
        for mask in plan.sampling:
            if (fault := self._mask_fault(mask, plan.chunks)) is not None:
                yield fault

    def _join_fault(self, join: Join) -> str | None:
        if join.adapter is not None:
            return f"sequence {join.seq} joins with adapter {join.adapter!r}; this executor has none"
        if join.num_imported:
            return f"sequence {join.seq} joins with {join.num_imported} imported tokens; this executor takes none"
        params = join.params
        named = [*join.history, *join.eos_token_ids, *params.stop_token_ids, *(token for token, _ in params.logit_bias)]
        fault = _token_fault(named, self.vocab_size)
        return None if fault is None else f"sequence {join.seq} joins {fault}"

    def _chunk_fault(self, chunk: Chunk) -> str | None:
        if chunk.drafts is not None and (fault := self._draft_fault(chunk, chunk.drafts)) is not None:
            return fault
        if chunk.snapshots and (fault := self._snapshot_fault(chunk)) is not None:
            return fault
        positions = chunk.positions or (chunk.start + chunk.num_tokens - 1,)
        if not 0 <= min(positions) <= max(positions) < self.num_positions:
            return f"has positions up to {max(positions)}; they must lie in [0, {self.num_positions})"
        for output in chunk.outputs:
            if output.kind is OutputKind.TAPS or (output.kind is OutputKind.POOL and not self.pools):
                return f"has outputs of kind {output.kind}, which this executor does not have"
            if output.targets and (fault := _token_fault(output.targets, self.vocab_size)) is not None:
                return f"scores {fault}"
        if isinstance(chunk.tokens, FromDevice):
            return None
        fault = _token_fault(chunk.tokens, self.num_entries)
        return None if fault is None else f"is given {fault}"

    def _draft_fault(self, chunk: Chunk, drafts: Drafts) -> str | None:
        if not drafts.ids or not drafts.is_chain or chunk.positions is not None:
            return "has a tree of drafts, or none in a list; this executor verifies chains"
        last_known = chunk.num_tokens - len(drafts.ids) - 1
        sampled = [(out.first, out.num_rows) for out in chunk.outputs if out.kind is OutputKind.SAMPLE]
        if sampled != [(last_known, len(drafts.ids) + 1)] or chunk.outputs[-1].kind is not OutputKind.SAMPLE:
            return f"has drafts behind row {last_known}, but not just the rows from there on sample, as its last output"
        fault = _token_fault(drafts.ids, min(self.num_entries, self.vocab_size))
        return None if fault is None else f"is given as a draft {fault}"

    def _snapshot_fault(self, chunk: Chunk) -> str | None:
        for one in chunk.snapshots:
            if not 0 <= one.block < self.num_states.get(one.group, 0):
                return f"has a snapshot into block {one.block} of group {one.group}, which is no state"
        places = {(one.group, one.offset) for one in chunk.snapshots}
        blocks = {(one.group, one.block) for one in chunk.snapshots}
        if not len(places) == len(blocks) == len(chunk.snapshots):
            return "has two snapshots of one state or into one block"
        return None

    def _mask_fault(self, mask: RowMask, chunks: Sequence[Chunk]) -> str | None:
        if len(mask.allowed) * 8 < self.vocab_size:
            return f"a mask of sequence {mask.seq} has {len(mask.allowed)} bytes for {self.vocab_size} tokens"
        outputs = [out for chunk in chunks if chunk.seq == mask.seq for out in chunk.outputs]
        sampled = [out for out in outputs if out.kind is OutputKind.SAMPLE]
        if not any(out.first <= mask.row < out.first + out.num_rows for out in sampled):
            return f"a mask names row {mask.row} of sequence {mask.seq}, which samples nothing there"
        return None


def _token_fault(tokens: Sequence[int], limit: int) -> str | None:
    if not tokens or 0 <= min(tokens) <= max(tokens) < limit:
        return None
    wrong = next(token for token in tokens if not 0 <= token < limit)
    return f"token {wrong}; ids go from 0 to {limit - 1}"
