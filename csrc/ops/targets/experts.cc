// Experts: which of them a row chooses, and the sum of what they gave.
//
// Owns the scores, the ranking and the order of the sum. Products of experts are those of ops/targets/gemm.cc.
// Invariant: one row's choice and sum do not depend on any other row, and are the same on every target.

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/functions.h"
#include "ops/targets/math.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

constexpr float kLowest = -__builtin_inff();

template <typename Function>
PLAIT_INLINE void Map(const float* x, float* y, size_t count, const Function& function) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(y + i, function(Load(x + i)));
  if (i < count) StoreFirst(y + i, function(LoadFirst(x + i, count - i)), count - i);
}

// A maximum that is not a number makes all scores so: they are seen as what they are.
void Softmax(const float* z, float* scores, size_t count) {
  float most = z[0];
  for (size_t e = 1; e < count; ++e) most = z[e] > most || z[e] != z[e] ? z[e] : most;
  const F32 shift = Broadcast(most);
  Map(z, scores, count, [shift](F32 x) __attribute__((always_inline)) { return ExpOfNegative(Sub(x, shift)); });
  float sum = 0.0f;
  for (size_t e = 0; e < count; ++e) sum += scores[e];
  const F32 total = Broadcast(sum);
  Map(scores, scores, count, [total](F32 x) __attribute__((always_inline)) { return Div(x, total); });
}

// The best that was not taken: the lowest expert among equals.
uint32_t Best(const float* keys, const bool* taken, size_t count) {
  size_t best = count;
  for (size_t e = 0; e < count; ++e) {
    if (!taken[e] && (best == count || keys[e] > keys[best])) best = e;
  }
  return static_cast<uint32_t>(best);
}

void RouteRow(const RouteCall& call, const float* z, float* y, uint32_t* chosen) {
  alignas(64) float scores[kMaxExperts];
  alignas(64) float keys[kMaxExperts];
  bool taken[kMaxExperts] = {};
  if (call.is_softmax) {
    Softmax(z, scores, call.experts);
  } else {
    Map(z, scores, call.experts, [](F32 x) __attribute__((always_inline)) { return Sigmoid(x); });
  }
  for (size_t e = 0; e < call.experts; ++e) {
    const float key = call.bias == nullptr ? z[e] : scores[e] + call.bias[e];
    keys[e] = key != key ? kLowest : key;
  }
  float sum = 0.0f;
  for (size_t i = 0; i < call.top_k; ++i) {
    const uint32_t expert = Best(keys, taken, call.experts);
    taken[expert] = true;
    chosen[i] = expert;
    y[i] = static_cast<float>(expert);
    y[call.top_k + i] = scores[expert];
    sum += scores[expert];
  }
  for (size_t i = call.top_k; i < 2 * call.top_k; ++i) {
    if (call.normalizes) y[i] /= sum;
    y[i] *= call.scale;
  }
}

}  // namespace

void Route(const RouteCall& call) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    RouteRow(call, call.logits + r * call.logits_stride, call.y + r * call.y_stride, call.chosen + r * call.top_k);
  }
}

void Mix(const MixCall& call) {
  for (size_t r = 0; r < call.num_rows; ++r) {
    const uint32_t* places = call.places + r * call.top_k;
    const float* weights = call.weights + r * call.weights_stride;
    float* y = call.y + r * call.y_stride;
    for (size_t c = 0; c < call.width; c += kLanes) {
      const size_t count = call.width - c < kLanes ? call.width - c : kLanes;
      F32 sum = Zero();
      for (size_t i = 0; i < call.top_k; ++i) {
        if (places[i] == kNoPlace) continue;
        const float* x = call.outputs + places[i] * call.outputs_stride + c;
        const F32 term = count == kLanes ? Load(x) : LoadFirst(x, count);
        sum = Add(sum, Mul(Broadcast(weights[i]), term));
      }
      count == kLanes ? Store(y + c, sum) : StoreFirst(y + c, sum, count);
    }
  }
}

}  // namespace plait::PLAIT_TARGET
