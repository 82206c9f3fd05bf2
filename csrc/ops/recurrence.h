// Recurrences along tokens: what calls of these kernels are given.
//
// Owns the calls' arguments and their meaning; ops/kernels.h has the table. A state is what a sequence keeps between
// its chunks, float32. Who owns which memory, and what is copied where, is runtime/'s business.
// Invariant: a token's result is a function of its row and of the state before it: chunks may end anywhere.

#ifndef PLAIT_CSRC_OPS_RECURRENCE_H_
#define PLAIT_CSRC_OPS_RECURRENCE_H_

#include <cstddef>
#include <cstdint>

namespace plait {

inline constexpr size_t kMostTaps = 16;

// y[r, c] = act(sum_j taps[j, c] x[r - W + 1 + j, c] + bias[c]), one chain of fused multiply-adds over j from 0, as
// `Conv` in model/ops.py; here for columns [0, width). Rows before the first are those of `state`, oldest first.
struct ConvCall {
  const float* x = nullptr;
  size_t x_stride = 0;
  float* y = nullptr;  // not x: rows are read again
  size_t y_stride = 0;
  size_t num_rows = 0;
  size_t width = 0;             // columns
  const float* taps = nullptr;  // [num_taps][taps_stride]
  size_t taps_stride = 0;
  size_t num_taps = 0;           // W, at most kMostTaps
  const float* bias = nullptr;   // [width] or null
  const float* state = nullptr;  // [num_taps - 1][state_stride]; null: zeros
  size_t state_stride = 0;
  bool is_silu = false;  // otherwise act is the identity
};

enum class ScanKind : uint8_t { kMamba2, kRwkv7 };

// Columns of a head that kRwkv7 has room for.
inline constexpr size_t kMostRwkvHead = 256;

inline constexpr size_t kMostScanInputs = 6;
inline constexpr size_t kMostScanWeights = 3;

// Heads [first_head, first_head + num_heads) of a recurrence of `model/ops.py` `Scan`, for consecutive rows of one
// sequence. Inputs and weights are in the order of the kind's definition; their column 0 is head 0's. The state is
// [heads][state_dim][head_dim]: columns of a head lie next to each other, so that every sum over the state's other
// dimension is one chain. It is updated in place.
struct ScanCall {
  ScanKind kind = ScanKind::kMamba2;
  const float* in[kMostScanInputs] = {};
  size_t in_stride[kMostScanInputs] = {};
  const float* weight[kMostScanWeights] = {};
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
  size_t heads = 0;
  size_t head_dim = 0;
  size_t state_dim = 0;
  size_t groups = 1;
  size_t first_head = 0;
  size_t num_heads = 0;
  float* state = nullptr;
};

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_RECURRENCE_H_
