// Exact sums of a span, which is a group of 32 or a half of one: a panel's weights times the rows' 8-bit values.
//
// Owns the integer instructions of each target and the size of its tiles. Scales are applied in gemm_integer.cc; how a
// panel lies is in formats/panel_layout.h.
// Invariant: sums are exact for every weight and every value in [-127, 127]; no instruction saturates.

#ifndef PLAIT_CSRC_OPS_TARGETS_GEMM_SUMS_H_
#define PLAIT_CSRC_OPS_TARGETS_GEMM_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "formats/iq4_table.h"
#include "formats/panel_layout.h"
#include "formats/scheme.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// The group of a tile's rows that is being summed.
template <size_t kRows>
struct GroupRows {
  const char* pointers[NumPointers(kRows)];
  size_t stride;

  inline __attribute__((always_inline)) GroupRows(const QuantizedRows& rows, size_t group)
      : stride(rows.depth / kGroupSize * sizeof(QuantizedGroup)) {
    for (size_t i = 0; i < NumPointers(kRows); ++i) {
      pointers[i] = reinterpret_cast<const char*>(rows.groups + group) + i * kRowsPerPointer * stride;
      KeepPointer(pointers[i]);
    }
  }
  inline __attribute__((always_inline)) const QuantizedGroup& Of(size_t row) const {
    const char* at = pointers[row / kRowsPerPointer] + row % kRowsPerPointer * stride;
    return *reinterpret_cast<const QuantizedGroup*>(at);
  }
  // Values 4 quad .. 4 quad + 3 of a row, as they lie in memory.
  inline __attribute__((always_inline)) int32_t Quad(size_t row, size_t quad) const {
    int32_t four;
    __builtin_memcpy(&four, Of(row).values + 4 * quad, sizeof(four));
    return four;
  }
  inline __attribute__((always_inline)) void Advance() {
    for (size_t i = 0; i < NumPointers(kRows); ++i) {
      pointers[i] += sizeof(QuantizedGroup);
      KeepPointer(pointers[i]);
    }
  }
};

// A number known to the compiler, where instructions want one.
template <size_t kNumber>
struct Index {
  static constexpr size_t kValue = kNumber;
};
template <size_t kFirst, size_t kEnd, typename Body>
PLAIT_INLINE void ForEach(const Body& body) {
  if constexpr (kFirst < kEnd) {
    body(Index<kFirst>());
    ForEach<kFirst + 1, kEnd>(body);
  }
}

// The lines of nibbles of one span, and its upper bits' lines.
template <Scheme kScheme, size_t kSpan>
struct SpanLines {
  static constexpr size_t kFirst = kSpan * NumCodeLines(kScheme) / NumSpans(kScheme);
  static constexpr size_t kEnd = (kSpan + 1) * NumCodeLines(kScheme) / NumSpans(kScheme);
  static constexpr size_t kUpper = HighBits(kScheme) / NumSpans(kScheme);
};

constexpr int Log2(int32_t number) {
  int exponent = 0;
  while (number >> exponent > 1) ++exponent;
  return exponent;
}

// Minus the zero of the weights times the sum of a span's values. That of a wide group is no business of its parts.
template <Scheme kScheme, size_t kSpan>
PLAIT_INLINE int32_t ZeroPart(const QuantizedGroup& group) {
  if constexpr (ZeroCode(kScheme) == 0 || IsWide(kScheme)) return 0;
  const int32_t sum = NumSpans(kScheme) == 1 ? group.sum : kSpan == 0 ? group.first_sum : group.sum - group.first_sum;
  return sum / (-kSumFactor / (ZeroCode(kScheme) == 0 ? 1 : ZeroCode(kScheme)));
}

// What minima of a span are multiplied by: the row's scale times the sum of its values, rounded once.
template <Scheme kScheme, size_t kSpan>
PLAIT_INLINE float SpanTotal(const QuantizedGroup& group) {
  if constexpr (NumSpans(kScheme) == 1) return group.total;
  const int32_t sum = kSpan == 0 ? group.first_sum : group.sum - group.first_sum;
  return static_cast<float>(sum) * (1.0f / kSumFactor) * group.scale;
}

#if defined(__AVX2__)

// The same in every lane, from memory to vector registers; shifts leave the multiplying ports alone.
template <Scheme kScheme, size_t kSpan>
PLAIT_INLINE I32 ZeroParts(const QuantizedGroup& group) {
  I32 sum = BroadcastInt(NumSpans(kScheme) == 2 && kSpan == 0 ? group.first_sum : group.sum);
  if constexpr (kSpan == 1) sum = SubInt(sum, BroadcastInt(group.first_sum));
  if constexpr (ZeroCode(kScheme) == -kSumFactor) return sum;
  return ShiftRight<Log2(-kSumFactor / ZeroCode(kScheme))>(sum);
}

#endif

// Weights that are multiplied by many tiles of rows are unpacked once, if that is faster; LeastUnpackedTiles says from
// how many tiles on.
inline constexpr size_t kNeverUnpacked = 0;

// Floats that an unpacked group's scales and minima are, per column; more than two are not unpacked.
constexpr size_t NumScalesPerGroup(Scheme scheme) { return NumSpans(scheme) * (HasMinima(scheme) ? 2 : 1); }

#if defined(__AVX512F__)

// 6 x 2 integer sums and as many floats leave 8 registers for weights, values and scales.
inline constexpr size_t kMaxIntegerRows = 6;
inline constexpr size_t kMaxIntegerPanels = 2;
// Multiplications leave ports free on which nibbles are unpacked, but block scales take multiplications.
constexpr size_t LeastUnpackedTiles(Scheme scheme) {
  return HasBlockScales(scheme) && NumScalesPerGroup(scheme) <= 2 ? 8 : kNeverUnpacked;
}

// Quad kQuad of every column of a panel; `codes` are packed, or lines of quads.
template <Scheme kScheme, bool kIsUnpacked, size_t kQuad>
PLAIT_INLINE __m512i QuadOf(const uint8_t* codes) {
  if constexpr (kIsUnpacked) return _mm512_load_si512(codes + kQuad * kLineBytes);
  const __m512i line = _mm512_load_si512(codes + LineOfQuad(kScheme, kQuad) * kLineBytes);
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i low;
  if constexpr (IsHighQuad(kScheme, kQuad)) {
    low = _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble);
  } else {
    low = _mm512_and_si512(line, nibble);
  }
  if constexpr (IsTable(kScheme)) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kIq4Numbers));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), low);
  }
  if constexpr (HighBits(kScheme) == 0) return low;
  constexpr size_t kBit = kQuad * HighBits(kScheme);
  constexpr size_t kShift = kBit % 8;
  __m512i upper = _mm512_load_si512(codes + (NumCodeLines(kScheme) + kBit / 8) * kLineBytes);
  if constexpr (kShift < 4) upper = _mm512_slli_epi16(upper, 4 - kShift);
  if constexpr (kShift > 4) upper = _mm512_srli_epi16(upper, kShift - 4);
  // low | upper & mask
  return _mm512_ternarylogic_epi32(low, upper, _mm512_set1_epi8(HighBits(kScheme) == 2 ? 0x30 : 0x10), 0xf8);
}

// Lays the quads of a panel's group into lines of their own.
template <Scheme kScheme>
PLAIT_INLINE void UnpackCodes(const uint8_t* codes, uint8_t* lines) {
  ForEach<0, kQuadsPerGroup>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kQuad = decltype(index)::kValue;
    _mm512_store_si512(lines + kQuad * kLineBytes, QuadOf<kScheme, false, kQuad>(codes));
  });
}

// Panels lie `distance` apart, those that are wanted next `next_distance`.
template <Scheme kScheme, bool kIsUnpacked, size_t kSpan, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumSpan(const uint8_t* codes, size_t distance, NextWeights& next, size_t next_distance,
                          const GroupRows<kRows>& rows, I32 (&sums)[kRows][kPanels]) {
  using Lines = SpanLines<kScheme, kSpan>;
  // Weights are stored unsigned: their zero times the sum of the values makes up for it.
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    I32 start = {_mm512_setzero_si512()};
    if constexpr (ZeroCode(kScheme) != 0) start = ZeroParts<kScheme, kSpan>(rows.Of(r));
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) sums[r][p] = start;
  }
  const auto multiply = [&](const __m512i(&weights)[kPanels], size_t quad) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i four = _mm512_set1_epi32(rows.Quad(r, quad));
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) sums[r][p].raw = _mm512_dpbusd_epi32(sums[r][p].raw, weights[p], four);
    }
  };
  for (size_t line = 0; line < Lines::kUpper; ++line) next.Fetch<kPanels>(next_distance);
  ForEach<Lines::kFirst, Lines::kEnd>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kLine = decltype(index)::kValue;
    next.Fetch<kPanels>(next_distance);
    __m512i weights[kPanels];
    if constexpr (IsWholeBytes(kScheme)) {
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) weights[p] = _mm512_load_si512(codes + p * distance + kLine * kLineBytes);
      multiply(weights, kLine);
    } else {
      constexpr size_t kLow = LowQuad(kScheme, kLine);
      constexpr size_t kHigh = HighQuad(kScheme, kLine);
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) weights[p] = QuadOf<kScheme, kIsUnpacked, kLow>(codes + p * distance);
      multiply(weights, kLow);
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) weights[p] = QuadOf<kScheme, kIsUnpacked, kHigh>(codes + p * distance);
      multiply(weights, kHigh);
    }
    next.WaitFor(sums[kRows - 1][0].raw);
  });
}

#elif defined(__AVX2__)

inline constexpr size_t kMaxIntegerRows = 6;
inline constexpr size_t kMaxIntegerPanels = 1;
// Every instruction counts here. Eight: plain nibbles are unpacked in three instructions for two quads.
constexpr size_t LeastUnpackedTiles(Scheme scheme) {
  if (IsWholeBytes(scheme) || NumScalesPerGroup(scheme) > 2) return kNeverUnpacked;
  return HasBlockScales(scheme) || HighBits(scheme) > 0 || IsTable(scheme) ? 4 : 8;
}

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

// Quad kQuad of the columns of half c of a panel; `codes` are packed, or lines of quads.
template <Scheme kScheme, bool kIsUnpacked, size_t kQuad>
PLAIT_INLINE __m256i QuadOf(const uint8_t* codes, size_t c) {
  const auto load = [&](size_t line) __attribute__((always_inline)) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + line * kLineBytes) + c);
  };
  if constexpr (kIsUnpacked || IsWholeBytes(kScheme)) return load(kQuad);
  __m256i low = load(LineOfQuad(kScheme, kQuad));
  if constexpr (IsHighQuad(kScheme, kQuad)) low = _mm256_srli_epi16(low, 4);
  low = _mm256_and_si256(low, _mm256_set1_epi8(15));
  if constexpr (IsTable(kScheme)) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kIq4Numbers));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
  }
  if constexpr (HighBits(kScheme) == 0) return low;
  constexpr int kBit = kQuad * HighBits(kScheme);
  constexpr int kShift = kBit % 8;
  __m256i upper = load(NumCodeLines(kScheme) + kBit / 8);
  if constexpr (kShift < 4) upper = _mm256_slli_epi16(upper, 4 - kShift);
  if constexpr (kShift > 4) upper = _mm256_srli_epi16(upper, kShift - 4);
  return _mm256_or_si256(low, _mm256_and_si256(upper, _mm256_set1_epi8(HighBits(kScheme) == 2 ? 0x30 : 0x10)));
}

// Lays the quads of a panel's group into lines of their own.
template <Scheme kScheme>
PLAIT_INLINE void UnpackCodes(const uint8_t* codes, uint8_t* lines) {
  ForEach<0, kQuadsPerGroup>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kQuad = decltype(index)::kValue;
    for (size_t c = 0; c < 2; ++c) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(lines + kQuad * kLineBytes) + c,
                         QuadOf<kScheme, false, kQuad>(codes, c));
    }
  });
}

// Weights of whole bytes, or of a table of them: |w| times sign(w) q.
template <Scheme kScheme, bool kIsUnpacked, size_t kSpan, size_t kRows>
PLAIT_INLINE void SumBytes(const uint8_t* codes, NextWeights& next, const GroupRows<kRows>& rows,
                           I32 (&sums)[kRows][2]) {
  constexpr size_t kQuads = kQuadsPerGroup / NumSpans(kScheme);
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) sums[r][0].raw = sums[r][1].raw = _mm256_setzero_si256();
  ForEach<kSpan * kQuads, (kSpan + 1) * kQuads>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kQuad = decltype(index)::kValue;
    if constexpr (IsWholeBytes(kScheme) || kQuad % 2 == 0) next.Fetch<1>(0);
    __m256i weights[2], magnitudes[2];
    for (size_t c = 0; c < 2; ++c) {
      weights[c] = _mm256_xor_si256(QuadOf<kScheme, kIsUnpacked, kQuad>(codes, c), flip);
      magnitudes[c] = _mm256_abs_epi8(weights[c]);  // 128 for -128, being unsigned
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m256i four = _mm256_set1_epi32(rows.Quad(r, kQuad));
      for (size_t c = 0; c < 2; ++c) {
        // A pair is at most 2 * 128 * 127, which 16 bits hold.
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes[c], _mm256_sign_epi8(four, weights[c]));
        AddInts(sums[r][c].raw, _mm256_madd_epi16(pairs, ones));
      }
    }
  });
}

// Nibbles with or without upper bits.
template <Scheme kScheme, bool kIsUnpacked, size_t kSpan, size_t kRows>
PLAIT_INLINE void SumNibbles(const uint8_t* codes, NextWeights& next, const GroupRows<kRows>& rows,
                             I32 (&sums)[kRows][2]) {
  using Lines = SpanLines<kScheme, kSpan>;
  constexpr bool kFits = HighBits(kScheme) == 0;  // eight pairs of at most 2 * 15 * 127 fit 16 bits
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    if constexpr (!kFits) sums[r][0].raw = sums[r][1].raw = _mm256_setzero_si256();
    if constexpr (!kFits && ZeroCode(kScheme) != 0) {
      sums[r][0] = sums[r][1] = ZeroParts<kScheme, kSpan>(rows.Of(r));
    }
  }
  for (size_t line = 0; line < Lines::kUpper; ++line) next.Fetch<1>(0);
  ForEach<Lines::kFirst, Lines::kEnd>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kLow = LowQuad(kScheme, decltype(index)::kValue);
    constexpr size_t kHigh = HighQuad(kScheme, decltype(index)::kValue);
    next.Fetch<1>(0);
    __m256i low[2], high[2];
    for (size_t c = 0; c < 2; ++c) {
      low[c] = QuadOf<kScheme, kIsUnpacked, kLow>(codes, c);
      high[c] = QuadOf<kScheme, kIsUnpacked, kHigh>(codes, c);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const __m256i low_four = _mm256_set1_epi32(rows.Quad(r, kLow));
      const __m256i high_four = _mm256_set1_epi32(rows.Quad(r, kHigh));
      for (size_t c = 0; c < 2; ++c) {
        const __m256i low_pairs = _mm256_maddubs_epi16(low[c], low_four);
        const __m256i high_pairs = _mm256_maddubs_epi16(high[c], high_four);
        if constexpr (kFits) {
          if constexpr (decltype(index)::kValue == Lines::kFirst) {
            sums[r][c].raw = low_pairs;
          } else {
            AddShorts(sums[r][c].raw, low_pairs);
          }
          AddShorts(sums[r][c].raw, high_pairs);
        } else {
          // Two pairs of at most 2 * 63 * 127 fit as well.
          AddInts(sums[r][c].raw, _mm256_madd_epi16(_mm256_add_epi16(low_pairs, high_pairs), ones));
        }
      }
    }
  });
  if constexpr (kFits) {
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < 2; ++c) {
        sums[r][c].raw = _mm256_madd_epi16(sums[r][c].raw, ones);
        if constexpr (ZeroCode(kScheme) != 0) {
          sums[r][c] = AddInt(sums[r][c], ZeroParts<kScheme, kSpan>(rows.Of(r)));
        }
      }
    }
  }
}

template <Scheme kScheme, bool kIsUnpacked, size_t kSpan, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumSpan(const uint8_t* codes, size_t, NextWeights& next, size_t, const GroupRows<kRows>& rows,
                          I32 (&sums)[kRows][2]) {
  if constexpr (IsWholeBytes(kScheme) || IsTable(kScheme)) {
    SumBytes<kScheme, kIsUnpacked, kSpan, kRows>(codes, next, rows, sums);
  } else {
    SumNibbles<kScheme, kIsUnpacked, kSpan, kRows>(codes, next, rows, sums);
  }
}

#else

inline constexpr size_t kMaxIntegerRows = 2;
inline constexpr size_t kMaxIntegerPanels = 1;
constexpr size_t LeastUnpackedTiles(Scheme) { return kNeverUnpacked; }

#if defined(__SSE2__)

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

// Quad kQuad of the columns of quarter c of a panel.
template <Scheme kScheme, size_t kQuad>
PLAIT_INLINE __m128i QuadOf(const uint8_t* codes, size_t c) {
  const auto load = [&](size_t line) __attribute__((always_inline)) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(codes + line * kLineBytes) + c);
  };
  if constexpr (IsWholeBytes(kScheme)) return load(kQuad);
  __m128i low = load(LineOfQuad(kScheme, kQuad));
  if constexpr (IsHighQuad(kScheme, kQuad)) low = _mm_srli_epi16(low, 4);
  low = _mm_and_si128(low, _mm_set1_epi8(15));
  if constexpr (IsTable(kScheme)) {
    // No instruction of this target looks bytes up.
    alignas(16) uint8_t bytes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes), low);
    for (uint8_t& byte : bytes) byte = kIq4Numbers[byte];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
  }
  if constexpr (HighBits(kScheme) == 0) return low;
  constexpr int kBit = kQuad * HighBits(kScheme);
  constexpr int kShift = kBit % 8;
  __m128i upper = load(NumCodeLines(kScheme) + kBit / 8);
  if constexpr (kShift < 4) upper = _mm_slli_epi16(upper, 4 - kShift);
  if constexpr (kShift > 4) upper = _mm_srli_epi16(upper, kShift - 4);
  return _mm_or_si128(low, _mm_and_si128(upper, _mm_set1_epi8(HighBits(kScheme) == 2 ? 0x30 : 0x10)));
}

template <Scheme kScheme, bool kIsUnpacked, size_t kSpan, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumSpan(const uint8_t* codes, size_t, NextWeights& next, size_t, const GroupRows<kRows>& rows,
                          I32 (&sums)[kRows][4]) {
  constexpr size_t kQuads = kQuadsPerGroup / NumSpans(kScheme);
  const __m128i low_byte = _mm_set1_epi16(255);
  __m128i acc[kRows][4];
  for (size_t r = 0; r < kRows; ++r) {
    const int32_t start = ZeroPart<kScheme, kSpan>(rows.Of(r));
    for (size_t c = 0; c < 4; ++c) acc[r][c] = _mm_set1_epi32(start);
  }
  for (size_t i = 0; i < LinesPerGroup(kScheme) / NumSpans(kScheme); ++i) next.Fetch<1>(0);
  ForEach<kSpan * kQuads, (kSpan + 1) * kQuads>([&](auto index) __attribute__((always_inline)) {
    constexpr size_t kQuad = decltype(index)::kValue;
    for (size_t c = 0; c < 4; ++c) {
      // Weights are unsigned bytes, which 16 bits hold as they are.
      const __m128i weights = QuadOf<kScheme, kQuad>(codes, c);
      const __m128i even = _mm_and_si128(weights, low_byte);
      const __m128i odd = _mm_srli_epi16(weights, 8);
      for (size_t r = 0; r < kRows; ++r) {
        const QuadPairs pairs(rows.Quad(r, kQuad));
        acc[r][c] = _mm_add_epi32(acc[r][c], _mm_madd_epi16(even, pairs.even));
        acc[r][c] = _mm_add_epi32(acc[r][c], _mm_madd_epi16(odd, pairs.odd));
      }
    }
  });
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < 4; ++c) sums[r][c].raw = reinterpret_cast<RawI32>(acc[r][c]);
  }
}

#else

template <Scheme kScheme, size_t kQuad>
PLAIT_INLINE int32_t CodeOf(const uint8_t* codes, size_t byte) {
  if constexpr (IsWholeBytes(kScheme)) return codes[kQuad * kLineBytes + byte];
  const int32_t nibbles = codes[LineOfQuad(kScheme, kQuad) * kLineBytes + byte];
  const int32_t low = nibbles >> (IsHighQuad(kScheme, kQuad) ? 4 : 0) & 15;
  if constexpr (IsTable(kScheme)) return kIq4Numbers[low];
  if constexpr (HighBits(kScheme) == 0) return low;
  constexpr size_t kBit = kQuad * HighBits(kScheme);
  const int32_t upper = codes[(NumCodeLines(kScheme) + kBit / 8) * kLineBytes + byte] >> kBit % 8;
  return low | (upper & ((1 << HighBits(kScheme)) - 1)) << 4;
}

template <Scheme kScheme, bool kIsUnpacked, size_t kSpan, size_t kPanels, size_t kRows>
PLAIT_INLINE void SumSpan(const uint8_t* codes, size_t, NextWeights&, size_t, const GroupRows<kRows>& rows,
                          I32 (&sums)[kRows][4]) {
  constexpr size_t kQuads = kQuadsPerGroup / NumSpans(kScheme);
  for (size_t r = 0; r < kRows; ++r) {
    int32_t columns[kPanelColumns];
    const int32_t start = ZeroPart<kScheme, kSpan>(rows.Of(r));
    for (size_t j = 0; j < kPanelColumns; ++j) columns[j] = start;
    ForEach<kSpan * kQuads, (kSpan + 1) * kQuads>([&](auto index) __attribute__((always_inline)) {
      constexpr size_t kQuad = decltype(index)::kValue;
      int8_t four[4];
      const int32_t packed = rows.Quad(r, kQuad);
      __builtin_memcpy(four, &packed, sizeof(four));
      for (size_t j = 0; j < kPanelColumns; ++j) {
        for (size_t b = 0; b < 4; ++b) columns[j] += CodeOf<kScheme, kQuad>(codes, 4 * j + b) * four[b];
      }
    });
    for (size_t c = 0; c < 4; ++c) __builtin_memcpy(&sums[r][c].raw, columns + 4 * c, sizeof(sums[r][c].raw));
  }
}

#endif

#endif

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_GEMM_SUMS_H_
