// Half floats: IEEE binary16 and bfloat16 to and from float, without instructions that only some machines have.
//
// Owns the conversions that packing, tests and the baseline kernels use. Invariant: the same bits as the F16C
// instructions, to nearest with ties to even, subnormals included; a NaN becomes quiet.

#ifndef PLAIT_CSRC_FORMATS_HALF_H_
#define PLAIT_CSRC_FORMATS_HALF_H_

#include <cstdint>

namespace plait {

// Never emitted as functions, because kernels include this header as well (CMakeLists.txt).
#define PLAIT_HALF_INLINE static inline __attribute__((always_inline))

PLAIT_HALF_INLINE float Bf16ToFloat(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

PLAIT_HALF_INLINE float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, or NaN made quiet
    const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return __builtin_bit_cast(float, sign | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
  }
  // The exponents of a half begin 112 below those of a float. Subnormal halves are multiples of 2^-24.
  if (magnitude >= 0x400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112u << 23)));
  const float positive = static_cast<float>(magnitude) * 0x1p-24f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, positive));
}

PLAIT_HALF_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more become infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: the last place of this sum is 2^-24, the step of subnormal halves.
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, sum) - 0x3f000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

PLAIT_HALF_INLINE uint16_t FloatToBf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

#undef PLAIT_HALF_INLINE

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_HALF_H_
