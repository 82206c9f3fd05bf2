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

// to[c] = function(to[c], from[c]) for any number of columns.
template <typename Function>
PLAIT_INLINE void Combine(const float* from, float* to, size_t width, const Function& function) {
  size_t c = 0;
  for (; c + kLanes <= width; c += kLanes) Store(to + c, function(Load(to + c), Load(from + c)));
  if (c == width) return;
  const size_t left = width - c;
  StoreFirst(to + c, function(LoadFirst(to + c, left), LoadFirst(from + c, left)), left);
}

// Merges a tile that the row sees: running, o <- the tile's (max, sum), tile_o.
PLAIT_INLINE void MergeTile(TileSum tile, const float* tile_o, Running* running, float* o, size_t width) {
  if (running->sum == 0.0f) {
    *running = {tile.max, tile.sum};
    return Combine(tile_o, o, width, [](F32, F32 tile_sum) __attribute__((always_inline)) { return tile_sum; });
  }
  // One of the two exponents is 0, and its exponential 1.
  const bool is_new = tile.max > running->max;
  const float factor = FirstLane(ExpOfNegative(Broadcast(is_new ? running->max - tile.max : tile.max - running->max)));
  const float of_running = is_new ? factor : 1.0f;
  const float of_tile = is_new ? 1.0f : factor;
  *running = {is_new ? tile.max : running->max, Fma(tile.sum, of_tile, running->sum * of_running)};
  const F32 kept = Broadcast(of_running);
  const F32 added = Broadcast(of_tile);
  Combine(tile_o, o, width,
          [=](F32 sum, F32 tile_sum) __attribute__((always_inline)) { return Fma(tile_sum, added, Mul(sum, kept)); });
}

// A sink is a first tile with o = 0.
PLAIT_INLINE void Begin(const float* sinks, size_t head, Running* running, float* o, size_t width) {
  *running = sinks == nullptr ? Running{-__builtin_inff(), 0.0f} : Running{sinks[head], 1.0f};
  for (size_t c = 0; c < width; ++c) o[c] = 0.0f;
}

PLAIT_INLINE void Finish(const Running& running, const float* o, float* y, size_t width) {
  const F32 sum = Broadcast(running.sum);
  Combine(o, y, width, [sum](F32, F32 numerator) __attribute__((always_inline)) { return Div(numerator, sum); });
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_ATTENTION_ROWS_H_
