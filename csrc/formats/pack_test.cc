// Tests of packing: what lies in a panel means what the file's bytes mean.

#include "formats/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/testing.h"
#include "formats/half.h"
#include "formats/stored_reference.h"

namespace plait {
namespace {

constexpr Scheme kSchemes[] = {Scheme::kF32,  Scheme::kF16,  Scheme::kBf16, Scheme::kQ8_0, Scheme::kQ4_0,
                               Scheme::kQ4_1, Scheme::kQ5_0, Scheme::kQ5_1, Scheme::kQ4_K, Scheme::kQ5_K,
                               Scheme::kQ6_K, Scheme::kQ2_K, Scheme::kQ3_K, Scheme::kIQ4,  Scheme::kQ8_16};

float HalfByDefinition(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

std::vector<float> Dequantized(Scheme scheme, const uint8_t* row, size_t depth) {
  std::vector<float> weights(depth);
  for (size_t k = 0; k < depth; ++k) {
    weights[k] = IsInteger(scheme) ? testing::WeightAt(scheme, row, k).value() : testing::FloatWeightAt(scheme, row, k);
  }
  return weights;
}

std::vector<uint8_t> RandomBytes(size_t count) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

bool SameFloats(const std::vector<float>& left, const std::vector<float>& right) {
  for (size_t i = 0; i < left.size(); ++i) {
    if (std::isnan(left[i]) && std::isnan(right[i])) continue;
    if (std::memcmp(&left[i], &right[i], 4) != 0) return false;
  }
  return left.size() == right.size();
}

TEST(EveryHalfIsTheFloatThatItMeans) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    CHECK(SameFloats({value}, {HalfByDefinition(static_cast<uint16_t>(bits))}));
    const uint16_t back = FloatToHalf(value);
    if (std::isnan(value)) {
      CHECK((back & 0x7e00) == 0x7e00);
    } else {
      CHECK_EQ(back, bits);
    }
  }
}

TEST(FloatsBetweenTwoHalvesGoToTheNearerAndTiesToTheEven) {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float below = HalfByDefinition(bits);
    const float above = HalfByDefinition(static_cast<uint16_t>(bits + 1));
    const float middle = below + (above - below) / 2;  // exact: a float has 13 bits more
    CHECK_EQ(FloatToHalf(middle), bits + (bits & 1));
    CHECK_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), bits);
    CHECK_EQ(FloatToHalf(std::nextafter(-middle, -INFINITY)), 0x8000 | (bits + 1));
  }
  CHECK_EQ(FloatToHalf(65519.996f), 0x7bff);
  CHECK_EQ(FloatToHalf(65520.0f), 0x7c00);
  CHECK_EQ(FloatToHalf(-1e30f), 0xfc00);
  CHECK_EQ(FloatToHalf(1e-40f), 0);
}

TEST(AColumnComesBackAsTheFormatDefinesIt) {
  constexpr size_t kColumns = 37;
  for (const Scheme scheme : kSchemes) {
    const size_t multiple = HasBlockScales(scheme) ? 256 : 32;
    for (const size_t depth : {multiple, 3 * multiple, 18 * multiple}) {
      const size_t row_bytes = BytesPerStoredRow(scheme, depth);
      const std::vector<uint8_t> stored = RandomBytes(kColumns * row_bytes);
      WeightPanels weights{scheme, kColumns, depth, BytesPerPanel(scheme, depth), nullptr};
      CHECK_EQ(weights.bytes_per_panel % 64, 0u);
      std::vector<uint8_t> panels(weights.num_panels() * weights.bytes_per_panel, 0xee);
      // Two threads' shares, in either order.
      PackPanels(scheme, stored.data(), kColumns, depth, 1, 2, panels.data());
      PackPanels(scheme, stored.data(), kColumns, depth, 0, 1, panels.data());
      weights.bytes = panels.data();
      for (size_t n = 0; n < kColumns; ++n) {
        std::vector<float> column(depth);
        UnpackColumn(weights, n, column.data());
        CHECK(SameFloats(column, Dequantized(scheme, stored.data() + n * row_bytes, depth)));
      }
      std::vector<float> padding(depth, 1.0f);
      UnpackColumn(weights, kColumns, padding.data());
      CHECK(SameFloats(padding, std::vector<float>(depth, 0.0f)));
    }
  }
}

// What a file holds and what is read at every token.
TEST(PanelsAreHardlyLargerThanTheFileExceptForTwoAndThreeBits) {
  for (const Scheme scheme : kSchemes) {
    const auto stored = static_cast<double>(kPanelColumns * BytesPerStoredRow(scheme, 1536));
    const auto packed = static_cast<double>(BytesPerPanel(scheme, 1536));
    CHECK(packed >= stored);
    // Numbers of two and three bits take four.
    const double most = scheme == Scheme::kQ2_K ? 2.0 : scheme == Scheme::kQ3_K ? 1.4 : 1.03;
    CHECK(packed <= stored * most);
  }
}

// Mixed a second time: what H H, which is a multiple of the identity, leaves.
std::vector<float> Unmixed(std::vector<float> mixed) {
  for (size_t begin = 0; begin < mixed.size(); begin += 128) {
    const size_t count = std::min<size_t>(128, mixed.size() - begin);
    for (size_t distance = 8; count % (2 * distance) == 0; distance *= 2) {
      for (size_t k = begin; k < begin + count; ++k) {
        if ((k - begin) / distance % 2 != 0) continue;
        const float sum = mixed[k] + mixed[k + distance];
        mixed[k + distance] = mixed[k] - mixed[k + distance];
        mixed[k] = sum;
      }
    }
  }
  return mixed;
}

TEST(AColumnOfOurOwnSchemeComesBackUnmixed) {
  constexpr size_t kColumns = 21;
  constexpr size_t kBlockBytes = 36;
  for (const size_t depth : {32, 64, 96, 128, 160, 576}) {
    const size_t row_bytes = BytesPerStoredRow(Scheme::kInt8, depth);
    CHECK_EQ(row_bytes, depth / 32 * kBlockBytes);
    std::vector<uint8_t> stored = RandomBytes(kColumns * row_bytes);
    for (size_t at = 0; at < stored.size(); at += kBlockBytes) {
      // The scale of a wide group is that of its first block.
      const size_t group = at / row_bytes * 1000 + at % row_bytes / kBlockBytes / 4;
      const float scale = 0.01f * static_cast<float>(group % 97 + 1);
      std::memcpy(&stored[at], &scale, sizeof(scale));
    }
    WeightPanels weights{Scheme::kInt8, kColumns, depth, BytesPerPanel(Scheme::kInt8, depth), nullptr};
    CHECK_EQ(weights.bytes_per_panel, 16 * (depth + (depth + 127) / 128 * 4));
    std::vector<uint8_t> panels(weights.num_panels() * weights.bytes_per_panel, 0xee);
    PackPanels(Scheme::kInt8, stored.data(), kColumns, depth, 1, 1, panels.data());
    PackPanels(Scheme::kInt8, stored.data(), kColumns, depth, 0, 1, panels.data());
    weights.bytes = panels.data();
    for (size_t n = 0; n < kColumns; ++n) {
      std::vector<float> column(depth);
      UnpackColumn(weights, n, column.data());
      CHECK(SameFloats(column, Unmixed(Dequantized(Scheme::kInt8, stored.data() + n * row_bytes, depth))));
    }
  }
}

TEST(FloatSchemesTakeAnyDepth) {
  for (const Scheme scheme : {Scheme::kF32, Scheme::kF16, Scheme::kBf16}) {
    for (const size_t depth : {1, 8, 17, 48}) {
      const std::vector<uint8_t> stored = RandomBytes(3 * BytesPerStoredRow(scheme, depth));
      WeightPanels weights{scheme, 3, depth, BytesPerPanel(scheme, depth), nullptr};
      std::vector<uint8_t> panels(weights.bytes_per_panel, 0xee);
      PackPanels(scheme, stored.data(), 3, depth, 0, 1, panels.data());
      weights.bytes = panels.data();
      std::vector<float> column(depth);
      UnpackColumn(weights, 2, column.data());
      CHECK(SameFloats(column, Dequantized(scheme, stored.data() + 2 * BytesPerStoredRow(scheme, depth), depth)));
    }
  }
}

}  // namespace
}  // namespace plait
