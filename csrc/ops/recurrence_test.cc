// Tests of recurrences: every target against scalar code, bit for bit, however rows and heads are cut; and the one
// function that is theirs against double precision.
//
// Owns the cases. Invariant: sizes that are no multiple of a vector, strides wider than rows.

#include "ops/recurrence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/testing.h"
#include "ops/kernels.h"
#include "ops/rows_reference.h"

namespace plait {
namespace {

using reference::CheckSame;
using reference::Random;
using reference::TestedKernels;

constexpr size_t kPadding = 3;  // columns of a stride behind the row

float Softplus(float x) {
  const float e = reference::Exp(-std::fabs(x));
  const float s = e / (2.0f + e);
  const float square = s * s;
  const float p =
      reference::Chain(1.0f / 17.0f, square,
                       {1.0f / 15.0f, 1.0f / 13.0f, 1.0f / 11.0f, 1.0f / 9.0f, 1.0f / 7.0f, 1.0f / 5.0f, 1.0f / 3.0f});
  return (x > 0.0f ? x : 0.0f) + std::fma((s + s) * square, p, s + s);
}

struct Convolution {
  size_t width = 0;
  size_t num_taps = 0;
  size_t num_rows = 0;
  bool is_silu = false;
  std::vector<float> x, taps, bias, state;

  Convolution(Random& random, size_t width, size_t num_taps, size_t num_rows, bool is_silu)
      : width(width), num_taps(num_taps), num_rows(num_rows), is_silu(is_silu) {
    x = random.Normals(num_rows * (width + kPadding));
    taps = random.Normals(num_taps * width);
    bias = random.Normals(width);
    state = random.Normals((num_taps - 1) * width);
  }

  ConvCall Call(std::vector<float>& y) const {
    ConvCall call;
    call.x = x.data(), call.x_stride = width + kPadding;
    call.y = y.data(), call.y_stride = width + kPadding;
    call.num_rows = num_rows, call.width = width;
    call.taps = taps.data(), call.taps_stride = width, call.num_taps = num_taps;
    call.bias = bias.data(), call.state = state.data(), call.state_stride = width;
    call.is_silu = is_silu;
    return call;
  }

  std::vector<float> Expected(bool has_state) const {
    std::vector<float> y(num_rows * (width + kPadding), reference::kNan);
    for (size_t r = 0; r < num_rows; ++r) {
      for (size_t c = 0; c < width; ++c) {
        float sum = 0.0f;
        for (size_t j = 0; j < num_taps; ++j) {
          const size_t at = r + j;
          float from = has_state && at < num_taps - 1 ? state[at * width + c] : 0.0f;
          if (at >= num_taps - 1) from = x[(at - num_taps + 1) * (width + kPadding) + c];
          sum = std::fma(taps[j * width + c], from, sum);
        }
        sum += bias[c];
        y[r * (width + kPadding) + c] = is_silu ? sum / (1.0f + reference::Exp(-sum)) : sum;
      }
    }
    return y;
  }
};

struct Sizes {
  size_t heads, head_dim, state_dim, groups, num_rows;
};

struct Mamba2 {
  Sizes size;
  std::vector<float> x, dt, b, c, a_log, skip, dt_bias, state;

  Mamba2(Random& random, const Sizes& size) : size(size) {
    x = random.Normals(size.num_rows * Stride(size.heads * size.head_dim));
    dt = random.Normals(size.num_rows * Stride(size.heads), 2.0f);
    b = random.Normals(size.num_rows * Stride(size.groups * size.state_dim));
    c = random.Normals(size.num_rows * Stride(size.groups * size.state_dim));
    a_log = random.Normals(size.heads), skip = random.Normals(size.heads), dt_bias = random.Normals(size.heads);
    state = random.Normals(size.heads * size.head_dim * size.state_dim);
  }
  static size_t Stride(size_t width) { return width + kPadding; }

  ScanCall Call(std::vector<float>& state_of, std::vector<float>& y, size_t first_row, size_t end_row) const {
    ScanCall call;
    const std::vector<float>* inputs[] = {&x, &dt, &b, &c};
    const size_t widths[] = {size.heads * size.head_dim, size.heads, size.groups * size.state_dim,
                             size.groups * size.state_dim};
    for (size_t i = 0; i < 4; ++i) {
      call.in[i] = inputs[i]->data() + first_row * Stride(widths[i]), call.in_stride[i] = Stride(widths[i]);
    }
    call.weight[0] = a_log.data(), call.weight[1] = skip.data(), call.weight[2] = dt_bias.data();
    call.y = y.data() + first_row * Stride(widths[0]), call.y_stride = Stride(widths[0]);
    call.num_rows = end_row - first_row;
    call.heads = size.heads, call.head_dim = size.head_dim, call.state_dim = size.state_dim;
    call.groups = size.groups, call.num_heads = size.heads;
    call.state = state_of.data();
    return call;
  }

  std::vector<float> NoResult() const {
    return std::vector<float>(size.num_rows * Stride(size.heads * size.head_dim), reference::kNan);
  }

  std::vector<float> Expected(std::vector<float>& state_of) const {
    std::vector<float> y = NoResult();
    for (size_t r = 0; r < size.num_rows; ++r) {
      for (size_t h = 0; h < size.heads; ++h) {
        const size_t group = h / (size.heads / size.groups) * size.state_dim;
        const float delta = Softplus(dt[r * Stride(size.heads) + h] + dt_bias[h]);
        const float decay = reference::Exp(-(delta * reference::Exp(a_log[h])));
        for (size_t p = 0; p < size.head_dim; ++p) {
          const size_t column = r * Stride(size.heads * size.head_dim) + h * size.head_dim + p;
          float sum = 0.0f;
          for (size_t n = 0; n < size.state_dim; ++n) {
            float& number = state_of[(h * size.state_dim + n) * size.head_dim + p];
            const size_t at = r * Stride(size.groups * size.state_dim) + group + n;
            number = std::fma(decay, number, delta * x[column] * b[at]);
            sum = std::fma(c[at], number, sum);
          }
          y[column] = std::fma(skip[h], x[column], sum);
        }
      }
    }
    return y;
  }
};

TEST(ConvolutionsAreTheirChainsOnEveryTarget) {
  Random random(1);
  for (const Kernels* kernels : TestedKernels()) {
    for (size_t width = 1; width <= 35; ++width) {
      const size_t num_taps = 2 + width % 4;
      const Convolution conv(random, width, num_taps, 1 + width % 6, width % 2 == 0);
      for (const bool has_state : {false, true}) {
        std::vector<float> y(conv.num_rows * (width + kPadding), reference::kNan);
        ConvCall call = conv.Call(y);
        if (!has_state) call.state = nullptr;
        kernels->conv(call);
        CheckSame(y, conv.Expected(has_state), "conv", kernels->target);
      }
    }
  }
}

constexpr Sizes kScans[] = {{1, 1, 1, 1, 3}, {4, 3, 5, 2, 7}, {2, 64, 16, 1, 33}, {3, 70, 8, 3, 18}, {6, 17, 9, 2, 16}};

TEST(Mamba2IsItsChainsOnEveryTarget) {
  Random random(2);
  for (const Kernels* kernels : TestedKernels()) {
    for (const Sizes& size : kScans) {
      const Mamba2 scan(random, size);
      std::vector<float> expected_state = scan.state;
      const std::vector<float> expected = scan.Expected(expected_state);
      std::vector<float> state = scan.state;
      std::vector<float> y = scan.NoResult();
      kernels->scan(scan.Call(state, y, 0, size.num_rows));
      CheckSame(y, expected, "scan", kernels->target);
      CheckSame(state, expected_state, "state", kernels->target);
    }
  }
}

TEST(Mamba2MayBeCutAtAnyRowAndAnyHead) {
  Random random(3);
  for (const Kernels* kernels : TestedKernels()) {
    for (const Sizes& size : kScans) {
      const Mamba2 scan(random, size);
      std::vector<float> expected_state = scan.state;
      const std::vector<float> expected = scan.Expected(expected_state);
      std::vector<float> state = scan.state;
      std::vector<float> y = scan.NoResult();
      for (size_t head = 0; head < size.heads; ++head) {
        for (size_t row = 0, end = 0; row < size.num_rows; row = end) {
          end = row + 1 + random.Below(size.num_rows - row);
          ScanCall call = scan.Call(state, y, row, end);
          call.first_head = head, call.num_heads = 1;
          kernels->scan(call);
        }
      }
      CheckSame(y, expected, "scan in pieces", kernels->target);
      CheckSame(state, expected_state, "state in pieces", kernels->target);
    }
  }
}

TEST(WhatIsNotANumberStaysVisible) {
  Random random(4);
  for (const Kernels* kernels : TestedKernels()) {
    Mamba2 scan(random, {2, 3, 4, 1, 2});
    scan.dt[0] = reference::kNan;
    std::vector<float> y = scan.NoResult();
    kernels->scan(scan.Call(scan.state, y, 0, 2));
    for (size_t p = 0; p < 3; ++p) CHECK(std::isnan(y[p]));
    for (size_t p = 3; p < 6; ++p) CHECK(!std::isnan(y[p]));
  }
}

TEST(SoftplusIsWithinItsBound) {
  for (float x = -80.0f; x < 80.0f; x += 0.0137f) {
    const double exact = std::log1p(std::exp(static_cast<double>(x)));
    const float size = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(size, reference::kInfinity)) - static_cast<double>(size);
    CHECK(std::fabs(static_cast<double>(Softplus(x)) - exact) <= 2.0 * ulp);
  }
}

}  // namespace
}  // namespace plait
