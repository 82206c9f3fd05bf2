// Exact sums of one group of 32: a panel's weights times the 8-bit values of the rows of a tile.
//
// Owns the integer instructions of each target and the size of its tiles. Scales are applied in gemm_integer.cc; how a
// panel lies is in formats/pack.cc.
// Invariant: sums are exact for every weight and every value in [-127, 127]; no instruction saturates.

#ifndef PLAIT_CSRC_OPS_TARGETS_GEMM_SUMS_H_
#define PLAIT_CSRC_OPS_TARGETS_GEMM_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// The values of a tile's rows, from the group that is being summed.
template <size_t kRows>
struct GroupRows {
  const int8_t* pointers[NumPointers(kRows)];
  size_t stride;

  inline __attribute__((always_inline)) GroupRows(const int8_t* values, size_t depth) : stride(depth) {
    for (size_t i = 0; i < NumPointers(kRows); ++i) {
      pointers[i] = values + i * kRowsPerPointer * depth;
      KeepPointer(pointers[i]);
    }
  }
  // Values 4 quad .. 4 quad + 3 of a row, as they lie in memory.
  inline __attribute__((always_inline)) int32_t Quad(size_t row, size_t quad) const {
    int32_t four;
    __builtin_memcpy(&four, pointers[row / kRowsPerPointer] + row % kRowsPerPointer * stride + 4 * quad, sizeof(four));
    return four;
  }
  inline __attribute__((always_inline)) void Advance() {
    for (size_t i = 0; i < NumPointers(kRows); ++i) pointers[i] += kGroupSize;
  }
};

#if defined(__AVX512F__)

// 6 x 2 integer sums and as many floats leave 8 registers for weights, values and scales.
inline constexpr size_t kMaxIntegerRows = 6;
inline constexpr size_t kMaxIntegerPanels = 2;

template <Scheme kScheme, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumGroup(const uint8_t* codes, size_t panel_bytes, NextWeights& next, const GroupRows<kRows>& values,
                           const int32_t* value_sums, size_t groups, I32 (&sums)[kRows][kPanels]) {
  // Weights are stored unsigned: minus 128, or 8, times the sum of the values makes up for it.
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    __m512i start = _mm512_setzero_si512();
    if constexpr (kScheme != Scheme::kQ4_1) {
      const __m512i value_sum = _mm512_set1_epi32(value_sums[r * groups]);
      start = _mm512_sub_epi32(start, _mm512_slli_epi32(value_sum, kScheme == Scheme::kQ8_0 ? 7 : 3));
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) sums[r][p].raw = start;
  }
  const auto multiply = [&](const __m512i(&weights)[kPanels], size_t quad) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i four = _mm512_set1_epi32(values.Quad(r, quad));
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) sums[r][p].raw = _mm512_dpbusd_epi32(sums[r][p].raw, weights[p], four);
    }
  };
  constexpr size_t kLines = kScheme == Scheme::kQ8_0 ? 8 : 4;
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (size_t i = 0; i < kLines; ++i) {
    next.Fetch<kPanels>(panel_bytes);
    __m512i weights[kPanels];
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      const uint8_t* line = codes + p * panel_bytes + i * kLineBytes;
      weights[p] = _mm512_load_si512(line);
    }
    if constexpr (kScheme == Scheme::kQ8_0) {
      multiply(weights, i);
    } else {
      __m512i low[kPanels], high[kPanels];
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) {
        low[p] = _mm512_and_si512(weights[p], nibble);
        high[p] = _mm512_and_si512(_mm512_srli_epi16(weights[p], 4), nibble);
      }
      multiply(low, i);
      multiply(high, i + 4);
    }
  }
}

#elif defined(__AVX2__)

inline constexpr size_t kMaxIntegerRows = 6;
inline constexpr size_t kMaxIntegerPanels = 1;

// sum += addend, here and now. Left to itself the compiler turns a chain of integer additions into a tree and keeps the
// addends of the whole group in memory.
PLAIT_INLINE void AddInts(__m256i& sum, __m256i addend) {
  sum = _mm256_add_epi32(sum, addend);
  asm("" : "+x"(sum));
}
PLAIT_INLINE void AddShorts(__m256i& sum, __m256i addend) {
  sum = _mm256_add_epi16(sum, addend);
  asm("" : "+x"(sum));
}

template <Scheme kScheme, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumGroup(const uint8_t* codes, size_t, NextWeights& next, const GroupRows<kRows>& values,
                           const int32_t* value_sums, size_t groups, I32 (&sums)[kRows][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) sums[r][0].raw = sums[r][1].raw = _mm256_setzero_si256();
  if constexpr (kScheme == Scheme::kQ8_0) {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) {
      const uint8_t* line = codes + i * kLineBytes;
      next.Fetch<1>(0);
      __m256i weights[2], magnitudes[2];
      for (size_t c = 0; c < 2; ++c) {
        weights[c] = _mm256_xor_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(line) + c), flip);
        magnitudes[c] = _mm256_abs_epi8(weights[c]);  // 128 for -128, being unsigned
      }
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const __m256i four = _mm256_set1_epi32(values.Quad(r, i));
        for (size_t c = 0; c < 2; ++c) {
          // A pair is at most 2 * 128 * 127, which 16 bits hold.
          const __m256i pairs = _mm256_maddubs_epi16(magnitudes[c], _mm256_sign_epi8(four, weights[c]));
          AddInts(sums[r][c].raw, _mm256_madd_epi16(pairs, ones));
        }
      }
    }
  } else {
    const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      const uint8_t* line = codes + i * kLineBytes;
      next.Fetch<1>(0);
      __m256i low[2], high[2];
      for (size_t c = 0; c < 2; ++c) {
        const __m256i weights = _mm256_load_si256(reinterpret_cast<const __m256i*>(line) + c);
        low[c] = _mm256_and_si256(weights, nibble);
        high[c] = _mm256_and_si256(_mm256_srli_epi16(weights, 4), nibble);
      }
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const __m256i low_four = _mm256_set1_epi32(values.Quad(r, i));
        const __m256i high_four = _mm256_set1_epi32(values.Quad(r, i + 4));
        for (size_t c = 0; c < 2; ++c) {
          // Eight pairs of at most 2 * 15 * 127 fit 16 bits.
          AddShorts(sums[r][c].raw, _mm256_maddubs_epi16(low[c], low_four));
          AddShorts(sums[r][c].raw, _mm256_maddubs_epi16(high[c], high_four));
        }
      }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < 2; ++c) {
        sums[r][c].raw = _mm256_madd_epi16(sums[r][c].raw, ones);
        if constexpr (kScheme == Scheme::kQ4_0) {
          const __m256i value_sum = _mm256_set1_epi32(value_sums[r * groups]);
          sums[r][c].raw = _mm256_sub_epi32(sums[r][c].raw, _mm256_slli_epi32(value_sum, 3));
        }
      }
    }
  }
}

#elif defined(__SSE2__)

inline constexpr size_t kMaxIntegerRows = 2;
inline constexpr size_t kMaxIntegerPanels = 1;

// Values 4 i .. 4 i + 3 of a row as 16-bit pairs: the first and third, the second and fourth, in every lane.
struct QuadPairs {
  __m128i even;
  __m128i odd;

  inline __attribute__((always_inline)) explicit QuadPairs(int32_t quad) {
    const __m128i bytes = _mm_set1_epi32(quad);
    even = _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8);
    odd = _mm_srai_epi16(bytes, 8);
  }
};

template <Scheme kScheme, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumGroup(const uint8_t* codes, size_t, NextWeights& next, const GroupRows<kRows>& values,
                           const int32_t* value_sums, size_t groups, I32 (&sums)[kRows][4]) {
  constexpr int32_t kZero = kScheme == Scheme::kQ8_0 ? 128 : kScheme == Scheme::kQ4_0 ? 8 : 0;
  constexpr size_t kLines = kScheme == Scheme::kQ8_0 ? 8 : 4;
  const __m128i low_byte = _mm_set1_epi16(255);
  const __m128i nibble = _mm_set1_epi8(15);
  __m128i acc[kRows][4];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < 4; ++c) acc[r][c] = _mm_set1_epi32(-kZero * value_sums[r * groups]);
  }
  // Weights are unsigned bytes, which 16 bits hold as they are.
  const auto multiply = [&](size_t c, __m128i weights, size_t quad) __attribute__((always_inline)) {
    const __m128i even = _mm_and_si128(weights, low_byte);
    const __m128i odd = _mm_srli_epi16(weights, 8);
    for (size_t r = 0; r < kRows; ++r) {
      const QuadPairs pairs(values.Quad(r, quad));
      acc[r][c] = _mm_add_epi32(acc[r][c], _mm_madd_epi16(even, pairs.even));
      acc[r][c] = _mm_add_epi32(acc[r][c], _mm_madd_epi16(odd, pairs.odd));
    }
  };
  for (size_t i = 0; i < kLines; ++i) {
    next.Fetch<1>(0);
    for (size_t c = 0; c < 4; ++c) {
      const __m128i weights = _mm_load_si128(reinterpret_cast<const __m128i*>(codes + i * kLineBytes) + c);
      if constexpr (kScheme == Scheme::kQ8_0) {
        multiply(c, weights, i);
      } else {
        multiply(c, _mm_and_si128(weights, nibble), i);
        multiply(c, _mm_and_si128(_mm_srli_epi16(weights, 4), nibble), i + 4);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < 4; ++c) sums[r][c].raw = reinterpret_cast<RawI32>(acc[r][c]);
  }
}

#else

inline constexpr size_t kMaxIntegerRows = 2;
inline constexpr size_t kMaxIntegerPanels = 1;

template <Scheme kScheme, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumGroup(const uint8_t* codes, size_t, NextWeights&, const GroupRows<kRows>& values,
                           const int32_t* value_sums, size_t groups, I32 (&sums)[kRows][4]) {
  constexpr int32_t kZero = kScheme == Scheme::kQ8_0 ? 128 : kScheme == Scheme::kQ4_0 ? 8 : 0;
  for (size_t r = 0; r < kRows; ++r) {
    int32_t columns[kPanelColumns];
    for (size_t j = 0; j < kPanelColumns; ++j) columns[j] = -kZero * value_sums[r * groups];
    for (size_t quad = 0; quad < 8; ++quad) {
      int8_t four[4];
      const int32_t packed = values.Quad(r, quad);
      __builtin_memcpy(four, &packed, sizeof(four));
      const size_t line = kScheme == Scheme::kQ8_0 ? quad : quad % 4;
      const int shift = kScheme != Scheme::kQ8_0 && quad >= 4 ? 4 : 0;
      const int mask = kScheme == Scheme::kQ8_0 ? 255 : 15;
      for (size_t j = 0; j < kPanelColumns; ++j) {
        for (size_t b = 0; b < 4; ++b) columns[j] += (codes[line * kLineBytes + 4 * j + b] >> shift & mask) * four[b];
      }
    }
    for (size_t c = 0; c < 4; ++c) __builtin_memcpy(&sums[r][c].raw, columns + 4 * c, sizeof(sums[r][c].raw));
  }
}

#endif

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_GEMM_SUMS_H_
