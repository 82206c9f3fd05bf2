// Attention of the rows of one chunk for one KV head: tile by tile, as docs/concepts/numerics.md defines it.
//
// Owns the walk over tiles, row groups and blocks, and the scratch. Register tiles are in attention_tiles.h, merging in
// attention_rows.h. Invariant: what a row multiplies and adds, and in which order, depends on its own slot alone. Few
// rows read keys and values where they lie; for more, where that is dear, a tile is converted once and shared.

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_rows.h"
#include "ops/targets/attention_tiles.h"
#include "ops/targets/functions.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

constexpr size_t kTilePieces = kKeyTile / kPiece;
// Pieces that lie beside each other in converted keys: as many as a full group of rows takes at once.
constexpr size_t kPanelPieces = ScorePieces(kScoreRows);
// Units of memory that are on their way while one is worked on: at 4 KiB a unit, more than a DRAM's latency times its
// rate.
constexpr size_t kUnitsAhead = 4;
constexpr size_t kTileUnits = kKeyTile / kUnitKeys;
// Whether a number becomes a float in one instruction: then keys and values are read where they lie, by however many
// rows. Converted first they would go through the second-level cache, which takes longer than converting them again.
#if defined(__F16C__)
template <typename Number>
constexpr bool kReadsInPlace = true;
#else
template <typename Number>
constexpr bool kReadsInPlace = sizeof(Number) == sizeof(float);
#endif
// Stacked rows whose scores are kept at the same time.
constexpr size_t kBlockRows = 4 * kScoreRows;

PLAIT_INLINE bool IsEmpty(Range range) { return range.low >= range.high; }

// Query heads times rows: stacked row i is query head i % group of row i / group.
struct Scratch {
  float* q;       // row groups one after another, each [depth][rows of the group]
  float* keys;    // [panel][depth][kPanelPieces * kPiece]
  float* values;  // [kKeyTile][value_width]
  float* scores;  // [kBlockRows][kKeyTile]
  float* tile_o;  // [kValueRows][value_width]
  float* o;       // [stacked rows][value_width]
  Running* running;
  size_t bytes;
};

Scratch ScratchOf(uint8_t* base, size_t group, size_t depth, size_t value_width) {
  const size_t rows = kMaxAttendRows * group;
  Scratch scratch{};
  const auto take = [&](size_t floats) __attribute__((always_inline)) {
    float* taken = reinterpret_cast<float*>(base + scratch.bytes);
    scratch.bytes += RoundedUp(floats * sizeof(float), 64);
    return taken;
  };
  scratch.q = take(rows * depth);
  scratch.keys = take(kKeyTile * depth);
  scratch.values = take(kKeyTile * value_width);
  scratch.scores = take(kBlockRows * kKeyTile);
  scratch.tile_o = take(kValueRows * value_width);
  scratch.o = take(rows * value_width);
  scratch.running = reinterpret_cast<Running*>(take(rows * sizeof(Running) / sizeof(float)));
  return scratch;
}

// Where the keys and values of one tile are, as Score and AddValues take them.
template <typename Number>
struct TileSource {
  const Number* pieces[kTilePieces];
  size_t key_stride;
  const Number* blocks[kTilePieces];
  size_t tokens;
  // Units of memory in the order of their use: K of the tile, V of the tile, K of what comes then. Unit 0 of K is that
  // of the tile's first slot, whether it is seen or not.
  const uint8_t* units[2 * kTileUnits + kUnitsAhead];
  size_t num_units = 0;  // of K, and of V
};

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

Range SeenByStacked(const AttendCall& call, size_t stacked, size_t tile) {
  return InTile(SeenBy(call, stacked / call.group), tile);
}

// What stacked rows [first, first + count) see of a tile together.
Range SeenByAny(const AttendCall& call, size_t first, size_t count, size_t tile) {
  const Range low = SeenBy(call, first / call.group);
  const Range high = SeenBy(call, (first + count - 1) / call.group);
  return InTile({low.low, high.high}, tile);
}

void PackQueries(const Walk& walk, const Groups& groups) {
  const AttendCall& call = walk.call;
  const size_t depth = call.place.head_dim_k;
  float* to = walk.scratch.q;
  size_t stacked = 0;
  for (size_t g = 0; g < groups.count; ++g) {
    const size_t rows = SizeOf(groups, g);
    const float* from[kScoreRows];
    for (size_t r = 0; r < rows; ++r, ++stacked) {
      const size_t head = call.kv_head * call.group + stacked % call.group;
      const size_t row = stacked / call.group;
      from[r] = call.q + (call.q_rows == nullptr ? row : call.q_rows[row]) * call.q_stride + head * depth;
    }
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
  const CachePlace& place = call.place;
  const size_t offset = place.layer_offset + call.kv_head * place.head_bytes;
  const uint8_t* block = place.pool + static_cast<size_t>(call.table[index]) * place.block_bytes;
  return reinterpret_cast<const Number*>(block + offset);
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

// Where unit `unit` of a tile begins; a whole unit of K where a block has room for one.
PLAIT_INLINE const uint8_t* UnitOf(const AttendCall& call, size_t tile, size_t unit, bool is_key) {
  const CachePlace& place = call.place;
  const size_t slot = tile * kKeyTile + unit * kUnitKeys;
  const size_t inside = slot % place.tokens_per_block;
  // A unit may begin before the first slot that is seen, where a sequence that joined late has no block.
  if (call.table[slot / place.tokens_per_block] < 0) return place.pool;
  const uint16_t* keys = BlockOf<uint16_t>(call, slot / place.tokens_per_block);
  const uint16_t* values = keys + place.head_dim_k * place.tokens_per_block;
  return reinterpret_cast<const uint8_t*>(is_key ? keys + inside * place.head_dim_k
                                                 : values + inside * place.head_dim_v);
}

// What is asked for while a tile is worked on: units [first, end) of its K, of its V, then K of the next tile that the
// call attends to, or else of the next KV head, which is likely to be this thread's next call.
void PlaceUnits(const Walk& walk, size_t tile, Range seen, TileSource<uint16_t>* source) {
  const AttendCall& call = walk.call;
  const size_t first = seen.low / kUnitKeys;
  const size_t end = RoundedUp(seen.high, kUnitKeys) / kUnitKeys;
  source->num_units = end - first;
  const uint8_t** to = source->units + first;
  for (size_t unit = first; unit < end; ++unit) *to++ = UnitOf(call, tile, unit, true);
  for (size_t unit = first; unit < end; ++unit) *to++ = UnitOf(call, tile, unit, false);
  const bool is_last = tile + 1 == walk.end_tile;
  const bool has_next_head = call.kv_head + 1 < call.place.kv_heads;
  const size_t next_tile = is_last ? walk.first_tile : tile + 1;
  const Range next = is_last && !has_next_head ? Range{0, 0} : SeenByAny(call, 0, walk.num_stacked, next_tile);
  for (size_t i = 0; i < kUnitsAhead; ++i) {
    const size_t unit = next.low / kUnitKeys + i;
    *to++ = unit * kUnitKeys < next.high ? UnitOf(call, next_tile, unit, true) + (is_last ? call.place.head_bytes : 0)
                                         : source->units[first];
  }
}

PLAIT_INLINE F32 LoadFirstNumbers(const float* from, size_t count) { return LoadFirst(from, count); }
PLAIT_INLINE F32 LoadFirstNumbers(const uint16_t* from, size_t count) {
  if (count == kLanes) return LoadF16(from);
  uint16_t padded[kLanes] = {};
  for (size_t i = 0; i < count; ++i) padded[i] = from[i];
  return LoadF16(padded);
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
        score.ahead[i] = source.units[piece * kPiece / kUnitKeys + i + kUnitsAhead];
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
    if (!IsEmpty(seen[r])) sums[r] = Weigh(scores + r * kKeyTile, seen[r].low, seen[r].high, walk.call.softcap);
  }
  for (size_t c = 0; c < rows * walk.value_width; c += kLanes) Store(tile_o + c, Zero());
  // Rows that see nothing of the tile are the first or the last ones.
  size_t begin = 0;
  size_t end = rows;
  while (begin < end && IsEmpty(seen[begin])) ++begin;
  while (begin < end && IsEmpty(seen[end - 1])) --end;
  if (begin < end) {
    AddValuesOf(source, source.units + source.num_units + kUnitsAhead, scores + begin * kKeyTile, seen + begin,
                end - begin, walk.value_width, tile_o + begin * walk.value_width);
  }
  for (size_t r = 0; r < rows; ++r) {
    const bool wanted = walk.call.partials != nullptr || sums[r].sum != 0.0f;
    if (wanted) Deliver(walk, stacked + r, tile, sums[r], tile_o + r * walk.value_width);
  }
}

template <typename Number>
void AttendTile(const Walk& walk, const Groups& groups, const TileSource<Number>& source, size_t tile) {
  constexpr size_t kGroupsAtOnce = kBlockRows / kScoreRows;
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
    const Groups parts = GroupsOf(rows, kValueRows);
    for (size_t i = 0, row = 0; i < parts.count; row += SizeOf(parts, i), ++i) {
      FinishRows(walk, source, tile, stacked + row, SizeOf(parts, i), walk.scratch.scores + row * kKeyTile);
    }
    stacked += rows;
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
        if (!IsEmpty(seen)) PlaceUnits(walk, tile, seen, &source);
      }
      AttendTile(walk, groups, source, tile);
    } else {
      ConvertTile<Number>(walk, tile, seen);
      TileSource<float> source;
      PlaceConverted(walk, &source);
      AttendTile(walk, groups, source, tile);
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
  if (call.place.type == CacheType::kF16) {
    AttendTiles<uint16_t>(walk);
  } else {
    AttendTiles<float>(walk);
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
