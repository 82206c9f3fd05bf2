// The two products of attention over keys and values in 8 bits, and what is between them.
//
// Owns register tiles of whole numbers and the rounding of queries and weights (docs/concepts/numerics.md, a cache in 8
// bits). Sums of whole numbers are exact, so their order is free. Knows nothing about blocks, tables and who sees what.
// Invariant: a row's numbers do not depend on how many rows or keys are computed with it.

#ifndef PLAIT_CSRC_OPS_TARGETS_ATTENTION_INT8_H_
#define PLAIT_CSRC_OPS_TARGETS_ATTENTION_INT8_H_

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_rows.h"
#include "ops/targets/attention_tiles.h"
#include "ops/targets/math_lanes.h"
#include "ops/targets/quantize.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// Four numbers of a key that one instruction multiplies.
inline constexpr size_t kQuad = 4;

// Rows of a register tile, and a query's quad as its instruction takes it: four bytes, or twice two words, those of
// even places first.
#if defined(__AVX512F__)
inline constexpr size_t kInt8ScoreRows = 12;
inline constexpr size_t kInt8ValueRows = 12;
using Quad = int32_t;
PLAIT_INLINE constexpr size_t Int8ScorePieces(size_t rows) { return rows <= 6 ? 4 : 2; }
PLAIT_INLINE constexpr size_t Int8ValuePieces(size_t rows) { return rows <= 6 ? 4 : 2; }
#elif defined(__AVX2__)
inline constexpr size_t kInt8ScoreRows = 4;
inline constexpr size_t kInt8ValueRows = 6;
struct Quad {
  int32_t even;
  int32_t odd;
};
PLAIT_INLINE constexpr size_t Int8ScorePieces(size_t) { return 1; }
PLAIT_INLINE constexpr size_t Int8ValuePieces(size_t rows) { return rows <= 3 ? 2 : 1; }
#else
inline constexpr size_t kInt8ScoreRows = 2;
inline constexpr size_t kInt8ValueRows = 2;
using Quad = int32_t;
PLAIT_INLINE constexpr size_t Int8ScorePieces(size_t) { return 1; }
PLAIT_INLINE constexpr size_t Int8ValuePieces(size_t) { return 1; }
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
PLAIT_INLINE Quad QuadOf(const int8_t* values) {
  const auto pair = [&](size_t first, size_t second) __attribute__((always_inline)) {
    return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(values[second])) << 16 |
                                static_cast<uint16_t>(values[first]));
  };
  return {pair(0, 2), pair(1, 3)};
}
#else
PLAIT_INLINE Quad QuadOf(const int8_t* values) {
  Quad quad;
  __builtin_memcpy(&quad, values, sizeof(quad));
  return quad;
}
#endif

// s[r * kKeyTile + key] = float(starts[r] + sum over depth of q * k) * factors[r] * the key's scale, from the left.
struct Int8ScoreCall {
  const Quad* q;                      // [quads][rows]
  const uint8_t* keys[kMostPieces];   // [quads], `stride` bytes apart
  const float* scales[kMostPieces];   // of the piece's keys
  const uint8_t* ahead[kMostPieces];  // a line to ask for with every quad
  size_t stride;
  size_t quads;
  const int32_t* starts;
  const float* factors;
  float* s;
};

#if defined(__AVX512F__)

template <size_t kRows, size_t kPieces>
void Int8ScoreTile(const Int8ScoreCall& call) {
  __m512i sums[kRows][kPieces];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kPieces; ++p) sums[r][p] = _mm512_set1_epi32(call.starts[r]);
  }
  const Quad* q = call.q;
  const uint8_t* keys[kPieces];
#pragma GCC unroll 4
  for (size_t p = 0; p < kPieces; ++p) keys[p] = call.keys[p];
  for (size_t quad = 0; quad < call.quads; ++quad) {
    __m512i k[kPieces];
#pragma GCC unroll 4
    for (size_t p = 0; p < kPieces; ++p) {
      k[p] = _mm512_loadu_si512(keys[p]);
      keys[p] += call.stride;
      AskFor(call.ahead[p] + quad * kLineBytes);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i four = _mm512_set1_epi32(q[r]);
#pragma GCC unroll 4
      for (size_t p = 0; p < kPieces; ++p) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], k[p], four);
    }
    q += kRows;
  }
#pragma GCC unroll 4
  for (size_t p = 0; p < kPieces; ++p) {
    const F32 scale = Load(call.scales[p]);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const F32 sum = Mul(FloatOfInt({sums[r][p]}), Broadcast(call.factors[r]));
      Store(call.s + r * kKeyTile + p * kPiece, Mul(sum, scale));
    }
  }
}

#elif defined(__AVX2__)

template <size_t kRows, size_t kPieces>
void Int8ScoreTile(const Int8ScoreCall& call) {
  static_assert(kPieces == 1);
  __m256i sums[kRows][2];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_set1_epi32(call.starts[r]);
  const Quad* q = call.q;
  const uint8_t* keys = call.keys[0];
  const __m256i even_places = _mm256_set1_epi16(0xff);
  for (size_t quad = 0; quad < call.quads; ++quad) {
    AskFor(call.ahead[0] + quad * kLineBytes);
    __m256i even[2], odd[2];
#pragma GCC unroll 2
    for (size_t v = 0; v < 2; ++v) {
      const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + 32 * v));
      even[v] = _mm256_and_si256(eight, even_places);
      odd[v] = _mm256_srli_epi16(eight, 8);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const __m256i of_even = _mm256_set1_epi32(q[r].even);
      const __m256i of_odd = _mm256_set1_epi32(q[r].odd);
#pragma GCC unroll 2
      for (size_t v = 0; v < 2; ++v) {
        sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(even[v], of_even));
        sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(odd[v], of_odd));
      }
    }
    keys += call.stride;
    q += kRows;
  }
#pragma GCC unroll 2
  for (size_t v = 0; v < 2; ++v) {
    const F32 scale = Load(call.scales[0] + v * kLanes);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const F32 sum = Mul(FloatOfInt({sums[r][v]}), Broadcast(call.factors[r]));
      Store(call.s + r * kKeyTile + v * kLanes, Mul(sum, scale));
    }
  }
}

#else

template <size_t kRows, size_t kPieces>
void Int8ScoreTile(const Int8ScoreCall& call) {
  static_assert(kPieces == 1);
  int32_t sums[kRows][kPiece];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t key = 0; key < kPiece; ++key) sums[r][key] = call.starts[r];
  }
  for (size_t quad = 0; quad < call.quads; ++quad) {
    const uint8_t* keys = call.keys[0] + quad * call.stride;
    for (size_t r = 0; r < kRows; ++r) {
      int8_t q[kQuad];
      __builtin_memcpy(q, call.q + quad * kRows + r, sizeof(q));
      for (size_t key = 0; key < kPiece; ++key) {
        const uint8_t* k = keys + kQuad * key;
        sums[r][key] += k[0] * q[0] + k[1] * q[1] + k[2] * q[2] + k[3] * q[3];
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t key = 0; key < kPiece; ++key) {
      const float sum = static_cast<float>(sums[r][key]) * call.factors[r];
      call.s[r * kKeyTile + key] = sum * call.scales[0][key];
    }
  }
}

#endif

template <size_t kRows>
void Int8ScorePiecesOf(const Int8ScoreCall& call, size_t pieces) {
  if (pieces == 1) return Int8ScoreTile<kRows, 1>(call);
  if constexpr (Int8ScorePieces(kRows) >= 2) {
    if (pieces == 2) return Int8ScoreTile<kRows, 2>(call);
  }
  if constexpr (Int8ScorePieces(kRows) >= 4) {
    if (pieces == 3) return Int8ScoreTile<kRows, 3>(call);
    if (pieces == 4) return Int8ScoreTile<kRows, 4>(call);
  }
}

// `rows` in [1, kInt8ScoreRows], `pieces` in [1, Int8ScorePieces(rows)].
template <size_t kRows = kInt8ScoreRows>
void Int8Score(const Int8ScoreCall& call, size_t rows, size_t pieces) {
  if (rows == kRows) return Int8ScorePiecesOf<kRows>(call, pieces);
  if constexpr (kRows > 1) return Int8Score<kRows - 1>(call, rows, pieces);
}

// Sixteen whole numbers in [0, 32767] that follow each other; `to` may be where they were floats.
PLAIT_INLINE void StoreWords(const I32 (&from)[kPieceVectors], int16_t* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(from[0].raw));
#elif defined(__AVX2__)
  const __m256i words = _mm256_packs_epi32(from[0].raw, from[1].raw);  // within halves of a register
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(words, 0xd8));
#else
  for (size_t v = 0; v < kPieceVectors; ++v) {
    for (size_t i = 0; i < kLanes; ++i) to[v * kLanes + i] = static_cast<int16_t>(from[v].raw[i]);
  }
#endif
}

// Weights of 15 bits: p of keys [low, high), times the scales of their values, divided by their largest and multiplied
// by 32767, in the place of the row's floats; zero for the other keys of [first, last), which begins and ends with
// whole pieces. Returns what a sum of products with values is to be multiplied by.
PLAIT_INLINE float RoundWeights(float* p, const float* const* scales, Range seen, Range all) {
  const size_t begin = seen.low / kPiece * kPiece;
  F32 largest = Zero();
  F32 faults = Zero();
  for (size_t key = begin; key < seen.high; key += kPiece) {
    const bool is_edge = key < seen.low || key + kPiece > seen.high;
    const float* scale = scales[key / kPiece];
    for (size_t v = 0; v < kPieceVectors; ++v) {
      const size_t at = key + v * kLanes;
      F32 x = Mul(Load(p + at), Load(scale + v * kLanes));
      if (is_edge) x = Hidden(x, at, seen.low, seen.high, Zero());
      Store(p + at, x);
      largest = Max(largest, x);
      faults = Fma(x, Zero(), faults);
    }
  }
  const float max = LargestLane(largest);
  float lanes[kLanes];
  Store(lanes, faults);
  bool is_finite = true;
  for (size_t i = 0; i < kLanes; ++i) is_finite = is_finite && lanes[i] == 0.0f;
  const bool is_some = is_finite && max >= FloatOf(kLeastMaximumBits);
  const F32 factor = Broadcast(is_some ? 32767.0f / max : 0.0f);
  int16_t* words = reinterpret_cast<int16_t*>(p);
  size_t key = begin;
  for (; key < seen.high; key += kPiece) {
    I32 rounded[kPieceVectors];
    for (size_t v = 0; v < kPieceVectors; ++v) {
      const F32 x = Load(p + key + v * kLanes);
      rounded[v] = RoundToInt(is_some ? Mul(x, factor) : Zero());
    }
    StoreWords(rounded, words + key);
  }
  const I32 none[kPieceVectors] = {};
  for (size_t other = all.low; other < begin; other += kPiece) StoreWords(none, words + other);
  for (; key < all.high; key += kPiece) StoreWords(none, words + key);
  return is_some ? max / 32767.0f : is_finite ? 0.0f : __builtin_nanf("");
}

// o[r * o_stride + c] = float(sum over keys [low, high) of weight * value) * factors[r].
struct Int8ValueCall {
  const float* p;               // rows of kKeyTile floats, where RoundWeights left words
  const int8_t* const* blocks;  // [key / tokens]: [tokens / 2][width][2]
  size_t tokens;
  size_t width;
  const float* factors;
  float* o;
  size_t o_stride;
  const uint8_t* const* ahead;  // [key / kPiece]: units to ask for
};

PLAIT_INLINE const int16_t* WordsOf(const Int8ValueCall& call, size_t row) {
  return reinterpret_cast<const int16_t*>(call.p + row * kKeyTile);
}

#if defined(__AVX2__)

#if defined(__AVX512F__)
using IntRow = __m512i;
PLAIT_INLINE IntRow NoInts() { return _mm512_setzero_si512(); }
PLAIT_INLINE IntRow LoadPairs(const int8_t* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
PLAIT_INLINE IntRow TwoWords(const int16_t* from) {
  int32_t two;
  __builtin_memcpy(&two, from, sizeof(two));
  return _mm512_set1_epi32(two);
}
PLAIT_INLINE IntRow AddProducts(IntRow sum, IntRow a, IntRow b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
using IntRow = __m256i;
PLAIT_INLINE IntRow NoInts() { return _mm256_setzero_si256(); }
PLAIT_INLINE IntRow LoadPairs(const int8_t* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
PLAIT_INLINE IntRow TwoWords(const int16_t* from) {
  int32_t two;
  __builtin_memcpy(&two, from, sizeof(two));
  return _mm256_set1_epi32(two);
}
PLAIT_INLINE IntRow AddProducts(IntRow sum, IntRow a, IntRow b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
#endif

// `low` is even.
template <size_t kRows, size_t kPieces>
void Int8ValueTile(const Int8ValueCall& call, size_t column, size_t low, size_t high) {
  constexpr size_t kVectors = kPieces * kPieceVectors;
  IntRow sums[kRows][kVectors];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = NoInts();
  }
  const int16_t* p = WordsOf(call, 0);
  for (size_t key = low; key < high;) {
    const size_t block = key / call.tokens;
    const size_t piece = key / kPiece;
    const size_t end = high < (piece + 1) * kPiece ? high : (piece + 1) * kPiece;
    const size_t at = (key - block * call.tokens) * call.width + 2 * column;
    const int8_t* values = call.blocks[block] + at;
    const uint8_t* ahead = call.ahead[piece] + (key - piece * kPiece) * call.width + 2 * column;
    for (; key < end; key += 2) {
      IntRow loaded[kVectors];
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) loaded[v] = LoadPairs(values + 2 * v * kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const IntRow two = TwoWords(p + 2 * r * kKeyTile + key);
#pragma GCC unroll 16
        for (size_t v = 0; v < kVectors; ++v) sums[r][v] = AddProducts(sums[r][v], loaded[v], two);
      }
      for (size_t line = 0; line < 2 * kPieces * kPiece; line += kLineBytes) AskFor(ahead + line);
      ahead += 2 * call.width;
      values += 2 * call.width;
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    const F32 factor = Broadcast(call.factors[r]);
    float* o = call.o + r * call.o_stride + column;
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) Store(o + v * kLanes, Mul(FloatOfInt({sums[r][v]}), factor));
  }
}

#else

template <size_t kRows, size_t kPieces>
void Int8ValueTile(const Int8ValueCall& call, size_t column, size_t low, size_t high) {
  static_assert(kPieces == 1);
  int32_t sums[kRows][kPiece] = {};
  for (size_t key = low; key < high; key += 2) {
    const size_t block = key / call.tokens;
    const int8_t* values = call.blocks[block] + (key - block * call.tokens) * call.width + 2 * column;
    for (size_t r = 0; r < kRows; ++r) {
      const int16_t* two = WordsOf(call, r) + key;
      for (size_t c = 0; c < kPiece; ++c) sums[r][c] += two[0] * values[2 * c] + two[1] * values[2 * c + 1];
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* o = call.o + r * call.o_stride + column;
    for (size_t c = 0; c < kPiece; ++c) o[c] = static_cast<float>(sums[r][c]) * call.factors[r];
  }
}

#endif

template <size_t kRows>
PLAIT_INLINE void Int8ValueColumns(const Int8ValueCall& call, size_t low, size_t high) {
  constexpr size_t kPieces = Int8ValuePieces(kRows);
  size_t column = 0;
  for (; column + kPieces * kPiece <= call.width; column += kPieces * kPiece) {
    Int8ValueTile<kRows, kPieces>(call, column, low, high);
  }
  if constexpr (kPieces == 4) {
    if (column + 2 * kPiece <= call.width) {
      Int8ValueTile<kRows, 2>(call, column, low, high);
      column += 2 * kPiece;
    }
  }
  if constexpr (kPieces >= 2) {
    if (column < call.width) Int8ValueTile<kRows, 1>(call, column, low, high);
  }
}

// `rows` in [1, kInt8ValueRows], `low` even; the width is a multiple of kPiece.
template <size_t kRows = kInt8ValueRows>
void Int8Values(const Int8ValueCall& call, size_t rows, size_t low, size_t high) {
  if (rows == kRows) return Int8ValueColumns<kRows>(call, low, high);
  if constexpr (kRows > 1) return Int8Values<kRows - 1>(call, rows, low, high);
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_ATTENTION_INT8_H_
