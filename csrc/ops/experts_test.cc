// What rows choose, what they get of it, and the clamped gate: every target against scalar code.
//
// Owns the definitions, one row at a time, from model/ops.py.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/testing.h"
#include "ops/kernels.h"
#include "ops/rows_reference.h"

namespace plait {
namespace {

using reference::CheckSame;
using reference::kInfinity;
using reference::kNan;
using reference::Random;
using reference::TestedKernels;

struct Choice {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

Choice Chosen(const RouteCall& call, const std::vector<float>& z) {
  std::vector<float> scores(z.size());
  if (call.is_softmax) {
    float most = z[0];
    for (const float logit : z) most = std::isnan(most) || std::isnan(logit) ? kNan : std::max(most, logit);
    float sum = 0.0f;
    for (size_t e = 0; e < z.size(); ++e) sum += scores[e] = reference::Exp(z[e] - most);
    for (float& score : scores) score /= sum;
  } else {
    for (size_t e = 0; e < z.size(); ++e) scores[e] = 1.0f / (1.0f + reference::Exp(-z[e]));
  }
  std::vector<float> keys = z;
  for (size_t e = 0; e < z.size(); ++e) {
    if (call.bias != nullptr) keys[e] = scores[e] + call.bias[e];
    if (std::isnan(keys[e])) keys[e] = -kInfinity;
  }
  Choice choice;
  choice.experts.resize(z.size());
  std::iota(choice.experts.begin(), choice.experts.end(), 0u);
  std::stable_sort(choice.experts.begin(), choice.experts.end(), [&](uint32_t a, uint32_t b) { return keys[a] > keys[b]; });
  choice.experts.resize(call.top_k);
  float sum = 0.0f;
  for (const uint32_t expert : choice.experts) sum += scores[expert];
  for (const uint32_t expert : choice.experts) {
    choice.weights.push_back((call.normalizes ? scores[expert] / sum : scores[expert]) * call.scale);
  }
  return choice;
}

void CheckRoute(RouteCall call, const std::vector<std::vector<float>>& rows) {
  call.experts = rows[0].size(), call.num_rows = rows.size();
  const size_t stride = call.experts + 3, y_stride = 2 * call.top_k + 5;
  std::vector<float> logits(rows.size() * stride, kNan);
  for (size_t r = 0; r < rows.size(); ++r) std::copy(rows[r].begin(), rows[r].end(), logits.begin() + r * stride);
  std::vector<float> expected(rows.size() * y_stride, 7.0f);
  std::vector<uint32_t> experts;
  for (size_t r = 0; r < rows.size(); ++r) {
    const Choice choice = Chosen(call, rows[r]);
    experts.insert(experts.end(), choice.experts.begin(), choice.experts.end());
    std::copy(choice.experts.begin(), choice.experts.end(), expected.begin() + r * y_stride);
    std::copy(choice.weights.begin(), choice.weights.end(), expected.begin() + r * y_stride + call.top_k);
  }
  for (const Kernels* kernels : TestedKernels()) {
    std::vector<float> y(expected.size(), 7.0f);
    std::vector<uint32_t> chosen(experts.size());
    call.logits = logits.data(), call.logits_stride = stride;
    call.y = y.data(), call.y_stride = y_stride, call.chosen = chosen.data();
    kernels->route(call);
    CheckSame(y, expected, "route", kernels->target);
    CHECK(chosen == experts);
  }
}

RouteCall Choosing(size_t top_k) {
  RouteCall call;
  call.top_k = top_k;
  return call;
}

}  // namespace

TEST(RowsChooseTheReferencesExperts) {
  for (const size_t experts : {1u, 2u, 7u, 16u, 33u, 128u}) {
    Random random(static_cast<uint32_t>(experts));
    const std::vector<float> bias = random.Normals(experts, 0.3f);
    std::vector<std::vector<float>> rows(9);
    for (std::vector<float>& row : rows) row = random.Normals(experts, 3.0f);
    for (size_t top_k = 1; top_k <= std::min<size_t>(experts, 8); ++top_k) {
      RouteCall call = Choosing(top_k);
      CheckRoute(call, rows);
      call.normalizes = false, call.scale = 2.5f;
      CheckRoute(call, rows);
      call.bias = bias.data();
      CheckRoute(call, rows);
      call.is_softmax = false, call.normalizes = true;
      CheckRoute(call, rows);
    }
  }
}

TEST(EqualExpertsAreChosenInTheirOrderAndWhatIsNoNumberLast) {
  CheckRoute(Choosing(3), {{1, 1, 1, 1, 1}, {0, 2, 0, 2, 0}, {-0.0f, 0.0f, -0.0f, 0.0f, -1}});
  CheckRoute(Choosing(5), {{kNan, 1, kNan, 3, 2}, {kNan, kNan, kNan, kNan, kNan}, {-kInfinity, kNan, 0, -kInfinity, 1}});
  CheckRoute(Choosing(2), {{kInfinity, 1, 2}, {-kInfinity, -kInfinity, -kInfinity}, {200, -200, 0}, {1e30f, -1e30f, 0}});
}

TEST(MixturesAreSumsInTheRowsOwnOrder) {
  Random random(5);
  const size_t places = 12, rows = 5;
  for (size_t width = 1; width <= 50; width += 7) {
    const size_t stride = width + 3;
    const std::vector<float> outputs = random.Normals(places * stride);
    for (const size_t top_k : {1u, 2u, 4u}) {
      const std::vector<float> weights = random.Normals(rows * 9);
      std::vector<uint32_t> of(rows * top_k);
      for (uint32_t& place : of) place = static_cast<uint32_t>(random.Below(places));
      std::fill_n(of.begin() + top_k, top_k, kNoPlace);  // a row that nobody wants
      std::vector<float> expected(rows * stride, 7.0f);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < width; ++c) {
          float sum = 0.0f;
          for (size_t i = 0; i < top_k; ++i) {
            const uint32_t place = of[r * top_k + i];
            if (place == kNoPlace) continue;
            const float term = weights[r * 9 + i] * outputs[place * stride + c];
            sum += term;
          }
          expected[r * stride + c] = sum;
        }
      }
      for (const Kernels* kernels : TestedKernels()) {
        std::vector<float> y(expected.size(), 7.0f);
        kernels->mix({outputs.data(), stride, of.data(), weights.data(), 9, y.data(), stride, rows, width, top_k});
        CheckSame(y, expected, "mix", kernels->target);
      }
    }
  }
}

TEST(ClampedGatesHaveTheReferencesBits) {
  Random random(6);
  std::vector<float> gate = random.Normals(300, 5.0f), up = random.Normals(300, 5.0f);
  const float extremes[] = {kNan, kInfinity, -kInfinity, 7.0f, -7.0f, 0.0f, -0.0f, 1e-40f};
  for (size_t i = 0; i < 8; ++i) gate[i] = up[100 + i] = extremes[i];
  constexpr float kAlpha = 1.702f, kLimit = 7.0f;
  std::vector<float> expected(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    const float g = kLimit < gate[i] ? kLimit : gate[i];
    float u = -kLimit > up[i] ? -kLimit : up[i];
    u = kLimit < u ? kLimit : u;
    expected[i] = g / (1.0f + reference::Exp(-(kAlpha * g))) * (u + 1.0f);
  }
  for (const Kernels* kernels : TestedKernels()) {
    for (const size_t width : {1u, 7u, 16u, 299u, 300u}) {
      std::vector<float> y(width);
      kernels->glu({Activation::kClampedSwish, gate.data(), 0, up.data(), 0, y.data(), 0, 1, width, kAlpha, kLimit});
      CheckSame(y, {expected.begin(), expected.begin() + static_cast<long>(width)}, "clamped", kernels->target);
    }
  }
}

}  // namespace plait
