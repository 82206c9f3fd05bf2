// Schemes: which numbers a weight matrix is made of, and how it lies in column panels.
//
// Owns the names of the number schemes and the geometry of panels; packing is in formats/pack.h, arithmetic in
// ops/targets/gemm.cc. docs/adr/0006-number-schemes.md says why each scheme is what it is.
// Invariant: a scheme is fixed when a model is loaded and is the same for one row and for a thousand.

#ifndef PLAIT_CSRC_FORMATS_SCHEME_H_
#define PLAIT_CSRC_FORMATS_SCHEME_H_

#include <cstddef>
#include <cstdint>

namespace plait {

// Most are what files store under these names. kInt8 is our own. kIQ4, 4-bit codes of a table, and kQ8_16, bytes with a
// scale for every sixteen, are what other formats of files become without being rounded.
enum class Scheme : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kInt8,
  kQ2_K,
  kQ3_K,
  kIQ4,
  kQ8_16
};
inline constexpr size_t kNumSchemes = 16;

// Output columns of a panel: one AVX-512 register of floats, two of AVX2, four of SSE2.
inline constexpr size_t kPanelColumns = 16;

// Weights, and activations, that share a scale along K in the integer schemes of files.
inline constexpr size_t kGroupSize = 32;

// The same in our own scheme, kInt8: up to four such groups. The last of a row may have fewer.
inline constexpr size_t kWideGroupSize = 128;
inline constexpr size_t kGroupsPerWide = kWideGroupSize / kGroupSize;

// Whether rows are quantised to 8 bits before they are multiplied.
constexpr bool IsInteger(Scheme scheme) { return scheme >= Scheme::kQ8_0; }

// Whether the scales of groups are themselves small integers times a number that a block of 256 weights shares.
constexpr bool HasBlockScales(Scheme scheme) {
  return (scheme >= Scheme::kQ4_K && scheme <= Scheme::kQ6_K) || scheme == Scheme::kQ2_K || scheme == Scheme::kQ3_K;
}
inline constexpr size_t kGroupsPerBlock = 8;

// Whether every scale is a float that a part of a group has for itself.
constexpr bool HasFloatScales(Scheme scheme) { return scheme == Scheme::kIQ4 || scheme == Scheme::kQ8_16; }

// Whether groups are wide.
constexpr bool IsWide(Scheme scheme) { return scheme == Scheme::kInt8; }

// Numbers of a row that share a scale when they are multiplied with such weights; 0: they stay floats.
constexpr size_t RowGroupSize(Scheme scheme) {
  return !IsInteger(scheme) ? 0 : IsWide(scheme) ? kWideGroupSize : kGroupSize;
}

// What a row's depth is a multiple of.
constexpr size_t DepthMultiple(Scheme scheme) {
  return !IsInteger(scheme) ? 1 : HasBlockScales(scheme) ? kGroupsPerBlock * kGroupSize : kGroupSize;
}

// A matrix [columns, depth] (a Linear's [N, K]) packed into panels of kPanelColumns output columns each. Columns behind
// `columns` in the last panel are zero.
struct WeightPanels {
  Scheme scheme = Scheme::kF32;
  size_t columns = 0;
  size_t depth = 0;
  size_t bytes_per_panel = 0;
  const uint8_t* bytes = nullptr;  // 64-byte aligned

  size_t num_panels() const { return (columns + kPanelColumns - 1) / kPanelColumns; }
  const uint8_t* panel(size_t index) const { return bytes + index * bytes_per_panel; }
};

// A group of a row, quantised for the integer schemes: x[k] ~ scale * values[k], values in [-127, 127]. What the
// kernels need of it beside the values lies with them, so that one address per row reaches it all. The parts of a wide
// group follow each other; scale, total and sum are those of the whole of it, in every part.
struct QuantizedGroup {
  int8_t values[kGroupSize];
  float scale;
  float total;  // scale times the sum of all values, rounded once: what minima are multiplied by
  int32_t sum;  // of all values, and of the first half, times kSumFactor: what zeros are multiplied by
  int32_t first_sum;
};

// Minus the largest zero of the schemes; the others are smaller powers of two.
inline constexpr int32_t kSumFactor = -128;

// Rows of such groups, [rows][depth / 32].
struct QuantizedRows {
  QuantizedGroup* groups = nullptr;
  size_t depth = 0;
  size_t group_size = kGroupSize;  // numbers that share a scale: kGroupSize or kWideGroupSize

  size_t groups_per_row() const { return depth / kGroupSize; }
  QuantizedRows from_row(size_t row) const { return {groups + row * groups_per_row(), depth, group_size}; }
};

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_SCHEME_H_
