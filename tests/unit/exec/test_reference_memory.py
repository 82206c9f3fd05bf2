"""Cache memory of the reference executor, byte by byte where the layout says the bytes lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from plait.core.errors import ModelError
from plait.core.ids import BlockId, GroupId
from plait.core.step import Move
from plait.exec.reference.memory import CacheMemory
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.cache_type import CacheType
from plait.model.program import CacheGroup, GroupKind

Floats = npt.NDArray[np.float32]
FULL, NARROW = GroupId(0), GroupId(1)
SIZE = 4


def group(
    index: int, layers: int, heads: int, width_k: int, width_v: int, kind: GroupKind = GroupKind.FULL
) -> CacheGroup:
    window = 6 if kind is GroupKind.WINDOW else 0
    return CacheGroup(GroupId(index), f"group {index}", kind, layers, heads, width_k, width_v, window)


def layout(*groups: CacheGroup, num_pages: int = 4, cache_type: CacheType = CacheType.F32) -> CacheLayout:
    sized = [GroupLayout(one, SIZE, cache_type, 0) for one in groups]
    page_bytes = int(np.lcm.reduce([one.block_bytes for one in sized]))
    placed = [GroupLayout(one.group, SIZE, cache_type, num_pages * (page_bytes // one.block_bytes)) for one in sized]
    return CacheLayout(page_bytes, num_pages, tuple(placed))


TWO_GROUPS = layout(group(0, 3, 2, 5, 7), group(1, 2, 1, 4, 2, GroupKind.WINDOW))
"""Blocks of 1,152 and 192 bytes: six of the second in the bytes of one of the first."""


def some(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def blocks(*ids: int) -> list[BlockId]:
    return [BlockId(block) for block in ids]


def pool_bytes(memory: CacheMemory) -> bytes:
    return memory._pool.tobytes()


def number_at(memory: CacheMemory, offset: int) -> float:
    return float(np.frombuffer(pool_bytes(memory), "<f4", count=1, offset=offset)[0])


@pytest.mark.parametrize("index", [FULL, NARROW])
def test_every_number_lies_where_the_layout_says(index: GroupId) -> None:
    placed = TWO_GROUPS.groups[index]
    facts = placed.group
    memory = CacheMemory(TWO_GROUPS)
    table, start, count, slot = blocks(3, 0, 2), 2, 9, 1
    keys = some(count, facts.num_kv_heads, facts.head_dim_k)
    values = some(count, facts.num_kv_heads, facts.head_dim_v, seed=1)
    memory.write(index, slot, table, start, keys, values)
    expected = bytearray(TWO_GROUPS.pool_bytes)
    for row in range(count):
        entry, token = divmod(start + row, SIZE)
        base = placed.block_offset(table[entry])
        for head in range(facts.num_kv_heads):
            for d in range(facts.head_dim_k):
                at = base + placed.k_offset(slot, head) + 4 * (d * SIZE + token)
                expected[at : at + 4] = keys[row, head, d].tobytes()
            for d in range(facts.head_dim_v):
                at = base + placed.v_offset(slot, head) + 4 * (token * facts.head_dim_v + d)
                expected[at : at + 4] = values[row, head, d].tobytes()
    assert pool_bytes(memory) == bytes(expected)


def test_what_was_written_is_read_back_bit_for_bit() -> None:
    memory = CacheMemory(TWO_GROUPS, poison=True)
    table = blocks(2, 3, 1)
    keys, values = some(11, 2, 5), some(11, 2, 7, seed=1)
    for start, end in ((0, 3), (3, 4), (4, 11)):
        memory.write(FULL, 2, table, start, keys[start:end], values[start:end])
    read_keys, read_values = memory.read(FULL, 2, table, range(0, 11), range(0, 11))
    assert np.array_equal(read_keys, keys.transpose(1, 2, 0))
    assert np.array_equal(read_values, values.transpose(1, 0, 2))


def test_a_read_holds_zeros_where_it_does_not_look() -> None:
    memory = CacheMemory(TWO_GROUPS, poison=True)
    table = blocks(2, 3, 1)
    keys, values = some(12, 2, 5), some(12, 2, 7, seed=1)
    memory.write(FULL, 0, table, 0, keys, values)
    read_keys, read_values = memory.read(FULL, 0, table, range(5, 9), range(0, 16))
    assert read_keys.shape == (2, 5, 16)
    assert read_values.shape == (2, 16, 7)
    assert np.array_equal(read_keys[:, :, 5:9], keys[5:9].transpose(1, 2, 0))
    assert np.array_equal(read_values[:, 5:9], values[5:9].transpose(1, 0, 2))
    outside = [*range(5), *range(9, 16)]
    assert not read_keys[:, :, outside].any()
    assert not read_values[:, outside].any()


def test_a_table_without_its_first_blocks_is_never_looked_up_there() -> None:
    memory = CacheMemory(TWO_GROUPS)
    table = [BlockId(-1), BlockId(-1), BlockId(2)]
    memory.write(FULL, 0, table, 8, some(2, 2, 5), some(2, 2, 7))
    last = TWO_GROUPS.groups[FULL].num_blocks - 1
    assert not memory._keys[FULL][last].any()
    read, _ = memory.read(FULL, 0, table, range(8, 10), range(0, 12))
    assert not read[:, :, :8].any()


def test_layers_and_groups_do_not_touch_each_other() -> None:
    memory = CacheMemory(TWO_GROUPS)
    memory.write(FULL, 1, blocks(0), 0, some(4, 2, 5), some(4, 2, 7))
    placed = TWO_GROUPS.groups[FULL]
    raw = np.frombuffer(pool_bytes(memory), np.float32)
    used = np.flatnonzero(raw) * 4
    assert used.min() == placed.k_offset(1, 0)
    assert used.max() < placed.k_offset(2, 0)


def test_a_page_that_goes_to_another_group_shows_the_bytes_of_the_first() -> None:
    """Page, then layer: nothing is cleared when memory changes hands, so nobody may rely on it."""
    memory = CacheMemory(TWO_GROUPS)
    values = some(4, 2, 7, seed=1)
    memory.write(FULL, 0, blocks(1), 0, some(4, 2, 5), values)
    per_page = TWO_GROUPS.blocks_per_page(NARROW)
    first, last = TWO_GROUPS.groups[NARROW].block_offset(BlockId(per_page)), TWO_GROUPS.page_bytes
    assert first == TWO_GROUPS.groups[FULL].block_offset(BlockId(1))
    taken = memory.read(NARROW, 0, blocks(per_page), range(0, 4), range(0, 4))[0]
    assert float(taken[0, 0, 0]) == number_at(memory, first)
    assert taken.any()
    assert last == per_page * TWO_GROUPS.groups[NARROW].block_bytes


def test_a_move_copies_the_slots_of_every_layer_and_head_and_no_others() -> None:
    memory = CacheMemory(TWO_GROUPS)
    keys, values = some(3, 4, 2, 5), some(3, 4, 2, 7, seed=1)
    for slot in range(3):
        memory.write(FULL, slot, blocks(0), 0, keys[slot], values[slot])
    memory.move(Move(FULL, BlockId(0), 1, BlockId(2), 0, 3))
    for slot in range(3):
        moved_keys, moved_values = memory.read(FULL, slot, blocks(2), range(0, 4), range(0, 4))
        assert np.array_equal(moved_keys[:, :, :3], keys[slot, 1:].transpose(1, 2, 0))
        assert np.array_equal(moved_values[:, :3], values[slot, 1:].transpose(1, 0, 2))
        assert not moved_keys[:, :, 3].any()
        source, _ = memory.read(FULL, slot, blocks(0), range(0, 4), range(0, 4))
        assert np.array_equal(source, keys[slot].transpose(1, 2, 0))


def test_a_move_inside_a_block_may_overlap() -> None:
    memory = CacheMemory(TWO_GROUPS)
    keys, values = some(4, 2, 5), some(4, 2, 7, seed=1)
    memory.write(FULL, 0, blocks(1), 0, keys, values)
    memory.move(Move(FULL, BlockId(1), 0, BlockId(1), 1, 3))
    moved_keys, moved_values = memory.read(FULL, 0, blocks(1), range(0, 4), range(0, 4))
    assert np.array_equal(moved_keys, keys[[0, 0, 1, 2]].transpose(1, 2, 0))
    assert np.array_equal(moved_values, values[[0, 0, 1, 2]].transpose(1, 0, 2))


def test_poison_fills_everything_from_a_slot_on_in_every_layer() -> None:
    memory = CacheMemory(TWO_GROUPS)
    table = blocks(3, 1)
    for slot in range(3):
        memory.write(FULL, slot, table, 0, some(8, 2, 5), some(8, 2, 7))
    memory.poison(FULL, table, 3)
    for slot in range(3):
        keys, values = memory.read(FULL, slot, table, range(0, 8), range(0, 8))
        assert np.isfinite(keys[:, :, :3]).all()
        assert np.isfinite(values[:, :3]).all()
        assert np.isnan(keys[:, :, 3:]).all()
        assert np.isnan(values[:, 3:]).all()
    memory.poison(FULL, table, 8)  # nothing is left behind the last slot


def test_a_poisoned_pool_holds_no_number_at_all() -> None:
    assert np.isnan(np.frombuffer(pool_bytes(CacheMemory(TWO_GROUPS, poison=True)), np.float32)).all()
    assert not any(pool_bytes(CacheMemory(TWO_GROUPS)))


@pytest.mark.parametrize(
    "refused",
    [
        layout(group(0, 1, 1, 4, 4), cache_type=CacheType.F16),
        layout(CacheGroup(GroupId(0), "images", GroupKind.EMBEDDING, 1, 1, 4, 0), cache_type=CacheType.F32),
    ],
    ids=["half precision", "rows of an encoder"],
)
def test_memory_that_it_does_not_keep_is_refused_by_name(refused: CacheLayout) -> None:
    with pytest.raises(ModelError, match=r"cache group .* this executor keeps"):
        CacheMemory(refused)


def test_a_state_lies_layer_after_layer_and_part_after_part() -> None:
    states = layout(CacheGroup(GroupId(0), "states", GroupKind.STATE, 2, state_parts=(3, 5)))
    memory = CacheMemory(states, poison=True)
    memory.state(FULL, 1, 1, BlockId(2))[:] = some(5)
    placed = states.groups[0]
    assert number_at(memory, placed.block_offset(BlockId(2)) + placed.state_offset(1, 1)) == some(5)[0]
    memory.move(Move(FULL, BlockId(2), 0, BlockId(0), 0, 1))
    assert memory.state(FULL, 1, 1, BlockId(0)).tobytes() == some(5).tobytes()
    assert np.isnan(memory.state(FULL, 1, 1, BlockId(1))).all()
