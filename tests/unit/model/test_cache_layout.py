"""Cache layout: every byte of the pool has exactly one meaning for each group, and pages hold whole blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.model.programs import LLAMA_8B, SMOLLM2, encoder_program, hybrid_program, one_span, tiny_program

from plait.core.errors import InvariantError, UsageError
from plait.core.ids import BlockId, GroupId
from plait.model.cache_layout import CacheLayout, GroupLayout, plan_layout
from plait.model.cache_type import CacheType
from plait.model.llama import llama_program
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.visibility import CAUSAL, window

MIB = 1 << 20


def kv_layout(layers: int = 2, heads: int = 3, dim_k: int = 4, dim_v: int = 5, tokens: int = 8) -> GroupLayout:
    group = CacheGroup(GroupId(0), "full", GroupKind.FULL, layers, heads, dim_k, dim_v)
    return GroupLayout(group, tokens_per_block=tokens, cache_type=CacheType.F16, num_blocks=7)


def state_layout(*parts: int) -> GroupLayout:
    group = CacheGroup(GroupId(0), "states", GroupKind.STATE, num_layers=3, state_parts=parts)
    return GroupLayout(group, tokens_per_block=0, cache_type=CacheType.F32, num_blocks=7)


def test_smollm2_blocks_have_the_published_size() -> None:
    layout = plan_layout(llama_program(SMOLLM2), memory_bytes=1024 * MIB, cache_type=CacheType.F16)
    assert layout.groups[0].block_bytes == 23_040 * 32
    assert layout.page_bytes == 23_040 * 32
    assert layout.num_pages == 1024 * MIB // (23_040 * 32)


def test_llama_8b_blocks_have_the_published_size() -> None:
    layout = plan_layout(
        llama_program(LLAMA_8B), memory_bytes=1024 * MIB, cache_type=CacheType.F16, tokens_per_block=16
    )
    assert layout.groups[0].block_bytes == 131_072 * 16


@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    dim_k=st.integers(1, 5),
    dim_v=st.integers(1, 5),
    tokens=st.sampled_from([1, 4, 8]),
)
def test_key_and_value_regions_tile_a_block_without_gap_or_overlap(
    layers: int, heads: int, dim_k: int, dim_v: int, tokens: int
) -> None:
    layout = kv_layout(layers, heads, dim_k, dim_v, tokens)
    regions = []
    for slot, head in product(range(layers), range(heads)):
        regions.append((layout.k_offset(slot, head), 2 * tokens * dim_k))
        regions.append((layout.v_offset(slot, head), 2 * tokens * dim_v))
    end = 0
    for offset, size in regions:
        assert offset == end
        end += size
    assert end == layout.block_bytes


def test_offsets_of_a_block_written_out() -> None:
    layout = kv_layout(layers=2, heads=3, dim_k=4, dim_v=5, tokens=8)
    assert layout.head_bytes == 8 * (4 + 5) * 2
    assert layout.layer_bytes == 3 * 144
    assert layout.k_offset(slot=1, head=2) == 432 + 2 * 144
    assert layout.v_offset(slot=1, head=2) == 432 + 2 * 144 + 8 * 4 * 2
    assert layout.block_offset(BlockId(6)) == 6 * 864


def test_state_parts_tile_a_block() -> None:
    layout = state_layout(6, 10)
    places = [layout.state_offset(slot, part) for slot in range(3) for part in range(2)]
    assert places == [0, 24, 64, 88, 128, 152]
    assert layout.block_bytes == 192


def test_blocks_for_a_number_of_tokens() -> None:
    attention, states = kv_layout(tokens=8), state_layout(4)
    assert [attention.blocks_for(n) for n in (0, 1, 8, 9, 16, 17)] == [0, 1, 1, 2, 2, 3]
    assert [states.blocks_for(n) for n in (0, 1, 1000)] == [0, 1, 1]


def mixed() -> Program:
    """Two layers with a window beside one that keeps everything."""
    return tiny_program(window(8), window(8), CAUSAL)


def test_a_page_is_the_least_common_multiple_of_the_block_sizes() -> None:
    layout = plan_layout(mixed(), memory_bytes=MIB, tokens_per_block=4)
    sizes = [group.block_bytes for group in layout.groups]
    assert sizes == [2 * 128, 128]
    assert layout.page_bytes == 256
    assert [layout.blocks_per_page(GroupId(g)) for g in (0, 1)] == [1, 2]


def test_every_group_could_fill_the_whole_pool() -> None:
    layout = plan_layout(hybrid_program(), memory_bytes=MIB, tokens_per_block=4, cache_type=CacheType.F16)
    assert layout.pool_bytes <= MIB < layout.pool_bytes + layout.page_bytes
    for group in layout.groups:
        assert group.num_blocks * group.block_bytes == layout.pool_bytes
        assert layout.page_bytes % group.block_bytes == 0


def test_states_have_a_number_type_of_their_own() -> None:
    layout = plan_layout(hybrid_program(), memory_bytes=MIB, cache_type=CacheType.F16, state_type=CacheType.F32)
    states, images = layout.groups
    assert (states.cache_type, states.tokens_per_block) == (CacheType.F32, 0)
    assert states.block_bytes == 2 * (14 * 3 + 24) * 4
    assert (images.cache_type, images.tokens_per_block) == (CacheType.F16, 32)
    assert images.block_bytes == 32 * 8 * 2


@pytest.mark.parametrize(("wanted", "page_bytes"), [(1, 256), (2, 256), (3, 512), (4, 512), (5, 768)])
def test_a_page_holds_as_many_of_the_smallest_blocks_as_asked(wanted: int, page_bytes: int) -> None:
    layout = plan_layout(mixed(), memory_bytes=MIB, tokens_per_block=4, blocks_per_page_min=wanted)
    assert layout.page_bytes == page_bytes
    assert layout.page_bytes // 128 >= wanted


def test_memory_for_one_page_of_each_group_is_enough() -> None:
    assert plan_layout(mixed(), memory_bytes=512, tokens_per_block=4).num_pages == 2


@pytest.mark.parametrize("memory_bytes", [0, 255, 256, 511])
def test_too_little_memory_says_how_much_is_needed(memory_bytes: int) -> None:
    with pytest.raises(UsageError) as caught:
        plan_layout(mixed(), memory_bytes=memory_bytes, tokens_per_block=4)
    text = str(caught.value)
    assert text.startswith(f"{memory_bytes} bytes of cache memory are too few")
    assert "at least 512 bytes" in text
    assert "\n" not in text


@pytest.mark.parametrize("tokens", [0, -8, 3, 24, 512])
def test_blocks_do_not_straddle_the_key_tiles_of_attention(tokens: int) -> None:
    with pytest.raises(UsageError, match=f"^{tokens} tokens per block do not divide 256; use a power of two"):
        plan_layout(mixed(), memory_bytes=MIB, tokens_per_block=tokens)


def test_a_program_without_caches_needs_no_memory() -> None:
    program = one_span(lambda b: b.sample(b.linear(b.select(b.embed("embed", 32, 8)), "head", 32)))
    assert plan_layout(program, memory_bytes=0) == CacheLayout(0, 0, ())


def test_an_encoders_group_is_laid_out_like_any_other() -> None:
    layout = plan_layout(encoder_program(), memory_bytes=4096, tokens_per_block=4)
    assert layout.groups[0].block_bytes == 4 * (4 + 4) * 4


def test_a_layout_that_contradicts_itself_is_our_fault() -> None:
    layout = plan_layout(mixed(), memory_bytes=MIB, tokens_per_block=4)
    with pytest.raises(InvariantError, match="do not hold whole blocks"):
        replace(layout, page_bytes=layout.page_bytes + 1)
    with pytest.raises(InvariantError, match="has 4096 blocks in 5 pages"):
        replace(layout, num_pages=5)
    with pytest.raises(InvariantError, match="layout of group 1 stands at 0"):
        replace(layout, groups=layout.groups[::-1])


def test_a_cache_of_eight_bits_holds_whole_sixteens_and_a_scale_for_every_vector() -> None:
    layout = plan_layout(llama_program(SMOLLM2), memory_bytes=1024 * MIB, cache_type=CacheType.INT8)
    assert layout.groups[0].block_bytes == 32 * 30 * 3 * 2 * (64 + 4)
    assert [CacheType.INT8.vector_bytes(width) for width in (0, 1, 16, 17, 80)] == [0, 20, 20, 36, 84]


def test_blocks_of_eight_bits_have_sixteen_tokens_or_more() -> None:
    with pytest.raises(UsageError, match=r"8 tokens per block are too few for a cache of int8.*use --block-size 16"):
        plan_layout(llama_program(SMOLLM2), memory_bytes=MIB, tokens_per_block=8, cache_type=CacheType.INT8)


def test_equal_blocks_are_padded_to_the_largest() -> None:
    layout = plan_layout(mixed(), memory_bytes=MIB, tokens_per_block=4, equal_blocks=True)
    plain = plan_layout(mixed(), memory_bytes=MIB, tokens_per_block=4)
    assert {one.block_bytes for one in layout.groups} == {max(one.block_bytes for one in plain.groups)}
    assert [layout.blocks_per_page(one.group.id) for one in layout.groups] == [1] * len(layout.groups)
    assert [one.layer_bytes for one in layout.groups] == [one.layer_bytes for one in plain.groups]
