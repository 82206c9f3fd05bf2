// Kernels of RWKV-7: tokens mixed with those before them, and the generalised delta rule.
//
// Owns their passes over rows and states. A head's matrix is read twice and written once for each token; with 64
// columns it stays in the nearest cache. Invariant: a number of the state, and of the output, is computed from its own
// column by the same operations whether it stands in a whole vector or in a remainder.

#include "ops/rwkv.h"

#include <cstddef>

#include "ops/targets/functions.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// exp(-1/2): no number of a state decays faster than to exp of minus this.
constexpr float kFastestDecay = 0x1.368b30p-1f;
constexpr float kSmallestNorm = 1e-12f;

// Vectors of columns that are summed side by side: their sums, v and u stay in registers.
constexpr size_t kVectors = 4;

// What a token does to a head's state, number n for column n of every row.
struct Token {
  float decay[kMaxRwkvHead];
  float key[kMaxRwkvHead];     // n: normalised, what is looked up and forgotten
  float forget[kMaxRwkvHead];  // n * a
  float write[kMaxRwkvHead];   // k: what is written
  float own;                   // sum of r * k * r_k
};

PLAIT_INLINE F32 LoadSome(const float* from, size_t count) {
  return count >= kLanes ? Load(from) : LoadFirst(from, count);
}
PLAIT_INLINE void StoreSome(float* to, F32 a, size_t count) {
  if (count >= kLanes) return Store(to, a);
  StoreFirst(to, a, count);
}

void Prepare(const RwkvScanCall& call, const float* r, const float* w, const float* k, const float* a, Token* token) {
  const size_t width = call.head_dim;
  const F32 one = Broadcast(1.0f);
  for (size_t c = 0; c < width; c += kLanes) {
    const size_t left = width - c;
    const F32 key = LoadSome(k + c, left);
    const F32 rate = LoadSome(a + c, left);
    StoreSome(token->decay + c, Exp(Mul(Broadcast(-kFastestDecay), Sigmoid(LoadSome(w + c, left)))), left);
    StoreSome(token->key + c, Mul(key, LoadSome(call.key_scale + c, left)), left);
    StoreSome(token->write + c, Mul(key, Fma(Sub(rate, one), LoadSome(call.key_rate + c, left), one)), left);
  }
  float squares = 0.0f;
  float own = 0.0f;
  for (size_t c = 0; c < width; ++c) squares = Fma(token->key[c], token->key[c], squares);
  for (size_t c = 0; c < width; ++c) own = Fma(r[c] * token->write[c], call.bonus[c], own);
  token->own = own;
  const float length = __builtin_sqrtf(squares);
  // What is not a number stays one.
  const F32 divisor = Broadcast(length < kSmallestNorm ? kSmallestNorm : length);
  for (size_t c = 0; c < width; c += kLanes) {
    const size_t left = width - c;
    const F32 key = Div(LoadSome(token->key + c, left), divisor);
    StoreSome(token->key + c, key, left);
    StoreSome(token->forget + c, Mul(key, LoadSome(a + c, left)), left);
  }
}

// Columns [first, first + count) of the head's values, `kCount` vectors of them: u = S n, then S and S r in one pass.
template <size_t kCount>
PLAIT_INLINE void Update(const RwkvScanCall& call, const Token& token, const float* r, const float* v, size_t first,
                         size_t count, float* read, float* own) {
  const size_t width = call.head_dim;
  F32 found[kCount];
  F32 sum[kCount];
  F32 value[kCount];
  size_t left[kCount];
  for (size_t i = 0; i < kCount; ++i) {
    left[i] = count - i * kLanes;
    found[i] = sum[i] = Zero();
    value[i] = LoadSome(v + first + i * kLanes, left[i]);
  }
  for (size_t n = 0; n < width; ++n) {
    const float* row = call.state + n * width + first;
    const F32 key = Broadcast(token.key[n]);
    for (size_t i = 0; i < kCount; ++i) found[i] = Fma(LoadSome(row + i * kLanes, left[i]), key, found[i]);
  }
  for (size_t i = 0; i < kCount; ++i) found[i] = Negated(found[i]);
  for (size_t n = 0; n < width; ++n) {
    float* row = call.state + n * width + first;
    const F32 decay = Broadcast(token.decay[n]);
    const F32 forget = Broadcast(token.forget[n]);
    const F32 write = Broadcast(token.write[n]);
    const F32 reads = Broadcast(r[n]);
    for (size_t i = 0; i < kCount; ++i) {
      F32 kept = Mul(LoadSome(row + i * kLanes, left[i]), decay);
      kept = Fma(found[i], forget, kept);
      kept = Fma(value[i], write, kept);
      StoreSome(row + i * kLanes, kept, left[i]);
      sum[i] = Fma(kept, reads, sum[i]);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    StoreSome(read + first + i * kLanes, sum[i], left[i]);
    StoreSome(own + first + i * kLanes, Mul(Broadcast(token.own), value[i]), left[i]);
  }
}

PLAIT_INLINE void ShiftRow(const float* x, const float* before, const float* weight, float* y, size_t width) {
  for (size_t c = 0; c < width; c += kLanes) {
    const size_t left = width - c;
    const F32 now = LoadSome(x + c, left);
    const F32 then = before == nullptr ? Zero() : LoadSome(before + c, left);
    StoreSome(y + c, Add(now, Mul(Sub(then, now), LoadSome(weight + c, left))), left);
  }
}

}  // namespace

void ShiftRows(const ShiftCall& call) {
  for (size_t t = 0; t < call.num_rows; ++t) {
    const float* x = call.x + t * call.x_stride;
    const float* before = t == 0 ? call.before : x - call.x_stride;
    for (size_t m = 0; m < call.mixes; ++m) {
      ShiftRow(x, before, call.weight + m * call.width, call.y + t * call.y_stride + m * call.width, call.width);
    }
  }
}

void ScanRwkv(const RwkvScanCall& call) {
  const size_t width = call.head_dim;
  Token token;
  for (size_t t = 0; t < call.num_rows; ++t) {
    const float* r = call.r + t * call.strides[0];
    const float* v = call.v + t * call.strides[3];
    float* read = call.read + t * call.y_stride;
    float* own = call.own + t * call.y_stride;
    Prepare(call, r, call.w + t * call.strides[1], call.k + t * call.strides[2], call.a + t * call.strides[4], &token);
    size_t first = 0;
    for (; first + kVectors * kLanes <= width; first += kVectors * kLanes) {
      Update<kVectors>(call, token, r, v, first, kVectors * kLanes, read, own);
    }
    for (; first < width; first += kLanes) {
      const size_t left = width - first;
      Update<1>(call, token, r, v, first, left < kLanes ? left : kLanes, read, own);
    }
  }
}

}  // namespace plait::PLAIT_TARGET
