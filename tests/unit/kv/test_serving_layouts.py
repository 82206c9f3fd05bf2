"""Layouts made real: which block tables, blocks and parts of the memory a program is served with."""

from __future__ import annotations

from fractions import Fraction

import pytest
from tests.unit.model.programs import tiny_program

from plait.core.errors import UsageError
from plait.core.ids import GroupId, SeqId
from plait.kv.cache import KVCache, Root
from plait.kv.layouts.serving import cut, cut_pair, groups_of
from plait.kv.layouts.vllm import vllm
from plait.kv.rules import MemoryRules
from plait.model.builder import ProgramBuilder
from plait.model.cache_type import CacheType
from plait.model.parts import CacheGroup, GroupKind
from plait.model.program import Program
from plait.model.visibility import CAUSAL, Visibility, window

F16 = CacheType.F16
MIB = 2**20
LIKE_GEMMA = [CAUSAL if layer % 6 == 5 else window(16) for layer in range(12)]
"""Two layers that see everything and ten with a window."""
LAYOUTS = ["paged", "uniform", "vllm", "max-page", "static", "manual:full=1:window=1"]


def like_gemma(layers: list[Visibility] = LIKE_GEMMA) -> Program:
    return tiny_program(*layers)


def hybrid(columns: int) -> Program:
    """Attention and a state of so many times 8 numbers, one layer each, as far as memory is concerned."""
    b = ProgramBuilder("hybrid")
    attention = b.kv_group("full", 1, 1, 8)
    states = b.group(CacheGroup(GroupId(0), "states", GroupKind.STATE, 1, state_parts=(8 * columns,)))
    b.span("all", "all")
    x = b.conv(b.embed("embed", 32, 8), "conv", columns + 1, states, 0)
    b.cache_write(x, x, attention, 0)
    b.sample(b.select(b.attend(x, attention, 0, 1)))
    return b.finish()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_kind_of_layer_is_cut_as_it_always_was(layout: str) -> None:
    program = tiny_program(CAUSAL, CAUSAL)
    name = "manual:full=1" if layout.startswith("manual") else layout
    cutting = cut(program, name, 16, F16)
    assert cutting.program is program
    assert cutting.plan(MIB).page_bytes == cut(program, "paged", 16, F16).plan(MIB).page_bytes
    assert (cutting.equal_blocks, cutting.tokens_per_block) == (False, 16)


def test_vllm_cuts_groups_of_equally_many_layers_and_equal_blocks() -> None:
    """2 full layers and 10 with a window: two of them to a group, as the design document of vLLM has it."""
    cutting = cut(like_gemma(), "vllm", 16, F16)
    plan = cutting.plan(MIB)
    assert sorted(group.group.num_layers for group in plan.groups) == [2] * 6
    assert {group.block_bytes for group in plan.groups} == {plan.page_bytes}
    assert sum(group.padding_bytes for group in plan.groups) == 0
    assert not cutting.rules(MemoryRules()).tails


def test_the_last_group_of_vllm_is_padded_as_its_prediction_says() -> None:
    layers = [CAUSAL] * 5 + [window(16)] * 29
    program = like_gemma(layers)
    cutting = cut(program, "vllm", 16, F16)
    plan = cutting.plan(16 * MIB)
    assert [group.group.num_layers for group in plan.groups] == [5, 5, 5, 5, 5, 5, 4]
    assert len({group.block_bytes for group in plan.groups}) == 1
    predicted = vllm(groups_of(program.cache_groups, F16, CacheType.F32), 16)
    assert [one.num_tables for one in predicted.cuts] == [1, 6]  # type: ignore[union-attr]
    padding = sum(group.padding_bytes for group in plan.groups)
    assert padding == sum(one.layer_padding_bytes for one in predicted.cuts)  # type: ignore[union-attr]


def test_a_state_makes_the_blocks_of_attention_larger_under_vllm() -> None:
    """A state of 800 bytes is as large as keys and values of 25 tokens: 32 is asked for by vLLM's rule (16 x 2)."""
    cutting = cut(hybrid(25), "vllm", 16, F16)
    assert cutting.tokens_per_block == 32
    plan = cutting.plan(MIB)
    assert {group.block_bytes for group in plan.groups} == {32 * 32}
    assert [group.padding_bytes for group in plan.groups] == [0, 32 * 32 - 800]


def test_a_state_larger_than_any_block_is_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError, match=r"values of 2512 tokens of a layer, and blocks hold 256 at most; serve"):
        cut(hybrid(2500), "vllm", 16, F16)


def test_static_halves_what_does_not_grow() -> None:
    cutting = cut(like_gemma(), "static", 16, F16)
    full, windows = Fraction(2), Fraction(10, 2)
    by_kind = {group.kind: share for group, share in zip(cutting.program.cache_groups, cutting.shares, strict=True)}
    assert by_kind == {GroupKind.FULL: full / (full + windows), GroupKind.WINDOW: windows / (full + windows)}
    plan = cutting.plan(MIB)
    assert sum(plan.own_pages) == plan.num_pages
    assert min(plan.own_pages) >= 1


def test_shares_by_hand_go_by_name_or_kind() -> None:
    by_name = {group.name: group.kind for group in like_gemma().cache_groups}
    windows = next(name for name, kind in by_name.items() if kind is GroupKind.WINDOW)
    for text in (f"manual:{windows}=3:full=1", "manual:full=1:window=3"):
        cutting = cut(like_gemma(), text, 16, F16)
        groups = cutting.program.cache_groups
        shares = {group.kind: share for group, share in zip(groups, cutting.shares, strict=True)}
        assert shares == {GroupKind.FULL: Fraction(1, 4), GroupKind.WINDOW: Fraction(3, 4)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("manual:full=1", "no share for window 16; write manual:GROUP=SHARE"),
        ("manual:full=1:window=1:state=2", "no group is called state; write"),
    ],
)
def test_shares_that_do_not_fit_the_model_are_refused(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        cut(like_gemma(), text, 16, F16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_that_is_said_to_hold_a_sequence_holds_it(layout: str) -> None:
    for program in (like_gemma(), hybrid(7)):
        name = layout.replace("window", "state") if layout.startswith("manual") and program.name == "hybrid" else layout
        cutting = cut(program, name, 16, F16)
        needs = cutting.sequence_bytes()
        if needs is None:
            continue
        for num_tokens in (16, 160, 496):
            plan = cutting.plan(max(needs(num_tokens), len(program.cache_groups) * cutting.plan(MIB).page_bytes))
            kv = KVCache(plan, cutting.program.cache_groups)
            assert kv.capacity_tokens >= num_tokens


def test_whoever_starts_a_baseline_is_told_what_it_is() -> None:
    words = cut(like_gemma(), "static", 16, F16).described()
    assert words is not None
    assert words.startswith("cache layout static, to compare: pages of ")
    assert "full: 5 x 2 layers, 28.6% of the memory for good" in words
    assert cut(tiny_program(CAUSAL), "paged", 16, F16).described() is None


@pytest.mark.parametrize("draft", [[CAUSAL], [CAUSAL] * 5, LIKE_GEMMA[:6]], ids=["one layer", "five layers", "windows"])
@pytest.mark.parametrize("target", [[CAUSAL] * 5, [CAUSAL] * 7, LIKE_GEMMA], ids=["five layers", "seven", "windows"])
def test_a_draft_model_lies_on_the_pages_of_the_target(target: list[Visibility], draft: list[Visibility]) -> None:
    cutting = cut_pair(like_gemma(target), like_gemma(draft), "paged", 16, F16)
    assert cutting.draft is not None
    ours, its = cutting.plan_pair(8 * MIB)
    assert cutting.plan(8 * MIB) == ours
    assert (ours.page_bytes, ours.num_pages) == (its.page_bytes, its.num_pages)
    assert tuple(one.group for one in ours.groups) == cutting.program.cache_groups
    assert tuple(one.group for one in its.groups) == cutting.draft.cache_groups
    assert sum(one.group.num_layers for one in its.groups) == len(draft)
    kv = KVCache(ours, cutting.program.cache_groups, drafts=its)
    assert kv.drafts.reserve(SeqId(1), 100, 0) is not None
    kv.check()
    # A sequence of the length that both were planned for has room for both.
    sequence_bytes = cutting.sequence_bytes()
    assert sequence_bytes is not None
    tight, beside = cutting.plan_pair(sequence_bytes(100))
    alone = KVCache(tight, cutting.program.cache_groups, drafts=beside)
    assert alone.drafts.reserve(SeqId(1), 100, 0) is not None
    alone.open(SeqId(0), Root("fingerprint"), alone.no_hit(), 0.0)
    assert alone.reserve(SeqId(0), 100, 0.0, alone.extent(SeqId(0), 100, 16)) is not None
    assert SeqId(1) in alone.drafts


def test_too_little_memory_for_a_pair_is_refused_with_what_it_takes() -> None:
    cutting = cut_pair(like_gemma([CAUSAL]), like_gemma([CAUSAL]), "paged", 16, F16)
    page = cutting.plan_pair(MIB)[0].page_bytes
    with pytest.raises(UsageError, match=f"give at least {2 * page} bytes, or no draft model"):
        cutting.plan_pair(2 * page - 1)
    with pytest.raises(UsageError, match="--kv-layout static has no place for a draft model; take --kv-layout paged"):
        cut_pair(like_gemma([CAUSAL]), like_gemma([CAUSAL]), "static", 16, F16)
