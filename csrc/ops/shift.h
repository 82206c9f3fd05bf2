// The shift of RWKV: each token mixed with the one before it, in several ways at once.
//
// Owns the call's arguments and their meaning, as `Shift` in model/ops.py defines it. What becomes of states is
// runtime/'s business. Invariant: a token's result is a function of its row and the one before it.

#ifndef PLAIT_CSRC_OPS_SHIFT_H_
#define PLAIT_CSRC_OPS_SHIFT_H_

#include <cstddef>

namespace plait {

// y[r, m * stride + c] = x[r, c] + (x[r - 1, c] - x[r, c]) * weight[m * stride + c] for rows of one chunk and columns
// [0, width) of `stride`; the product rounded.
struct ShiftCall {
  const float* x = nullptr;
  size_t x_stride = 0;
  const float* before = nullptr;  // [width]: the row before the first; null: zeros
  const float* weight = nullptr;
  size_t mixes = 0;
  size_t stride = 0;
  size_t width = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
};

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_SHIFT_H_
