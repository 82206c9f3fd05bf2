// Attention over a cache in 8 bits: what is done to one tile, for every group of rows.
//
// Owns the packing of queries and the order of scores, weights and values of a tile. Register tiles are in
// attention_int8.h, the walk in attention_walk.h. Invariant: numbers of keys that a row does not see are never
// anything but multiplied by a weight of zero; their scales are not looked at.

#include "ops/targets/attention_int8.h"

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_rows.h"
#include "ops/targets/attention_walk.h"
#include "ops/targets/functions.h"
#include "ops/targets/quantize.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// A piece of keys is a unit of memory: a line for every quad.
constexpr size_t kUnitsAhead = 8;

struct Int8Tile {
  const uint8_t* keys[kTilePieces];
  const float* key_scales[kTilePieces];
  const float* value_scales[kTilePieces];
  const int8_t* values[kTilePieces];
  TileUnits<kPiece, kUnitsAhead> units;
};

UnitShape UnitsOf(const CachePlace& place) {
  return {kPiece, StoredWidth(CacheType::kInt8, place.head_dim_k), StoredWidth(CacheType::kInt8, place.head_dim_v),
          ValuesAt(CacheType::kInt8, place.head_dim_k, place.tokens_per_block)};
}

void PlaceTile(const Walk& walk, size_t tile, Range seen, Int8Tile* to) {
  const CachePlace& place = walk.call.place;
  const size_t tokens = place.tokens_per_block;
  const size_t width = StoredWidth(place.type, place.head_dim_v);
  const size_t values_at = ValuesAt(place.type, place.head_dim_k, tokens);
  const size_t scales_at = KeyScalesAt(place.type, place.head_dim_k, tokens);
  const size_t value_scales_at = ValueScalesAt(place.type, place.head_dim_k, place.head_dim_v, tokens);
  for (size_t b = seen.low / tokens; b * tokens < seen.high; ++b) {
    const uint8_t* head = HeadOf(walk.call, tile * (kKeyTile / tokens) + b);
    for (size_t token = 0; token < tokens; token += kPiece) {
      const size_t piece = (b * tokens + token) / kPiece;
      to->keys[piece] = head + token * kQuad;
      to->values[piece] = reinterpret_cast<const int8_t*>(head + values_at) + token * width;
      to->key_scales[piece] = reinterpret_cast<const float*>(head + scales_at) + token;
      to->value_scales[piece] = reinterpret_cast<const float*>(head + value_scales_at) + token;
    }
  }
}

// A number of K is its value plus 128, which the sums of a row begin without.
void PackQueries(const Walk& walk, const Groups& groups) {
  const AttendCall& call = walk.call;
  const size_t depth = call.place.head_dim_k;
  const size_t quads = StoredWidth(CacheType::kInt8, depth) / kQuad;
  Quad* to = reinterpret_cast<Quad*>(walk.scratch.q);
  size_t stacked = 0;
  for (size_t g = 0; g < groups.count; ++g) {
    const size_t rows = SizeOf(groups, g);
    for (size_t r = 0; r < rows; ++r, ++stacked) {
      // Rounded where scores will be, which nothing needs yet.
      int8_t* values = reinterpret_cast<int8_t*>(walk.scratch.scores);
      const float scale = RoundToInt8(QueryOf(call, stacked), depth, values);
      for (size_t d = depth; d < quads * kQuad; ++d) values[d] = 0;
      int32_t sum = 0;
      for (size_t d = 0; d < depth; ++d) sum += values[d];
      walk.scratch.starts[stacked] = -128 * sum;
      walk.scratch.factors[stacked] = scale * call.scale;
      for (size_t quad = 0; quad < quads; ++quad) to[quad * rows + r] = QuadOf(values + quad * kQuad);
    }
    to += rows * quads;
  }
}

// The scores of `rows` stacked rows from `stacked` on, for the pieces of keys in `seen`.
void ScoreRowsOf(const Walk& walk, const Int8Tile& tile, size_t stacked, size_t rows, Range seen, float* scores) {
  Int8ScoreCall score;
  score.quads = StoredWidth(CacheType::kInt8, walk.call.place.head_dim_k) / kQuad;
  score.q = reinterpret_cast<const Quad*>(walk.scratch.q) + stacked * score.quads;
  score.stride = walk.call.place.tokens_per_block * kQuad;
  score.starts = walk.scratch.starts + stacked;
  score.factors = walk.scratch.factors + stacked;
  const size_t end = RoundedUp(seen.high, kPiece) / kPiece;
  for (size_t piece = seen.low / kPiece; piece < end;) {
    const size_t pieces = Smaller(end - piece, Int8ScorePieces(rows));
    for (size_t p = 0; p < pieces; ++p) {
      score.keys[p] = tile.keys[piece + p];
      score.scales[p] = tile.key_scales[piece + p];
      score.ahead[p] = tile.units.at[piece + p + kUnitsAhead];
    }
    score.s = scores + piece * kPiece;
    Int8Score(score, rows, pieces);
    piece += pieces;
  }
}

// Weights, sums and values of `rows` <= kInt8ValueRows stacked rows whose scores are there.
void FinishRows(const Walk& walk, const Int8Tile& source, size_t tile, size_t stacked, size_t rows, float* scores) {
  const Range any = SeenByAny(walk.call, stacked, rows, tile);
  const Range all{any.low / kPiece * kPiece, RoundedUp(any.high, kPiece)};
  TileSum sums[kInt8ValueRows];
  float factors[kInt8ValueRows];
  for (size_t r = 0; r < rows; ++r) {
    const Range seen = SeenByStacked(walk.call, stacked + r, tile);
    float* s = scores + r * kKeyTile;
    const float softcap = walk.call.softcap;
    const Int8Sum row = IsEmpty(seen)     ? NoWeights(s, all)
                        : softcap == 0.0f ? WeighInt8<false>(s, source.value_scales, seen, all, softcap)
                                          : WeighInt8<true>(s, source.value_scales, seen, all, softcap);
    sums[r] = row.sum;
    factors[r] = row.factor;
  }
  float* tile_o = walk.scratch.tile_o;
  if (IsEmpty(any)) {
    for (size_t c = 0; c < rows * walk.value_width; c += kLanes) Store(tile_o + c, Zero());
  } else {
    const uint8_t* const* ahead = source.units.at + source.units.count + kUnitsAhead;
    const Int8ValueCall values{scores, source.values, walk.value_width, factors, tile_o, walk.value_width, ahead};
    Int8Values(values, rows, any.low / 2 * 2, any.high);
  }
  for (size_t r = 0; r < rows; ++r) {
    const bool wanted = walk.call.partials != nullptr || sums[r].sum != 0.0f;
    if (wanted) Deliver(walk, stacked + r, tile, sums[r], tile_o + r * walk.value_width);
  }
}

}  // namespace

static_assert(kInt8ValueRows <= kValueRows && kBlockRows >= kInt8ScoreRows);
static_assert(sizeof(Quad) <= kQuad * sizeof(float));

void AttendTilesInt8(const Walk& walk) {
  const Groups groups = GroupsOf(walk.num_stacked, kInt8ScoreRows);
  PackQueries(walk, groups);
  for (size_t tile = walk.first_tile; tile < walk.end_tile; ++tile) {
    const Range seen = SeenByAny(walk.call, 0, walk.num_stacked, tile);
    Int8Tile source;
    if (!IsEmpty(seen)) {
      PlaceTile(walk, tile, seen, &source);
      PlaceUnits(walk, UnitsOf(walk.call.place), tile, seen, &source.units);
    }
    AttendTile<kInt8ScoreRows, kInt8ValueRows>(walk, groups, source, tile);
  }
}

}  // namespace plait::PLAIT_TARGET
