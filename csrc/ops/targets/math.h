// Elementary functions on vectors of floats: exponential, hyperbolic tangent, the tail of the normal distribution.
//
// Owns the polynomials and their measured errors. Knows nothing about rows; ops/targets/simd.h owns the instructions.
// Invariant: one sequence of operations per function, for every lane, every target, whole vectors and remainders alike.
// Errors are in units in the last place (ulp) of the result, over all floats of the range; ops/rows_test.cc checks
// them.

#ifndef PLAIT_CSRC_OPS_TARGETS_MATH_H_
#define PLAIT_CSRC_OPS_TARGETS_MATH_H_

#include <cstddef>
#include <cstdint>

#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

// exp(x) is 0 below this: 2^-124.8, so that no intermediate is subnormal and flags that flush such numbers change
// nothing.
inline constexpr float kExpFloor = -86.5f;

// exp(x) = 2^n exp(r), n whole, |r| <= ln(2) / 2. `power` is exp(r), `exponent` the bits of 2^(n - shift).
struct ExpParts {
  F32 power;
  F32 scale;
};

template <int kShift>
PLAIT_INLINE ExpParts SplitExp(F32 x) {
  // The sum's last place is 1: it rounds x log2(e) to n, and holds n in its lowest bits.
  const F32 rounder = Broadcast(0x1.8p23f);
  const F32 sum = Fma(x, Broadcast(0x1.715476p0f), rounder);
  const F32 n = Sub(sum, rounder);
  // ln(2) in two parts; n times the first, 0x1.62e4p-1, is exact.
  F32 r = Fma(n, Broadcast(-0x1.62e4p-1f), x);
  r = Fma(n, Broadcast(-0x1.7f7d1cp-20f), r);
  // (exp(r) - 1 - r) / r^2: minimax fit, 3e-9 of exp(r) away.
  F32 q = Fma(Broadcast(0x1.6a23cep-10f), r, Broadcast(0x1.123a20p-7f));
  q = Fma(q, r, Broadcast(0x1.5558f2p-5f));
  q = Fma(q, r, Broadcast(0x1.555492p-3f));
  q = Fma(q, r, Broadcast(0x1.fffffcp-2f));
  q = Fma(q, r, Broadcast(1.0f));
  const F32 power = Fma(q, r, Broadcast(1.0f));
  const I32 bias = BroadcastInt((127 - kShift) << 23);
  return {power, AsFloat(AddInt(ShiftLeft<23>(AsInt(sum)), bias))};
}

// exp(x) for x <= 0, -inf included; exactly 1 at 0. Error at most 1 ulp. NaN gives NaN, and so may x > 88.
PLAIT_INLINE F32 ExpOfNegative(F32 x) {
  const ExpParts parts = SplitExp<0>(x);
  return Select(Less(x, Broadcast(kExpFloor)), Zero(), Mul(parts.power, parts.scale));
}

// exp(x) for every x; infinite where it is above the largest float. The bits of ExpOfNegative for x <= 0.
PLAIT_INLINE F32 Exp(F32 x) {
  // 2^128 is no float: the power is doubled and the exponent is one less. At 89 the product overflows; Min keeps NaN.
  const ExpParts parts = SplitExp<1>(Min(Broadcast(89.0f), x));
  return Select(Less(x, Broadcast(kExpFloor)), Zero(), Mul(Add(parts.power, parts.power), parts.scale));
}

PLAIT_INLINE F32 Negated(F32 x) { return AsFloat(SubInt(AsInt(x), BroadcastInt(INT32_MIN))); }
PLAIT_INLINE F32 Magnitude(F32 x) { return AsFloat(AndInt(AsInt(x), BroadcastInt(INT32_MAX))); }

// Error at most 1.5 ulp.
PLAIT_INLINE F32 Tanh(F32 x) {
  const F32 size = Magnitude(x);
  const F32 square = Mul(size, size);
  // (tanh(x) / x - 1) / x^2 by x^2 up to 0.36: minimax fit, 1e-10 of tanh(x) / x away.
  F32 p = Fma(Broadcast(0x1.246e14p-9f), square, Broadcast(-0x1.0ee562p-7f));
  p = Fma(p, square, Broadcast(0x1.6418d8p-6f));
  p = Fma(p, square, Broadcast(-0x1.b9fa8ap-5f));
  p = Fma(p, square, Broadcast(0x1.11109ep-3f));
  p = Fma(p, square, Broadcast(-0x1.555554p-2f));
  const F32 small = Fma(Mul(p, square), size, size);
  const F32 one = Broadcast(1.0f);
  const F32 large = Sub(one, Div(Broadcast(2.0f), Add(Exp(Add(size, size)), one)));
  const F32 result = Select(Less(size, Broadcast(0.6f)), small, large);
  const I32 sign = AndInt(AsInt(x), BroadcastInt(INT32_MIN));
  return AsFloat(OrInt(AsInt(result), sign));
}

// The share of a normal distribution above |x|: (1 - erf(|x| / sqrt(2))) / 2. Error at most 5 ulp down to 2^-124, then
// 0.
PLAIT_INLINE F32 UpperTail(F32 x) {
  // Min keeps NaN; the tail at 14 is below the smallest float.
  const F32 size = Min(Broadcast(14.0f), Magnitude(x));
  // exp(x^2 / 2) times the tail, by t = (4 - |x|) / (4 + |x|): minimax fit, 1.1e-8 of it away.
  const F32 four = Broadcast(4.0f);
  const F32 t = Div(Sub(four, size), Add(four, size));
  F32 g = Fma(Broadcast(0x1.1d142ep-14f), t, Broadcast(-0x1.6a08b8p-13f));
  g = Fma(g, t, Broadcast(-0x1.58a7e0p-11f));
  g = Fma(g, t, Broadcast(0x1.08fe86p-11f));
  g = Fma(g, t, Broadcast(0x1.166fa8p-7f));
  g = Fma(g, t, Broadcast(0x1.f9b0d2p-6f));
  g = Fma(g, t, Broadcast(0x1.25b61ap-4f));
  g = Fma(g, t, Broadcast(0x1.fd7518p-4f));
  g = Fma(g, t, Broadcast(0x1.5cf97ep-3f));
  g = Fma(g, t, Broadcast(0x1.82b4bcp-4f));
  // x^2 / 2 in two parts: rounded alone it would cost up to 2^-18 of the result.
  const F32 half = Mul(size, Broadcast(0.5f));
  const F32 high = Mul(half, size);
  const F32 low = Fma(half, size, Negated(high));
  F32 e = ExpOfNegative(Negated(high));
  e = Fma(e, Negated(low), e);
  return Mul(e, g);
}

PLAIT_INLINE F32 Sigmoid(F32 x) {
  const F32 one = Broadcast(1.0f);
  return Div(one, Add(one, Exp(Negated(x))));
}

PLAIT_INLINE F32 Silu(F32 x) { return Div(x, Add(Broadcast(1.0f), Exp(Negated(x)))); }

// Of a gate and what it lets through, both within a limit. Min and Max keep a NaN in their second place.
PLAIT_INLINE F32 ClampedSwish(F32 gate, F32 up, F32 alpha, F32 limit) {
  const F32 one = Broadcast(1.0f);
  const F32 g = Min(limit, gate);
  const F32 u = Min(limit, Max(Negated(limit), up));
  return Mul(Div(g, Add(one, Exp(Negated(Mul(alpha, g))))), Add(u, one));
}

PLAIT_INLINE F32 Gelu(F32 x) {
  const F32 tail = UpperTail(x);
  return Mul(x, Select(Less(x, Zero()), tail, Sub(Broadcast(1.0f), tail)));
}

// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), which loses nothing where tanh(u) is close to -1.
PLAIT_INLINE F32 GeluTanh(F32 x) {
  // -2 sqrt(2 / pi), and that times 0.044715.
  const F32 by_square = Fma(Mul(x, x), Broadcast(-0x1.2444f2p-4f), Broadcast(-0x1.988454p0f));
  return Div(x, Add(Broadcast(1.0f), Exp(Mul(x, by_square))));
}

PLAIT_INLINE F32 Relu2(F32 x) {
  const F32 positive = Max(Zero(), x);  // Max keeps a NaN in its second place.
  return Mul(positive, positive);
}

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_MATH_H_
