// Tests of row kernels: every target against scalar code, bit for bit; and the functions against double precision.
//
// Owns the cases and the bounds stated in ops/targets/math.h. Attention is tested in attention_test.cc.
// Invariant: every width from 1 on, so that remainders are met in every length; strides wider than rows.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "base/testing.h"
#include "ops/kernels.h"
#include "ops/rows_reference.h"

namespace plait {
namespace {

using reference::CheckSame;
using reference::Random;
using reference::TestedKernels;

constexpr size_t kRows = 3;
constexpr size_t kPadding = 5;  // columns of a stride behind the row

// Rows of `width` columns in a wider array; what lies between them is NaN and has to stay.
std::vector<float> Rows(Random& random, size_t width, float deviation = 1.0f) {
  std::vector<float> rows(kRows * (width + kPadding), reference::kNan);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < width; ++c) rows[r * (width + kPadding) + c] = random.Normal(deviation);
  }
  return rows;
}

void ForEach(size_t width, const std::function<void(size_t row, size_t column, size_t index)>& visit) {
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < width; ++c) visit(r, c, r * (width + kPadding) + c);
  }
}

float UpperTail(float x) {
  const float size = std::min(14.0f, std::fabs(x));
  const float t = (4.0f - size) / (4.0f + size);
  const float g = reference::Chain(0x1.1d142ep-14f, t,
                                   {-0x1.6a08b8p-13f, -0x1.58a7e0p-11f, 0x1.08fe86p-11f, 0x1.166fa8p-7f, 0x1.f9b0d2p-6f,
                                    0x1.25b61ap-4f, 0x1.fd7518p-4f, 0x1.5cf97ep-3f, 0x1.82b4bcp-4f});
  const float half = size * 0.5f;
  const float high = half * size;
  const float low = std::fma(half, size, -high);
  const float e = reference::Exp(-high);
  return std::fma(e, -low, e) * g;
}

float Activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + reference::Exp(-x));
    case Activation::kSigmoid:
      return 1.0f / (1.0f + reference::Exp(-x));
    case Activation::kRelu2: {
      const float positive = x > 0.0f ? x : (std::isnan(x) ? x : 0.0f);
      return positive * positive;
    }
    case Activation::kGeluTanh:
      return x / (1.0f + reference::Exp(x * std::fma(x * x, -0x1.2444f2p-4f, -0x1.988454p0f)));
    case Activation::kGelu:
      return x * (x < 0.0f ? UpperTail(x) : 1.0f - UpperTail(x));
    case Activation::kClampedSwish:
      break;  // of two numbers; ops/experts_test.cc has it
  }
  return reference::kNan;
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu2,
                                       Activation::kSigmoid};

double Exact(Activation activation, double x) {
  const double u = std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kRelu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::kGeluTanh:
      return x / (1.0 + std::exp(-2.0 * u));
    case Activation::kGelu:
      return x / 2.0 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kClampedSwish:
      break;
  }
  return 0.0;
}

// Units in the last place of the exact value that `got` is away from it; 0 where both are below 2^-120.
double Distance(float got, double exact) {
  if (std::fabs(exact) < 0x1p-120 && std::fabs(got) < 0x1p-120f) return 0.0;
  return std::fabs(double{got} - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}

// Floats of both signs, `step` apart in their bits, of magnitude at most `limit`.
std::vector<float> Spread(uint32_t step, float limit) {
  std::vector<float> numbers = {0.0f};
  for (uint32_t bits = 0x20000000u; std::bit_cast<float>(bits) <= limit; bits += step) {
    numbers.push_back(std::bit_cast<float>(bits));
    numbers.push_back(-numbers.back());
  }
  return numbers;
}

}  // namespace

TEST(ActivationsHaveTheReferencesBits) {
  for (const Kernels* kernels : TestedKernels()) {
    for (size_t width = 1; width <= 67; width += 3) {
      Random random(static_cast<uint32_t>(width));
      const size_t stride = width + kPadding;
      const std::vector<float> a = Rows(random, width, 4.0f);
      const std::vector<float> b = Rows(random, width);
      for (const Activation activation : kActivations) {
        std::vector<float> y(a.size(), reference::kNan), expected = y, alone = y, expected_alone = y;
        kernels->glu({activation, a.data(), stride, b.data(), stride, y.data(), stride, kRows, width, 1.0f, 0.0f});
        kernels->glu({activation, a.data(), stride, nullptr, 0, alone.data(), stride, kRows, width, 1.0f, 0.0f});
        ForEach(width, [&](size_t, size_t, size_t i) {
          expected_alone[i] = Activated(activation, a[i]);
          expected[i] = expected_alone[i] * b[i];
        });
        CheckSame(y, expected, "glu", kernels->target);
        CheckSame(alone, expected_alone, "act", kernels->target);
      }
    }
  }
}

TEST(ActivationsAreCloseToExactMathematics) {
  const std::vector<float> x = Spread(9001, 100.0f);
  // Of the five, gelu_tanh has the largest: its exponent is a rounded cubic, up to 90.
  for (const Activation activation : kActivations) {
    double worst = 0.0;
    for (const float number : x)
      worst = std::max(worst, Distance(Activated(activation, number), Exact(activation, double{number})));
    CHECK(worst < (activation == Activation::kGeluTanh ? 140.0 : activation == Activation::kGelu ? 5.0 : 2.5));
  }
}

TEST(ExtremesOfActivations) {
  const std::vector<float> x = {
      reference::kNan, reference::kInfinity, 1e30f, 200.0f, 88.8f, -88.8f, -200.0f, -1e30f, -0.0f, 1e-40f};
  for (const Kernels* kernels : TestedKernels()) {
    for (const Activation activation : kActivations) {
      std::vector<float> y(x.size()), expected(x.size());
      kernels->glu({activation, x.data(), 0, nullptr, 0, y.data(), 0, 1, x.size(), 1.0f, 0.0f});
      std::transform(x.begin(), x.end(), expected.begin(), [&](float n) { return Activated(activation, n); });
      CheckSame(y, expected, "extremes", kernels->target);
      CHECK(std::isnan(y[0]));
      for (size_t i = 1; i < 5; ++i) {
        const double exact = activation == Activation::kSigmoid ? 1.0
                             : activation == Activation::kRelu2 ? double{x[i]} * x[i]
                                                                : double{x[i]};
        CHECK_EQ(y[i], static_cast<float>(exact));
      }
      for (size_t i = 5; i < 8; ++i) CHECK(std::fabs(y[i]) < 1e-35f);
    }
  }
}

TEST(ExponentialAndTangentAreAsCloseAsStated) {
  double exponential = 0.0, tangent = 0.0, tail = 0.0;
  for (const float x : Spread(4001, 88.7f)) {
    const double exact = std::exp(double{x});
    if (exact > 0x1p-124) exponential = std::max(exponential, Distance(reference::Exp(x), exact));
    tangent = std::max(tangent, Distance(reference::Tanh(x), std::tanh(double{x})));
    const double exact_tail = std::erfc(std::fabs(double{x}) / std::sqrt(2.0)) / 2.0;
    if (exact_tail > 0x1p-120) tail = std::max(tail, Distance(UpperTail(x), exact_tail));
  }
  CHECK(exponential < 1.0);
  CHECK(tangent < 1.5);
  CHECK(tail < 5.0);
  CHECK_EQ(reference::Exp(0.0f), 1.0f);
  CHECK_EQ(reference::Exp(88.722839f), std::exp(88.722839f));
  CHECK_EQ(reference::Exp(88.72284f), reference::kInfinity);
}

TEST(ArithmeticHasTheReferencesBits) {
  for (const Kernels* kernels : TestedKernels()) {
    for (size_t width = 1; width <= 50; ++width) {
      Random random(static_cast<uint32_t>(width));
      const size_t stride = width + kPadding;
      const std::vector<float> a = Rows(random, width), b = Rows(random, width);
      std::vector<float> sum = a, product(a.size(), reference::kNan), scaled = product, gated = product;
      std::vector<float> expected[4] = {a, product, product, product};
      kernels->arithmetic(
          {Arithmetic::kAdd, sum.data(), stride, b.data(), stride, width, sum.data(), stride, kRows, width, 0.3f});
      kernels->arithmetic(
          {Arithmetic::kMul, a.data(), stride, b.data(), stride, width, product.data(), stride, kRows, width, 1.0f});
      kernels->arithmetic(
          {Arithmetic::kMul, a.data(), stride, b.data(), stride, 1, gated.data(), stride, kRows, width, 1.0f});
      kernels->arithmetic(
          {Arithmetic::kScale, a.data(), stride, nullptr, 0, 0, scaled.data(), stride, kRows, width, 0.3f});
      ForEach(width, [&](size_t r, size_t, size_t i) {
        const float rounded = 0.3f * b[i];
        expected[0][i] = a[i] + rounded;
        expected[1][i] = a[i] * b[i];
        expected[2][i] = a[i] * b[r * stride];
        expected[3][i] = 0.3f * a[i];
      });
      CheckSame(sum, expected[0], "add", kernels->target);
      CheckSame(product, expected[1], "mul", kernels->target);
      CheckSame(gated, expected[2], "mul by one number a row", kernels->target);
      CheckSame(scaled, expected[3], "scale", kernels->target);
    }
  }
}

TEST(LogitsAreCappedAndScaled) {
  Random random(1);
  const std::vector<float> z = random.Normals(101, 40.0f);
  for (const Kernels* kernels : TestedKernels()) {
    std::vector<float> capped = z, scaled = z, expected_capped = z, expected_scaled = z;
    kernels->cap_logits(capped.data(), z.size(), 0.7f, 30.0f);
    kernels->cap_logits(scaled.data(), z.size(), 0.7f, 0.0f);
    for (size_t i = 0; i < z.size(); ++i) {
      expected_scaled[i] = z[i] * 0.7f;
      expected_capped[i] = 30.0f * reference::Tanh(expected_scaled[i] / 30.0f);
    }
    CheckSame(capped, expected_capped, "cap", kernels->target);
    CheckSame(scaled, expected_scaled, "scale", kernels->target);
  }
}

TEST(RotationsHaveTheReferencesBits) {
  for (const Kernels* kernels : TestedKernels()) {
    for (const bool interleaved : {false, true}) {
      for (const size_t rotary : {2, 8, 20, 32, 64, 78}) {
        const size_t head_dim = rotary + (rotary % 3 == 0 ? 0 : 6);
        constexpr size_t kHeads = 3;
        const size_t width = kHeads * head_dim;
        Random random(static_cast<uint32_t>(rotary));
        const size_t stride = width + kPadding;
        const std::vector<float> x = Rows(random, width);
        const int32_t positions[kRows] = {5, 0, 17};
        const std::vector<float> cos = random.Normals(18 * rotary / 2), sin = random.Normals(18 * rotary / 2);
        std::vector<float> y(x.size(), reference::kNan), in_place = x, expected(x.size(), reference::kNan);
        RopeCall call{x.data(),   stride,     y.data(), stride,   kRows,  positions,
                      cos.data(), sin.data(), kHeads,   head_dim, rotary, interleaved};
        kernels->rope(call);
        call.x = call.y = in_place.data();
        kernels->rope(call);
        ForEach(width, [&](size_t r, size_t column, size_t i) {
          const size_t c = column % head_dim;
          expected[i] = x[i];
          if (c >= rotary) return;
          const size_t pair = interleaved ? c / 2 : c % (rotary / 2);
          const bool is_first = interleaved ? c % 2 == 0 : c < rotary / 2;
          const size_t apart = interleaved ? 1 : rotary / 2;
          const size_t entry = static_cast<size_t>(positions[r]) * (rotary / 2) + pair;
          const float by_sine = (is_first ? x[i + apart] : x[i - apart]) * sin[entry];
          expected[i] = std::fma(x[i], cos[entry], is_first ? -by_sine : by_sine);
        });
        CheckSame(y, expected, "rope", kernels->target);
        CheckSame(in_place, expected, "rope in place", kernels->target);
      }
    }
  }
}

namespace {

float LaneSum(const std::vector<float>& numbers, bool squares) {
  float lanes[16] = {};
  for (size_t c = 0; c < numbers.size(); ++c) {
    lanes[c % 16] = squares ? std::fma(numbers[c], numbers[c], lanes[c % 16]) : lanes[c % 16] + numbers[c];
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// One part, in place.
void NormReference(const NormCall& call, const float* weight, const float* bias, std::vector<float>& x) {
  const float count = static_cast<float>(x.size());
  if (call.kind == NormKind::kLayer) {
    const float mean = LaneSum(x, false) / count;
    for (float& number : x) number -= mean;
  }
  const float inverse = 1.0f / std::sqrt(LaneSum(x, true) / count + call.eps);
  for (size_t c = 0; c < x.size(); ++c) {
    x[c] *= inverse;
    if (weight != nullptr) x[c] *= call.offset + weight[c];
    if (bias != nullptr) x[c] += bias[c];
  }
}

void CheckNorm(const Kernels& kernels, NormCall call, Random& random) {
  const size_t stride = call.width + kPadding;
  const std::vector<float> x = Rows(random, call.width, 3.0f);
  const std::vector<float> weight = random.Normals(call.weight_width), bias = random.Normals(call.weight_width);
  std::vector<float> y(x.size(), reference::kNan), expected = y;
  call.x = x.data();
  call.y = y.data();
  call.x_stride = call.y_stride = stride;
  call.num_rows = kRows;
  if (call.weight_width > 0) call.weight = weight.data();
  if (call.weight_width > 0 && call.kind == NormKind::kLayer) call.bias = bias.data();
  const size_t count = call.width / call.parts;
  for (size_t i = 0; i < kRows * call.parts; ++i) {
    const size_t first = i / call.parts * stride + i % call.parts * count;
    const size_t entry = call.weight_width == call.width ? i % call.parts * count : 0;
    std::vector<float> part(x.begin() + static_cast<ptrdiff_t>(first),
                            x.begin() + static_cast<ptrdiff_t>(first + count));
    NormReference(call, call.weight == nullptr ? nullptr : call.weight + entry,
                  call.bias == nullptr ? nullptr : call.bias + entry, part);
    std::copy(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(first));
  }
  kernels.norm(call);
  CheckSame(y, expected, "norm", kernels.target);
  std::vector<float> in_place = x;
  call.x = call.y = in_place.data();
  kernels.norm(call);
  CheckSame(in_place, expected, "norm in place", kernels.target);
}

struct Quantized {
  Quantized(size_t depth, size_t group_size)
      : groups(kRows * depth / kGroupSize), depth(depth), group_size(group_size) {}
  QuantizedRows rows() { return {groups.data(), depth, group_size}; }
  bool HasTheBitsOf(const Quantized& other) const {
    return std::memcmp(groups.data(), other.groups.data(), groups.size() * sizeof(QuantizedGroup)) == 0;
  }
  std::vector<QuantizedGroup> groups;
  size_t depth;
  size_t group_size;
};

}  // namespace

TEST(NormsHaveTheReferencesBits) {
  Random random(2);
  for (const Kernels* kernels : TestedKernels()) {
    for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (const size_t count : {1, 2, 7, 15, 16, 17, 24, 32, 64, 100, 576}) {
        for (const size_t parts : {1, 3}) {
          for (const size_t weight_width : {size_t{0}, count, count * parts}) {
            NormCall call;
            call.kind = kind;
            call.parts = parts;
            call.width = count * parts;
            call.weight_width = weight_width;
            call.eps = 1e-5f;
            call.offset = random.Below(2) == 0 ? 0.0f : 1.0f;
            CheckNorm(*kernels, call, random);
          }
        }
      }
    }
  }
}

TEST(NormsInEightBitsAreTheNormsQuantised) {
  Random random(3);
  for (const Kernels* kernels : TestedKernels()) {
    for (const size_t width : {32, 96, 160, 576}) {
      for (const size_t parts : {1, 4, 8, 9}) {
        if (width % parts != 0) continue;
        for (const size_t group_size : {kGroupSize, kWideGroupSize}) {
          const std::vector<float> x = Rows(random, width, 2.0f);
          std::vector<float> y(x.size());
          Quantized expected(width, group_size), got(width, group_size), alone(width, group_size);
          NormCall call;
          call.x = x.data();
          call.y = y.data();
          call.x_stride = call.y_stride = width + kPadding;
          call.num_rows = kRows;
          call.width = width;
          call.parts = parts;
          call.eps = 1e-6f;
          call.quantized = got.rows();
          kernels->norm(call);
          call.quantized = alone.rows();
          call.y = nullptr;
          kernels->norm(call);
          kernels->quantize(y.data(), width + kPadding, kRows, expected.rows());
          CHECK(got.HasTheBitsOf(expected));
          CHECK(alone.HasTheBitsOf(expected));
        }
      }
    }
  }
}

}  // namespace plait
