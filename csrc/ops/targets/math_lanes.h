// Sums and maxima across lanes, in an order that does not depend on how wide a register is.
//
// Owns the trees: 16 lanes are halved to 8, to 4, to 2, to 1, lane i meeting the lane half as many further.
// Knows nothing about what is summed. Invariant: the same additions of the same pairs on every target.

#ifndef PLAIT_CSRC_OPS_TARGETS_MATH_LANES_H_
#define PLAIT_CSRC_OPS_TARGETS_MATH_LANES_H_

#include <cstddef>

#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// Numbers handled together on every target, in one register or several.
inline constexpr size_t kSixteen = 16;
inline constexpr size_t kSixteenVectors = kSixteen / kLanes;

// Eight lanes of a sum.
#if defined(__AVX2__)

struct Eight {
  __m256 raw;
};
// Numbers 0 to 7 to the lanes, then 8 to 15.
PLAIT_INLINE Eight NoSum() { return {_mm256_setzero_ps()}; }
PLAIT_INLINE void AddSixteen(const F32 (&p)[kSixteenVectors], Eight* sum) {
#if defined(__AVX512F__)
  sum->raw = _mm256_add_ps(sum->raw, _mm512_castps512_ps256(p[0].raw));
  sum->raw = _mm256_add_ps(sum->raw, _mm512_extractf32x8_ps(p[0].raw, 1));
#else
  sum->raw = _mm256_add_ps(_mm256_add_ps(sum->raw, p[0].raw), p[1].raw);
#endif
}
PLAIT_INLINE float SumOfLanes(const Eight& sum) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum.raw), _mm256_extractf128_ps(sum.raw, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

PLAIT_INLINE float LargestLane(F32 a) {
#if defined(__AVX512F__)
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.raw), _mm512_extractf32x8_ps(a.raw, 1));
#else
  const __m256 eight = a.raw;
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#if defined(__AVX512F__)
PLAIT_INLINE float FirstLane(F32 a) { return _mm512_cvtss_f32(a.raw); }
#else
PLAIT_INLINE float FirstLane(F32 a) { return _mm256_cvtss_f32(a.raw); }
#endif

#else

struct Eight {
  F32 part[2];
};
PLAIT_INLINE Eight NoSum() { return {{Zero(), Zero()}}; }
PLAIT_INLINE void AddSixteen(const F32 (&p)[kSixteenVectors], Eight* sum) {
  for (size_t i = 0; i < kSixteenVectors; ++i) sum->part[i % 2] = Add(sum->part[i % 2], p[i]);
}
PLAIT_INLINE float SumOfLanes(const Eight& sum) {
  const F32 four = Add(sum.part[0], sum.part[1]);
  return (four.raw[0] + four.raw[2]) + (four.raw[1] + four.raw[3]);
}
PLAIT_INLINE float LargestLane(F32 a) {
  const F32 two = Max(a, {RawF32{a.raw[2], a.raw[3], a.raw[0], a.raw[1]}});
  return two.raw[0] > two.raw[1] ? two.raw[0] : two.raw[1];
}
PLAIT_INLINE float FirstLane(F32 a) { return a.raw[0]; }

#endif

// Sixteen lanes to one.
PLAIT_INLINE float SumOfSixteen(const F32 (&lanes)[kSixteenVectors]) {
  Eight sum;
#if defined(__AVX512F__)
  sum.raw = _mm256_add_ps(_mm512_castps512_ps256(lanes[0].raw), _mm512_extractf32x8_ps(lanes[0].raw, 1));
#elif defined(__AVX2__)
  sum.raw = _mm256_add_ps(lanes[0].raw, lanes[1].raw);
#else
  sum = {{Add(lanes[0], lanes[2]), Add(lanes[1], lanes[3])}};
#endif
  return SumOfLanes(sum);
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_MATH_LANES_H_
