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
#include "ops/targets/math_lanes.h"
#include "ops/targets/quantize.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

PLAIT_INLINE size_t Smaller(size_t a, size_t b) { return a < b ? a : b; }

// Column c to lane c mod 16, in order; lanes without a column get zeros.
template <typename Function>
PLAIT_INLINE float SumOf(const float* x, size_t count, const Function& add) {
  F32 sums[kSixteenVectors];
  for (size_t i = 0; i < kSixteenVectors; ++i) sums[i] = Zero();
  size_t c = 0;
  for (; c + kSixteen <= count; c += kSixteen) {
    for (size_t i = 0; i < kSixteenVectors; ++i) sums[i] = add(sums[i], Load(x + c + i * kLanes), kLanes);
  }
  for (size_t i = 0; c < count; ++i, c += kLanes) {
    const size_t left = Smaller(count - c, kLanes);
    sums[i] = add(sums[i], LoadFirst(x + c, left), left);
  }
  return SumOfSixteen(sums);
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

template <bool kIsLayer>
PLAIT_INLINE Moments MomentsOf(const float* x, size_t count, float eps) {
  float mean = 0.0f;
  if constexpr (kIsLayer) {
    const float sum = SumOf(x, count, [](F32 to, F32 v, size_t) __attribute__((always_inline)) { return Add(to, v); });
    mean = sum / static_cast<float>(count);
  }
  const float squares = SumOf(x, count, [mean](F32 to, F32 v, size_t valid) __attribute__((always_inline)) {
    if constexpr (kIsLayer) v = First(Sub(v, Broadcast(mean)), valid);
    return Fma(v, v, to);
  });
  return {mean, 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + eps)};
}

// Columns on their way into 8 bits; they come in any pieces, and leave in groups.
struct GroupBuffer {
  alignas(64) float values[kWideGroupSize + kLanes];  // a vector that crosses two lines comes back late
  size_t filled = 0;
  size_t column = 0;  // of values[0]
};

void Pass(const NormCall& call, size_t row, GroupBuffer* buffer) {
  // The last group of a row may be shorter.
  const size_t count = Smaller(call.quantized.group_size, call.quantized.depth - buffer->column);
  if (buffer->filled < count) return;
  const QuantizedRows to = call.quantized.from_row(row);
  QuantizeGroups(buffer->values, count, to.groups + buffer->column / kGroupSize, to.group_size);
  buffer->filled -= count;
  buffer->column += count;
  for (size_t i = 0; i < buffer->filled; ++i) buffer->values[i] = buffer->values[count + i];
}

// One part of a row: where it is read and written, and its own weights.
struct Part {
  const float* x;
  float* y;  // or null
  const float* weight;
  const float* bias;
  size_t count;
};

Part PartOf(const NormCall& call, size_t row, size_t part) {
  const size_t count = call.width / call.parts;
  const size_t first = part * count;
  const size_t entry = call.weight_width == call.width ? first : 0;
  return {call.x + row * call.x_stride + first, call.y == nullptr ? nullptr : call.y + row * call.y_stride + first,
          call.weight == nullptr ? nullptr : call.weight + entry, call.bias == nullptr ? nullptr : call.bias + entry,
          count};
}

template <bool kIsLayer, bool kIsWeighted>
PLAIT_INLINE void NormPart(const NormCall& call, size_t row, const Part& part, GroupBuffer* buffer) {
  const Moments moments = MomentsOf<kIsLayer>(part.x, part.count, call.eps);
  const F32 mean = Broadcast(moments.mean);
  const F32 inverse = Broadcast(moments.inverse);
  const F32 offset = Broadcast(call.offset);
  const auto scaled = [=](F32 v) __attribute__((always_inline)) {
    if constexpr (kIsLayer) v = Sub(v, mean);
    return Mul(v, inverse);
  };
  const auto weighted = [=](F32 v, F32 weight) __attribute__((always_inline)) { return Mul(v, Add(offset, weight)); };
  const bool is_quantised = call.quantized.groups != nullptr;
  const size_t group_size = call.quantized.group_size;
  size_t c = 0;
  if (part.bias == nullptr && is_quantised && part.count % kGroupSize == 0 &&
      (call.parts == 1 || part.count % group_size == 0)) {
    // No group goes on in another part, so nothing is carried from one to the next but where they lie: groups are
    // worked on side by side.
    QuantizedGroup* groups = call.quantized.from_row(row).groups + buffer->column / kGroupSize;
    while (c < part.count) {
      const size_t count = Smaller(group_size, part.count - c);
      alignas(64) float values[kWideGroupSize];
      for (size_t i = 0; i < count; i += kLanes, c += kLanes) {
        F32 v = scaled(Load(part.x + c));
        if constexpr (kIsWeighted) v = weighted(v, Load(part.weight + c));
        if (part.y != nullptr) Store(part.y + c, v);
        Store(values + i, v);
      }
      QuantizeGroups(values, count, groups, group_size);
      groups += count / kGroupSize;
    }
    buffer->column += part.count;
    return;
  }
  if (part.bias == nullptr && !is_quantised) {
    for (; c + kLanes <= part.count; c += kLanes) {
      F32 v = scaled(Load(part.x + c));
      if constexpr (kIsWeighted) v = weighted(v, Load(part.weight + c));
      Store(part.y + c, v);
    }
  } else if (part.bias == nullptr && part.count % kGroupSize == 0) {
    for (; c < part.count; c += kGroupSize) {
      for (size_t i = 0; i < kGroupSize; i += kLanes) {
        F32 v = scaled(Load(part.x + c + i));
        if constexpr (kIsWeighted) v = weighted(v, Load(part.weight + c + i));
        if (part.y != nullptr) Store(part.y + c + i, v);
        Store(buffer->values + buffer->filled + i, v);
      }
      buffer->filled += kGroupSize;
      Pass(call, row, buffer);
    }
  }
  for (; c < part.count; c += kLanes) {
    const size_t left = Smaller(part.count - c, kLanes);
    F32 v = scaled(LoadFirst(part.x + c, left));
    if constexpr (kIsWeighted) v = weighted(v, LoadFirst(part.weight + c, left));
    if (part.bias != nullptr) v = Add(v, LoadFirst(part.bias + c, left));
    if (part.y != nullptr) StoreFirst(part.y + c, v, left);
    if (!is_quantised) continue;
    Store(buffer->values + buffer->filled, v);
    buffer->filled += left;
    Pass(call, row, buffer);
  }
}

template <bool kIsLayer, bool kIsWeighted>
void NormRows(const NormCall& call) {
  for (size_t row = 0; row < call.num_rows; ++row) {
    GroupBuffer buffer;
    for (size_t part = 0; part < call.parts; ++part) {
      NormPart<kIsLayer, kIsWeighted>(call, row, PartOf(call, row, part), &buffer);
    }
  }
}

}  // namespace

void Norm(const NormCall& call) {
  const bool is_weighted = call.weight != nullptr;
  if (call.kind == NormKind::kLayer) return is_weighted ? NormRows<true, true>(call) : NormRows<true, false>(call);
  return is_weighted ? NormRows<false, true>(call) : NormRows<false, false>(call);
}

}  // namespace plait::PLAIT_TARGET
