"""Memory: what a model's caches take under several layouts, as one report.

Owns the question (`MemoryQuestion`), the answer (`MemoryReport`) and its JSON, whose form docs/reference/inspect.md
documents. Prints nothing.
Invariant: for every layout and load, reserved bytes == needed bytes + the sum of waste by cause, and what is said to
fit is within the memory asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.inspect.facts import ModelFacts
from plait.inspect.layers import NumberType, memory_groups
from plait.inspect.layouts import make_layout
from plait.inspect.refusals import serving_refusals
from plait.kv.layouts.capacity import largest_context, most_sequences
from plait.kv.layouts.cuts import Cause, Cut
from plait.kv.layouts.geometry import MIX, Candidate, Geometry
from plait.kv.layouts.groups import Load, MemoryGroup, SequenceSize
from plait.kv.layouts.layout import Layout, Refused, Usage
from plait.kv.layouts.plait import plait_of
from plait.model.parts import OF_IMAGES, GroupKind

SCHEMA = "plait.inspect.memory/1"
MAX_SHOWN = 16
"""Different lengths that get rows of their own; a trace of more is one mix."""


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    model: ModelFacts
    draft: ModelFacts | None
    sizes: Mapping[tuple[int, int], int]
    """(tokens, image tokens) -> how many sequences."""
    memory_bytes: int
    cache: NumberType
    tokens_per_block: int
    ranks: int
    layouts: tuple[str, ...]
    base: str | None
    """The layout that others are compared with."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load under one layout."""

    load: Load
    usage: Usage
    """Of the load alone."""
    sequences: int | None
    """How many fit into the memory at once, in the load's proportions; None: without end."""
    full: Usage
    """Of as many whole copies of the load as fit, or of the load alone if that is none or without end."""
    repeated_tokens: int
    """Of a single sequence: tokens that need not be computed when the same prompt comes again."""

    @property
    def copies(self) -> int:
        """Whole ones that `full` is of; 0: it is of the load alone."""
        return 0 if self.sequences is None else self.sequences // self.load.count


@dataclass(frozen=True, slots=True)
class LayoutReport:
    name: str
    layout: Layout | Refused
    largest_context: int | None
    """Tokens of one sequence; None: any length."""
    lengths: tuple[LoadReport, ...]
    mix: LoadReport | None
    """All sequences in their proportions, if there are several of a length or too many lengths to show."""
    geometry: Geometry | None = None
    """How pages were chosen, where there was a choice."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    question: MemoryQuestion
    groups: tuple[MemoryGroup, ...]
    layouts: tuple[LayoutReport, ...]
    refusals: tuple[str, ...] = ()
    """What of the question `plait serve` would not run, and why."""

    @property
    def base(self) -> LayoutReport | None:
        return next((one for one in self.layouts if one.name == self.question.base), None)

    def json_object(self) -> dict[str, object]:
        question = self.question
        return {
            "schema": SCHEMA,
            "model": _model_object(question.model),
            "draft": None if question.draft is None else _model_object(question.draft),
            "settings": {
                "memory_bytes": question.memory_bytes,
                "kv_cache_dtype": str(question.cache),
                "block_size": question.tokens_per_block,
                "tensor_parallel_size": question.ranks,
            },
            "groups": [_group_object(group) for group in self.groups],
            "layouts": [_layout_object(one) for one in self.layouts],
            "compare": self._compare_object(),
            "serving_refuses": list(self.refusals),
        }

    def _compare_object(self) -> dict[str, object] | None:
        base = self.base
        if base is None:
            return None
        others = [one for one in self.layouts if one is not base and isinstance(one.layout, Layout)]
        return {"base": base.name, "layouts": [compared(one, base) for one in others]}


def answer(question: MemoryQuestion) -> MemoryReport:
    groups = memory_groups(question.model.layers, question.cache, question.model.numbers, question.ranks)
    drafts: list[MemoryGroup] = []
    if question.draft is not None:
        draft = question.draft
        drafts = list(memory_groups(draft.layers, question.cache, draft.numbers, question.ranks, prefix="draft "))
        groups += drafts
    apart = any(group.kind in OF_IMAGES for group in groups)
    loads = [
        (count, SequenceSize(tokens, images) if apart else SequenceSize(tokens + images))
        for (tokens, images), count in question.sizes.items()
    ]
    reports = tuple(_report(name, question, groups, loads) for name in question.layouts)
    refusals = serving_refusals(
        question.model,
        groups,
        draft_windows=any(group.kind in ("window", "chunked") for group in drafts),
        cache=question.cache,
        tokens_per_block=question.tokens_per_block,
        ranks=question.ranks,
        layouts=question.layouts,
    )
    return MemoryReport(question, tuple(groups), reports, refusals)


def _report(
    name: str, question: MemoryQuestion, groups: list[MemoryGroup], loads: list[tuple[int, SequenceSize]]
) -> LayoutReport:
    geometry = None
    if name == "plait":
        layout, geometry = plait_of(groups, question.tokens_per_block)
    else:
        layout = make_layout(name, groups, question.tokens_per_block)
    if isinstance(layout, Refused):
        return LayoutReport(name, layout, 0, (), None)
    memory = question.memory_bytes
    shown = loads if len(loads) <= MAX_SHOWN else []
    lengths = tuple(_load_report(layout, Load(((1, size),)), memory) for _, size in shown)
    mixed = not shown or any(count > 1 for count, _ in loads)
    mix = _load_report(layout, Load(tuple(loads)), memory) if mixed else None
    return LayoutReport(layout.name, layout, largest_context(layout, memory), lengths, mix, geometry)


def _load_report(layout: Layout, load: Load, memory: int) -> LoadReport:
    sequences = most_sequences(layout, load, memory)
    copies = 0 if sequences is None else sequences // load.count
    repeated = layout.repeated_tokens(load.sequences[0][1].tokens) if load.count == 1 else 0
    return LoadReport(load, layout.usage(load), sequences, layout.usage(load, copies or 1), repeated)


def ratio(one: int | None, base: int | None) -> float | None:
    """`one` by `base`; None where either has no end or the base is nothing."""
    return None if one is None or not base else one / base


def compared(one: LayoutReport, base: LayoutReport) -> dict[str, object]:
    mixes = None if one.mix is None or base.mix is None else ratio(one.mix.sequences, base.mix.sequences)
    return {
        "name": one.name,
        "largest_context_ratio": ratio(one.largest_context, base.largest_context),
        "sequences_ratios": [
            ratio(mine.sequences, other.sequences) for mine, other in zip(one.lengths, base.lengths, strict=False)
        ],
        "mix_ratio": mixes,
    }


def _model_object(facts: ModelFacts) -> dict[str, object]:
    return {
        "name": facts.name,
        "family": facts.family,
        "source": facts.source,
        "num_layers": facts.num_layers,
        "max_tokens": facts.max_tokens,
        "numbers": str(facts.numbers),
    }


def _group_object(group: MemoryGroup) -> dict[str, object]:
    return {
        "name": group.name,
        "kind": str(group.kind),
        "num_layers": group.num_layers,
        "window": group.window or None,
        "layer_bytes_per_token": group.token_bytes,
        "bytes_per_token": group.bytes_per_token,
        "bytes_per_state": group.num_layers * group.state_bytes,
        "state_parts": {part.name: group.num_layers * part.num_bytes for part in group.state_parts},
    }


def _layout_object(report: LayoutReport) -> dict[str, object]:
    layout = report.layout
    if isinstance(layout, Refused):
        return {"name": layout.name, "refused": layout.reason}
    return {
        "name": report.name,
        "refused": None,
        "page_bytes": layout.page_bytes,
        "spare_bytes": layout.spare_bytes,
        "hit_tokens": layout.hit_tokens,
        "unread_fraction_limit": unread_limit(layout),
        "largest_context_tokens": report.largest_context,
        "groups": [_cut_object(cut, layout) for cut in layout.cuts],
        "lengths": [_load_object(one) for one in report.lengths],
        "mix": None if report.mix is None else _load_object(report.mix),
        "geometry": None if report.geometry is None else _geometry_object(report.geometry),
    }


def _geometry_object(geometry: Geometry) -> dict[str, object]:
    return {
        "mix": [[{"sequences": count, "tokens": size.tokens} for count, size in load.sequences] for load in MIX],
        "num_candidates": geometry.num_candidates,
        "chosen": _candidate_object(geometry.shown[0]),
        "candidates": [_candidate_object(one) for one in geometry.shown],
        "raw": {"page_bytes": geometry.raw_page_bytes, "waste_fraction": geometry.raw_waste_fraction},
    }


def _candidate_object(one: Candidate) -> dict[str, object]:
    return {
        "page_bytes": one.page_bytes,
        "waste_fraction": one.waste_fraction,
        "waste_fractions": list(one.wastes),
        "groups": [
            {
                "name": cut.group.name,
                "tables": cut.num_tables,
                "blocks_per_page": cut.blocks_per_page,
                "padding_bytes": cut.block_padding_bytes // cut.num_tables,
            }
            for cut in one.cuts
        ],
    }


def _cut_object(cut: Cut, layout: Layout) -> dict[str, object]:
    content = cut.block_bytes * cut.num_tables - cut.layer_padding_bytes - cut.block_padding_bytes
    page_of_layer = (content + cut.block_padding_bytes) // cut.group.num_layers
    share = None
    if layout.shares:
        share = float(layout.shares[layout.cuts.index(cut)])
    return {
        "name": cut.group.name,
        "tokens_per_block": cut.tokens_per_block,
        "block_bytes": cut.block_bytes,
        "tables": cut.num_tables,
        "blocks_per_page": cut.blocks_per_page,
        "tokens_per_page": cut.tokens_per_block * cut.blocks_per_page,
        "padding_layers": cut.layer_padding_bytes // page_of_layer,
        "padding_fraction": cut.block_padding_bytes / content,
        "padded_fraction": cut.block_padding_bytes / (content + cut.block_padding_bytes),
        "memory_share": share,
    }


def unread_limit(layout: Layout) -> float:
    """What `unread_fraction` approaches as a sequence grows: nothing, unless a layout keeps what no layer reads."""
    kept = [cut for cut in layout.cuts if cut.keeps_all and cut.group.kind not in OF_IMAGES]
    total = sum(cut.group.bytes_per_token for cut in kept)
    needed = sum(cut.group.bytes_per_token for cut in kept if cut.group.kind is GroupKind.FULL)
    return 1 - needed / total if total else 0.0


def unread_fraction(usage: Usage) -> float:
    """The part of what is kept for a sequence's tokens that no layer will read; places without tokens are left out."""
    unread = usage.waste.get(Cause.OUT_OF_WINDOW, 0) + usage.waste.get(Cause.OTHER_ROWS, 0)
    return unread / (unread + usage.needed_bytes) if unread else 0.0


def _load_object(report: LoadReport) -> dict[str, object]:
    single = report.load.sequences[0][1] if report.load.count == 1 else None
    found: dict[str, object] = {"sequences_in_load": report.load.count}
    if single is not None:
        found |= {
            "tokens": single.tokens,
            "image_tokens": single.image_tokens,
            "repeated_tokens": report.repeated_tokens,
            "repeated_fraction": report.repeated_tokens / single.tokens if single.tokens else 0.0,
        }
    groups = [
        {
            "name": group.name,
            "blocks": group.blocks,
            "needed_bytes": group.needed_bytes,
            "reserved_bytes": group.reserved_bytes,
            "waste_by_cause": {str(cause): size for cause, size in group.waste.items()},
        }
        for group in report.usage.groups
    ]
    return found | {
        "alone": {**_usage_object(report.usage), "groups": groups},
        "sequences": report.sequences,
        "full": _usage_object(report.full) if report.copies else None,
    }


def _usage_object(usage: Usage) -> dict[str, object]:
    return {
        "needed_bytes": usage.needed_bytes,
        "reserved_bytes": usage.reserved_bytes,
        "waste_bytes": usage.waste_bytes,
        "waste_fraction": usage.waste_bytes / usage.reserved_bytes if usage.reserved_bytes else 0.0,
        "unread_fraction": unread_fraction(usage),
        "waste_by_cause": {str(cause): size for cause, size in usage.waste.items()},
    }
