// Kernels of one row at a time: activations, sums and products, rotary positions, caps of logits.
//
// Owns their passes over memory. The functions applied are in ops/targets/math.h.
// Invariant: a column is computed from its own inputs by the same operations, in a whole vector or in a remainder.

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/functions.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// y[c] = function(a[c], b[c]).
template <typename Function>
PLAIT_INLINE void MapRow(const float* a, const float* b, float* y, size_t width, const Function& function) {
  size_t c = 0;
  for (; c + kLanes <= width; c += kLanes) Store(y + c, function(Load(a + c), Load(b + c)));
  if (c < width) StoreFirst(y + c, function(LoadFirst(a + c, width - c), LoadFirst(b + c, width - c)), width - c);
}

template <typename Function>
PLAIT_INLINE void Activate(const GluCall& call, const Function& activation) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    const float* a = call.a + r * call.a_stride;
    float* y = call.y + r * call.y_stride;
    if (call.b == nullptr) {
      MapRow(a, a, y, call.width, [&](F32 x, F32) __attribute__((always_inline)) { return activation(x); });
    } else {
      MapRow(a, call.b + r * call.b_stride, y, call.width,
             [&](F32 x, F32 up) __attribute__((always_inline)) { return Mul(activation(x), up); });
    }
  }
}

// Rows of numbers of which each is the same in all columns: b[0] of the row.
template <typename Function>
PLAIT_INLINE void MapRows(const ArithmeticCall& call, const Function& function) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    const float* a = call.a + r * call.a_stride;
    const float* b = call.b == nullptr ? a : call.b + r * call.b_stride;
    MapRow(a, b, call.y + r * call.y_stride, call.width, function);
  }
}

void ScaleRows(const ArithmeticCall& call) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    const float* a = call.a + r * call.a_stride;
    const bool per_row = call.kind == Arithmetic::kMul;
    const F32 factor = Broadcast(per_row ? call.b[r * call.b_stride] : call.factor);
    MapRow(a, a, call.y + r * call.y_stride, call.width,
           [factor](F32 x, F32) __attribute__((always_inline)) { return Mul(factor, x); });
  }
}

// y[a] = x[a] c - x[b] s and y[b] = x[b] c + x[a] s, the product with s rounded first.
struct Rotated {
  F32 a;
  F32 b;
};

PLAIT_INLINE Rotated Rotate(F32 a, F32 b, F32 c, F32 s) {
  return {Fma(a, c, Negated(Mul(b, s))), Fma(b, c, Mul(a, s))};
}

void RotateHalves(const float* x, float* y, const float* cos, const float* sin, size_t pairs) {
  size_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const Rotated to = Rotate(Load(x + i), Load(x + pairs + i), Load(cos + i), Load(sin + i));
    Store(y + i, to.a);
    Store(y + pairs + i, to.b);
  }
  if (i == pairs) return;
  const size_t left = pairs - i;
  const Rotated to = Rotate(LoadFirst(x + i, left), LoadFirst(x + pairs + i, left), LoadFirst(cos + i, left),
                            LoadFirst(sin + i, left));
  StoreFirst(y + i, to.a, left);
  StoreFirst(y + pairs + i, to.b, left);
}

#if defined(__AVX512F__)
PLAIT_INLINE F32 NeighboursSwapped(F32 a) { return {_mm512_permute_ps(a.raw, 0xb1)}; }
#elif defined(__AVX2__)
PLAIT_INLINE F32 NeighboursSwapped(F32 a) { return {_mm256_permute_ps(a.raw, 0xb1)}; }
#else
PLAIT_INLINE F32 NeighboursSwapped(F32 a) { return {RawF32{a.raw[1], a.raw[0], a.raw[3], a.raw[2]}}; }
#endif

// All heads of a row, as many columns at a time as a vector has: (a, b) becomes (a, b) (c, c) + (b, a) (-s, s).
void RotateNeighbours(const RopeCall& call, const float* x, float* y, const float* cos, const float* sin) {
  for (size_t first = 0; first < call.rotary_dim; first += kLanes) {
    const size_t count = call.rotary_dim - first < kLanes ? call.rotary_dim - first : kLanes;
    float both_cos[kLanes] = {};
    float both_sin[kLanes] = {};
    for (size_t i = 0; i < count; i += 2) {
      both_cos[i] = both_cos[i + 1] = cos[(first + i) / 2];
      both_sin[i] = -sin[(first + i) / 2];
      both_sin[i + 1] = sin[(first + i) / 2];
    }
    const F32 c = Load(both_cos);
    const F32 s = Load(both_sin);
    for (size_t head = 0; head < call.heads; ++head) {
      const size_t column = head * call.head_dim + first;
      const F32 from = LoadFirst(x + column, count);
      StoreFirst(y + column, Fma(from, c, Mul(NeighboursSwapped(from), s)), count);
    }
  }
}

// Reads `b`, which it has always.
void ClampedSwishRows(const GluCall& call) {
  const F32 alpha = Broadcast(call.alpha);
  const F32 limit = Broadcast(call.limit);
  for (size_t r = 0; r < call.num_rows; ++r) {
    MapRow(call.a + r * call.a_stride, call.b + r * call.b_stride, call.y + r * call.y_stride, call.width,
           [=](F32 gate, F32 up) __attribute__((always_inline)) { return ClampedSwish(gate, up, alpha, limit); });
  }
}

}  // namespace

void Glu(const GluCall& call) {
  switch (call.activation) {
    case Activation::kClampedSwish:
      return ClampedSwishRows(call);
    case Activation::kSilu:
      return Activate(call, [](F32 x) __attribute__((always_inline)) { return Silu(x); });
    case Activation::kGelu:
      return Activate(call, [](F32 x) __attribute__((always_inline)) { return Gelu(x); });
    case Activation::kGeluTanh:
      return Activate(call, [](F32 x) __attribute__((always_inline)) { return GeluTanh(x); });
    case Activation::kRelu2:
      return Activate(call, [](F32 x) __attribute__((always_inline)) { return Relu2(x); });
    case Activation::kSigmoid:
      return Activate(call, [](F32 x) __attribute__((always_inline)) { return Sigmoid(x); });
  }
}

void RowArithmetic(const ArithmeticCall& call) {
  if (call.kind == Arithmetic::kScale || (call.kind == Arithmetic::kMul && call.b_width == 1)) return ScaleRows(call);
  if (call.kind == Arithmetic::kMul) {
    return MapRows(call, [](F32 a, F32 b) __attribute__((always_inline)) { return Mul(a, b); });
  }
  const F32 factor = Broadcast(call.factor);
  MapRows(call, [factor](F32 a, F32 b) __attribute__((always_inline)) { return Add(a, Mul(factor, b)); });
}

void CapLogits(float* z, size_t count, float logit_scale, float softcap) {
  const F32 scale = Broadcast(logit_scale);
  if (softcap == 0.0f) {
    return MapRow(z, z, z, count, [scale](F32 x, F32) __attribute__((always_inline)) { return Mul(x, scale); });
  }
  const F32 cap = Broadcast(softcap);
  MapRow(z, z, z, count,
         [=](F32 x, F32) __attribute__((always_inline)) { return Mul(cap, Tanh(Div(Mul(x, scale), cap))); });
}

void RotateRows(const RopeCall& call) {
  const size_t pairs = call.rotary_dim / 2;
  for (size_t r = 0; r < call.num_rows; ++r) {
    const float* x = call.x + r * call.x_stride;
    float* y = call.y + r * call.y_stride;
    const float* cos = call.cos + static_cast<size_t>(call.positions[r]) * pairs;
    const float* sin = call.sin + static_cast<size_t>(call.positions[r]) * pairs;
    if (call.interleaved) RotateNeighbours(call, x, y, cos, sin);
    for (size_t head = 0; head < call.heads; ++head, x += call.head_dim, y += call.head_dim) {
      if (!call.interleaved) RotateHalves(x, y, cos, sin, pairs);
      if (y == x) continue;
      for (size_t c = call.rotary_dim; c < call.head_dim; ++c) y[c] = x[c];
    }
  }
}

}  // namespace plait::PLAIT_TARGET
