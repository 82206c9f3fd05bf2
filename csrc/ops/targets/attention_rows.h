// The rows of one attention call: what they see, and their running (m, l, o) over key tiles.
//
// Owns visibility in slots and the merge of tiles, left to right. Knows nothing about where keys and values lie.
// Invariant: a merge is the same operations whether its tiles were computed by one call or by several.

#ifndef PLAIT_CSRC_OPS_TARGETS_ATTENTION_ROWS_H_
#define PLAIT_CSRC_OPS_TARGETS_ATTENTION_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_tiles.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// Slots [low, high).
struct Range {
  size_t low;
  size_t high;
};

PLAIT_INLINE size_t Smaller(size_t a, size_t b) { return a < b ? a : b; }
PLAIT_INLINE size_t Larger(size_t a, size_t b) { return a > b ? a : b; }
PLAIT_INLINE size_t RoundedUp(size_t count, size_t step) { return (count + step - 1) / step * step; }

// What row `row` of the call sees. Neither end ever decreases from row to row.
PLAIT_INLINE Range SeenBy(const AttendCall& call, size_t row) {
  const size_t slot = call.start + row;
  switch (call.reach) {
    case Reach::kWindow:
      return {slot + 1 > call.reach_size ? slot + 1 - call.reach_size : 0, slot + 1};
    case Reach::kChunk:
      return {slot - slot % call.reach_size, slot + 1};
    case Reach::kAll:
      return {0, call.reach_size};
    case Reach::kCausal:
      break;
  }
  return {0, slot + 1};
}

// The part of a range inside the tile, counted from the tile's first slot; empty where there is none.
PLAIT_INLINE Range InTile(Range seen, size_t tile) {
  const size_t first = tile * kKeyTile;
  const size_t low = Larger(seen.low, first);
  const size_t high = Smaller(seen.high, first + kKeyTile);
  return low < high ? Range{low - first, high - first} : Range{0, 0};
}

// m, l of the tiles merged so far; o lies beside it. l is 0 before the first tile.
struct Running {
  float max;
  float sum;
};

// Merges a tile that the row sees: running, o <- the tile's (max, sum), tile_o. `width` columns, any number.
PLAIT_INLINE void MergeTile(TileSum tile, const float* tile_o, Running* running, float* o, size_t width) {
  if (running->sum == 0.0f) {
    *running = {tile.max, tile.sum};
    for (size_t c = 0; c < width; c += kLanes) {
      const size_t left = Smaller(width - c, kLanes);
      StoreFirst(o + c, LoadFirst(tile_o + c, left), left);
    }
    return;
  }
  const float max = running->max > tile.max ? running->max : tile.max;
  float factors[kLanes] = {running->max - max, tile.max - max};
  Store(factors, ExpOfNegative(Load(factors)));
  running->max = max;
  running->sum = Fma(tile.sum, factors[1], running->sum * factors[0]);
  const F32 kept = Broadcast(factors[0]);
  const F32 added = Broadcast(factors[1]);
  for (size_t c = 0; c < width; c += kLanes) {
    const size_t left = Smaller(width - c, kLanes);
    const F32 sum = Fma(LoadFirst(tile_o + c, left), added, Mul(LoadFirst(o + c, left), kept));
    StoreFirst(o + c, sum, left);
  }
}

// A sink is a first tile with o = 0.
PLAIT_INLINE void Begin(const float* sinks, size_t head, Running* running, float* o, size_t width) {
  *running = sinks == nullptr ? Running{-__builtin_inff(), 0.0f} : Running{sinks[head], 1.0f};
  for (size_t c = 0; c < width; ++c) o[c] = 0.0f;
}

PLAIT_INLINE void Finish(const Running& running, const float* o, float* y, size_t width) {
  const F32 sum = Broadcast(running.sum);
  for (size_t c = 0; c < width; c += kLanes) {
    const size_t left = Smaller(width - c, kLanes);
    StoreFirst(y + c, Div(LoadFirst(o + c, left), sum), left);
  }
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_ATTENTION_ROWS_H_
