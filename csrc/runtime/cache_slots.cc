// Cache slots: strides through a block, layer by layer and head by head.
//
// A run of slots is some pieces of every part of a head (ops/cache_layout.h). Invariant: all bits set is NaN as a float
// of any size, and as the scale of numbers in 8 bits.

#include "runtime/cache_slots.h"

#include <cstring>

#include "runtime/seat.h"

namespace plait {
namespace {

// Calls visit(first byte of the head in its block) for every head of every layer.
template <typename Visit>
void ForEachHead(const GroupSpec& group, Visit visit) {
  for (size_t layer = 0; layer < group.num_layers; ++layer) {
    for (size_t head = 0; head < group.kv_heads; ++head) visit(layer * group.layer_bytes + head * group.head_bytes);
  }
}

// A part of a head: `rows` rows of `row_bytes`, each of which has `slot_bytes` for every `slots` slots.
struct Part {
  size_t begin;
  size_t rows;
  size_t row_bytes;
  size_t slot_bytes;
};

// Calls visit(part) for every part of a head in which a run of slots is one piece of each row.
template <typename Visit>
void ForEachPart(const GroupSpec& group, Visit visit) {
  const size_t tokens = group.tokens_per_block;
  const size_t number = NumberBytes(group.type);
  const size_t values_at = ValuesAt(group.type, group.head_dim_k, tokens);
  if (group.type != CacheType::kInt8) {
    visit(Part{0, group.head_dim_k, tokens * number, number});
    visit(Part{values_at, 1, tokens * group.head_dim_v * number, group.head_dim_v * number});
    return;
  }
  const size_t quads = StoredWidth(group.type, group.head_dim_k) / 4;
  visit(Part{0, quads, tokens * 4, 4});
  visit(Part{KeyScalesAt(group.type, group.head_dim_k, tokens), 1, tokens * sizeof(float), sizeof(float)});
  visit(Part{ValueScalesAt(group.type, group.head_dim_k, group.head_dim_v, tokens), 1, tokens * sizeof(float),
             sizeof(float)});
}

// Values in 8 bits lie in pairs: from here on a slot has every other byte.
size_t Int8ValueAt(const GroupSpec& group, size_t slot) {
  const size_t width = StoredWidth(group.type, group.head_dim_v);
  return ValuesAt(group.type, group.head_dim_k, group.tokens_per_block) + slot / 2 * 2 * width + slot % 2;
}

void PoisonBlock(const GroupSpec& group, uint8_t* block, size_t first_slot) {
  ForEachHead(group, [&](size_t head) {
    ForEachPart(group, [&](const Part& part) {
      for (size_t row = 0; row < part.rows; ++row) {
        const size_t skipped = first_slot * part.slot_bytes;
        std::memset(block + head + part.begin + row * part.row_bytes + skipped, 0xFF, part.row_bytes - skipped);
      }
    });
    for (size_t slot = first_slot; group.type == CacheType::kInt8 && slot < group.tokens_per_block; ++slot) {
      uint8_t* values = block + head + Int8ValueAt(group, slot);
      for (size_t c = 0; c < group.head_dim_v; ++c) values[2 * c] = 0xFF;
    }
  });
}

// From the end where a block's slots move up within it, so that none is overwritten before it was read.
void MoveInt8Values(const GroupSpec& group, const uint8_t* source, uint8_t* target, const MoveSpec& move) {
  const bool is_upward = source == target && move.dst_slot > move.src_slot;
  for (size_t i = 0; i < move.num_tokens; ++i) {
    const size_t slot = is_upward ? move.num_tokens - 1 - i : i;
    const uint8_t* from = source + Int8ValueAt(group, move.src_slot + slot);
    uint8_t* to = target + Int8ValueAt(group, move.dst_slot + slot);
    for (size_t c = 0; c < group.head_dim_v; ++c) to[2 * c] = from[2 * c];
  }
}

}  // namespace

CachePlace PlaceOf(const GroupSpec& group, uint8_t* pool, size_t layer) {
  CachePlace place;
  place.pool = pool;
  place.block_bytes = group.block_bytes;
  place.layer_offset = layer * group.layer_bytes;
  place.head_bytes = group.head_bytes;
  place.tokens_per_block = group.tokens_per_block;
  place.kv_heads = group.kv_heads;
  place.head_dim_k = group.head_dim_k;
  place.head_dim_v = group.head_dim_v;
  place.type = group.type;
  return place;
}

void MoveSlots(const GroupSpec& group, uint8_t* pool, const MoveSpec& move) {
  const uint8_t* source = pool + static_cast<size_t>(move.src_block) * group.block_bytes;
  uint8_t* target = pool + static_cast<size_t>(move.dst_block) * group.block_bytes;
  if (group.is_state()) {
    std::memmove(target, source, group.num_layers * group.layer_bytes);
    return;
  }
  ForEachHead(group, [&](size_t head) {
    ForEachPart(group, [&](const Part& part) {
      for (size_t row = 0; row < part.rows; ++row) {
        const size_t begin = head + part.begin + row * part.row_bytes;
        std::memmove(target + begin + move.dst_slot * part.slot_bytes, source + begin + move.src_slot * part.slot_bytes,
                     move.num_tokens * part.slot_bytes);
      }
    });
    if (group.type == CacheType::kInt8) MoveInt8Values(group, source + head, target + head, move);
  });
}

void PoisonSlots(const GroupSpec& group, uint8_t* pool, const std::vector<int32_t>& table, size_t start) {
  if (group.is_state()) {
    // A running state has no slots: behind its first token it holds what is gone on from.
    for (const int32_t block : table) {
      if (start > 0) break;
      std::memset(pool + static_cast<size_t>(block) * group.block_bytes, 0xFF, group.num_layers * group.layer_bytes);
    }
    return;
  }
  for (size_t entry = start / group.tokens_per_block; entry < table.size(); ++entry) {
    if (table[entry] == kNoBlock) continue;
    const size_t first_slot = entry * group.tokens_per_block < start ? start % group.tokens_per_block : 0;
    PoisonBlock(group, pool + static_cast<size_t>(table[entry]) * group.block_bytes, first_slot);
  }
}

}  // namespace plait
