"""Layouts: every byte that is reserved is needed or has a cause, and what is said to fit is within the memory."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import GroupId
from plait.kv.layouts.buddy import buddy
from plait.kv.layouts.capacity import largest_context, most_sequences
from plait.kv.layouts.cuts import Cause, plain_cut
from plait.kv.layouts.geometry import MIX, MOST_PADDING, WORTH, choose
from plait.kv.layouts.groups import Load, MemoryGroup, SequenceSize, StatePart, one
from plait.kv.layouts.jenga import jenga
from plait.kv.layouts.layout import Layout, Refused
from plait.kv.layouts.max_page import max_page
from plait.kv.layouts.partition import manual, static
from plait.kv.layouts.plait import plait
from plait.kv.layouts.uniform import uniform
from plait.kv.layouts.vllm import vllm
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType
from plait.model.parts import CacheGroup, GroupKind

MAKERS = (uniform, vllm, jenga, plait, max_page, static, buddy)


def full(num_layers: int = 2, token_bytes: int = 64) -> MemoryGroup:
    return MemoryGroup("full", GroupKind.FULL, num_layers, token_bytes)


def window(size: int, num_layers: int = 2, token_bytes: int = 64) -> MemoryGroup:
    return MemoryGroup("window", GroupKind.WINDOW, num_layers, token_bytes, size)


def state(num_layers: int, *parts: int) -> MemoryGroup:
    named = tuple(StatePart(f"part {place}", size) for place, size in enumerate(parts))
    return MemoryGroup("state", GroupKind.STATE, num_layers, state_parts=named)


@st.composite
def drawn_groups(draw: st.DrawFn) -> list[MemoryGroup]:
    """A model: always something that grows, perhaps windows, chunks, states and images beside it."""
    widths = st.sampled_from([32, 64, 96, 160])
    layers = st.integers(1, 12)
    groups = [full(draw(layers), draw(widths))]
    if draw(st.booleans()):
        groups.append(window(draw(st.integers(1, 70)), draw(layers), draw(widths)))
    if draw(st.booleans()):
        size = draw(st.integers(1, 70))
        groups.append(MemoryGroup("chunked", GroupKind.CHUNKED, draw(layers), draw(widths), size))
    if draw(st.booleans()):
        groups.append(state(draw(layers), *draw(st.lists(st.integers(1, 4000), min_size=1, max_size=3))))
    if draw(st.booleans()):
        groups.append(MemoryGroup("images", GroupKind.CROSS, draw(layers), draw(widths)))
    return groups


sizes = st.builds(SequenceSize, st.integers(1, 300), st.integers(0, 100))
loads = st.builds(Load, st.lists(st.tuples(st.integers(1, 5), sizes), min_size=1, max_size=4).map(tuple), st.booleans())
blocks = st.sampled_from([1, 4, 16, 32])


@given(groups=drawn_groups(), load=loads, tokens=blocks)
def test_every_reserved_byte_is_needed_or_has_a_cause(groups: list[MemoryGroup], load: Load, tokens: int) -> None:
    needed = sum(count * group.needed_bytes(size) for group in groups for count, size in load.sequences)
    for make in MAKERS:
        layout = make(groups, tokens)
        if isinstance(layout, Refused):
            continue
        usage = layout.usage(load)
        assert usage.needed_bytes == needed
        assert usage.reserved_bytes == needed + sum(usage.waste.values())
        assert all(size > 0 for size in usage.waste.values())


@given(groups=drawn_groups(), load=loads, tokens=blocks)
def test_what_is_reserved_is_the_blocks_themselves(groups: list[MemoryGroup], load: Load, tokens: int) -> None:
    """Counted from the other side: blocks times their size, rounded up to pages."""
    for make in MAKERS:
        layout = make(groups, tokens)
        if isinstance(layout, Refused):
            continue
        usage = layout.usage(load)
        for cut, group in zip(layout.cuts, usage.groups, strict=True):
            pages = -(-(group.blocks // cut.num_tables) // cut.blocks_per_page)
            in_pages = pages * cut.blocks_per_page * cut.num_tables * cut.block_bytes
            assert group.reserved_bytes == in_pages


@given(groups=drawn_groups(), load=loads, tokens=blocks, memory=st.integers(0, 2_000_000))
def test_what_fits_is_within_the_memory_and_one_more_is_not(
    groups: list[MemoryGroup], load: Load, tokens: int, memory: int
) -> None:
    for make in MAKERS:
        layout = make(groups, tokens)
        if isinstance(layout, Refused):
            continue
        sequences = most_sequences(layout, load, memory)
        assert sequences is not None
        copies = sequences // load.count
        if copies:
            assert layout.usage(load, copies).reserved_bytes + layout.spare_bytes <= memory
        if load.count == 1:
            more = [group.blocks for group in layout.usage(load, sequences + 1).groups]
            assert not layout.holds(more, memory)


@given(groups=drawn_groups(), tokens=blocks, memory=st.integers(0, 300_000))
def test_the_longest_sequence_fits_at_every_moment_on_the_way(
    groups: list[MemoryGroup], tokens: int, memory: int
) -> None:
    for make in MAKERS:
        layout = make(groups, tokens)
        if isinstance(layout, Refused):
            continue
        longest = largest_context(layout, memory)
        assert longest is not None
        for length in range(max(1, longest - 100), longest + 1):
            assert layout.usage(one(length)).reserved_bytes + layout.spare_bytes <= memory
        assert not layout.fits(one(longest + 1, peak=True), memory)


def test_a_window_keeps_the_blocks_that_it_touches() -> None:
    layout = jenga([window(32)], 16)
    blocks_at = [layout.usage(one(tokens)).groups[0].blocks for tokens in (16, 32, 33, 48, 49, 112)]
    assert blocks_at == [1, 2, 3, 2, 3, 2]
    assert layout.usage(one(112, peak=True)).groups[0].blocks == 3


def test_a_uniform_memory_keeps_what_no_layer_reads() -> None:
    usage = uniform([full(), window(32)], 16).usage(one(100))
    assert usage.waste == {Cause.OUT_OF_WINDOW: 68 * 128, Cause.LAST_BLOCK: 12 * 256}


def test_text_and_images_take_each_others_places_in_a_uniform_memory() -> None:
    images = MemoryGroup("images", GroupKind.CROSS, 1, 64)
    usage = uniform([full(3), images], 1).usage(one(10, 90))
    assert usage.waste == {Cause.OTHER_ROWS: 90 * 3 * 64 + 10 * 64}


def test_vllm_grows_blocks_of_attention_to_the_size_of_a_state() -> None:
    layout = vllm([full(1, 64), state(4, 5000)], 16)
    assert isinstance(layout, Layout)
    attention, states = layout.cuts
    assert (attention.tokens_per_block, attention.block_bytes) == (80, 5120)
    assert (states.num_tables, states.block_padding_bytes) == (4, 4 * 120)
    usage = layout.usage(one(20))
    assert usage.waste == {
        Cause.LAST_BLOCK: 12 * 64,
        Cause.BLOCK_INFLATION: 48 * 64,
        Cause.BLOCK_PADDING: 4 * 120,
    }
    assert layout.hit_tokens == 80


def test_vllm_keeps_a_larger_block_that_was_asked_for() -> None:
    layout = vllm([full(1, 64), state(1, 100)], 64)
    assert isinstance(layout, Layout)
    assert layout.cuts[0].tokens_per_block == 64


def test_vllm_cuts_kinds_into_groups_of_the_rarest_kinds_layers() -> None:
    layout = vllm([full(5), window(32, 29)], 16)
    assert isinstance(layout, Layout)
    assert [(cut.num_tables, cut.block_bytes) for cut in layout.cuts] == [(1, 5 * 1024), (6, 5 * 1024)]
    assert layout.cuts[1].layer_padding_bytes == 1024


def test_vllm_takes_the_commonest_kind_where_kinds_are_nearly_equal() -> None:
    layout = vllm([full(10), window(32, 12)], 16)
    assert isinstance(layout, Layout)
    assert [cut.num_tables for cut in layout.cuts] == [1, 1]
    assert layout.cuts[0].layer_padding_bytes == 2 * 1024


def test_vllm_raises_the_blocks_of_narrower_layers_by_whole_factors() -> None:
    layout = vllm([full(2, 64), window(32, 2, 128)], 16)
    assert isinstance(layout, Layout)
    assert [cut.tokens_per_block for cut in layout.cuts] == [32, 16]


def test_vllm_refuses_widths_that_do_not_divide() -> None:
    layout = vllm([full(2, 96), window(32, 2, 128)], 16)
    assert isinstance(layout, Refused)
    assert layout.reason == (
        "its pages must divide: a layer of full takes 1,536 bytes for 16 tokens, the largest 2,048"
    )


def test_vllm_keeps_layers_of_one_kind_in_one_group_whatever_their_widths() -> None:
    layout = vllm([full(2, 96), MemoryGroup("latent", GroupKind.FULL, 3, 128)], 16)
    assert isinstance(layout, Layout)
    assert layout.usage(one(16)).waste == {}


def test_one_block_of_vllms_pool_is_never_lent() -> None:
    layout = vllm([full(1, 64)], 16)
    assert isinstance(layout, Layout)
    assert most_sequences(layout, one(16), 10 * 1024) == 9
    assert most_sequences(jenga([full(1, 64)], 16), one(16), 10 * 1024) == 10


def test_sequences_share_jengas_pages_when_the_memory_is_full() -> None:
    """One sequence alone takes a page of three blocks; three take no more."""
    layout = jenga([full(1, 64), window(1000, 3, 64)], 16)
    assert layout.cuts[0].blocks_per_page == 3
    alone, three = layout.usage(one(16)), layout.usage(one(16), 3)
    assert alone.waste == {Cause.PAGE_ROUNDING: 2 * 1024}
    assert three.waste == {}


@given(groups=drawn_groups(), load=loads, tokens=blocks)
def test_copies_of_a_load_are_that_many_more_sequences(groups: list[MemoryGroup], load: Load, tokens: int) -> None:
    tripled = Load(tuple((3 * count, size) for count, size in load.sequences), load.peak)
    for make in MAKERS:
        layout = make(groups, tokens)
        if isinstance(layout, Layout):
            assert layout.usage(load, 3) == layout.usage(tripled)


def test_parts_of_a_state_are_groups_of_their_own_in_jenga() -> None:
    layout = jenga([full(), state(3, 100, 200)], 16)
    assert [cut.group.name for cut in layout.cuts] == ["full", "state part 0", "state part 1"]
    assert [cut.block_bytes for cut in layout.cuts[1:]] == [300, 600]


def test_a_partition_is_full_when_one_part_is() -> None:
    groups = [full(1, 64), window(16, 1, 64)]
    layout = manual(groups, 16, {"full": Fraction(1), "window": Fraction(1)})
    assert isinstance(layout, Layout)
    # A long sequence fills its half; the window's half stays nearly empty.
    assert largest_context(layout, 2 * 64 * 1600) == 1600
    assert not layout.fits(one(1601), 2 * 64 * 1600)


def test_a_mix_that_does_not_fit_whole_is_counted_in_part() -> None:
    """Two of 10 blocks and two of 30, in the place of 50: 20 blocks each on average."""
    layout = jenga([full(1, 64)], 16)
    load = Load(((2, SequenceSize(160)), (2, SequenceSize(480))))
    assert most_sequences(layout, load, 50 * 1024) == 2
    assert most_sequences(layout, load, 80 * 1024) == 4


def test_the_static_rule_halves_the_share_of_what_stops_growing() -> None:
    layout = static([full(1, 64), window(16, 1, 64)], 16)
    assert layout.shares == (Fraction(2, 3), Fraction(1, 3))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"full": Fraction(1)}, "no share for window; write manual:GROUP=SHARE"),
        ({"full": Fraction(1), "window": Fraction(1), "x": Fraction(1)}, "no group is called x"),
    ],
)
def test_shares_by_hand_name_every_group_and_no_other(weights: dict[str, Fraction], words: str) -> None:
    layout = manual([full(), window(16)], 16, weights)
    assert isinstance(layout, Refused)
    assert words in layout.reason


def test_plait_keeps_what_windows_see_and_refuses_images() -> None:
    assert isinstance(plait([full(), MemoryGroup("cross", GroupKind.CROSS, 1, 64)], 16), Refused)
    layout = plait([full(), window(16)], 16)
    assert isinstance(layout, Layout)
    assert layout.usage(one(100)).waste[Cause.OUT_OF_WINDOW] < 16 * 128
    assert layout.repeated_tokens(100) == 99


def test_plait_takes_a_prefix_with_states_up_at_whole_blocks() -> None:
    layout = plait([full(), state(1, 100)], 16)
    assert isinstance(layout, Layout)
    assert layout.repeated_tokens(100) == 96


def test_plaits_pages_are_those_of_the_memory_that_serves() -> None:
    program = _Program((CacheGroup(GroupId(0), "full", GroupKind.FULL, 3, 2, 16, 16),))
    real = plan_layout(program, memory_bytes=1 << 20, tokens_per_block=32, cache_type=CacheType.F16)  # type: ignore[arg-type]
    layout = plait([full(3, 2 * 32 * 2)], 32)
    assert isinstance(layout, Layout)
    assert layout.page_bytes == real.page_bytes
    assert most_sequences(layout, one(32), 1 << 20) == real.num_pages


class _Program:
    """As much of a program as its memory is planned from."""

    def __init__(self, groups: tuple[CacheGroup, ...]) -> None:
        self.cache_groups = groups
        self.name = "made up"


def test_a_model_of_states_alone_has_no_longest_sequence() -> None:
    layout = jenga([state(4, 100)], 16)
    assert largest_context(layout, 1000) is None
    assert largest_context(layout, 399) == 0
    assert most_sequences(layout, one(5), 1000) == 2


def attention(name: str, num_layers: int, heads: int, width: int, size: int = 0) -> MemoryGroup:
    """Layers of so many heads in bf16, with a window if `size` is given."""
    kind = GroupKind.WINDOW if size else GroupKind.FULL
    return MemoryGroup(name, kind, num_layers, 2 * heads * width * 2, size)


def gated_delta(num_layers: int, value_heads: int, key_heads: int) -> MemoryGroup:
    parts = (value_heads * 128 * 128 * 4, 3 * (2 * key_heads * 128 + value_heads * 128) * 2)
    return state(num_layers, *parts)


SHAPES = {
    "gemma3-270m": [attention("full", 3, 1, 256), attention("window", 15, 1, 256, 512)],
    "gemma3-27b": [attention("full", 10, 16, 128), attention("window", 52, 16, 128, 1024)],
    "qwen3-next": [attention("full", 12, 2, 256), gated_delta(36, 32, 16)],
    "qwen3.5-4b": [attention("full", 8, 4, 256), gated_delta(24, 32, 16)],
    "nemotron-h-8b": [attention("full", 4, 8, 128), state(24, 128 * 64 * 128 * 2, 3 * (8192 + 2 * 8 * 128) * 2)],
    "jamba-mini": [attention("full", 4, 8, 128), state(28, 8192 * 16 * 2, 8192 * 3 * 2)],
}


@pytest.mark.parametrize("tokens_per_block", [16, 32])
@pytest.mark.parametrize("groups", SHAPES.values(), ids=SHAPES.keys())
def test_the_chosen_geometry_wastes_little_of_short_and_of_long_sequences(
    groups: list[MemoryGroup], tokens_per_block: int
) -> None:
    found = choose(groups, tokens_per_block)
    layout = Layout("chosen", found.cuts, found.page_bytes)
    short, long = (layout.usage(load) for load in MIX)
    assert short.waste_bytes <= 0.15 * short.reserved_bytes
    assert long.waste_bytes <= 0.03 * long.reserved_bytes
    assert found.waste_fraction <= found.raw_waste_fraction + WORTH
    for cut in found.cuts:
        assert found.page_bytes % cut.block_bytes == 0
        content = cut.block_bytes * cut.num_tables - cut.block_padding_bytes
        assert cut.block_padding_bytes <= MOST_PADDING * content
        assert content == plain_cut(cut.group, tokens_per_block).block_bytes


def test_the_raw_least_common_multiple_stays_where_it_is_no_trouble() -> None:
    found = choose(SHAPES["gemma3-270m"], 32)
    assert found.is_raw
    assert [cut.blocks_per_page for cut in found.cuts] == [5, 1]
    assert not choose(SHAPES["nemotron-h-8b"], 32).is_raw
