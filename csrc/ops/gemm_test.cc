// Tests of the matrix kernels: every target gives the bits of the definition, whatever the number of rows.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "base/testing.h"
#include "formats/half.h"
#include "formats/pack.h"
#include "formats/stored_reference.h"
#include "ops/kernels.h"

namespace plait {
namespace {

constexpr Scheme kFloatSchemes[] = {Scheme::kF32, Scheme::kF16, Scheme::kBf16};
constexpr Scheme kIntegerSchemes[] = {Scheme::kQ8_0, Scheme::kQ4_0, Scheme::kQ4_1, Scheme::kQ5_0, Scheme::kQ5_1,
                                      Scheme::kQ4_K, Scheme::kQ5_K, Scheme::kQ6_K, Scheme::kInt8, Scheme::kQ2_K,
                                      Scheme::kQ3_K, Scheme::kIQ4,  Scheme::kQ8_16};

std::vector<Scheme> AllSchemes() {
  std::vector<Scheme> schemes;
  for (size_t index = 0; index < kNumSchemes; ++index) schemes.push_back(static_cast<Scheme>(index));
  return schemes;
}

// At least `wanted`, in whole blocks.
size_t Depth(Scheme scheme, size_t wanted) {
  const size_t multiple = DepthMultiple(scheme);
  return (wanted + multiple - 1) / multiple * multiple;
}

std::vector<const Kernels*> SupportedKernels() {
  std::vector<const Kernels*> kernels;
  for (const Target target : SupportedTargets()) {
    if (target == Target::kBaseline) kernels.push_back(&baseline::kKernels);
#if defined(__x86_64__)
    if (target == Target::kAvx2) kernels.push_back(&avx2::kKernels);
    if (target == Target::kAvx512) kernels.push_back(&avx512::kKernels);
#endif
  }
  return kernels;
}

// 64-byte aligned bytes of panels.
struct FreeBytes {
  void operator()(uint8_t* bytes) const { std::free(bytes); }
};
using Bytes = std::unique_ptr<uint8_t[], FreeBytes>;

Bytes AlignedBytes(size_t count) {
  return Bytes(static_cast<uint8_t*>(std::aligned_alloc(64, (count + 63) / 64 * 64)));
}

// A matrix as a file stores it, and its panels.
struct Matrix {
  std::vector<uint8_t> stored;
  Bytes packed;
  WeightPanels panels;
};

// Blocks of 32 of our own scheme; four of them have the same scale.
std::vector<uint8_t> StoredWide(size_t columns, size_t depth, std::mt19937& random) {
  const size_t block_bytes = BytesPerStoredRow(Scheme::kInt8, 32);
  std::vector<uint8_t> stored(columns * BytesPerStoredRow(Scheme::kInt8, depth));
  for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
  std::normal_distribution<float> normal;
  float scale = 0.0f;
  for (size_t at = 0; at < stored.size(); at += block_bytes) {
    if (random() % 8 == 0) std::memset(&stored[at], random() % 2 ? 0x80 : random() % 2 ? 0 : 0xff, block_bytes);
    if (at / block_bytes % (depth / 32) % 4 == 0) scale = normal(random) * 0.05f;
    std::memcpy(&stored[at], &scale, sizeof(scale));
  }
  return stored;
}

// Where the halves or floats of a stored block begin.
size_t ScaleAt(Scheme scheme) {
  return scheme == Scheme::kQ6_K ? 208 : scheme == Scheme::kQ3_K ? 108 : scheme == Scheme::kQ2_K ? 80 : 0;
}

// How many of them there are.
size_t NumScales(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ4_1:
    case Scheme::kQ5_1:
    case Scheme::kQ4_K:
    case Scheme::kQ5_K:
    case Scheme::kQ2_K:
    case Scheme::kQ8_16:
      return 2;
    default:
      return 1;
  }
}

// Weights that share a scale.
size_t SpanSize(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ6_K:
    case Scheme::kQ2_K:
    case Scheme::kQ3_K:
    case Scheme::kQ8_16:
      return 16;
    default:
      return IsWide(scheme) ? kWideGroupSize : kGroupSize;
  }
}

// Random codes, among them the extremes; scales and minima are halves or floats of moderate size.
std::vector<uint8_t> StoredMatrix(Scheme scheme, size_t columns, size_t depth, std::mt19937& random) {
  std::vector<uint8_t> stored(columns * BytesPerStoredRow(scheme, depth));
  std::normal_distribution<float> normal;
  if (!IsInteger(scheme)) {
    const size_t size = scheme == Scheme::kF32 ? 4 : 2;
    for (size_t at = 0; at < stored.size(); at += size) {
      const float weight = normal(random);
      uint32_t bits = __builtin_bit_cast(uint32_t, weight);
      if (scheme == Scheme::kF16) bits = FloatToHalf(weight);
      if (scheme == Scheme::kBf16) bits >>= 16;
      std::memcpy(&stored[at], &bits, size);
    }
    return stored;
  }
  if (IsWide(scheme)) return StoredWide(columns, depth, random);
  const size_t scale_at = ScaleAt(scheme);
  const size_t scale_bytes = HasFloatScales(scheme) ? 4 : 2;
  const size_t num_scales = NumScales(scheme);
  const size_t block_bytes = BytesPerStoredRow(scheme, DepthMultiple(scheme));
  for (size_t at = 0; at < stored.size(); at += block_bytes) {
    for (size_t b = 0; b < block_bytes; ++b) stored[at + b] = static_cast<uint8_t>(random());
    if (random() % 8 == 0) std::memset(&stored[at], random() % 2 ? 0x80 : random() % 2 ? 0 : 0xff, block_bytes);
    for (size_t h = 0; h < num_scales; ++h) {
      const float scale = normal(random) * 0.05f;
      const uint16_t half = FloatToHalf(scale);
      const void* from = HasFloatScales(scheme) ? static_cast<const void*>(&scale) : &half;
      std::memcpy(&stored[at + scale_at + h * scale_bytes], from, scale_bytes);
    }
  }
  return stored;
}

Matrix RandomMatrix(Scheme scheme, size_t columns, size_t depth, std::mt19937& random) {
  Matrix matrix{StoredMatrix(scheme, columns, depth, random), nullptr, {}};
  matrix.panels = {scheme, columns, depth, BytesPerPanel(scheme, depth), nullptr};
  matrix.packed = AlignedBytes(matrix.panels.num_panels() * matrix.panels.bytes_per_panel);
  PackPanels(scheme, matrix.stored.data(), columns, depth, 0, matrix.panels.num_panels(), matrix.packed.get());
  matrix.panels.bytes = matrix.packed.get();
  return matrix;
}

std::vector<float> RandomFloats(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> floats(count);
  for (float& value : floats) value = normal(random);
  return floats;
}

// Rows quantised by the definition of docs/adr/0006-number-schemes.md.
struct Rows {
  std::vector<QuantizedGroup> groups;
  size_t depth = 0;
  size_t group_size = 0;

  Rows(size_t rows, size_t depth, size_t group_size = kGroupSize)
      : groups(rows * depth / kGroupSize), depth(depth), group_size(group_size) {}
  QuantizedRows view() { return {groups.data(), depth, group_size}; }
  const QuantizedGroup& group(size_t row, size_t k) const { return groups[(row * depth + k) / kGroupSize]; }
};

// A wide group before it is rounded: sums and differences at distance 8, 16, ... while pairs of them fill it.
std::vector<float> Mixed(const float* x, size_t count) {
  std::vector<float> mixed(x, x + count);
  for (size_t distance = 8; count % (2 * distance) == 0; distance *= 2) {
    const std::vector<float> before = mixed;
    for (size_t k = 0; k < count; ++k) {
      const bool is_first = k / distance % 2 == 0;
      mixed[k] = is_first ? before[k] + before[k + distance] : before[k - distance] - before[k];
    }
  }
  return mixed;
}

void QuantizeWideByDefinition(const float* x, size_t num_rows, Rows& rows) {
  for (size_t r = 0; r < num_rows; ++r) {
    for (size_t begin = 0; begin < rows.depth; begin += 128) {
      const std::vector<float> group = Mixed(x + r * rows.depth + begin, std::min<size_t>(128, rows.depth - begin));
      float largest = 0.0f;
      bool finite = true;
      for (const float value : group) {
        finite = finite && std::isfinite(value);
        largest = std::max(largest, std::fabs(value));
      }
      const bool zero = !finite || largest < 0x1p-100f;
      const float scale = !finite ? std::nanf("") : zero ? 0.0f : largest / 127.0f;
      QuantizedGroup* const to = &rows.groups[(r * rows.depth + begin) / kGroupSize];
      int sum = 0;
      for (size_t k = 0; k < group.size(); ++k) {
        const int value = zero ? 0 : static_cast<int>(std::nearbyint(group[k] * (127.0f / largest)));
        to[k / kGroupSize].values[k % kGroupSize] = static_cast<int8_t>(value);
        sum += value;
      }
      for (size_t p = 0; p < group.size() / kGroupSize; ++p) {
        to[p].scale = scale;
        to[p].total = scale * static_cast<float>(sum);
        to[p].sum = -128 * sum;
        to[p].first_sum = 0;
      }
    }
  }
}

void QuantizeByDefinition(const float* x, size_t count, Rows& rows, size_t first_group) {
  if (rows.group_size == kWideGroupSize) return QuantizeWideByDefinition(x, count / rows.depth, rows);
  for (size_t g = 0; g < count / kGroupSize; ++g) {
    const float* group = x + g * kGroupSize;
    float largest = 0.0f;
    bool finite = true;
    for (size_t k = 0; k < kGroupSize; ++k) {
      finite = finite && std::isfinite(group[k]);
      largest = std::max(largest, std::fabs(group[k]));
    }
    const bool zero = !finite || largest < 0x1p-100f;
    QuantizedGroup& to = rows.groups[first_group + g];
    to.scale = !finite ? std::nanf("") : zero ? 0.0f : largest / 127.0f;
    to.sum = to.first_sum = 0;
    for (size_t k = 0; k < kGroupSize; ++k) {
      const int value = zero ? 0 : static_cast<int>(std::nearbyint(group[k] * (127.0f / largest)));
      to.values[k] = static_cast<int8_t>(value);
      to.sum += -128 * value;
      to.first_sum += k < 16 ? -128 * value : 0;
    }
    to.total = to.scale * static_cast<float>(to.sum / -128);
  }
}

// One output before bias and factor, from the stored bytes.
float FloatSum(Scheme scheme, const uint8_t* row, size_t depth, const float* x) {
  float sum = 0.0f;
  for (size_t k = 0; k < depth; ++k) sum = std::fma(x[k], testing::FloatWeightAt(scheme, row, k), sum);
  return sum;
}

float IntegerSum(Scheme scheme, const uint8_t* row, size_t depth, const Rows& rows, size_t r) {
  const size_t span = SpanSize(scheme);
  float sum = 0.0f;
  for (size_t begin = 0; begin < depth; begin += span) {
    const float row_scale = rows.group(r, begin).scale;
    const testing::StoredWeight first = testing::WeightAt(scheme, row, begin);
    int32_t products = 0;
    int32_t values = 0;
    for (size_t k = begin; k < std::min(begin + span, depth); ++k) {
      products += testing::WeightAt(scheme, row, k).number * rows.group(r, k).values[k % kGroupSize];
      values += rows.group(r, k).values[k % kGroupSize];
    }
    sum = std::fma(static_cast<float>(products), first.scale * row_scale, sum);
    if (first.has_minimum) sum = std::fma(first.minimum, row_scale * static_cast<float>(values), sum);
  }
  return sum;
}

struct Epilogue {
  bool bias;
  float out_scale;
  bool residual;
};

// Everything that a call needs, and the outputs by definition.
struct Case {
  Matrix matrix;
  std::vector<float> x;
  Rows quantized;
  std::vector<float> bias;
  std::vector<float> residual;
  std::vector<float> sums;  // [rows][columns]
  size_t num_rows;

  Case(Scheme scheme, size_t num_rows, size_t columns, size_t depth, std::mt19937& random)
      : matrix(RandomMatrix(scheme, columns, depth, random)),
        x(RandomFloats(num_rows * depth, random)),
        quantized(num_rows, IsInteger(scheme) ? depth : 0, RowGroupSize(scheme)),
        bias(RandomFloats(columns, random)),
        residual(RandomFloats(num_rows * columns, random)),
        sums(num_rows * columns),
        num_rows(num_rows) {
    if (IsInteger(scheme)) QuantizeByDefinition(x.data(), x.size(), quantized, 0);
    const size_t row_bytes = BytesPerStoredRow(scheme, depth);
    for (size_t r = 0; r < num_rows; ++r) {
      for (size_t n = 0; n < columns; ++n) {
        const uint8_t* row = matrix.stored.data() + n * row_bytes;
        sums[r * columns + n] = IsInteger(scheme) ? IntegerSum(scheme, row, depth, quantized, r)
                                                  : FloatSum(scheme, row, depth, &x[r * depth]);
      }
    }
  }

  float Expected(size_t row, size_t column, const Epilogue& epilogue) const {
    const size_t columns = matrix.panels.columns;
    float y = sums[row * columns + column];
    if (epilogue.bias) y += bias[column];
    y *= epilogue.out_scale;
    return epilogue.residual ? residual[row * columns + column] + y : y;
  }

  // Rows [first_row, first_row + count) and a range of panels.
  GemmCall Call(size_t first_row, size_t count, size_t first_panel, size_t num_panels, const Epilogue& epilogue,
                float* y, size_t y_stride) {
    GemmCall call;
    const size_t columns = matrix.panels.columns;
    const size_t depth = matrix.panels.depth;
    call.weights = matrix.panels;
    call.first_panel = first_panel;
    call.num_panels = num_panels;
    call.num_rows = count;
    call.x = x.data() + first_row * depth;
    call.x_stride = depth;
    if (IsInteger(matrix.panels.scheme)) call.quantized = quantized.view().from_row(first_row);
    call.y = y;
    call.y_stride = y_stride;
    call.bias = epilogue.bias ? bias.data() : nullptr;
    call.out_scale = epilogue.out_scale;
    call.residual = epilogue.residual ? residual.data() + first_row * columns : nullptr;
    call.residual_stride = columns;
    return call;
  }
};

bool SameBits(float left, float right) { return std::memcmp(&left, &right, sizeof(left)) == 0; }

// Runs rows [first_row, first_row + count) on every target. Counts outputs that differ from the definition, and writes
// to what is no output: between the columns' end and the stride.
size_t WrongOutputs(Case& test, size_t first_row, size_t count, const Epilogue& epilogue) {
  const size_t columns = test.matrix.panels.columns;
  const size_t stride = columns + 5;
  size_t wrong = 0;
  for (const Kernels* kernels : SupportedKernels()) {
    std::vector<float> y(count * stride, 1234.5f);
    kernels->gemm(test.Call(first_row, count, 0, test.matrix.panels.num_panels(), epilogue, y.data(), stride));
    for (size_t r = 0; r < count; ++r) {
      for (size_t n = 0; n < stride; ++n) {
        const float expected = n < columns ? test.Expected(first_row + r, n, epilogue) : 1234.5f;
        wrong += !SameBits(y[r * stride + n], expected);
      }
    }
  }
  return wrong;
}

void CheckEveryNumberOfRows(Scheme scheme, size_t columns, size_t depth) {
  std::mt19937 random(static_cast<uint32_t>(depth));
  Case test(scheme, 45, columns, depth, random);
  for (size_t rows = 1; rows <= 40; ++rows) {
    const Epilogue epilogue{rows % 2 == 0, rows % 3 == 0 ? 0.3f : 1.0f, rows % 4 < 2};
    CHECK_EQ(WrongOutputs(test, rows % 6, rows, epilogue), 0u);
  }
}

TEST(FloatProductsAreOneChainForEveryNumberOfRows) {
  for (const Scheme scheme : kFloatSchemes) {
    for (const size_t depth : {1, 8, 33, 48}) CheckEveryNumberOfRows(scheme, 37, depth);
  }
}

TEST(IntegerProductsAreOneChainForEveryNumberOfRows) {
  for (const Scheme scheme : kIntegerSchemes) {
    for (const size_t groups : {1, 3}) CheckEveryNumberOfRows(scheme, 37, groups * DepthMultiple(scheme));
  }
}

// The last of a row's wide groups has one to four parts.
TEST(WideGroupsEndWhereTheRowEnds) {
  for (const size_t groups : {4, 5, 6, 7, 9}) CheckEveryNumberOfRows(Scheme::kInt8, 37, groups * 32);
}

TEST(ColumnsOfAnyNumberAndWholePanels) {
  std::mt19937 random(5);
  for (const Scheme scheme : AllSchemes()) {
    for (const size_t columns : {1, 15, 16, 17, 32, 33, 47, 48}) {
      Case test(scheme, 7, columns, Depth(scheme, 64), random);
      CHECK_EQ(WrongOutputs(test, 0, 7, {true, 2.0f, true}), 0u);
    }
  }
}

TEST(ManyRowsAndTheDefaultModelsDepths) {
  std::mt19937 random(6);
  for (const Scheme scheme : AllSchemes()) {
    Case shallow(scheme, 131, 20, Depth(scheme, 576), random);
    CHECK_EQ(WrongOutputs(shallow, 0, 131, {false, 1.0f, true}), 0u);
    Case deep(scheme, 13, 20, 1536, random);
    CHECK_EQ(WrongOutputs(deep, 0, 13, {false, 1.0f, false}), 0u);
  }
}

// Many tiles of rows, whose weights may be unpacked piece by piece of the depth; the last tiles are a stripe of their
// own.
TEST(ChainsContinueBehindAPieceOfTheDepthForManyRows) {
  std::mt19937 random(16);
  for (const Scheme scheme : kIntegerSchemes) {
    for (const size_t columns : {20, 40}) {
      Case test(scheme, 49, columns, 1024, random);
      CHECK_EQ(WrongOutputs(test, 0, 49, {true, 0.5f, true}), 0u);
      CHECK_EQ(WrongOutputs(test, 1, 19, {false, 1.0f, false}), 0u);
    }
  }
  for (const Scheme scheme :
       {Scheme::kQ4_1, Scheme::kQ5_K, Scheme::kQ6_K, Scheme::kInt8, Scheme::kQ3_K, Scheme::kIQ4}) {
    Case test(scheme, 200, 18, 1024, random);
    CHECK_EQ(WrongOutputs(test, 0, 200, {true, 0.5f, true}), 0u);
  }
}

TEST(AChainContinuesBehindABlockOfDepth) {
  std::mt19937 random(7);
  for (const Scheme scheme : kFloatSchemes) {
    Case deep(scheme, 5, 35, 8200, random);
    CHECK_EQ(WrongOutputs(deep, 0, 5, {true, 0.5f, true}), 0u);
  }
  Case many_rows(Scheme::kF32, 110, 20, 4100, random);
  CHECK_EQ(WrongOutputs(many_rows, 0, 110, {true, 0.5f, true}), 0u);
}

// Any bits at all: sums that overflow, cancel or are subnormal.
TEST(ChainsOfExtremeNumbers) {
  std::mt19937 random(13);
  for (int round = 0; round < 40; ++round) {
    Case test(Scheme::kF32, 8, 32, 4, random);
    const uint32_t exponents = round % 4 == 0 ? 255 : 40;
    const auto draw = [&] {
      const uint32_t sign = static_cast<uint32_t>(random()) << 31;
      const uint32_t mantissa = random() % 3 == 0 ? 0x7fffffu >> random() % 24 : static_cast<uint32_t>(random()) >> 9;
      const uint32_t low = exponents == 255 ? 0 : round % 4 == 1 ? 45 : 107;
      const uint32_t exponent = low + static_cast<uint32_t>(random()) % exponents;
      return __builtin_bit_cast(float, sign | exponent << 23 | mantissa);
    };
    for (float& value : test.x) value = draw();
    for (size_t at = 0; at < test.matrix.stored.size(); at += 4) {
      const float weight = draw();
      std::memcpy(&test.matrix.stored[at], &weight, 4);
    }
    PackPanels(Scheme::kF32, test.matrix.stored.data(), 32, 4, 0, 2, test.matrix.packed.get());
    for (const Kernels* kernels : SupportedKernels()) {
      std::vector<float> y(8 * 32);
      kernels->gemm(test.Call(0, 8, 0, 2, {false, 1.0f, false}, y.data(), 32));
      for (size_t i = 0; i < y.size(); ++i) {
        const float expected = FloatSum(Scheme::kF32, &test.matrix.stored[i % 32 * 16], 4, &test.x[i / 32 * 4]);
        CHECK(SameBits(y[i], expected) || (std::isnan(y[i]) && std::isnan(expected)));
      }
    }
  }
}

// Products that lie exactly between two floats. A sum that is rounded to f64 first loses the addend, then rounds to
// even.
TEST(TheTiniestAddendBreaksATie) {
  std::mt19937 random(14);
  Case test(Scheme::kF32, 12, 16, 2, random);
  const float tiny[] = {0x1p-40f, -0x1p-40f, 0.0f};
  const float factors[] = {1.0f + 0x1p-12f, -1.0f - 0x1p-12f, 0x1p-60f + 0x1p-72f, 1.0f + 0x3p-12f};
  for (size_t r = 0; r < 12; ++r) {
    test.x[2 * r] = tiny[r % 3];
    test.x[2 * r + 1] = factors[r / 3];
  }
  for (size_t n = 0; n < 16; ++n) {
    const float weights[] = {n % 2 ? 0x1p-45f : 0x1p-100f, factors[n / 2 % 4]};
    std::memcpy(&test.matrix.stored[n * 8], weights, 8);
  }
  PackPanels(Scheme::kF32, test.matrix.stored.data(), 16, 2, 0, 1, test.matrix.packed.get());
  for (const Kernels* kernels : SupportedKernels()) {
    std::vector<float> y(12 * 16);
    kernels->gemm(test.Call(0, 12, 0, 1, {false, 1.0f, false}, y.data(), 16));
    CHECK_EQ(y[0], 1.0f + 0x1p-11f + 0x1p-23f);
    CHECK_EQ(y[16], 1.0f + 0x1p-11f);
    CHECK_EQ(y[32], 1.0f + 0x1p-11f);
    for (size_t i = 0; i < y.size(); ++i) {
      CHECK(SameBits(y[i], FloatSum(Scheme::kF32, &test.matrix.stored[i % 16 * 8], 2, &test.x[i / 16 * 2])));
    }
  }
}

TEST(APanelRangeWritesItsColumnsAlone) {
  std::mt19937 random(8);
  for (const Scheme scheme : AllSchemes()) {
    Case test(scheme, 9, 88, Depth(scheme, 32), random);
    const Epilogue epilogue{true, 1.0f, false};
    for (const Kernels* kernels : SupportedKernels()) {
      std::vector<float> y(9 * 88, -7.0f);
      kernels->gemm(test.Call(0, 9, 1, 3, epilogue, y.data(), 88));
      size_t wrong = 0;
      for (size_t r = 0; r < 9; ++r) {
        for (size_t n = 0; n < 88; ++n) {
          wrong += !SameBits(y[r * 88 + n], n >= 16 && n < 64 ? test.Expected(r, n, epilogue) : -7.0f);
        }
      }
      CHECK_EQ(wrong, 0u);
    }
  }
}

TEST(TheResidualMayBeTheOutput) {
  std::mt19937 random(9);
  for (const Scheme scheme : {Scheme::kF32, Scheme::kQ4_0}) {
    Case test(scheme, 14, 40, 64, random);
    for (const Kernels* kernels : SupportedKernels()) {
      std::vector<float> y = test.residual;
      GemmCall call = test.Call(0, 14, 0, 3, {false, 1.0f, true}, y.data(), 40);
      call.residual = y.data();
      kernels->gemm(call);
      size_t wrong = 0;
      for (size_t i = 0; i < y.size(); ++i)
        wrong += !SameBits(y[i], test.Expected(i / 40, i % 40, {false, 1.0f, true}));
      CHECK_EQ(wrong, 0u);
    }
  }
}

void CheckQuantisation(size_t depth, size_t group_size, size_t first_columns) {
  std::mt19937 random(10);
  constexpr size_t kRows = 300;
  std::vector<float> x = RandomFloats(kRows * depth, random);
  for (size_t r = 0; r < kRows; ++r) {
    // Sizes from subnormal to almost the largest; many values half-way between two integers; whole and half-empty
    // groups.
    const float factor = std::ldexp(1.0f, static_cast<int>(random() % 244) - 126);
    for (size_t k = 0; k < depth; ++k) {
      float& value = x[r * depth + k];
      if (r % 5 == 1) value = static_cast<float>(static_cast<int>(random() % 255) - 127) * 0.5f;
      if (r % 5 == 1 && k % 32 == 3) value = 63.5f;
      if (r % 5 == 2 && k % 3 != 0) value = 0.0f;
      if (r % 7 != 3) value *= factor;
    }
  }
  for (size_t k = 0; k < 32; ++k) x[k] = k % 2 ? -0.0f : 0.0f;
  Rows expected(kRows, depth, group_size);
  QuantizeByDefinition(x.data(), x.size(), expected, 0);
  for (const Kernels* kernels : SupportedKernels()) {
    Rows whole(kRows, depth, group_size);
    kernels->quantize(x.data(), depth, kRows, whole.view());
    Rows in_parts(kRows, depth, group_size);
    kernels->quantize_columns(x.data(), depth, kRows, first_columns, depth - first_columns, in_parts.view());
    kernels->quantize_columns(x.data(), depth, kRows, 0, first_columns, in_parts.view());
    for (const Rows* rows : {&whole, &in_parts}) {
      for (size_t i = 0; i < expected.groups.size(); ++i) {
        CHECK_EQ(std::memcmp(&rows->groups[i], &expected.groups[i], sizeof(QuantizedGroup)), 0);
      }
    }
  }
}

TEST(RowsQuantiseAsDefinedOnEveryTarget) {
  CheckQuantisation(96, kGroupSize, 64);
  for (const size_t depth : {160, 192, 224, 256}) CheckQuantisation(depth, kWideGroupSize, 128);
}

// A row's one large number is shared by sixteen: without that it would leave the others of its group a few steps each.
TEST(WideGroupsAreMixedSoThatALargeNumberHurtsLess) {
  std::vector<float> x(128, 1.0f);
  x[77] = 100.0f;
  Rows rows(1, 128, kWideGroupSize);
  for (const Kernels* kernels : SupportedKernels()) {
    kernels->quantize(x.data(), 128, 1, rows.view());
    CHECK_EQ(rows.group(0, 0).scale, 115.0f / 127.0f);
    std::vector<float> mixed(128);
    for (size_t k = 0; k < 128; ++k) mixed[k] = rows.group(0, k).scale * rows.group(0, k).values[k % kGroupSize];
    const std::vector<float> back = Mixed(mixed.data(), 128);
    for (size_t k = 0; k < 128; ++k) CHECK(std::fabs(back[k] / 16.0f - x[k]) <= rows.group(0, k).scale / 2.0f);
  }
}

TEST(WhatIsNotANumberStaysVisible) {
  std::mt19937 random(11);
  for (const Scheme scheme : AllSchemes()) {
    const size_t depth = Depth(scheme, 64);
    for (const float poison : {std::nanf(""), -std::nanf(""), INFINITY, -INFINITY}) {
      Case test(scheme, 3, 20, depth, random);
      test.x[depth + 40] = poison;  // row 1
      for (const Kernels* kernels : SupportedKernels()) {
        if (IsInteger(scheme)) kernels->quantize(test.x.data(), depth, 3, test.quantized.view());
        std::vector<float> y(3 * 20);
        kernels->gemm(test.Call(0, 3, 0, 2, {false, 1.0f, false}, y.data(), 20));
        for (size_t n = 0; n < 20; ++n) {
          CHECK(!std::isfinite(y[20 + n]));
          CHECK(SameBits(y[n], test.Expected(0, n, {false, 1.0f, false})));
          CHECK(SameBits(y[40 + n], test.Expected(2, n, {false, 1.0f, false})));
        }
      }
    }
  }
}

// The largest sums that there are: every code and every value at an end of its range.
TEST(NoSumSaturates) {
  std::mt19937 random(15);
  for (const Scheme scheme : kIntegerSchemes) {
    const size_t depth = IsWide(scheme) ? kWideGroupSize : DepthMultiple(scheme);
    const size_t block_bytes = BytesPerStoredRow(scheme, DepthMultiple(scheme));
    const size_t scale_at = ScaleAt(scheme);
    const size_t scale_bytes = HasFloatScales(scheme) ? 4 * NumScales(scheme) : scale_at > 100 ? 2 : 4;
    for (const int codes : {0x00, 0x7f, 0x80, 0xff}) {
      Case test(scheme, 8, 16, depth, random);
      const std::vector<uint8_t> before = test.matrix.stored;
      std::memset(test.matrix.stored.data(), codes, test.matrix.stored.size());
      for (size_t at = scale_at; at < before.size(); at += block_bytes) {
        std::memcpy(&test.matrix.stored[at], &before[scale_at], scale_bytes);
      }
      PackPanels(scheme, test.matrix.stored.data(), 16, depth, 0, 1, test.matrix.packed.get());
      for (size_t i = 0; i < test.x.size(); ++i) test.x[i] = (i / 32 + i / 512) % 2 ? -1.0f : 1.0f;
      if (IsWide(scheme)) {
        // What is mixed twice is what it was, sixteen times.
        for (size_t r = 0; r < 8; ++r) {
          for (size_t k = 0; k < depth; ++k) test.x[r * depth + k] = r % 2 || (r / 2 > k % 4) ? -1.0f : 1.0f;
          const std::vector<float> mixed = Mixed(&test.x[r * depth], depth);
          std::copy(mixed.begin(), mixed.end(), test.x.begin() + static_cast<ptrdiff_t>(r * depth));
        }
      }
      QuantizeByDefinition(test.x.data(), test.x.size(), test.quantized, 0);
      for (const QuantizedGroup& group : test.quantized.groups) {
        for (const int8_t value : group.values) CHECK_EQ(std::abs(int{value}), 127);
      }
      for (const Kernels* kernels : SupportedKernels()) {
        std::vector<float> y(8 * 16);
        kernels->gemm(test.Call(0, 8, 0, 1, {false, 1.0f, false}, y.data(), 16));
        for (size_t i = 0; i < y.size(); ++i) {
          const uint8_t* row = &test.matrix.stored[i % 16 * BytesPerStoredRow(scheme, depth)];
          CHECK(SameBits(y[i], IntegerSum(scheme, row, depth, test.quantized, i / 16)));
        }
      }
    }
  }
}

TEST(NoRowsAndNoPanelsAreNoWork) {
  std::mt19937 random(12);
  Case test(Scheme::kQ8_0, 2, 16, 32, random);
  for (const Kernels* kernels : SupportedKernels()) {
    float y = 3.0f;
    kernels->gemm(test.Call(0, 0, 0, 1, {false, 1.0f, false}, &y, 16));
    kernels->gemm(test.Call(0, 2, 0, 0, {false, 1.0f, false}, &y, 16));
    CHECK_EQ(y, 3.0f);
  }
}

}  // namespace
}  // namespace plait
