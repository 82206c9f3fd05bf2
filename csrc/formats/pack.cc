// Packing of column panels, and the way back for single columns.
//
// Owns the bytes of a panel. Floats lie as [depth][16]: weight k of column j; the integer schemes as
// formats/panel_layout.h says. Both end with zeros up to a multiple of 64 bytes.
// Invariant: nothing is rounded; see formats/pack.h.

#include "formats/pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats/blocks.h"
#include "formats/half.h"
#include "formats/iq4_table.h"
#include "formats/mixing.h"
#include "formats/panel_layout.h"

namespace plait {
namespace {

constexpr size_t kPanelAlignment = 64;

// Bytes of the codes of one group of all columns.
constexpr size_t GroupCodeBytes(Scheme scheme) { return LinesPerGroup(scheme) * kCodeLineBytes; }

// Of scales and all that belongs to them.
constexpr size_t ScaleBytes(Scheme scheme, size_t groups) {
  if (IsWide(scheme)) return kPanelColumns * NumWideGroups(groups * kGroupSize) * sizeof(float);
  if (HasFloatScales(scheme)) return kPanelColumns * groups * FloatScaleBytes(scheme);
  const size_t halves = HasBlockScales(scheme) ? groups / kGroupsPerBlock : groups;
  return kPanelColumns * (groups * NumSubScales(scheme) + halves * NumHalves(scheme) * sizeof(uint16_t));
}

// Where half h of group g of the first column is, in halves.
constexpr size_t HalfIndex(Scheme scheme, size_t groups, size_t g, size_t h) {
  const size_t place = HasBlockScales(scheme) ? g / kGroupsPerBlock * NumHalves(scheme) + h : h * groups + g;
  return place * kPanelColumns;
}

// Where the scale of the wide group with group g is, in floats.
constexpr size_t WideIndex(size_t g) { return g / kGroupsPerWide * kPanelColumns; }

template <typename Word>
void PackFloats(const uint8_t* stored, size_t columns, size_t depth, uint8_t* panel) {
  Word* words = reinterpret_cast<Word*>(panel);
  std::memset(panel, 0, depth * kPanelColumns * sizeof(Word));
  // 16 columns by 16 weights at a time, so that whole cache lines are read and written.
  for (size_t begin = 0; begin < depth; begin += 16) {
    const size_t end = std::min(depth, begin + 16);
    for (size_t j = 0; j < columns; ++j) {
      const uint8_t* row = stored + j * depth * sizeof(Word);
      for (size_t k = begin; k < end; ++k) {
        std::memcpy(&words[k * kPanelColumns + j], row + k * sizeof(Word), sizeof(Word));
      }
    }
  }
}

constexpr uint32_t UpperMask(Scheme scheme) { return HighBits(scheme) == 2 ? 0x03030303u : 0x01010101u; }

// Codes of one column's group into the lines of all columns.
template <Scheme kScheme>
void PutCodes(const StoredGroup& group, size_t j, uint8_t* lines) {
  uint32_t* words = reinterpret_cast<uint32_t*>(lines) + j;
  if constexpr (IsWholeBytes(kScheme)) {
    for (size_t i = 0; i < kQuadsPerGroup; ++i) words[i * kPanelColumns] = group.quads[i];
    return;
  }
  for (size_t i = 0; i < NumCodeLines(kScheme); ++i) {
    const uint32_t low = group.quads[LowQuad(kScheme, i)] & kLowNibbles;
    words[i * kPanelColumns] = low | (group.quads[HighQuad(kScheme, i)] & kLowNibbles) << 4;
  }
  constexpr size_t kQuadsPerLine = HighBits(kScheme) == 0 ? 1 : 8 / HighBits(kScheme);
  for (size_t line = 0; line < HighBits(kScheme); ++line) {
    uint32_t word = 0;
    for (size_t q = 0; q < kQuadsPerLine; ++q) {
      // In two steps: at -O1 GCC 12's sanitizer of shifts loses the value of one that is shifted again.
      const uint32_t upper = group.quads[line * kQuadsPerLine + q] >> 4 & UpperMask(kScheme);
      const size_t first_bit = q * HighBits(kScheme);
      word |= upper << first_bit;
    }
    words[(NumCodeLines(kScheme) + line) * kPanelColumns] = word;
  }
}

template <Scheme kScheme>
void PackGroups(const uint8_t* stored, size_t columns, size_t depth, uint8_t* panel) {
  const size_t groups = depth / kGroupSize;
  const size_t row_bytes = depth / DepthMultiple(kScheme) * BlockBytes(kScheme);
  uint8_t* sub_scales = panel + groups * GroupCodeBytes(kScheme);
  uint16_t* halves = reinterpret_cast<uint16_t*>(sub_scales + groups * NumSubScales(kScheme) * kPanelColumns);
  for (size_t g = 0; g < groups; ++g) {
    for (size_t j = 0; j < kPanelColumns; ++j) {
      const StoredGroup group = j < columns ? ReadGroup<kScheme>(stored + j * row_bytes, g) : EmptyGroup<kScheme>();
      PutCodes<kScheme>(group, j, panel + g * GroupCodeBytes(kScheme));
      if constexpr (IsWide(kScheme)) {
        reinterpret_cast<float*>(sub_scales)[WideIndex(g) + j] = group.float_scales[0];
        continue;
      }
      if constexpr (HasFloatScales(kScheme)) {
        float* scales = reinterpret_cast<float*>(sub_scales) + g * NumSpans(kScheme) * kPanelColumns + j;
        for (size_t s = 0; s < NumSpans(kScheme); ++s) scales[s * kPanelColumns] = group.float_scales[s];
        continue;
      }
      for (size_t h = 0; h < NumHalves(kScheme); ++h) halves[HalfIndex(kScheme, groups, g, h) + j] = group.halves[h];
      for (size_t s = 0; s < NumSubScales(kScheme); ++s) {
        sub_scales[(g * NumSubScales(kScheme) + s) * kPanelColumns + j] = group.sub_scales[s];
      }
    }
  }
}

// Calls body with the integer scheme as a constant.
template <typename Body>
void WithConstant(Scheme scheme, const Body& body) {
  switch (scheme) {
    case Scheme::kQ8_0:
      return body(std::integral_constant<Scheme, Scheme::kQ8_0>());
    case Scheme::kQ4_0:
      return body(std::integral_constant<Scheme, Scheme::kQ4_0>());
    case Scheme::kQ4_1:
      return body(std::integral_constant<Scheme, Scheme::kQ4_1>());
    case Scheme::kQ5_0:
      return body(std::integral_constant<Scheme, Scheme::kQ5_0>());
    case Scheme::kQ5_1:
      return body(std::integral_constant<Scheme, Scheme::kQ5_1>());
    case Scheme::kQ4_K:
      return body(std::integral_constant<Scheme, Scheme::kQ4_K>());
    case Scheme::kQ5_K:
      return body(std::integral_constant<Scheme, Scheme::kQ5_K>());
    case Scheme::kQ6_K:
      return body(std::integral_constant<Scheme, Scheme::kQ6_K>());
    case Scheme::kInt8:
      return body(std::integral_constant<Scheme, Scheme::kInt8>());
    case Scheme::kQ2_K:
      return body(std::integral_constant<Scheme, Scheme::kQ2_K>());
    case Scheme::kQ3_K:
      return body(std::integral_constant<Scheme, Scheme::kQ3_K>());
    case Scheme::kIQ4:
      return body(std::integral_constant<Scheme, Scheme::kIQ4>());
    case Scheme::kQ8_16:
      return body(std::integral_constant<Scheme, Scheme::kQ8_16>());
    default:
      return;
  }
}

void PackPanel(Scheme scheme, const uint8_t* stored, size_t columns, size_t depth, uint8_t* panel) {
  if (scheme == Scheme::kF32) return PackFloats<uint32_t>(stored, columns, depth, panel);
  if (!IsInteger(scheme)) return PackFloats<uint16_t>(stored, columns, depth, panel);
  WithConstant(scheme, [&](auto constant) { PackGroups<constant()>(stored, columns, depth, panel); });
}

size_t UsedBytes(Scheme scheme, size_t depth) {
  if (!IsInteger(scheme)) return depth * kPanelColumns * BlockBytes(scheme);
  const size_t groups = depth / kGroupSize;
  return groups * GroupCodeBytes(scheme) + ScaleBytes(scheme, groups);
}

// Codes of quad q of the column whose first word of a line is words[0].
template <Scheme kScheme>
uint32_t QuadOf(const uint32_t* words, size_t q) {
  if constexpr (IsWholeBytes(kScheme)) return words[q * kPanelColumns];
  const uint32_t nibbles = words[LineOfQuad(kScheme, q) * kPanelColumns];
  const uint32_t low = nibbles >> (IsHighQuad(kScheme, q) ? 4 : 0) & kLowNibbles;
  if constexpr (HighBits(kScheme) == 0) return low;
  const size_t bit = q * HighBits(kScheme);
  const uint32_t upper = words[(NumCodeLines(kScheme) + bit / 8) * kPanelColumns] >> bit % 8;
  return low | (upper & UpperMask(kScheme)) << 4;
}

// Scales and minima of a column's group, one of each for every span.
struct ColumnGroup {
  float scales[2] = {};
  float minima[2] = {};
};

// `behind` is what lies behind the codes of a panel, for column j.
template <Scheme kScheme>
ColumnGroup ScalesOf(const uint8_t* behind, size_t groups, size_t g, size_t j) {
  ColumnGroup group;
  const float* floats = reinterpret_cast<const float*>(behind) + j;
  if constexpr (IsWide(kScheme)) {
    group.scales[0] = group.scales[1] = floats[WideIndex(g)];
    return group;
  }
  constexpr size_t kSpans = NumSpans(kScheme);
  if constexpr (HasFloatScales(kScheme)) {
    for (size_t s = 0; s < 2; ++s) group.scales[s] = floats[(g * kSpans + s % kSpans) * kPanelColumns];
    return group;
  }
  const uint8_t* sub = behind + g * NumSubScales(kScheme) * kPanelColumns + j;
  const auto* halves = reinterpret_cast<const uint16_t*>(behind + groups * NumSubScales(kScheme) * kPanelColumns) + j;
  for (size_t s = 0; s < 2; ++s) {
    group.scales[s] = HalfToFloat(halves[HalfIndex(kScheme, groups, g, 0)]);
    if constexpr (HasMinima(kScheme)) group.minima[s] = HalfToFloat(halves[HalfIndex(kScheme, groups, g, 1)]);
    if constexpr (HasBlockScales(kScheme)) {
      const uint8_t scale = sub[s % kSpans * kPanelColumns];
      group.scales[s] *= kSpans == 2 ? static_cast<float>(static_cast<int8_t>(scale)) : static_cast<float>(scale);
      if constexpr (HasMinima(kScheme)) {
        group.minima[s] = -(group.minima[s] * static_cast<float>(sub[(kSpans + s % kSpans) * kPanelColumns]));
      }
    }
  }
  return group;
}

template <Scheme kScheme>
void UnpackGroups(const WeightPanels& weights, const uint8_t* panel, size_t j, float* out) {
  const size_t groups = weights.depth / kGroupSize;
  for (size_t g = 0; g < groups; ++g) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(panel + g * GroupCodeBytes(kScheme)) + j;
    const ColumnGroup group = ScalesOf<kScheme>(panel + groups * GroupCodeBytes(kScheme), groups, g, j);
    for (size_t q = 0; q < kQuadsPerGroup; ++q, out += 4) {
      const uint32_t quad = QuadOf<kScheme>(words, q);
      for (size_t b = 0; b < 4; ++b) {
        const uint32_t stored = quad >> 8 * b & 255;
        const int32_t code = IsTable(kScheme) ? kIq4Numbers[stored] : static_cast<int32_t>(stored);
        out[b] = group.scales[q / 4] * static_cast<float>(code - ZeroCode(kScheme));
        if constexpr (HasMinima(kScheme)) out[b] += group.minima[q / 4];
      }
    }
  }
}

// Weights of a column of our own scheme, as they were before they were mixed (but for the rounding).
void Unmix(float* column, size_t depth) {
  for (size_t begin = 0; begin < depth; begin += kWideGroupSize) {
    const size_t count = std::min(kWideGroupSize, depth - begin);
    for (size_t step = kLeastMixed; step < MixedNumbers(count); step *= 2) {
      for (size_t k = 0; k < count; ++k) {
        if (k / step % 2 != 0) continue;
        float* at = column + begin + k;
        const float a = at[0], b = at[step];
        at[0] = a + b;
        at[step] = a - b;
      }
    }
  }
}

}  // namespace

size_t BytesPerPanel(Scheme scheme, size_t depth) {
  return (UsedBytes(scheme, depth) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
}

size_t BytesPerStoredRow(Scheme scheme, size_t depth) { return depth / DepthMultiple(scheme) * BlockBytes(scheme); }

void PackPanels(Scheme scheme, const uint8_t* stored, size_t columns, size_t depth, size_t first_panel,
                size_t num_panels, uint8_t* panels) {
  const size_t panel_bytes = BytesPerPanel(scheme, depth);
  const size_t used_bytes = UsedBytes(scheme, depth);
  for (size_t index = first_panel; index < first_panel + num_panels; ++index) {
    const size_t first_column = index * kPanelColumns;
    uint8_t* panel = panels + index * panel_bytes;
    PackPanel(scheme, stored + first_column * BytesPerStoredRow(scheme, depth),
              std::min(kPanelColumns, columns - first_column), depth, panel);
    std::memset(panel + used_bytes, 0, panel_bytes - used_bytes);
  }
}

void UnpackColumn(const WeightPanels& weights, size_t column, float* out) {
  const uint8_t* panel = weights.panel(column / kPanelColumns);
  const size_t j = column % kPanelColumns;
  if (IsInteger(weights.scheme)) {
    WithConstant(weights.scheme, [&](auto constant) { UnpackGroups<constant()>(weights, panel, j, out); });
    if (IsWide(weights.scheme)) Unmix(out, weights.depth);
    return;
  }
  for (size_t k = 0; k < weights.depth; ++k) {
    const size_t index = k * kPanelColumns + j;
    if (weights.scheme == Scheme::kF32) {
      out[k] = reinterpret_cast<const float*>(panel)[index];
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(panel)[index];
      out[k] = weights.scheme == Scheme::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
    }
  }
}

}  // namespace plait
