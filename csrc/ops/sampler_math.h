// Sampler math: the one logarithm that a row takes.
//
// Owns it, because the C library's differs from machine to machine. Exponentials are in ops/targets/sampler_loops.cc.
// Invariant: plain additions, products and quotients in a fixed order, so every machine gives the same bits.

#ifndef PLAIT_CSRC_OPS_SAMPLER_MATH_H_
#define PLAIT_CSRC_OPS_SAMPLER_MATH_H_

#include <cmath>

namespace plait {

// ln(x) for finite x > 0; relative error below 1 ulp.
inline double NaturalLog(double x) {
  constexpr double kHalfRoot = 0x1.6a09e667f3bcdp-1;
  // ln 2 in two parts; the product of the first with any exponent is exact.
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < kHalfRoot) {
    mantissa *= 2.0;
    --exponent;
  }
  // ln(1 + f) = 2 atanh(s) = 2 s + s R with s = f / (2 + f) and R = 2/3 s^2 + 2/5 s^4 + ...; and because s (2 + f) = f,
  // 2 s = f - f^2/2 + s f^2/2. So f itself is exact and only what is small is rounded. |s| < 0.172: eleven terms of R
  // reach 2^-62.
  const double f = mantissa - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 2.0 / 23.0;
  for (int odd = 21; odd >= 3; odd -= 2) series = 2.0 / odd + z * series;
  series *= z;
  const double half_square = 0.5 * f * f;
  const double k = exponent;
  return k * kLn2High - ((half_square - (s * (half_square + series) + k * kLn2Low)) - f);
}

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_SAMPLER_MATH_H_
