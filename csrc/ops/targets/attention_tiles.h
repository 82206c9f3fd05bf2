// The two products of attention, and what is between them, for a few rows and the keys of one tile.
//
// Owns register tiles and the order of every sum within a key tile (docs/concepts/numerics.md, canonical attention).
// Knows nothing about blocks, tables and who sees what: it is given pointers and ranges.
// Invariant: a row's numbers do not depend on how many rows or keys are computed with it.

#ifndef PLAIT_CSRC_OPS_TARGETS_ATTENTION_TILES_H_
#define PLAIT_CSRC_OPS_TARGETS_ATTENTION_TILES_H_

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/math.h"
#include "ops/targets/math_lanes.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// Keys, and columns of values, that are loaded together: the smallest piece of both products on every target.
inline constexpr size_t kPiece = kSixteen;
inline constexpr size_t kPieceVectors = kPiece / kLanes;

// Rows and pieces of a register tile: accumulators, the loaded pieces and a factor fit the target's registers.
#if defined(__AVX512F__)
inline constexpr size_t kScoreRows = 12;
inline constexpr size_t kValueRows = 12;
PLAIT_INLINE constexpr size_t ScorePieces(size_t rows) { return rows <= 6 ? 4 : 2; }
PLAIT_INLINE constexpr size_t ValuePieces(size_t rows) { return rows <= 6 ? 4 : 2; }
#elif defined(__AVX2__)
inline constexpr size_t kScoreRows = 6;
inline constexpr size_t kValueRows = 6;
PLAIT_INLINE constexpr size_t ScorePieces(size_t rows) { return rows <= 3 ? 2 : 1; }
PLAIT_INLINE constexpr size_t ValuePieces(size_t rows) { return rows <= 3 ? 2 : 1; }
#else
inline constexpr size_t kScoreRows = 3;
inline constexpr size_t kValueRows = 3;
PLAIT_INLINE constexpr size_t ScorePieces(size_t) { return 1; }
PLAIT_INLINE constexpr size_t ValuePieces(size_t) { return 1; }
#endif
inline constexpr size_t kMostPieces = 4;

// Keys of which all columns of values are taken before the next keys, where columns need several register tiles.
#if defined(__AVX512F__)
inline constexpr size_t kKeysAtOnce = 128;
#else
inline constexpr size_t kKeysAtOnce = 64;
#endif

// Numbers of 16 bits, as caches hold them.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

PLAIT_INLINE F32 LoadNumber(const float* from) { return Load(from); }
PLAIT_INLINE F32 LoadNumber(const Half* from) { return LoadF16(&from->bits); }
PLAIT_INLINE F32 LoadNumber(const Bfloat* from) { return LoadBf16(&from->bits); }

// Keys of a unit of memory that is asked for before its time (attention_walk.h).
inline constexpr size_t kUnitKeys = 2 * kPiece;
inline constexpr size_t kLineBytes = 64;

// Numbers of 16 bits lie in blocks; floats, as a rule, in scratch.
template <typename Number>
inline constexpr bool kAsksAhead = sizeof(Number) == sizeof(uint16_t);

// s[r * kKeyTile + key] = scale * (chain over d of q[d * rows + r] * keys[piece][d * stride + key in piece]).
template <typename Number>
struct ScoreCall {
  const float* q;
  const Number* keys[kMostPieces];
  size_t stride;
  size_t depth;
  float scale;
  float* s;
  const uint8_t* ahead[kMostPieces / 2];  // where kAsksAhead: units to ask for, a line for every d
};

template <size_t kRows, size_t kPieces, typename Number>
void ScoreTile(const ScoreCall<Number>& call) {
  constexpr size_t kVectors = kPieces * kPieceVectors;
  F32 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = Zero();
  }
  const float* q = call.q;
  const Number* keys[kPieces];
#pragma GCC unroll 4
  for (size_t p = 0; p < kPieces; ++p) keys[p] = call.keys[p];
  for (size_t d = 0; d < call.depth; ++d) {
    F32 k[kVectors];
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      k[v] = LoadNumber(keys[v / kPieceVectors] + v % kPieceVectors * kLanes);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const F32 factor = Broadcast(q[r]);
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = Fma(factor, k[v], sums[r][v]);
    }
    if constexpr (kAsksAhead<Number>) {
      for (size_t p = 0; p < kPieces; p += 2) AskFor(call.ahead[p / 2] + d * kLineBytes);
    }
    q += kRows;
#pragma GCC unroll 4
    for (size_t p = 0; p < kPieces; ++p) keys[p] += call.stride;
  }
  const F32 scale = Broadcast(call.scale);
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) Store(call.s + r * kKeyTile + v * kLanes, Mul(sums[r][v], scale));
  }
}

template <size_t kRows, typename Number>
void ScorePiecesOf(const ScoreCall<Number>& call, size_t pieces) {
  if (pieces == 1) return ScoreTile<kRows, 1, Number>(call);
  if constexpr (ScorePieces(kRows) >= 2) {
    if (pieces == 2) return ScoreTile<kRows, 2, Number>(call);
  }
  if constexpr (ScorePieces(kRows) >= 4) {
    if (pieces == 3) return ScoreTile<kRows, 3, Number>(call);
    if (pieces == 4) return ScoreTile<kRows, 4, Number>(call);
  }
}

// `rows` in [1, kScoreRows], `pieces` in [1, ScorePieces(rows)].
template <size_t kRows = kScoreRows, typename Number>
void Score(const ScoreCall<Number>& call, size_t rows, size_t pieces) {
  if (rows == kRows) return ScorePiecesOf<kRows>(call, pieces);
  if constexpr (kRows > 1) return Score<kRows - 1>(call, rows, pieces);
}

// `nothing` in the lanes of keys outside [low, high), the first lane being key `first`.
PLAIT_INLINE F32 Hidden(F32 s, size_t first, size_t low, size_t high, F32 nothing) {
  static constexpr float kCount[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F32 lane = Load(kCount);
  const float below = static_cast<float>(static_cast<ptrdiff_t>(low) - static_cast<ptrdiff_t>(first));
  const float above = static_cast<float>(static_cast<ptrdiff_t>(high) - static_cast<ptrdiff_t>(first));
  return Select(Less(lane, Broadcast(below)), nothing, Select(Less(lane, Broadcast(above)), s, nothing));
}

// m and l of numerics.md.
struct TileSum {
  float max;
  float sum;
};

// Turns the scores of keys [low, high) of a tile into weights, with zeros beside them up to whole pieces. What is left
// in their place is kept(p, key, is_edge) of a vector of weights, its first key, and whether it holds others than
// those.
template <bool kIsCapped, typename Kept>
PLAIT_INLINE TileSum WeighKeys(float* s, size_t low, size_t high, float softcap, const Kept& kept) {
  const size_t begin = low / kPiece * kPiece;
  const F32 nothing = Broadcast(-__builtin_inff());
  F32 max[kPieceVectors];
  for (size_t v = 0; v < kPieceVectors; ++v) max[v] = nothing;
  for (size_t key = begin; key < high; key += kPiece) {
    const bool is_edge = key < low || key + kPiece > high;
    for (size_t v = 0; v < kPieceVectors; ++v) {
      const size_t first = key + v * kLanes;
      F32 x = Load(s + first);
      if constexpr (kIsCapped) x = Mul(Broadcast(softcap), Tanh(Div(x, Broadcast(softcap))));
      if (is_edge) x = Hidden(x, first, low, high, nothing);
      if (is_edge || kIsCapped) Store(s + first, x);
      max[v] = Max(max[v], x);
    }
  }
  for (size_t v = 1; v < kPieceVectors; ++v) max[0] = Max(max[0], max[v]);
  const float largest = LargestLane(max[0]);
  // Where every visible score is -inf, 0 keeps the weights zero; -inf - -inf is NaN.
  const F32 base = Broadcast(largest == -__builtin_inff() ? 0.0f : largest);
  Eight sum = NoSum();
  for (size_t key = begin; key < high; key += kPiece) {
    const bool is_edge = key < low || key + kPiece > high;
    F32 p[kPieceVectors];
    for (size_t v = 0; v < kPieceVectors; ++v) {
      const size_t first = key + v * kLanes;
      p[v] = ExpOfNegative(Sub(Load(s + first), base));
      Store(s + first, kept(p[v], first, is_edge));
    }
    AddSixteen(p, &sum);
  }
  return {largest, SumOfLanes(sum)};
}

inline constexpr auto kKeptAsIs = [](F32 p, size_t, bool) __attribute__((always_inline)) { return p; };

template <bool kIsCapped>
TileSum Weigh(float* s, size_t low, size_t high, float softcap) {
  return WeighKeys<kIsCapped>(s, low, high, softcap, kKeptAsIs);
}

// o[r * o_stride + c] goes on with the chain over keys [low, high) of p[r * kKeyTile + key] * values of key, column c.
template <typename Number>
struct ValueCall {
  const float* p;
  const Number* const* blocks;  // [key / tokens], rows of `width` columns
  size_t tokens;                // keys of a block
  size_t width;
  float* o;
  size_t o_stride;
  const uint8_t* const* ahead;  // where kAsksAhead: [key / kUnitKeys], units to ask for
};

template <size_t kRows, size_t kPieces, typename Number>
void ValueTile(const ValueCall<Number>& call, size_t column, size_t low, size_t high) {
  constexpr size_t kVectors = kPieces * kPieceVectors;
  F32 sums[kRows][kVectors];
  float* o = call.o + column;
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = Load(o + r * call.o_stride + v * kLanes);
  }
  for (size_t key = low; key < high;) {
    const size_t block = key / call.tokens;
    const size_t block_end = (block + 1) * call.tokens;
    size_t end = high < block_end ? high : block_end;
    const Number* values = call.blocks[block] + (key - block * call.tokens) * call.width + column;
    const float* p = call.p + key;
    const uint8_t* ahead = nullptr;
    if constexpr (kAsksAhead<Number>) {
      const size_t unit = key / kUnitKeys;
      if (end > (unit + 1) * kUnitKeys) end = (unit + 1) * kUnitKeys;
      ahead = call.ahead[unit] + ((key - unit * kUnitKeys) * call.width + column) * sizeof(Number);
    }
    for (; key < end; ++key) {
      F32 loaded[kVectors];
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) loaded[v] = LoadNumber(values + v * kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const F32 factor = Broadcast(p[r * kKeyTile]);
#pragma GCC unroll 16
        for (size_t v = 0; v < kVectors; ++v) sums[r][v] = Fma(factor, loaded[v], sums[r][v]);
      }
      if constexpr (kAsksAhead<Number>) {
        for (size_t at = 0; at < kPieces * kPiece * sizeof(Number); at += kLineBytes) AskFor(ahead + at);
        ahead += call.width * sizeof(Number);
      }
      values += call.width;
      ++p;
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) Store(o + r * call.o_stride + v * kLanes, sums[r][v]);
  }
}

// All columns of keys [low, high).
template <size_t kRows, typename Number>
PLAIT_INLINE void ValueColumns(const ValueCall<Number>& call, size_t low, size_t high) {
  constexpr size_t kPieces = ValuePieces(kRows);
  size_t column = 0;
  for (; column + kPieces * kPiece <= call.width; column += kPieces * kPiece) {
    ValueTile<kRows, kPieces, Number>(call, column, low, high);
  }
  if constexpr (kPieces == 4) {
    if (column + 2 * kPiece <= call.width) {
      ValueTile<kRows, 2, Number>(call, column, low, high);
      column += 2 * kPiece;
    }
  }
  if constexpr (kPieces >= 2) {
    if (column < call.width) ValueTile<kRows, 1, Number>(call, column, low, high);
  }
}

// Values that come from afar are gone through once: all columns of a few keys, then the next keys.
template <size_t kRows, typename Number>
void ValueRows(const ValueCall<Number>& call, size_t low, size_t high) {
  if (!kAsksAhead<Number> || call.width <= ValuePieces(kRows) * kPiece) {
    return ValueColumns<kRows>(call, low, high);
  }
  for (size_t key = low, next; key < high; key = next) {
    next = (key / kKeysAtOnce + 1) * kKeysAtOnce;
    if (next > high) next = high;
    ValueColumns<kRows>(call, key, next);
  }
}

// `rows` in [1, kValueRows]; the width is a multiple of kPiece.
template <size_t kRows = kValueRows, typename Number>
void AddValues(const ValueCall<Number>& call, size_t rows, size_t low, size_t high) {
  if (rows == kRows) return ValueRows<kRows>(call, low, high);
  if constexpr (kRows > 1) return AddValues<kRows - 1>(call, rows, low, high);
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_ATTENTION_TILES_H_
