// Convolution along tokens, column by column.
//
// Owns the pass over rows and columns; ops/recurrence.h says what is computed.
// Invariant: the same chain of operations for a column in a whole vector or in a remainder, for a row that looks at
// the state or at rows of its own chunk.

#include <cstddef>

#include "ops/recurrence.h"
#include "ops/targets/functions.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// The rows that one output row looks at; null: zeros.
struct Taps {
  const float* row[kMostTaps];
};

PLAIT_INLINE F32 Loaded(const float* from, size_t count) {
  return count == kLanes ? Load(from) : LoadFirst(from, count);
}

PLAIT_INLINE F32 Column(const ConvCall& call, const Taps& taps, size_t c, size_t count) {
  F32 sum = Zero();
  for (size_t j = 0; j < call.num_taps; ++j) {
    const F32 x = taps.row[j] == nullptr ? Zero() : Loaded(taps.row[j] + c, count);
    sum = Fma(Loaded(call.taps + j * call.taps_stride + c, count), x, sum);
  }
  if (call.bias != nullptr) sum = Add(sum, Loaded(call.bias + c, count));
  return call.is_silu ? Silu(sum) : sum;
}

Taps TapsOf(const ConvCall& call, size_t row) {
  Taps taps;
  const size_t before = call.num_taps - 1;
  for (size_t j = 0; j < call.num_taps; ++j) {
    const size_t at = row + j;  // counted from the oldest row of the state
    if (at >= before) {
      taps.row[j] = call.x + (at - before) * call.x_stride;
    } else {
      taps.row[j] = call.state == nullptr ? nullptr : call.state + at * call.state_stride;
    }
  }
  return taps;
}

}  // namespace

void Convolve(const ConvCall& call) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    const Taps taps = TapsOf(call, r);
    float* y = call.y + r * call.y_stride;
    size_t c = 0;
    for (; c + kLanes <= call.width; c += kLanes) Store(y + c, Column(call, taps, c, kLanes));
    if (c < call.width) StoreFirst(y + c, Column(call, taps, c, call.width - c), call.width - c);
  }
}

}  // namespace plait::PLAIT_TARGET
