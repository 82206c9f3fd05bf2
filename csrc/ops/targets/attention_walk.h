// The walk of one attention call over tiles and groups of rows, and the memory that it works in.
//
// Owns scratch, the division of rows, where memory that is needed soon lies, and the way of a tile's results. Knows
// nothing about how numbers are stored in a block. Invariant: what a row multiplies and adds, and in which order,
// depends on its own slot alone.

#ifndef PLAIT_CSRC_OPS_TARGETS_ATTENTION_WALK_H_
#define PLAIT_CSRC_OPS_TARGETS_ATTENTION_WALK_H_

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_rows.h"
#include "ops/targets/attention_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

inline constexpr size_t kTilePieces = kKeyTile / kPiece;
// Pieces that lie beside each other in converted keys: as many as a full group of rows takes at once.
inline constexpr size_t kPanelPieces = ScorePieces(kScoreRows);
// Stacked rows whose scores are kept at the same time.
inline constexpr size_t kBlockRows = 4 * kScoreRows;

PLAIT_INLINE bool IsEmpty(Range range) { return range.low >= range.high; }

// Query heads times rows: stacked row i is query head i % group of row i / group.
struct Scratch {
  float* q;         // row groups one after another, each [depth][rows of the group]; or in 8 bits (attention_int8.h)
  float* keys;      // [panel][depth][kPanelPieces * kPiece]
  float* values;    // [kKeyTile][value_width]
  float* scores;    // [kBlockRows][kKeyTile]
  float* tile_o;    // [kValueRows][value_width]
  float* o;         // [stacked rows][value_width]
  float* factors;   // [stacked rows]: what the sums of queries in 8 bits are multiplied by
  int32_t* starts;  // [stacked rows]: what their sums begin with
  Running* running;
  size_t bytes;
};

PLAIT_INLINE Scratch ScratchOf(uint8_t* base, size_t group, size_t depth, size_t value_width) {
  const size_t rows = kMaxAttendRows * group;
  Scratch scratch{};
  const auto take = [&](size_t floats) __attribute__((always_inline)) {
    float* taken = reinterpret_cast<float*>(base + scratch.bytes);
    scratch.bytes += RoundedUp(floats * sizeof(float), 64);
    return taken;
  };
  scratch.q = take(rows * RoundedUp(depth, kPiece));
  scratch.keys = take(kKeyTile * depth);
  scratch.values = take(kKeyTile * value_width);
  scratch.scores = take(kBlockRows * kKeyTile);
  scratch.tile_o = take(kValueRows * value_width);
  scratch.o = take(rows * value_width);
  scratch.factors = take(rows);
  scratch.starts = reinterpret_cast<int32_t*>(take(rows));
  scratch.running = reinterpret_cast<Running*>(take(rows * sizeof(Running) / sizeof(float)));
  return scratch;
}

struct Walk {
  const AttendCall& call;
  Scratch scratch;
  size_t num_stacked;
  size_t value_width;  // head_dim_v in whole pieces
  size_t first_tile;
  size_t end_tile;
};

// Rows [0, count) in as many groups as needed, sizes as equal as can be: the first `larger` have one row more.
struct Groups {
  size_t count;
  size_t size;
  size_t larger;
};

PLAIT_INLINE Groups GroupsOf(size_t rows, size_t most) {
  const size_t count = (rows + most - 1) / most;
  return {count, rows / count, rows % count};
}
PLAIT_INLINE size_t SizeOf(const Groups& groups, size_t index) { return groups.size + (index < groups.larger ? 1 : 0); }

PLAIT_INLINE const float* QueryOf(const AttendCall& call, size_t stacked) {
  const size_t head = call.kv_head * call.group + stacked % call.group;
  const size_t row = stacked / call.group;
  return call.q + (call.q_rows == nullptr ? row : call.q_rows[row]) * call.q_stride + head * call.place.head_dim_k;
}

PLAIT_INLINE Range SeenByStacked(const AttendCall& call, size_t stacked, size_t tile) {
  return InTile(SeenBy(call, stacked / call.group), tile);
}

// What stacked rows [first, first + count) see of a tile together.
PLAIT_INLINE Range SeenByAny(const AttendCall& call, size_t first, size_t count, size_t tile) {
  const Range low = SeenBy(call, first / call.group);
  const Range high = SeenBy(call, (first + count - 1) / call.group);
  return InTile({low.low, high.high}, tile);
}

// The call's head in entry `index` of the block table.
PLAIT_INLINE const uint8_t* HeadOf(const AttendCall& call, size_t index) {
  const CachePlace& place = call.place;
  return place.pool + static_cast<size_t>(call.table[index]) * place.block_bytes + place.layer_offset +
         call.kv_head * place.head_bytes;
}

// Blocks are read in the order of a table, which no prefetcher of a processor knows. So memory is asked for in units of
// so many keys' K, or V, line by line while units before it are worked on.
struct UnitShape {
  size_t keys;         // slots of a unit
  size_t key_bytes;    // of one slot
  size_t value_bytes;  // of one slot
  size_t values_at;    // byte of the head where values begin
};

// Units of memory in the order of their use: K of the tile, V of the tile, K of what comes then. Unit 0 of K is that of
// the tile's first slot, whether it is seen or not. kAhead units are on their way while one is worked on: at kAhead
// times a unit's bytes, more than a DRAM's latency times its rate.
template <size_t kKeys, size_t kAhead>
struct TileUnits {
  static constexpr size_t kUnits = kKeyTile / kKeys;
  const uint8_t* at[2 * kUnits + kAhead];
  size_t count = 0;  // of K, and of V
};

// Where unit `unit` of a tile begins; a whole unit of K where a block has room for one.
PLAIT_INLINE const uint8_t* UnitOf(const AttendCall& call, const UnitShape& shape, size_t tile, size_t unit,
                                   bool is_key) {
  const CachePlace& place = call.place;
  const size_t slot = tile * kKeyTile + unit * shape.keys;
  const size_t inside = slot % place.tokens_per_block;
  // A unit may begin before the first slot that is seen, where a sequence that joined late has no block.
  if (call.table[slot / place.tokens_per_block] < 0) return place.pool;
  const uint8_t* head = HeadOf(call, slot / place.tokens_per_block);
  return is_key ? head + inside * shape.key_bytes : head + shape.values_at + inside * shape.value_bytes;
}

// What is asked for while a tile is worked on: units [first, end) of its K, of its V, then K of the next tile that the
// call attends to, or else of the next KV head, which is likely to be this thread's next call.
template <size_t kKeys, size_t kAhead>
void PlaceUnits(const Walk& walk, const UnitShape& shape, size_t tile, Range seen, TileUnits<kKeys, kAhead>* units) {
  const AttendCall& call = walk.call;
  const size_t first = seen.low / kKeys;
  const size_t end = RoundedUp(seen.high, kKeys) / kKeys;
  units->count = end - first;
  const uint8_t** to = units->at + first;
  for (size_t unit = first; unit < end; ++unit) *to++ = UnitOf(call, shape, tile, unit, true);
  for (size_t unit = first; unit < end; ++unit) *to++ = UnitOf(call, shape, tile, unit, false);
  const bool is_last = tile + 1 == walk.end_tile;
  const bool has_next_head = call.kv_head + 1 < call.place.kv_heads;
  const size_t next_tile = is_last ? walk.first_tile : tile + 1;
  const Range next = is_last && !has_next_head ? Range{0, 0} : SeenByAny(call, 0, walk.num_stacked, next_tile);
  for (size_t i = 0; i < kAhead; ++i) {
    const size_t unit = next.low / kKeys + i;
    *to++ = unit * kKeys < next.high
                ? UnitOf(call, shape, next_tile, unit, true) + (is_last ? call.place.head_bytes : 0)
                : units->at[first];
  }
}

// Gives the tile's (m, l, o) of one row to whoever wants it.
PLAIT_INLINE void Deliver(const Walk& walk, size_t stacked, size_t tile, TileSum sum, const float* tile_o) {
  const AttendCall& call = walk.call;
  if (call.partials == nullptr) {
    const size_t width = walk.value_width;
    return MergeTile(sum, tile_o, walk.scratch.running + stacked, walk.scratch.o + stacked * width, width);
  }
  const size_t width = call.place.head_dim_v;
  float* to = call.partials + ((tile - call.first_tile) * walk.num_stacked + stacked) * (2 + width);
  to[0] = sum.max;
  to[1] = sum.sum;
  for (size_t c = 0; c < width; ++c) to[2 + c] = tile_o[c];
}

// One tile: as many groups of rows are scored as there is room for, then weighed and added up. `Source` says where the
// tile's keys and values are; ScoreRowsOf and FinishRows for it stand beside it. At most kScored rows are scored and
// kFinished finished at once.
template <size_t kScored, size_t kFinished, typename Source>
void AttendTile(const Walk& walk, const Groups& groups, const Source& source, size_t tile) {
  constexpr size_t kGroupsAtOnce = kBlockRows / kScored;
  size_t stacked = 0;
  for (size_t g = 0; g < groups.count; g += kGroupsAtOnce) {
    const size_t last = Smaller(groups.count, g + kGroupsAtOnce);
    size_t rows = 0;
    for (size_t i = g; i < last; ++i) {
      const size_t count = SizeOf(groups, i);
      const Range seen = SeenByAny(walk.call, stacked + rows, count, tile);
      if (!IsEmpty(seen)) {
        ScoreRowsOf(walk, source, stacked + rows, count, seen, walk.scratch.scores + rows * kKeyTile);
      }
      rows += count;
    }
    const Groups parts = GroupsOf(rows, kFinished);
    for (size_t i = 0, row = 0; i < parts.count; row += SizeOf(parts, i), ++i) {
      FinishRows(walk, source, tile, stacked + row, SizeOf(parts, i), walk.scratch.scores + row * kKeyTile);
    }
    stacked += rows;
  }
}

// Tiles of a cache in 8 bits (attention_int8.cc).
void AttendTilesInt8(const Walk& walk);

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_ATTENTION_WALK_H_
