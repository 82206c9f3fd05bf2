// Normalisation of rows, or of equal parts of rows, with or without 8-bit output.
//
// Owns the order of its sums: 16 lanes, lane = column mod 16 within the part, then halves of the lanes added until one
// is left. How numbers become 8 bits is in ops/targets/quantize.h.
// Invariant: a part's result depends on its own columns; the lanes are 16 on every target, however wide its vectors.

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/kernels.h"
#include "ops/targets/functions.h"
#include "ops/targets/quantize.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

constexpr size_t kSumLanes = 16;
constexpr size_t kParts = kSumLanes / kLanes;  // vectors that hold the lanes of a sum

struct Lanes {
  F32 part[kParts];
};

PLAIT_INLINE size_t Smaller(size_t a, size_t b) { return a < b ? a : b; }

// Column c to lane c mod 16, in order; lanes without a column get zeros.
template <typename Function>
PLAIT_INLINE float SumOf(const float* x, size_t count, const Function& add) {
  Lanes sums;
  for (size_t i = 0; i < kParts; ++i) sums.part[i] = Zero();
  size_t c = 0;
  for (; c + kSumLanes <= count; c += kSumLanes) {
    for (size_t i = 0; i < kParts; ++i) sums.part[i] = add(sums.part[i], Load(x + c + i * kLanes), kLanes);
  }
  for (size_t i = 0; c < count; ++i, c += kLanes) {
    const size_t left = Smaller(count - c, kLanes);
    sums.part[i] = add(sums.part[i], LoadFirst(x + c, left), left);
  }
  float lanes[kSumLanes];
  for (size_t i = 0; i < kParts; ++i) Store(lanes + i * kLanes, sums.part[i]);
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The first `count` lanes of a; zeros behind them.
PLAIT_INLINE F32 First(F32 a, size_t count) {
  if (count == kLanes) return a;
  float lanes[kLanes];
  Store(lanes, a);
  return LoadFirst(lanes, count);
}

struct Moments {
  float mean;     // 0 for the root mean square
  float inverse;  // 1 / sqrt(mean square + eps)
};

Moments MomentsOf(const NormCall& call, const float* x, size_t count) {
  float mean = 0.0f;
  if (call.kind == NormKind::kLayer) {
    const float sum = SumOf(x, count, [](F32 to, F32 v, size_t) __attribute__((always_inline)) { return Add(to, v); });
    mean = sum / static_cast<float>(count);
  }
  const F32 subtracted = Broadcast(mean);
  const bool is_layer = call.kind == NormKind::kLayer;
  const float squares = SumOf(x, count, [=](F32 to, F32 v, size_t valid) __attribute__((always_inline)) {
    if (is_layer) v = First(Sub(v, subtracted), valid);
    return Fma(v, v, to);
  });
  return {mean, 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + call.eps)};
}

// Columns on their way into 8 bits; they come in any pieces, and leave in groups.
struct GroupBuffer {
  float values[kGroupSize + kLanes];
  size_t filled = 0;
  size_t column = 0;  // of values[0]
};

void Pass(const NormCall& call, size_t row, GroupBuffer* buffer) {
  if (buffer->filled < kGroupSize) return;
  const QuantizedRows to = call.quantized.from_row(row);
  const size_t group = buffer->column / kGroupSize;
  QuantizeGroup(buffer->values, to.values + buffer->column, to.scales + group, to.sums + group);
  buffer->filled -= kGroupSize;
  buffer->column += kGroupSize;
  for (size_t i = 0; i < buffer->filled; ++i) buffer->values[i] = buffer->values[kGroupSize + i];
}

void NormPart(const NormCall& call, size_t row, size_t part, GroupBuffer* buffer) {
  const size_t count = call.width / call.parts;
  const float* x = call.x + row * call.x_stride + part * count;
  float* y = call.y == nullptr ? nullptr : call.y + row * call.y_stride + part * count;
  const size_t first = call.weight_width == call.width ? part * count : 0;
  const Moments moments = MomentsOf(call, x, count);
  const F32 mean = Broadcast(moments.mean);
  const F32 inverse = Broadcast(moments.inverse);
  const F32 offset = Broadcast(call.offset);
  for (size_t c = 0; c < count; c += kLanes) {
    const size_t left = Smaller(count - c, kLanes);
    F32 v = LoadFirst(x + c, left);
    if (call.kind == NormKind::kLayer) v = Sub(v, mean);
    v = Mul(v, inverse);
    if (call.weight != nullptr) v = Mul(v, Add(offset, LoadFirst(call.weight + first + c, left)));
    if (call.bias != nullptr) v = Add(v, LoadFirst(call.bias + first + c, left));
    if (y != nullptr) StoreFirst(y + c, v, left);
    if (call.quantized.values == nullptr) continue;
    Store(buffer->values + buffer->filled, v);
    buffer->filled += left;
    Pass(call, row, buffer);
  }
}

}  // namespace

void Norm(const NormCall& call) {
  for (size_t row = 0; row < call.num_rows; ++row) {
    GroupBuffer buffer;
    for (size_t part = 0; part < call.parts; ++part) NormPart(call, row, part, &buffer);
  }
}

}  // namespace plait::PLAIT_TARGET
