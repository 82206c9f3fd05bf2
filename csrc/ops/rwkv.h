// RWKV-7: the calls of its two kernels.
//
// Owns their arguments and meaning, as `Shift` and the scan RWKV7 in model/ops.py define them. Where states lie, what
// becomes of them between chunks and which rows a call has is runtime/'s business.
// Invariant: tokens of a call are worked through in order and every sum is one chain, so that a chunk may be cut
// anywhere; all targets give the same bits.

#ifndef PLAIT_CSRC_OPS_RWKV_H_
#define PLAIT_CSRC_OPS_RWKV_H_

#include <cstddef>

namespace plait {

// y[t, m * width + c] = x[t, c] + (x[t - 1, c] - x[t, c]) * weight[m, c] for rows of one chunk; the product rounded.
struct ShiftCall {
  const float* x = nullptr;
  size_t x_stride = 0;
  const float* before = nullptr;  // [width]: the row before the first one; null: zeros
  const float* weight = nullptr;  // [mixes][width]
  size_t mixes = 0;
  size_t width = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
};

// Columns of a head that the kernel has room for.
inline constexpr size_t kMaxRwkvHead = 256;

// One head over rows of one chunk. `state` is the head's matrix, changed in place; number (p, n) lies at
// n * head_dim + p, so that sums over n are chains of whole vectors.
struct RwkvScanCall {
  const float* r = nullptr;  // the head's columns of the first row of each input
  const float* w = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* a = nullptr;
  size_t strides[5] = {};            // of r, w, k, v, a
  const float* key_scale = nullptr;  // [head_dim], the head's: k_k, k_a and r_k
  const float* key_rate = nullptr;
  const float* bonus = nullptr;
  float* state = nullptr;
  float* read = nullptr;  // y_h
  float* own = nullptr;   // b_h
  size_t y_stride = 0;    // of both
  size_t head_dim = 0;    // at most kMaxRwkvHead
  size_t num_rows = 0;
};

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_RWKV_H_
