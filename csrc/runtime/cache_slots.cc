// Cache slots: strides through a block, layer by layer and head by head.
//
// Per layer and KV head a block holds K[head_dim_k][tokens], then V[tokens][head_dim_v]: a run of slots is one piece of
// V and head_dim_k pieces of K. Invariant: all bits set is NaN in f16 and in f32.

#include "runtime/cache_slots.h"

#include <cstring>

#include "runtime/seat.h"

namespace plait {
namespace {

size_t NumberBytes(const GroupSpec& group) { return group.type == CacheType::kF16 ? 2 : 4; }

// Calls visit(first byte of the head in its block) for every head of every layer.
template <typename Visit>
void ForEachHead(const GroupSpec& group, Visit visit) {
  for (size_t layer = 0; layer < group.num_layers; ++layer) {
    for (size_t head = 0; head < group.kv_heads; ++head) visit(layer * group.layer_bytes + head * group.head_bytes);
  }
}

void PoisonBlock(const GroupSpec& group, uint8_t* block, size_t first_slot) {
  const size_t size = NumberBytes(group);
  const size_t num_slots = group.tokens_per_block - first_slot;
  ForEachHead(group, [&](size_t head) {
    uint8_t* keys = block + head;
    for (size_t d = 0; d < group.head_dim_k; ++d) {
      std::memset(keys + (d * group.tokens_per_block + first_slot) * size, 0xFF, num_slots * size);
    }
    uint8_t* values = keys + group.head_dim_k * group.tokens_per_block * size;
    std::memset(values + first_slot * group.head_dim_v * size, 0xFF, num_slots * group.head_dim_v * size);
  });
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
  const size_t size = NumberBytes(group);
  const uint8_t* source = pool + static_cast<size_t>(move.src_block) * group.block_bytes;
  uint8_t* target = pool + static_cast<size_t>(move.dst_block) * group.block_bytes;
  ForEachHead(group, [&](size_t head) {
    for (size_t d = 0; d < group.head_dim_k; ++d) {
      const size_t row = head + d * group.tokens_per_block * size;
      std::memmove(target + row + move.dst_slot * size, source + row + move.src_slot * size, move.num_tokens * size);
    }
    const size_t values = head + group.head_dim_k * group.tokens_per_block * size;
    const size_t slot_bytes = group.head_dim_v * size;
    std::memmove(target + values + move.dst_slot * slot_bytes, source + values + move.src_slot * slot_bytes,
                 move.num_tokens * slot_bytes);
  });
}

void PoisonSlots(const GroupSpec& group, uint8_t* pool, const std::vector<int32_t>& table, size_t start) {
  for (size_t entry = start / group.tokens_per_block; entry < table.size(); ++entry) {
    if (table[entry] == kNoBlock) continue;
    const size_t first_slot = entry * group.tokens_per_block < start ? start % group.tokens_per_block : 0;
    PoisonBlock(group, pool + static_cast<size_t>(table[entry]) * group.block_bytes, first_slot);
  }
}

}  // namespace plait
