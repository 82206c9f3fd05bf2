// The shift of RWKV, row by row.
//
// Owns the pass; ops/shift.h says what is computed. Invariant: the same operations for a column in a whole vector or in
// a remainder.

#include "ops/shift.h"

#include <cstddef>

#include "ops/targets/functions.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

PLAIT_INLINE void Mix(const float* x, const float* before, const ShiftCall& call, float* y, size_t c, size_t count) {
  const bool is_whole = count == kLanes;
  const F32 now = is_whole ? Load(x + c) : LoadFirst(x + c, count);
  const F32 then = before == nullptr ? Zero() : is_whole ? Load(before + c) : LoadFirst(before + c, count);
  const F32 step = Sub(then, now);
  for (size_t m = 0; m < call.mixes; ++m) {
    const size_t at = m * call.stride + c;
    const F32 weight = is_whole ? Load(call.weight + at) : LoadFirst(call.weight + at, count);
    const F32 mixed = Add(now, Mul(step, weight));
    if (is_whole) {
      Store(y + at, mixed);
    } else {
      StoreFirst(y + at, mixed, count);
    }
  }
}

}  // namespace

void ShiftRows(const ShiftCall& call) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    const float* x = call.x + r * call.x_stride;
    const float* before = r == 0 ? call.before : x - call.x_stride;
    float* y = call.y + r * call.y_stride;
    size_t c = 0;
    for (; c + kLanes <= call.width; c += kLanes) Mix(x, before, call, y, c, kLanes);
    if (c < call.width) Mix(x, before, call, y, c, call.width - c);
  }
}

}  // namespace plait::PLAIT_TARGET
