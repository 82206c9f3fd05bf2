// The recurrence of Mamba-2, token after token.
//
// Inputs x [H P], dt [H], B [G N], C [G N]; weights A_log [H], D [H], dt_bias [H]. For head h of group g:
//   d = softplus(dt + dt_bias);  S[n, p] = fma(exp(-(d exp(A_log))), S[n, p], (d x[p]) B[n])
//   y[p] = fma(D, x[p], sum_n C[n] S[n, p]), the sum one chain of fused multiply-adds over n from 0.
// Rows go in tiles, columns of a head in blocks of vectors, so that a block of the state stays near while a tile
// passes. Invariant: neither tiles nor blocks change an operation.

#include <cstddef>

#include "ops/recurrence.h"
#include "ops/targets/functions.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

constexpr size_t kBlock = 4;  // vectors of columns whose sums stay in registers
constexpr size_t kTile = 16;  // rows

enum Input { kX, kDt, kB, kC };
enum Weight { kALog, kD, kDtBias };

// What is the same for all columns of a head.
struct Steps {
  float delta[kTile];
  float decay[kTile];
};

void FillSteps(const ScanCall& call, size_t head, size_t first_row, size_t num_rows, Steps* steps) {
  const F32 rate = Exp(Broadcast(call.weight[kALog][head]));
  const F32 bias = Broadcast(call.weight[kDtBias][head]);
  float dt[kTile] = {};
  for (size_t r = 0; r < num_rows; ++r) dt[r] = call.in[kDt][(first_row + r) * call.in_stride[kDt] + head];
  for (size_t r = 0; r < kTile; r += kLanes) {
    const F32 delta = Softplus(Add(Load(dt + r), bias));
    Store(steps->delta + r, delta);
    Store(steps->decay + r, ExpOfNegative(Negated(Mul(delta, rate))));
  }
}

// `count` columns from p on, in kVectors vectors, of which the last may be part of one.
template <size_t kVectors>
PLAIT_INLINE void ScanColumns(const ScanCall& call, size_t head, size_t p, size_t count, size_t first_row,
                              size_t num_rows, const Steps& steps) {
  const size_t group = head / (call.heads / call.groups);
  const size_t last = count - (kVectors - 1) * kLanes;  // lanes of the last vector
  const bool is_whole = last == kLanes;
  const size_t column = head * call.head_dim + p;
  const F32 skip = Broadcast(call.weight[kD][head]);
  for (size_t r = 0; r < num_rows; ++r) {
    const size_t row = first_row + r;
    const float* from = call.in[kX] + row * call.in_stride[kX] + column;
    const float* b = call.in[kB] + row * call.in_stride[kB] + group * call.state_dim;
    const float* c = call.in[kC] + row * call.in_stride[kC] + group * call.state_dim;
    float* state = call.state + head * call.state_dim * call.head_dim + p;
    const F32 decay = Broadcast(steps.decay[r]);
    F32 x[kVectors];
    F32 scaled[kVectors];
    F32 sum[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      x[v] = v + 1 < kVectors || is_whole ? Load(from + v * kLanes) : LoadFirst(from + v * kLanes, last);
      scaled[v] = Mul(Broadcast(steps.delta[r]), x[v]);
      sum[v] = Zero();
    }
    for (size_t n = 0; n < call.state_dim; ++n, state += call.head_dim) {
      const F32 input = Broadcast(b[n]);
      const F32 output = Broadcast(c[n]);
      for (size_t v = 0; v < kVectors; ++v) {
        const bool all = v + 1 < kVectors || is_whole;
        const F32 before = all ? Load(state + v * kLanes) : LoadFirst(state + v * kLanes, last);
        const F32 after = Fma(decay, before, Mul(scaled[v], input));
        if (all) {
          Store(state + v * kLanes, after);
        } else {
          StoreFirst(state + v * kLanes, after, last);
        }
        sum[v] = Fma(output, after, sum[v]);
      }
    }
    float* y = call.y + row * call.y_stride + column;
    for (size_t v = 0; v < kVectors; ++v) {
      const F32 result = Fma(skip, x[v], sum[v]);
      if (v + 1 < kVectors || is_whole) {
        Store(y + v * kLanes, result);
      } else {
        StoreFirst(y + v * kLanes, result, last);
      }
    }
  }
}

}  // namespace

void ScanMamba2(const ScanCall& call) {
  Steps steps;
  for (size_t head = call.first_head; head < call.first_head + call.num_heads; ++head) {
    for (size_t row = 0; row < call.num_rows; row += kTile) {
      const size_t num_rows = call.num_rows - row < kTile ? call.num_rows - row : kTile;
      FillSteps(call, head, row, num_rows, &steps);
      size_t p = 0;
      for (; p + kBlock * kLanes <= call.head_dim; p += kBlock * kLanes) {
        ScanColumns<kBlock>(call, head, p, kBlock * kLanes, row, num_rows, steps);
      }
      for (; p < call.head_dim; p += kLanes) {
        const size_t left = call.head_dim - p;
        ScanColumns<1>(call, head, p, left < kLanes ? left : kLanes, row, num_rows, steps);
      }
    }
  }
}

}  // namespace plait::PLAIT_TARGET
