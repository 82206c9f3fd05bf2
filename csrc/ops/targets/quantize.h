// Quantisation of one group of activations, narrow or wide, or one vector, for whoever has the floats at hand.
//
// Owns the rule, docs/adr/0006-number-schemes.md: scale = max|x| / 127, values = x * (127 / max|x|) rounded to nearest
// with ties to even. Groups whose largest magnitude is below 2^-100 are zero, with scale zero; groups with an infinity
// or a NaN get a NaN scale. Invariant: the same bits on every target.

#ifndef PLAIT_CSRC_OPS_TARGETS_QUANTIZE_H_
#define PLAIT_CSRC_OPS_TARGETS_QUANTIZE_H_

#include <cstddef>
#include <cstdint>

#include "formats/mixing.h"
#include "formats/scheme.h"
#include "ops/targets/math_lanes.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

inline constexpr int32_t kInfinityBits = 0x7f800000;
inline constexpr int32_t kLeastMaximumBits = 0x0d800000;  // 2^-100: 127 / max stays finite, max / 127 normal

#if defined(__AVX512F__)

// Bits of the largest magnitude; above those of infinity if a value is a NaN.
PLAIT_INLINE int32_t LargestMagnitudeBits(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i low = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), magnitude);
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16)), magnitude);
  return _mm512_reduce_max_epi32(_mm512_max_epi32(low, high));
}

// Rounds x * factor. Returns the sum of the first 16 values plus 2^16 times that of all.
PLAIT_INLINE int32_t RoundGroup(const float* x, float factor, int8_t* values) {
  const __m512 factors = _mm512_set1_ps(factor);
  const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factors));
  const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), factors));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(values), _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 16), _mm512_cvtepi32_epi8(high));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, _mm512_slli_epi32(_mm512_add_epi32(low, high), 16)));
}

#elif defined(__AVX2__)

PLAIT_INLINE int32_t LargestMagnitudeBits(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (size_t i = 0; i < kGroupSize; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

PLAIT_INLINE int32_t RoundGroup(const float* x, float factor, int8_t* values) {
  const __m256 factors = _mm256_set1_ps(factor);
  __m256i rounded[4];
  for (size_t i = 0; i < 4; ++i) {
    rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factors));
  }
  // Packing works within halves of a register; the permutation puts the fours back in order.
  const __m256i words = _mm256_packs_epi32(rounded[0], rounded[1]);
  const __m256i more_words = _mm256_packs_epi32(rounded[2], rounded[3]);
  const __m256i bytes = _mm256_packs_epi16(words, more_words);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values),
                      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i sums =
      _mm256_add_epi32(_mm256_madd_epi16(words, ones),
                       _mm256_slli_epi32(_mm256_madd_epi16(_mm256_add_epi16(words, more_words), ones), 16));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

#else

PLAIT_INLINE int32_t LargestMagnitudeBits(const float* x) {
  int32_t largest = 0;
  for (size_t i = 0; i < kGroupSize; ++i) {
    const int32_t bits = static_cast<int32_t>(BitsOf(x[i]) & 0x7fffffffu);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

PLAIT_INLINE int32_t RoundGroup(const float* x, float factor, int8_t* values) {
  int32_t sum = 0;
  for (size_t i = 0; i < kGroupSize; ++i) {
    // The last place of this sum is 1, so the addition rounds.
    const float shifted = x[i] * factor + 0x1.8p23f;
    const int32_t value = static_cast<int32_t>(BitsOf(shifted)) - 0x4b400000;
    values[i] = static_cast<int8_t>(value);
    sum += value * (i < kGroupSize / 2 ? 0x10001 : 0x10000);
  }
  return sum;
}

#endif

// Quantises x[0 .. 32).
PLAIT_INLINE void QuantizeGroup(const float* x, QuantizedGroup& to) {
  const int32_t bits = LargestMagnitudeBits(x);
  if (bits >= kLeastMaximumBits && bits < kInfinityBits) {
    const float largest = FloatOf(static_cast<uint32_t>(bits));
    to.scale = largest / 127.0f;
    const int32_t both = RoundGroup(x, 127.0f / largest, to.values);
    // A negative lower sum has borrowed from the upper one.
    const int32_t sum = (both + (both & 0x8000) * 2) >> 16;
    to.total = static_cast<float>(sum) * to.scale;
    to.sum = sum * kSumFactor;
    to.first_sum = static_cast<int16_t>(both) * kSumFactor;
    return;
  }
  for (size_t i = 0; i < kGroupSize; ++i) to.values[i] = 0;
  to.scale = to.total = bits >= kInfinityBits ? __builtin_nanf("") : 0.0f;
  to.sum = to.first_sum = 0;
}

// The first `count` lanes, which are in [-128, 127].
PLAIT_INLINE void StoreFirstBytes(I32 from, size_t count, int8_t* to) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_cvtepi32_epi8(from.raw);
  if (count == kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
#endif
  int32_t numbers[kLanes];
  __builtin_memcpy(numbers, &from, sizeof(numbers));
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<int8_t>(numbers[i]);
}

// Quantises x[0 .. count) by the same rule, with one scale for all, and returns it.
PLAIT_INLINE float RoundToInt8(const float* x, size_t count, int8_t* values) {
  F32 largest = Zero();
  F32 faults[kSixteenVectors];  // stay zero while numbers are finite
  for (size_t v = 0; v < kSixteenVectors; ++v) faults[v] = Zero();
  for (size_t i = 0; i < count; i += kLanes) {
    const F32 some = LoadFirst(x + i, count - i < kLanes ? count - i : kLanes);
    largest = Max(largest, Max(some, Sub(Zero(), some)));
    F32& fault = faults[i / kLanes % kSixteenVectors];
    fault = Fma(some, Zero(), fault);
  }
  const float max = LargestLane(largest);
  const bool is_finite = SumOfSixteen(faults) == 0.0f;
  const bool is_some = is_finite && max >= FloatOf(kLeastMaximumBits);
  const F32 factor = Broadcast(is_some ? 127.0f / max : 0.0f);
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t left = count - i < kLanes ? count - i : kLanes;
    const F32 some = is_some ? LoadFirst(x + i, left) : Zero();
    StoreFirstBytes(RoundToInt(Mul(some, factor)), left, values + i);
  }
  return is_some ? max / 127.0f : is_finite ? 0.0f : __builtin_nanf("");
}

template <size_t kDistance, size_t kCount>
PLAIT_INLINE void MixNeighbours(F32 (&sixteens)[kCount]) {
#pragma GCC unroll 8
  for (size_t block = 0; block < kCount; block += 2 * kDistance) {
#pragma GCC unroll 8
    for (size_t i = block; i < block + kDistance; ++i) {
      const F32 a = sixteens[i], b = sixteens[i + kDistance];
      sixteens[i] = Add(a, b);
      sixteens[i + kDistance] = Sub(a, b);
    }
  }
}

// The first and the last eight of a sixteen, which lie in one register or in two halves of it.
PLAIT_INLINE void MixHalves(const float* x, float* mixed) {
#if defined(__AVX512F__)
  const __m512 both = _mm512_loadu_ps(x);
  const __m512 signs = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
  _mm512_storeu_ps(mixed, _mm512_fmadd_ps(both, signs, _mm512_shuffle_f32x4(both, both, 0x4e)));
#else
  for (size_t i = 0; i < 8; i += kLanes) {
    const F32 a = Load(x + i), b = Load(x + 8 + i);
    Store(mixed + i, Add(a, b));
    Store(mixed + 8 + i, Sub(a, b));
  }
#endif
}

// A wide group, mixed as formats/mixing.h says.
template <size_t kParts>
PLAIT_INLINE void MixGroup(const float* x, float* mixed) {
  constexpr size_t kSixteens = 2 * kParts;
  constexpr size_t kBlock = MixedNumbers(kParts * kGroupSize);
#pragma GCC unroll 8
  for (size_t i = 0; i < kSixteens; ++i) MixHalves(x + 16 * i, mixed + 16 * i);
  for (size_t lane = 0; lane < 16; lane += kLanes) {
    F32 sixteens[kSixteens];
#pragma GCC unroll 8
    for (size_t i = 0; i < kSixteens; ++i) sixteens[i] = Load(mixed + 16 * i + lane);
    MixNeighbours<1>(sixteens);
    if constexpr (kBlock >= 64) MixNeighbours<2>(sixteens);
    if constexpr (kBlock >= 128) MixNeighbours<4>(sixteens);
#pragma GCC unroll 8
    for (size_t i = 0; i < kSixteens; ++i) Store(mixed + 16 * i + lane, sixteens[i]);
  }
}

// Quantises x[0 .. 32 * parts), which share a scale: a wide group.
PLAIT_INLINE void QuantizeWideGroup(const float* unmixed, size_t parts, QuantizedGroup* to) {
  float x[kWideGroupSize];
  static_assert(kGroupsPerWide == 4);
  if (parts == 4) {
    MixGroup<4>(unmixed, x);
  } else if (parts == 3) {
    MixGroup<3>(unmixed, x);
  } else if (parts == 2) {
    MixGroup<2>(unmixed, x);
  } else {
    MixGroup<1>(unmixed, x);
  }
  int32_t bits = 0;
  for (size_t p = 0; p < parts; ++p) {
    const int32_t of_part = LargestMagnitudeBits(x + p * kGroupSize);
    bits = of_part > bits ? of_part : bits;
  }
  float scale = bits >= kInfinityBits ? __builtin_nanf("") : 0.0f;
  int32_t sum = 0;
  if (bits >= kLeastMaximumBits && bits < kInfinityBits) {
    const float largest = FloatOf(static_cast<uint32_t>(bits));
    const float factor = 127.0f / largest;
    scale = largest / 127.0f;
    for (size_t p = 0; p < parts; ++p) {
      const int32_t both = RoundGroup(x + p * kGroupSize, factor, to[p].values);
      sum += (both + (both & 0x8000) * 2) >> 16;
    }
  } else {
    for (size_t p = 0; p < parts; ++p) {
      for (size_t i = 0; i < kGroupSize; ++i) to[p].values[i] = 0;
    }
  }
  const float total = static_cast<float>(sum) * scale;
  for (size_t p = 0; p < parts; ++p) {
    to[p].scale = scale;
    to[p].total = total;
    to[p].sum = sum * kSumFactor;
    to[p].first_sum = 0;
  }
}

// Quantises x[0 .. count): one group, or, where groups are wide, what there is of one at the end of a row.
PLAIT_INLINE void QuantizeGroups(const float* x, size_t count, QuantizedGroup* to, size_t group_size) {
  if (group_size == kGroupSize) return QuantizeGroup(x, *to);
  QuantizeWideGroup(x, count / kGroupSize, to);
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_QUANTIZE_H_
