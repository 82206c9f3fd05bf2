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
inline constexpr size_t kInt8ScoreRows = 6;
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

// GCC 12 keeps copies of many sums beside each other if it is given these as intrinsics.
PLAIT_INLINE void AddQuads(__m512i keys, __m512i query, I32* sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum->raw) : "v"(keys), "v"(query));
}
// *sum + the two products of every lane's words.
PLAIT_INLINE void AddProducts(I32 a, I32 b, I32* sum) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum->raw) : "v"(a.raw), "v"(b.raw));
}

template <size_t kRows, size_t kPieces>
void Int8ScoreTile(const Int8ScoreCall& call) {
  I32 sums[kRows][kPieces];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kPieces; ++p) sums[r][p] = BroadcastInt(call.starts[r]);
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
      for (size_t p = 0; p < kPieces; ++p) AddQuads(k[p], four, &sums[r][p]);
    }
    q += kRows;
  }
#pragma GCC unroll 4
  for (size_t p = 0; p < kPieces; ++p) {
    const F32 scale = Load(call.scales[p]);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const F32 sum = Mul(FloatOfInt(sums[r][p]), Broadcast(call.factors[r]));
      Store(call.s + r * kKeyTile + p * kPiece, Mul(sum, scale));
    }
  }
}

#elif defined(__AVX2__)

// *sum + the two products of every lane's words. A sum is taken as it is each time: GCC would add up products first,
// for which there are no registers.
PLAIT_INLINE void AddProducts(I32 a, I32 b, I32* sum) {
  *sum = AddInt(*sum, {_mm256_madd_epi16(a.raw, b.raw)});
  asm("" : "+x"(sum->raw));
}

template <size_t kRows, size_t kPieces>
void Int8ScoreTile(const Int8ScoreCall& call) {
  static_assert(kPieces == 1);
  I32 sums[kRows][2];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = BroadcastInt(call.starts[r]);
  const Quad* q = call.q;
  const uint8_t* keys = call.keys[0];
  const __m256i even_places = _mm256_set1_epi16(0xff);
  for (size_t quad = 0; quad < call.quads; ++quad) {
    AskFor(call.ahead[0] + quad * kLineBytes);
    // One kind of places after the other, so that everything has a register.
    const auto add = [&](__m256i low, __m256i high, int32_t Quad::* place) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const __m256i two = _mm256_set1_epi32(q[r].*place);
        AddProducts({low}, {two}, &sums[r][0]);
        AddProducts({high}, {two}, &sums[r][1]);
      }
    };
    const __m256i* eight = reinterpret_cast<const __m256i*>(keys);
    add(_mm256_and_si256(_mm256_loadu_si256(eight), even_places),
        _mm256_and_si256(_mm256_loadu_si256(eight + 1), even_places), &Quad::even);
    add(_mm256_srli_epi16(_mm256_loadu_si256(eight), 8), _mm256_srli_epi16(_mm256_loadu_si256(eight + 1), 8),
        &Quad::odd);
    keys += call.stride;
    q += kRows;
  }
#pragma GCC unroll 2
  for (size_t v = 0; v < 2; ++v) {
    const F32 scale = Load(call.scales[0] + v * kLanes);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const F32 sum = Mul(FloatOfInt(sums[r][v]), Broadcast(call.factors[r]));
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

// What is left of a row's scores in a tile: m and l, and what a sum of weights times values is to be multiplied by.
struct Int8Sum {
  TileSum sum;
  float factor;
};

// Turns scores into weights of 15 bits, in the place of the row's floats: p of keys [low, high) times the scale of the
// key's value, divided by the largest of these and multiplied by 32767. Zero for other keys of [all.low, all.high),
// which begins and ends with whole pieces.
template <bool kIsCapped>
Int8Sum WeighInt8(float* s, const float* const* scales, Range seen, Range all, float softcap) {
  F32 largest = Zero();
  F32 faults[kPieceVectors];  // stays zero while numbers are finite
  for (size_t v = 0; v < kPieceVectors; ++v) faults[v] = Zero();
  const auto scaled = [&](F32 p, size_t key, bool is_edge) __attribute__((always_inline)) {
    F32 weight = Mul(p, Load(scales[key / kPiece] + key % kPiece));
    if (is_edge) weight = Hidden(weight, key, seen.low, seen.high, Zero());
    largest = Max(largest, weight);
    F32& fault = faults[key % kPiece / kLanes];
    fault = Fma(weight, Zero(), fault);
    return weight;
  };
  const TileSum sum = WeighKeys<kIsCapped>(s, seen.low, seen.high, softcap, scaled);
  const float max = LargestLane(largest);
  const bool is_finite = SumOfSixteen(faults) == 0.0f;
  const bool is_some = is_finite && max >= FloatOf(kLeastMaximumBits);
  const F32 factor = Broadcast(is_some ? 32767.0f / max : 0.0f);
  int16_t* words = reinterpret_cast<int16_t*>(s);
  const size_t begin = seen.low / kPiece * kPiece;
  size_t key = begin;
  for (; key < seen.high; key += kPiece) {
    I32 rounded[kPieceVectors];
    for (size_t v = 0; v < kPieceVectors; ++v) rounded[v] = RoundToInt(Mul(Load(s + key + v * kLanes), factor));
    StoreWords(rounded, words + key);
  }
  const I32 none[kPieceVectors] = {};
  for (size_t other = all.low; other < begin; other += kPiece) StoreWords(none, words + other);
  for (; key < all.high; key += kPiece) StoreWords(none, words + key);
  return {sum, is_some ? max / 32767.0f : is_finite ? 0.0f : __builtin_nanf("")};
}

// A row that sees nothing of the tile.
PLAIT_INLINE Int8Sum NoWeights(float* s, Range all) {
  const I32 none[kPieceVectors] = {};
  int16_t* words = reinterpret_cast<int16_t*>(s);
  for (size_t key = all.low; key < all.high; key += kPiece) StoreWords(none, words + key);
  return {{-__builtin_inff(), 0.0f}, 0.0f};
}

// o[r * o_stride + c] = float(sum over keys [low, high) of weight * value) * factors[r].
struct Int8ValueCall {
  const float* p;               // rows of kKeyTile floats, where WeighInt8 left words
  const int8_t* const* pieces;  // [key / kPiece]: [kPiece / 2][width][2]
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
PLAIT_INLINE I32 LoadPairs(const int8_t* from) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
#else
PLAIT_INLINE I32 LoadPairs(const int8_t* from) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
#endif

PLAIT_INLINE I32 TwoWords(const int16_t* from) {
  int32_t two;
  __builtin_memcpy(&two, from, sizeof(two));
  return BroadcastInt(two);
}

// `low` is even.
template <size_t kRows, size_t kPieces>
void Int8ValueTile(const Int8ValueCall& call, size_t column, size_t low, size_t high) {
  constexpr size_t kVectors = kPieces * kPieceVectors;
  I32 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = BroadcastInt(0);
  }
  const int16_t* p = WordsOf(call, 0);
  for (size_t key = low; key < high;) {
    const size_t piece = key / kPiece;
    const size_t end = high < (piece + 1) * kPiece ? high : (piece + 1) * kPiece;
    const size_t at = (key - piece * kPiece) * call.width + 2 * column;
    const int8_t* values = call.pieces[piece] + at;
    const uint8_t* ahead = call.ahead[piece] + at;
    for (; key < end; key += 2) {
      I32 loaded[kVectors];
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) loaded[v] = LoadPairs(values + 2 * v * kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const I32 two = TwoWords(p + 2 * r * kKeyTile + key);
#pragma GCC unroll 16
        for (size_t v = 0; v < kVectors; ++v) AddProducts(loaded[v], two, &sums[r][v]);
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
    for (size_t v = 0; v < kVectors; ++v) Store(o + v * kLanes, Mul(FloatOfInt(sums[r][v]), factor));
  }
}

#else

template <size_t kRows, size_t kPieces>
void Int8ValueTile(const Int8ValueCall& call, size_t column, size_t low, size_t high) {
  static_assert(kPieces == 1);
  int32_t sums[kRows][kPiece] = {};
  for (size_t key = low; key < high; key += 2) {
    const int8_t* values = call.pieces[key / kPiece] + key % kPiece * call.width + 2 * column;
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
