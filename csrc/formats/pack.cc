// Packing of column panels, and the way back for single columns.
//
// Owns the bytes of a panel, which are, for panel columns j = 0 .. 15:
//   kF32, kF16, kBf16   [depth][16]: weight k of column j
//   kQ8_0               [depth / 32][8][16][4]: 128 + weight 4 i + b of column j's group at [i][j][b]; scales
//   kQ4_0, kQ4_1        [depth / 32][4][16][4]: byte 4 i + b of column j's block, as stored: its low nibble is weight
//                       4 i + b, its high nibble weight 16 + 4 i + b; scales; kQ4_1: minima
// with scales, and then minima, halves [depth / 32][16]; zeros up to a multiple of 64 bytes. So four weights of each
// column lie where an instruction multiplies and adds bytes by fours.
// Invariant: nothing is rounded; see formats/pack.h.

#include "formats/pack.h"

#include <algorithm>
#include <cstring>

#include "formats/half.h"

namespace plait {
namespace {

constexpr size_t kPanelAlignment = 64;
constexpr size_t kScaleBytes = 2;

// Weights of one group of one column, as stored and as packed: Q8_0's 32 bytes, Q4's 16.
constexpr size_t CodeBytes(Scheme scheme) { return scheme == Scheme::kQ8_0 ? kGroupSize : kGroupSize / 2; }

// Halves that precede the codes in a stored block.
constexpr size_t NumHalves(Scheme scheme) { return scheme == Scheme::kQ4_1 ? 2 : 1; }

constexpr size_t BlockBytes(Scheme scheme) { return NumHalves(scheme) * kScaleBytes + CodeBytes(scheme); }

constexpr size_t FloatBytes(Scheme scheme) { return scheme == Scheme::kF32 ? 4 : 2; }

// Added to every byte: a stored int8 becomes unsigned.
constexpr uint32_t Flip(Scheme scheme) { return scheme == Scheme::kQ8_0 ? 0x80808080u : 0u; }

// What a column that does not exist holds; its scale is zero.
constexpr uint32_t EmptyWord(Scheme scheme) {
  return scheme == Scheme::kQ8_0 ? 0x80808080u : scheme == Scheme::kQ4_0 ? 0x88888888u : 0u;
}

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

template <Scheme kScheme>
void PackGroups(const uint8_t* stored, size_t columns, size_t depth, uint8_t* panel) {
  constexpr size_t kWords = CodeBytes(kScheme) / 4;
  const size_t groups = depth / kGroupSize;
  const size_t row_bytes = groups * BlockBytes(kScheme);
  uint32_t* codes = reinterpret_cast<uint32_t*>(panel);
  uint16_t* halves = reinterpret_cast<uint16_t*>(panel + groups * kPanelColumns * CodeBytes(kScheme));
  for (size_t g = 0; g < groups; ++g) {
    for (size_t j = 0; j < kPanelColumns; ++j) {
      uint32_t words[kWords];
      uint16_t block_halves[NumHalves(kScheme)] = {};
      if (j < columns) {
        const uint8_t* block = stored + j * row_bytes + g * BlockBytes(kScheme);
        std::memcpy(block_halves, block, sizeof(block_halves));
        std::memcpy(words, block + sizeof(block_halves), sizeof(words));
        for (uint32_t& word : words) word ^= Flip(kScheme);
      } else {
        std::fill(words, words + kWords, EmptyWord(kScheme));
      }
      for (size_t i = 0; i < kWords; ++i) codes[(g * kWords + i) * kPanelColumns + j] = words[i];
      for (size_t h = 0; h < NumHalves(kScheme); ++h) halves[(h * groups + g) * kPanelColumns + j] = block_halves[h];
    }
  }
}

void PackPanel(Scheme scheme, const uint8_t* stored, size_t columns, size_t depth, uint8_t* panel) {
  switch (scheme) {
    case Scheme::kF32:
      return PackFloats<uint32_t>(stored, columns, depth, panel);
    case Scheme::kF16:
    case Scheme::kBf16:
      return PackFloats<uint16_t>(stored, columns, depth, panel);
    case Scheme::kQ8_0:
      return PackGroups<Scheme::kQ8_0>(stored, columns, depth, panel);
    case Scheme::kQ4_0:
      return PackGroups<Scheme::kQ4_0>(stored, columns, depth, panel);
    case Scheme::kQ4_1:
      return PackGroups<Scheme::kQ4_1>(stored, columns, depth, panel);
  }
}

size_t UsedBytes(Scheme scheme, size_t depth) {
  if (!IsInteger(scheme)) return depth * kPanelColumns * FloatBytes(scheme);
  return depth / kGroupSize * kPanelColumns * BlockBytes(scheme);
}

void UnpackGroups(const WeightPanels& weights, const uint8_t* panel, size_t j, float* out) {
  const Scheme scheme = weights.scheme;
  const size_t groups = weights.depth / kGroupSize;
  const size_t num_words = CodeBytes(scheme) / 4;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel + groups * kPanelColumns * CodeBytes(scheme));
  const int zero = scheme == Scheme::kQ8_0 ? 128 : scheme == Scheme::kQ4_0 ? 8 : 0;
  for (size_t g = 0; g < groups; ++g) {
    const float scale = HalfToFloat(halves[g * kPanelColumns + j]);
    float* group = out + g * kGroupSize;
    for (size_t i = 0; i < num_words; ++i) {
      const uint8_t* word = panel + ((g * num_words + i) * kPanelColumns + j) * 4;
      for (size_t b = 0; b < 4; ++b) {
        if (scheme == Scheme::kQ8_0) {
          group[4 * i + b] = scale * static_cast<float>(word[b] - zero);
        } else {
          group[4 * i + b] = scale * static_cast<float>((word[b] & 15) - zero);
          group[16 + 4 * i + b] = scale * static_cast<float>((word[b] >> 4) - zero);
        }
      }
    }
    if (scheme != Scheme::kQ4_1) continue;
    const float minimum = HalfToFloat(halves[(groups + g) * kPanelColumns + j]);
    for (size_t k = 0; k < kGroupSize; ++k) group[k] += minimum;
  }
}

}  // namespace

size_t BytesPerPanel(Scheme scheme, size_t depth) {
  return (UsedBytes(scheme, depth) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
}

size_t BytesPerStoredRow(Scheme scheme, size_t depth) {
  return IsInteger(scheme) ? depth / kGroupSize * BlockBytes(scheme) : depth * FloatBytes(scheme);
}

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
  if (IsInteger(weights.scheme)) return UnpackGroups(weights, panel, j, out);
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
