// Tests of RWKV-7's kernels: every target against scalar code, bit for bit, however rows, heads and columns are cut.
//
// Owns the cases. Invariant: sizes that are no multiple of a vector, strides wider than rows.

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/testing.h"
#include "ops/kernels.h"
#include "ops/recurrence.h"
#include "ops/rows_reference.h"
#include "ops/shift.h"

namespace plait {
namespace {

using reference::CheckSame;
using reference::Random;
using reference::TestedKernels;

constexpr size_t kPadding = 3;  // columns of a stride behind the row

struct Sizes {
  size_t heads, head_dim, num_rows;
};
constexpr Sizes kSizes[] = {{1, 1, 3}, {4, 3, 7}, {2, 64, 5}, {3, 17, 6}, {1, 70, 4}, {1, kMostRwkvHead, 2}};

struct Rwkv7 {
  Sizes size;
  std::vector<float> in[5], weight[3], state;

  Rwkv7(Random& random, const Sizes& size) : size(size) {
    for (std::vector<float>& one : in) one = random.Normals(size.num_rows * stride());
    for (std::vector<float>& one : weight) one = random.Normals(width());
    state = random.Normals(width() * size.head_dim);
  }
  size_t width() const { return size.heads * size.head_dim; }
  size_t stride() const { return width() + kPadding; }
  size_t y_stride() const { return 2 * width() + kPadding; }

  ScanCall Call(std::vector<float>& state_of, std::vector<float>& y, size_t first_row, size_t end_row) const {
    ScanCall call;
    call.kind = ScanKind::kRwkv7;
    for (size_t i = 0; i < 5; ++i) call.in[i] = in[i].data() + first_row * stride(), call.in_stride[i] = stride();
    for (size_t i = 0; i < 3; ++i) call.weight[i] = weight[i].data();
    call.y = y.data() + first_row * y_stride(), call.y_stride = y_stride();
    call.num_rows = end_row - first_row;
    call.heads = call.num_heads = size.heads, call.head_dim = call.state_dim = size.head_dim;
    call.state = state_of.data();
    return call;
  }

  std::vector<float> NoResult() const { return std::vector<float>(size.num_rows * y_stride(), reference::kNan); }

  void Head(size_t row, size_t head, std::vector<float>& state_of, std::vector<float>& y) const {
    const size_t dim = size.head_dim;
    const auto input = [&](size_t i, size_t n) { return in[i][row * stride() + head * dim + n]; };
    const auto own_weight = [&](size_t i, size_t n) { return weight[i][head * dim + n]; };
    std::vector<float> decay(dim), found(dim), write(dim);
    float squares = 0.0f, own = 0.0f;
    for (size_t n = 0; n < dim; ++n) {
      decay[n] = reference::Exp(-0x1.368b30p-1f * (1.0f / (1.0f + reference::Exp(-input(1, n)))));
      found[n] = input(2, n) * own_weight(0, n);
      write[n] = input(2, n) * std::fma(input(4, n) - 1.0f, own_weight(1, n), 1.0f);
      squares = std::fma(found[n], found[n], squares);
      const float read = input(0, n) * write[n];
      own = std::fma(read, own_weight(2, n), own);
    }
    const float length = std::sqrt(squares);
    for (float& one : found) one /= length < 1e-12f ? 1e-12f : length;
    float* matrix = state_of.data() + head * dim * dim;
    for (size_t p = 0; p < dim; ++p) {
      float forgotten = 0.0f, sum = 0.0f;
      for (size_t n = 0; n < dim; ++n) forgotten = std::fma(matrix[n * dim + p], found[n], forgotten);
      for (size_t n = 0; n < dim; ++n) {
        float& number = matrix[n * dim + p];
        const float decayed = number * decay[n];
        const float forget = found[n] * input(4, n);
        number = std::fma(input(3, p), write[n], std::fma(-forgotten, forget, decayed));
        sum = std::fma(number, input(0, n), sum);
      }
      y[row * y_stride() + head * dim + p] = sum;
      y[row * y_stride() + width() + head * dim + p] = own * input(3, p);
    }
  }

  std::vector<float> Expected(std::vector<float>& state_of) const {
    std::vector<float> y = NoResult();
    for (size_t row = 0; row < size.num_rows; ++row) {
      for (size_t head = 0; head < size.heads; ++head) Head(row, head, state_of, y);
    }
    return y;
  }
};

TEST(Rwkv7IsItsChainsOnEveryTarget) {
  Random random(1);
  for (const Kernels* kernels : TestedKernels()) {
    for (const Sizes& size : kSizes) {
      const Rwkv7 scan(random, size);
      std::vector<float> expected_state = scan.state, state = scan.state, y = scan.NoResult();
      const std::vector<float> expected = scan.Expected(expected_state);
      kernels->scan(scan.Call(state, y, 0, size.num_rows));
      CheckSame(y, expected, "scan", kernels->target);
      CheckSame(state, expected_state, "state", kernels->target);
    }
  }
}

TEST(Rwkv7MayBeCutAtAnyRowAndAnyHead) {
  Random random(2);
  for (const Kernels* kernels : TestedKernels()) {
    for (const Sizes& size : kSizes) {
      const Rwkv7 scan(random, size);
      std::vector<float> expected_state = scan.state, state = scan.state, y = scan.NoResult();
      const std::vector<float> expected = scan.Expected(expected_state);
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

TEST(AKeyOfZerosForgetsNothing) {
  Random random(3);
  for (const Kernels* kernels : TestedKernels()) {
    Rwkv7 scan(random, {1, 5, 1});
    for (float& key : scan.in[2]) key = 0.0f;
    for (float& number : scan.in[1]) number = -200.0f;  // nothing decays
    std::vector<float> state = scan.state, y = scan.NoResult();
    kernels->scan(scan.Call(state, y, 0, 1));
    CheckSame(state, scan.state, "state", kernels->target);
  }
}

TEST(WhatIsNoNumberStaysInItsHeadOfRwkv7) {
  Random random(4);
  for (const Kernels* kernels : TestedKernels()) {
    for (size_t input = 0; input < 5; ++input) {
      Rwkv7 scan(random, {2, 4, 2});
      scan.in[input][1] = reference::kNan;
      std::vector<float> state = scan.state, y = scan.NoResult();
      kernels->scan(scan.Call(state, y, 0, 2));
      CHECK(std::isnan(y[1]));
      for (size_t p = 4; p < 8; ++p) CHECK(!std::isnan(y[p]));
    }
  }
}

TEST(ShiftsMixEachRowWithTheOneBeforeItOnEveryTarget) {
  Random random(5);
  for (const Kernels* kernels : TestedKernels()) {
    for (size_t width = 1; width <= 35; width += 2) {
      const size_t mixes = 1 + width % 6, num_rows = 1 + width % 5, x_stride = width + kPadding;
      const size_t y_stride = mixes * width + kPadding;
      const std::vector<float> x = random.Normals(num_rows * x_stride), before = random.Normals(width);
      const std::vector<float> weight = random.Normals(mixes * width);
      for (const bool has_before : {false, true}) {
        std::vector<float> y(num_rows * y_stride, reference::kNan), expected = y;
        for (size_t r = 0; r < num_rows; ++r) {
          for (size_t m = 0; m < mixes; ++m) {
            for (size_t c = 0; c < width; ++c) {
              const float now = x[r * x_stride + c];
              const float then = r > 0 ? x[(r - 1) * x_stride + c] : has_before ? before[c] : 0.0f;
              const float step = (then - now) * weight[m * width + c];
              expected[r * y_stride + m * width + c] = now + step;
            }
          }
        }
        // In two parts of columns, as units take them.
        const size_t cut = width / 2;
        for (const auto& [first, count] : {std::pair{size_t{0}, cut}, std::pair{cut, width - cut}}) {
          const float* from = has_before ? before.data() + first : nullptr;
          kernels->shift({x.data() + first, x_stride, from, weight.data() + first, mixes, width, count,
                          y.data() + first, y_stride, num_rows});
        }
        CheckSame(y, expected, "shift", kernels->target);
      }
    }
  }
}

}  // namespace
}  // namespace plait
