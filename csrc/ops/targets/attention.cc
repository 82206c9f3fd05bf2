// Attention of the rows of one chunk for one KV head: tile by tile, as docs/concepts/numerics.md defines it.
//
// Owns what is done to a tile of floats, of whatever size in the cache. Register tiles are in attention_tiles.h,
// merging in attention_rows.h, the walk in attention_walk.h. Invariant: what a row multiplies and adds, and in which
// order, depends on its own slot alone. Few rows read keys and values where they lie; for more, where that is dear, a
// tile is converted once and shared.

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_rows.h"
#include "ops/targets/attention_tiles.h"
#include "ops/targets/attention_walk.h"
#include "ops/targets/functions.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

constexpr size_t kUnitsAhead = 4;

// Whether a number becomes a float in one instruction: then keys and values are read where they lie, by however many
// rows. Converted first they would go through the second-level cache, which takes longer than converting them again.
#if defined(__AVX2__)
template <typename Number>
constexpr bool kReadsInPlace = true;
#else
template <typename Number>
constexpr bool kReadsInPlace = sizeof(Number) == sizeof(float);
#endif
// Where the keys and values of one tile are, as Score and AddValues take them.
template <typename Number>
struct TileSource {
  const Number* pieces[kTilePieces];
  size_t key_stride;
  const Number* blocks[kTilePieces];
  size_t tokens;
  TileUnits<kUnitKeys, kUnitsAhead> units;
};

void PackQueries(const Walk& walk, const Groups& groups) {
  const AttendCall& call = walk.call;
  const size_t depth = call.place.head_dim_k;
  float* to = walk.scratch.q;
  size_t stacked = 0;
  for (size_t g = 0; g < groups.count; ++g) {
    const size_t rows = SizeOf(groups, g);
    const float* from[kScoreRows];
    for (size_t r = 0; r < rows; ++r, ++stacked) from[r] = QueryOf(call, stacked);
    // Four columns at a time: one load for each row, and stores close to each other.
    size_t d = 0;
    for (; d + 4 <= depth; d += 4) {
      float* column = to + d * rows;
      for (size_t r = 0; r < rows; ++r) {
        float four[4];
        __builtin_memcpy(four, from[r] + d, sizeof(four));
        column[r] = four[0];
        column[rows + r] = four[1];
        column[2 * rows + r] = four[2];
        column[3 * rows + r] = four[3];
      }
    }
    for (; d < depth; ++d) {
      for (size_t r = 0; r < rows; ++r) to[d * rows + r] = from[r][d];
    }
    to += rows * depth;
  }
}

template <typename Number>
PLAIT_INLINE const Number* BlockOf(const AttendCall& call, size_t index) {
  return reinterpret_cast<const Number*>(HeadOf(call, index));
}

// Of a cache of 16 bits.
PLAIT_INLINE UnitShape UnitsOf(const CachePlace& place) {
  const size_t key_bytes = place.head_dim_k * sizeof(uint16_t);
  return {kUnitKeys, key_bytes, place.head_dim_v * sizeof(uint16_t), place.tokens_per_block * key_bytes};
}

// Keys and values where they lie. Blocks hold whole pieces.
template <typename Number>
PLAIT_INLINE void PlaceTile(const Walk& walk, size_t tile, Range seen, TileSource<Number>* source) {
  const CachePlace& place = walk.call.place;
  source->key_stride = place.tokens_per_block;
  source->tokens = place.tokens_per_block;
  const size_t per_tile = kKeyTile / place.tokens_per_block;
  for (size_t b = seen.low / source->tokens; b * source->tokens < seen.high; ++b) {
    const Number* keys = BlockOf<Number>(walk.call, tile * per_tile + b);
    source->blocks[b] = keys + place.head_dim_k * place.tokens_per_block;
    for (size_t token = 0; token < source->tokens; token += kPiece) {
      source->pieces[(b * source->tokens + token) / kPiece] = keys + token;
    }
  }
}

PLAIT_INLINE F32 LoadFirstNumbers(const float* from, size_t count) { return LoadFirst(from, count); }
template <typename Number>
PLAIT_INLINE F32 LoadFirstNumbers(const Number* from, size_t count) {
  if (count == kLanes) return LoadNumber(from);
  Number padded[kLanes] = {};
  for (size_t i = 0; i < count; ++i) padded[i] = from[i];
  return LoadNumber(padded);
}

// One block's keys into panels. Keys of a block lie beside each other, and so do those of a piece.
template <typename Number>
void ConvertKeys(const Walk& walk, const Number* keys, size_t first_key, size_t tokens) {
  constexpr size_t kPanelKeys = kPanelPieces * kPiece;
  const size_t depth = walk.call.place.head_dim_k;
  for (size_t token = 0; token < tokens; token += kLanes) {
    const size_t count = Smaller(tokens - token, kLanes);
    const size_t key = first_key + token;
    float* to = walk.scratch.keys + key / kPanelKeys * kPanelKeys * depth + key % kPanelKeys;
    for (size_t d = 0; d < depth; ++d) {
      StoreFirst(to + d * kPanelKeys, LoadFirstNumbers(keys + d * tokens + token, count), count);
    }
  }
}

// Values of keys [seen.low, seen.high) only; the columns behind head_dim_v are zero.
template <typename Number>
void ConvertValues(const Walk& walk, const Number* values, size_t first_key, size_t tokens, Range seen) {
  const size_t width = walk.call.place.head_dim_v;
  const size_t last = Smaller(first_key + tokens, seen.high);
  for (size_t key = Larger(first_key, seen.low); key < last; ++key) {
    const Number* from = values + (key - first_key) * width;
    float* to = walk.scratch.values + key * walk.value_width;
    for (size_t c = 0; c < walk.value_width; c += kLanes) {
      Store(to + c, c < width ? LoadFirstNumbers(from + c, Smaller(width - c, kLanes)) : Zero());
    }
  }
}

template <typename Number>
void ConvertTile(const Walk& walk, size_t tile, Range seen) {
  const CachePlace& place = walk.call.place;
  const size_t tokens = place.tokens_per_block;
  for (size_t b = seen.low / tokens; b * tokens < seen.high; ++b) {
    const Number* keys = BlockOf<Number>(walk.call, tile * (kKeyTile / tokens) + b);
    ConvertKeys(walk, keys, b * tokens, tokens);
    ConvertValues(walk, keys + place.head_dim_k * tokens, b * tokens, tokens, seen);
  }
}

void PlaceConverted(const Walk& walk, TileSource<float>* source) {
  constexpr size_t kPanelKeys = kPanelPieces * kPiece;
  source->key_stride = kPanelKeys;
  for (size_t piece = 0; piece < kTilePieces; ++piece) {
    const size_t panel = piece / kPanelPieces;
    source->pieces[piece] =
        walk.scratch.keys + panel * kPanelKeys * walk.call.place.head_dim_k + piece % kPanelPieces * kPiece;
  }
  source->blocks[0] = walk.scratch.values;
  source->tokens = kKeyTile;
}

// The scores of `rows` stacked rows from `stacked` on, for the pieces of keys in `seen`.
template <typename Number>
PLAIT_INLINE void ScoreRowsOf(const Walk& walk, const TileSource<Number>& source, size_t stacked, size_t rows,
                              Range seen, float* scores) {
  ScoreCall<Number> score;
  score.q = walk.scratch.q + stacked * walk.call.place.head_dim_k;
  score.stride = source.key_stride;
  score.depth = walk.call.place.head_dim_k;
  score.scale = walk.call.scale;
  const size_t end = RoundedUp(seen.high, kPiece) / kPiece;
  for (size_t piece = seen.low / kPiece; piece < end;) {
    const size_t pieces = Smaller(end - piece, ScorePieces(rows));
    for (size_t p = 0; p < pieces; ++p) score.keys[p] = source.pieces[piece + p];
    if constexpr (kAsksAhead<Number>) {
      for (size_t i = 0; i < kMostPieces / 2; ++i) {
        score.ahead[i] = source.units.at[piece * kPiece / kUnitKeys + i + kUnitsAhead];
      }
    }
    score.s = scores + piece * kPiece;
    Score(score, rows, pieces);
    piece += pieces;
  }
}

// Chains over the values for rows that see different ranges: before what all of them see, that, and behind it; a row
// meets its own keys only. Rows with equal ranges stay together.
template <typename Number>
PLAIT_INLINE void AddValuesOf(const TileSource<Number>& source, const uint8_t* const* ahead, const float* p,
                              const Range* seen, size_t rows, size_t width, float* o) {
  const Range all{seen[rows - 1].low, seen[0].high};
  const auto add = [&](size_t first, size_t count, size_t low, size_t high) __attribute__((always_inline)) {
    if (low >= high) return;
    const ValueCall<Number> call{p + first * kKeyTile, source.blocks, source.tokens, width,
                                 o + first * width,    width,         ahead};
    AddValues(call, count, low, high);
  };
  const bool together = all.low < all.high;
  for (size_t first = 0, next; first < rows; first = next) {
    next = first + 1;
    while (next < rows && seen[next].low == seen[first].low && seen[next].high == seen[first].high) ++next;
    add(first, next - first, seen[first].low, together ? all.low : seen[first].high);
  }
  if (!together) return;
  add(0, rows, all.low, all.high);
  for (size_t first = 0, next; first < rows; first = next) {
    next = first + 1;
    while (next < rows && seen[next].high == seen[first].high) ++next;
    add(first, next - first, all.high, seen[first].high);
  }
}

// Weights, sums and values of `rows` <= kValueRows stacked rows whose scores are there.
template <typename Number>
PLAIT_INLINE void FinishRows(const Walk& walk, const TileSource<Number>& source, size_t tile, size_t stacked,
                             size_t rows, float* scores) {
  Range seen[kValueRows];
  TileSum sums[kValueRows];
  float* tile_o = walk.scratch.tile_o;
  for (size_t r = 0; r < rows; ++r) {
    seen[r] = SeenByStacked(walk.call, stacked + r, tile);
    sums[r] = {-__builtin_inff(), 0.0f};
    if (IsEmpty(seen[r])) continue;
    float* s = scores + r * kKeyTile;
    sums[r] = walk.call.softcap == 0.0f ? Weigh<false>(s, seen[r].low, seen[r].high, 0.0f)
                                        : Weigh<true>(s, seen[r].low, seen[r].high, walk.call.softcap);
  }
  for (size_t c = 0; c < rows * walk.value_width; c += kLanes) Store(tile_o + c, Zero());
  // Rows that see nothing of the tile are the first or the last ones.
  size_t begin = 0;
  size_t end = rows;
  while (begin < end && IsEmpty(seen[begin])) ++begin;
  while (begin < end && IsEmpty(seen[end - 1])) --end;
  if (begin < end) {
    AddValuesOf(source, source.units.at + source.units.count + kUnitsAhead, scores + begin * kKeyTile, seen + begin,
                end - begin, walk.value_width, tile_o + begin * walk.value_width);
  }
  for (size_t r = 0; r < rows; ++r) {
    const bool wanted = walk.call.partials != nullptr || sums[r].sum != 0.0f;
    if (wanted) Deliver(walk, stacked + r, tile, sums[r], tile_o + r * walk.value_width);
  }
}

template <typename Number>
void AttendTiles(const Walk& walk) {
  const CachePlace& place = walk.call.place;
  const Groups groups = GroupsOf(walk.num_stacked, kScoreRows);
  PackQueries(walk, groups);
  const bool is_read_once = groups.count == 1;
  const bool in_place =
      (kReadsInPlace<Number> || is_read_once) && place.tokens_per_block % kPiece == 0 && place.head_dim_v % kPiece == 0;
  for (size_t tile = walk.first_tile; tile < walk.end_tile; ++tile) {
    const Range seen = SeenByAny(walk.call, 0, walk.num_stacked, tile);
    if (in_place) {
      TileSource<Number> source;
      PlaceTile(walk, tile, seen, &source);
      if constexpr (kAsksAhead<Number>) {
        if (!IsEmpty(seen)) PlaceUnits(walk, UnitsOf(walk.call.place), tile, seen, &source.units);
      }
      AttendTile<kScoreRows, kValueRows>(walk, groups, source, tile);
    } else {
      ConvertTile<Number>(walk, tile, seen);
      TileSource<float> source;
      PlaceConverted(walk, &source);
      AttendTile<kScoreRows, kValueRows>(walk, groups, source, tile);
    }
  }
}

Walk WalkOf(const AttendCall& call, uint8_t* scratch) {
  const size_t value_width = RoundedUp(call.place.head_dim_v, kPiece);
  const bool is_part = call.partials != nullptr || call.state != nullptr;
  const size_t slots = SeenBy(call, call.num_rows - 1).high;
  return {call,
          ScratchOf(scratch, call.group, call.place.head_dim_k, value_width),
          call.num_rows * call.group,
          value_width,
          is_part ? call.first_tile : SeenBy(call, 0).low / kKeyTile,
          is_part ? call.first_tile + call.num_tiles : RoundedUp(slots, kKeyTile) / kKeyTile};
}

}  // namespace

size_t AttendScratchBytes(size_t group, size_t head_dim_k, size_t head_dim_v) {
  return ScratchOf(nullptr, group, head_dim_k, RoundedUp(head_dim_v, kPiece)).bytes;
}

void Attend(const AttendCall& call, uint8_t* scratch) {
  const Walk walk = WalkOf(call, scratch);
  const size_t width = call.place.head_dim_v;
  const bool is_part = call.partials != nullptr;
  for (size_t i = 0; i < walk.num_stacked && !is_part; ++i) {
    const size_t head = call.kv_head * call.group + i % call.group;
    Begin(call.sinks, head, walk.scratch.running + i, walk.scratch.o + i * walk.value_width, width);
  }
  switch (call.place.type) {
    case CacheType::kF32:
      AttendTiles<float>(walk);
      break;
    case CacheType::kF16:
      AttendTiles<Half>(walk);
      break;
    case CacheType::kBf16:
      AttendTiles<Bfloat>(walk);
      break;
    case CacheType::kInt8:
      AttendTilesInt8(walk);
      break;
  }
  for (size_t i = 0; i < walk.num_stacked && !is_part; ++i) {
    const Running& running = walk.scratch.running[i];
    const float* o = walk.scratch.o + i * walk.value_width;
    if (call.state != nullptr) {
      float* state = call.state + i * (2 + width);
      state[0] = running.max;
      state[1] = running.sum;
      for (size_t c = 0; c < width; ++c) state[2 + c] = o[c];
    } else {
      const size_t head = call.kv_head * call.group + i % call.group;
      Finish(running, o, call.y + i / call.group * call.y_stride + head * width, width);
    }
  }
}

void Merge(const MergeCall& call) {
  const size_t width = call.head_dim_v;
  const size_t num_stacked = call.num_rows * call.group;
  for (size_t i = 0; i < num_stacked; ++i) {
    const size_t head = call.kv_head * call.group + i % call.group;
    // The row of the answer holds o until it is divided.
    float* y = call.y + i / call.group * call.y_stride + head * width;
    Running running;
    if (call.state != nullptr) {
      const float* state = call.state + i * (2 + width);
      running = {state[0], state[1]};
      for (size_t c = 0; c < width; ++c) y[c] = state[2 + c];
    } else {
      Begin(call.sinks, head, &running, y, width);
    }
    for (size_t tile = 0; tile < call.num_tiles; ++tile) {
      const float* partial = call.partials + (tile * num_stacked + i) * (2 + width);
      if (partial[1] != 0.0f) MergeTile({partial[0], partial[1]}, partial + 2, &running, y, width);
    }
    Finish(running, y, y, width);
  }
}

}  // namespace plait::PLAIT_TARGET
