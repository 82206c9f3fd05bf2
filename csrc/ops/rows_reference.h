// What tests of row kernels and of attention share: the functions of ops/targets/math.h one number at a time, random
// numbers, comparison of bits.
//
// Owns scalar code written from the definitions, with std::fma and no vectors. Used by tests only.
// Invariant: every kernel must give these bits, whatever the target.

#ifndef PLAIT_CSRC_OPS_ROWS_REFERENCE_H_
#define PLAIT_CSRC_OPS_ROWS_REFERENCE_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "base/testing.h"
#include "ops/kernels.h"

namespace plait::reference {

inline std::vector<const Kernels*> TestedKernels() {
  std::vector<const Kernels*> tables;
  for (const Target target : SupportedTargets()) {
    switch (target) {
      case Target::kBaseline:
        tables.push_back(&baseline::kKernels);
        break;
#if defined(__x86_64__)
      case Target::kAvx2:
        tables.push_back(&avx2::kKernels);
        break;
      case Target::kAvx512:
        tables.push_back(&avx512::kKernels);
        break;
#else
      default:
        break;
#endif
    }
  }
  return tables;
}

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline bool SameBits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Names the first difference; one line per call, not per number.
inline void CheckSame(const std::vector<float>& got, const std::vector<float>& expected, const char* what,
                      const char* target) {
  CHECK_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (SameBits(got[i], expected[i])) continue;
    std::printf("%s on %s: number %zu is %.9g, expected %.9g\n", what, target, i, static_cast<double>(got[i]),
                static_cast<double>(expected[i]));
    CHECK(SameBits(got[i], expected[i]));
    return;
  }
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float Normal(float deviation = 1.0f) { return std::normal_distribution<float>(0.0f, deviation)(engine_); }
  size_t Below(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(engine_); }
  std::vector<float> Normals(size_t count, float deviation = 1.0f) {
    std::vector<float> numbers(count);
    for (float& number : numbers) number = Normal(deviation);
    return numbers;
  }

 private:
  std::mt19937 engine_;
};

inline float Chain(float start, float x, std::initializer_list<float> coefficients) {
  float sum = start;
  for (const float coefficient : coefficients) sum = std::fma(sum, x, coefficient);
  return sum;
}

inline float Exp(float x) {
  if (std::isnan(x)) return x;
  if (x < -86.5f) return 0.0f;
  if (x > 89.0f) return kInfinity;
  const float n = std::fma(x, 0x1.715476p0f, 0x1.8p23f) - 0x1.8p23f;
  const float r = std::fma(n, -0x1.7f7d1cp-20f, std::fma(n, -0x1.62e4p-1f, x));
  const float power =
      Chain(0x1.6a23cep-10f, r, {0x1.123a20p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f});
  return std::ldexp(power, static_cast<int>(n));
}

inline float Tanh(float x) {
  const float size = std::fabs(x);
  float result;
  if (size < 0.6f) {
    const float square = size * size;
    const float p = Chain(0x1.246e14p-9f, square,
                          {-0x1.0ee562p-7f, 0x1.6418d8p-6f, -0x1.b9fa8ap-5f, 0x1.11109ep-3f, -0x1.555554p-2f});
    result = std::fma(p * square, size, size);
  } else {
    result = 1.0f - 2.0f / (Exp(size + size) + 1.0f);
  }
  return std::copysign(result, x);
}

// The rule of numbers of half precision, in f64: nearest, ties to even, infinite from 65520 on.
inline uint16_t HalfOf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(static_cast<double>(value));
  if (std::isnan(value)) return sign | 0x7e00;
  if (size >= 65520.0) return sign | 0x7c00;
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const double steps = std::nearbyint(std::ldexp(size, 10 - exponent));  // 1024 for 2^exponent
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + static_cast<int>(steps));
}

inline float FloatOfHalf(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) size = mantissa == 0 ? kInfinity : kNan;
  return static_cast<float>((half & 0x8000) != 0 ? -size : size);
}

}  // namespace plait::reference

#endif  // PLAIT_CSRC_OPS_ROWS_REFERENCE_H_
