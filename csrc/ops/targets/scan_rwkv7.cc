// The recurrence of RWKV-7, token after token.
//
// Inputs r, w, k, v, a [H N]; weights k_k, k_a, r_k [H N]. For a head, columns n of keys and p of values:
//   d[n] = exp(-exp(-1/2) sigmoid(w[n]));  q[n] = k[n] k_k[n] / max(sqrt(sum_n (k[n] k_k[n])^2), 1e-12)
//   k'[n] = k[n] fma(a[n] - 1, k_a[n], 1);  u[p] = sum_n S[n, p] q[n]
//   S[n, p] = fma(v[p], k'[n], fma(-u[p], q[n] a[n], S[n, p] d[n]));  y[p] = sum_n S[n, p] r[n]
// and behind the columns of all heads  b[p] = (sum_n (r[n] k'[n]) r_k[n]) v[p].  Sums are chains of fused multiply-adds
// over n from 0. A head's state is read twice and written once for each token: 64 columns stay in the nearest cache.
// Invariant: a number of the state is computed by the same operations in a whole vector or in a remainder.

#include <cstddef>

#include "ops/recurrence.h"
#include "ops/targets/functions.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

constexpr float kSlowest = 0x1.368b30p-1f;  // exp(-1/2)
constexpr float kSmallestLength = 1e-12f;
constexpr size_t kBlock = 4;  // vectors of values' columns whose sums stay in registers

enum Input { kR, kW, kK, kV, kA };
enum Weight { kKeyScale, kKeyRate, kBonus };

// One token's numbers for the columns of a head's keys.
struct Keys {
  float decay[kMostRwkvHead];
  float found[kMostRwkvHead];   // q
  float forget[kMostRwkvHead];  // q a
  float write[kMostRwkvHead];   // k'
  float own;
};

PLAIT_INLINE F32 Loaded(const float* from, size_t left) { return left >= kLanes ? Load(from) : LoadFirst(from, left); }
PLAIT_INLINE void Stored(float* to, F32 a, size_t left) {
  if (left >= kLanes) {
    Store(to, a);
  } else {
    StoreFirst(to, a, left);
  }
}

void FillKeys(const ScanCall& call, size_t column, size_t row, Keys* keys) {
  const size_t width = call.state_dim;
  const auto input = [&](Input at) { return call.in[at] + row * call.in_stride[at] + column; };
  const float* r = input(kR);
  const float* w = input(kW);
  const float* k = input(kK);
  const float* a = input(kA);
  const float* bonus = call.weight[kBonus] + column;
  for (size_t n = 0; n < width; n += kLanes) {
    const size_t left = width - n;
    const F32 key = Loaded(k + n, left);
    const F32 rate = Sub(Loaded(a + n, left), Broadcast(1.0f));
    const F32 factor = Fma(rate, Loaded(call.weight[kKeyRate] + column + n, left), Broadcast(1.0f));
    Stored(keys->decay + n, Exp(Mul(Broadcast(-kSlowest), Sigmoid(Loaded(w + n, left)))), left);
    Stored(keys->found + n, Mul(key, Loaded(call.weight[kKeyScale] + column + n, left)), left);
    Stored(keys->write + n, Mul(key, factor), left);
  }
  float squares = 0.0f;
  float own = 0.0f;
  for (size_t n = 0; n < width; ++n) {
    squares = Fma(keys->found[n], keys->found[n], squares);
    own = Fma(r[n] * keys->write[n], bonus[n], own);
  }
  keys->own = own;
  // Written so that what is not a number stays one.
  const float length = __builtin_sqrtf(squares);
  const F32 divisor = Broadcast(length < kSmallestLength ? kSmallestLength : length);
  for (size_t n = 0; n < width; n += kLanes) {
    const size_t left = width - n;
    const F32 found = Div(Loaded(keys->found + n, left), divisor);
    Stored(keys->found + n, found, left);
    Stored(keys->forget + n, Mul(found, Loaded(a + n, left)), left);
  }
}

// `count` columns of the head's values from p on, in kVectors vectors, of which the last may be part of one.
template <size_t kVectors>
PLAIT_INLINE void Update(const ScanCall& call, const Keys& keys, size_t head, size_t p, size_t count, size_t row) {
  const size_t column = head * call.head_dim + p;
  const float* r = call.in[kR] + row * call.in_stride[kR] + head * call.state_dim;
  const float* v = call.in[kV] + row * call.in_stride[kV] + column;
  float* state = call.state + head * call.state_dim * call.head_dim + p;
  F32 forgotten[kVectors];
  F32 value[kVectors];
  F32 sum[kVectors];
  for (size_t i = 0; i < kVectors; ++i) {
    value[i] = Loaded(v + i * kLanes, count - i * kLanes);
    forgotten[i] = sum[i] = Zero();
  }
  for (size_t n = 0; n < call.state_dim; ++n) {
    const F32 found = Broadcast(keys.found[n]);
    const float* from = state + n * call.head_dim;
    for (size_t i = 0; i < kVectors; ++i) {
      forgotten[i] = Fma(Loaded(from + i * kLanes, count - i * kLanes), found, forgotten[i]);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) forgotten[i] = Negated(forgotten[i]);
  for (size_t n = 0; n < call.state_dim; ++n) {
    const F32 decay = Broadcast(keys.decay[n]);
    const F32 forget = Broadcast(keys.forget[n]);
    const F32 write = Broadcast(keys.write[n]);
    const F32 read = Broadcast(r[n]);
    float* at = state + n * call.head_dim;
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t left = count - i * kLanes;
      const F32 kept = Fma(forgotten[i], forget, Mul(Loaded(at + i * kLanes, left), decay));
      const F32 after = Fma(value[i], write, kept);
      Stored(at + i * kLanes, after, left);
      sum[i] = Fma(after, read, sum[i]);
    }
  }
  float* y = call.y + row * call.y_stride + column;
  float* own = y + call.heads * call.head_dim;
  for (size_t i = 0; i < kVectors; ++i) {
    Stored(y + i * kLanes, sum[i], count - i * kLanes);
    Stored(own + i * kLanes, Mul(Broadcast(keys.own), value[i]), count - i * kLanes);
  }
}

}  // namespace

void ScanRwkv7(const ScanCall& call) {
  Keys keys;
  for (size_t head = call.first_head; head < call.first_head + call.num_heads; ++head) {
    for (size_t row = 0; row < call.num_rows; ++row) {
      FillKeys(call, head * call.state_dim, row, &keys);
      size_t p = 0;
      for (; p + kBlock * kLanes <= call.head_dim; p += kBlock * kLanes) {
        Update<kBlock>(call, keys, head, p, kBlock * kLanes, row);
      }
      for (; p < call.head_dim; p += kLanes) {
        const size_t left = call.head_dim - p;
        Update<1>(call, keys, head, p, left < kLanes ? left : kLanes, row);
      }
    }
  }
}

}  // namespace plait::PLAIT_TARGET
