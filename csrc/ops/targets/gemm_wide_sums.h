// Exact sums over a wide group: a panel's bytes times the rows' 8-bit values, part of 32 after part.
//
// Owns the size of the tiles of our own scheme and the instructions of each target. Scales are applied in gemm_wide.cc.
// Invariant: sums are exact for every weight and every value in [-127, 127]; no instruction saturates, and a wide
// group's sum, at most 128 * 128 * 127, is far from the end of 32 bits, also before the weights' zero is made up for.

#ifndef PLAIT_CSRC_OPS_TARGETS_GEMM_WIDE_SUMS_H_
#define PLAIT_CSRC_OPS_TARGETS_GEMM_WIDE_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "formats/panel_layout.h"
#include "formats/scheme.h"
#include "ops/targets/gemm_sums.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

inline constexpr size_t kPartBytes = kQuadsPerGroup * kLineBytes;

#if defined(__AVX512F__)

// 8 x 2 integer sums; with 24 of them, in whatever shape, a sixth of the rate is lost. The tile's floats are wanted
// once per 128 numbers and stay in memory.
inline constexpr size_t kMaxWideRows = 8;
inline constexpr size_t kMaxWidePanels = 2;

template <size_t kRows, size_t kRegisters>
PLAIT_INLINE void StartSums(const GroupRows<kRows>& rows, I32 (&sums)[kRows][kRegisters]) {
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    // Weights are stored unsigned: their zero times the sum of the values makes up for it.
    const I32 start = BroadcastInt(rows.Of(r).sum);
#pragma GCC unroll 4
    for (size_t p = 0; p < kRegisters; ++p) sums[r][p] = start;
  }
}

// The part that rows point at. Panels lie `distance` apart.
template <size_t kPanels, size_t kRows>
PLAIT_INLINE void AddPart(const uint8_t* codes, size_t distance, NextWeights& next, const GroupRows<kRows>& rows,
                          I32 (&sums)[kRows][kPanels]) {
  ForEach<0, kQuadsPerGroup>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kQuad = decltype(index)::kValue;
    next.Fetch<kPanels>(distance);
    __m512i weights[kPanels];
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) weights[p] = _mm512_load_si512(codes + p * distance + kQuad * kLineBytes);
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i four = _mm512_set1_epi32(rows.Quad(r, kQuad));
#pragma GCC unroll 4
      for (size_t p = 0; p < kPanels; ++p) sums[r][p].raw = _mm512_dpbusd_epi32(sums[r][p].raw, weights[p], four);
    }
    next.WaitFor(sums[kRows - 1][0].raw);
  });
  // Here and now: the compiler would carry copies of sums from one part to the next.
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) asm("" : "+v"(sums[r][p].raw));
  }
}

#elif defined(__AVX2__)

// 6 x 2 integer sums: some of the weights come from memory again, which is cheaper than to prepare them for fewer rows.
inline constexpr size_t kMaxWideRows = 6;
inline constexpr size_t kMaxWidePanels = 1;

template <size_t kRows>
PLAIT_INLINE void StartSums(const GroupRows<kRows>&, I32 (&sums)[kRows][2]) {
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) sums[r][0].raw = sums[r][1].raw = _mm256_setzero_si256();
}

template <size_t kPanels, size_t kRows>
PLAIT_INLINE void AddPart(const uint8_t* codes, size_t, NextWeights& next, const GroupRows<kRows>& rows,
                          I32 (&sums)[kRows][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 8
  for (size_t i = 0; i < kQuadsPerGroup; ++i) {
    const uint8_t* line = codes + i * kLineBytes;
    next.Fetch<1>(0);
    __m256i weights[2], magnitudes[2];
    for (size_t c = 0; c < 2; ++c) {
      weights[c] = _mm256_xor_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(line) + c), flip);
      magnitudes[c] = _mm256_abs_epi8(weights[c]);  // 128 for -128, being unsigned
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m256i four = _mm256_set1_epi32(rows.Quad(r, i));
      for (size_t c = 0; c < 2; ++c) {
        // A pair is at most 2 * 128 * 127, which 16 bits hold.
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes[c], _mm256_sign_epi8(four, weights[c]));
        AddInts(sums[r][c].raw, _mm256_madd_epi16(pairs, ones));
      }
    }
  }
}

#else

inline constexpr size_t kMaxWideRows = 2;
inline constexpr size_t kMaxWidePanels = 1;

template <size_t kRows>
PLAIT_INLINE void StartSums(const GroupRows<kRows>& rows, I32 (&sums)[kRows][kPanelRegisters]) {
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kPanelRegisters; ++c) sums[r][c] = BroadcastInt(rows.Of(r).sum);
  }
}

template <size_t kPanels, size_t kRows>
PLAIT_INLINE void AddPart(const uint8_t* codes, size_t distance, NextWeights& next, const GroupRows<kRows>& rows,
                          I32 (&sums)[kRows][kPanelRegisters]) {
  I32 part[kRows][kPanelRegisters];
  SumSpan<Scheme::kInt8, false, 0, kPanels, kRows>(codes, distance, next, distance, rows, part);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kPanelRegisters; ++c) sums[r][c] = AddInt(sums[r][c], part[r][c]);
  }
}

#endif

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_GEMM_WIDE_SUMS_H_
