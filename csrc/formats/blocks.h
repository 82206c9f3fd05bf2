// Blocks of weights as GGUF files store them: one group of one row at a time, taken apart.
//
// Owns the bits of every integer format, and of those that exist on the way from a file to panels only, blocks of 32
// behind f32 scales: our own, kInt8, whose scale is that of the wide group that a block is a part of, kIQ4 and kQ8_16.
// Knows nothing about panels and computes nothing. src/plait/weights/formats.py says the same in NumPy. Invariant:
// nothing is rounded; codes are unsigned, formats/panel_layout.h.

#ifndef PLAIT_CSRC_FORMATS_BLOCKS_H_
#define PLAIT_CSRC_FORMATS_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/panel_layout.h"
#include "formats/scheme.h"

namespace plait {

// Bytes of DepthMultiple(scheme) weights.
constexpr size_t BlockBytes(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ8_0:
      return 34;
    case Scheme::kQ4_0:
      return 18;
    case Scheme::kQ4_1:
      return 20;
    case Scheme::kQ5_0:
      return 22;
    case Scheme::kQ5_1:
      return 24;
    case Scheme::kQ2_K:
      return 84;
    case Scheme::kQ3_K:
      return 110;
    case Scheme::kQ4_K:
      return 144;
    case Scheme::kQ5_K:
      return 176;
    case Scheme::kQ6_K:
      return 210;
    case Scheme::kInt8:
      return 36;
    case Scheme::kIQ4:
      return 20;
    case Scheme::kQ8_16:
      return 40;
    case Scheme::kF32:
      return 4;
    default:
      return 2;
  }
}

// Where a block's halves, scale and minimum, begin.
constexpr size_t FirstHalf(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ2_K:
      return 80;
    case Scheme::kQ3_K:
      return 108;
    case Scheme::kQ6_K:
      return 208;
    default:
      return 0;
  }
}

// 32 weights of a column. Byte b of quads[i] is weight 4 i + b.
struct StoredGroup {
  uint32_t quads[kQuadsPerGroup];
  uint16_t halves[2];  // scale and minimum; with block scales, those of the block
  uint8_t sub_scales[4];
  float float_scales[2];  // of the spans, or of the wide group that this is a part of
};

inline constexpr uint32_t kLowNibbles = 0x0f0f0f0fu;

inline uint32_t QuadAt(const uint8_t* at) {
  uint32_t quad;
  std::memcpy(&quad, at, sizeof(quad));
  return quad;
}

// Q4_0 and the like: low nibbles are weights 0-15, high nibbles 16-31.
inline void ReadNibbles(const uint8_t* at, StoredGroup& group) {
  for (size_t i = 0; i < 4; ++i) {
    group.quads[i] = QuadAt(at + 4 * i) & kLowNibbles;
    group.quads[i + 4] = QuadAt(at + 4 * i) >> 4 & kLowNibbles;
  }
}

// Bit k of the word at `at` is bit 4 of weight k.
inline void AddFifthBits(const uint8_t* at, StoredGroup& group) {
  const uint32_t bits = QuadAt(at);
  // Four bits are copied to distances of 7, so that bit b of the four is at bit 8 b.
  for (size_t i = 0; i < kQuadsPerGroup; ++i) {
    group.quads[i] |= ((bits >> 4 * i & 15u) * 0x00204081u & 0x01010101u) << 4;
  }
}

// Q4_K and Q5_K: scale and minimum of group g in six bits. Those of the last four groups have their upper two bits
// above those of the first four.
inline void ReadSixBits(const uint8_t* packed, size_t g, StoredGroup& group) {
  if (g < 4) {
    group.sub_scales[0] = packed[g] & 63;
    group.sub_scales[1] = packed[g + 4] & 63;
  } else {
    group.sub_scales[0] = static_cast<uint8_t>((packed[g + 4] & 15) | packed[g - 4] >> 6 << 4);
    group.sub_scales[1] = static_cast<uint8_t>(packed[g + 4] >> 4 | packed[g] >> 6 << 4);
  }
}

// Q4_K and Q5_K: 32 bytes hold one group in their low nibbles and the next in their high nibbles.
inline void ReadPairedNibbles(const uint8_t* nibbles, size_t g, StoredGroup& group) {
  const uint8_t* at = nibbles + g / 2 * kGroupSize;
  for (size_t i = 0; i < kQuadsPerGroup; ++i) group.quads[i] = QuadAt(at + 4 * i) >> g % 2 * 4 & kLowNibbles;
}

// Numbers of two bits of group g: four groups share 32 bytes.
inline void ReadPairs(const uint8_t* pairs, size_t g, StoredGroup& group) {
  const uint8_t* at = pairs + g / 4 * kGroupSize;
  for (size_t i = 0; i < kQuadsPerGroup; ++i) group.quads[i] = QuadAt(at + 4 * i) >> g % 4 * 2 & 0x03030303u;
}

inline void ReadQ2K(const uint8_t* block, size_t g, StoredGroup& group) {
  ReadPairs(block + 16, g, group);
  for (size_t s = 0; s < 2; ++s) {
    group.sub_scales[s] = block[2 * g + s] & 15;
    group.sub_scales[2 + s] = block[2 * g + s] >> 4;
  }
}

inline void ReadQ3K(const uint8_t* block, size_t g, StoredGroup& group) {
  ReadPairs(block + 32, g, group);
  for (size_t i = 0; i < kQuadsPerGroup; ++i) group.quads[i] |= (QuadAt(block + 4 * i) >> g & 0x01010101u) << 2;
  const uint8_t* packed = block + 96;
  for (size_t s = 0; s < 2; ++s) {
    const size_t index = 2 * g + s;
    const int low = packed[index % 8] >> index / 8 * 4 & 15;
    const int upper = packed[8 + index % 4] >> index / 4 * 2 & 3;
    group.sub_scales[s] = static_cast<uint8_t>(low + upper * 16 - 32);
  }
}

inline void ReadQ6K(const uint8_t* block, size_t g, StoredGroup& group) {
  const size_t half = g / 4;
  const size_t of_half = g % 4;
  const uint8_t* nibbles = block + half * 64 + of_half % 2 * 32;
  const uint8_t* upper = block + 128 + half * 32;
  for (size_t i = 0; i < kQuadsPerGroup; ++i) {
    const uint32_t low = QuadAt(nibbles + 4 * i) >> of_half / 2 * 4 & kLowNibbles;
    group.quads[i] = low | (QuadAt(upper + 4 * i) >> of_half * 2 & 0x03030303u) << 4;
  }
  std::memcpy(group.sub_scales, block + 192 + 2 * g, 2);
}

// Group `index` of a row.
template <Scheme kScheme>
inline StoredGroup ReadGroup(const uint8_t* row, size_t index) {
  constexpr size_t kGroups = DepthMultiple(kScheme) / kGroupSize;
  constexpr size_t kFloats = IsWide(kScheme) ? 1 : FloatScaleBytes(kScheme) / sizeof(float);
  constexpr size_t kFirstCode = kFloats > 0 ? kFloats * sizeof(float) : NumHalves(kScheme) * 2;
  const uint8_t* block = row + index / kGroups * BlockBytes(kScheme);
  const size_t g = index % kGroups;
  StoredGroup group = {};
  if constexpr (kFloats > 0) {
    std::memcpy(group.float_scales, block, kFloats * sizeof(float));
  } else {
    std::memcpy(group.halves, block + FirstHalf(kScheme), NumHalves(kScheme) * 2);
  }
  if constexpr (IsWholeBytes(kScheme)) {
    for (size_t i = 0; i < kQuadsPerGroup; ++i) group.quads[i] = QuadAt(block + kFirstCode + 4 * i) ^ 0x80808080u;
  } else if constexpr (kScheme == Scheme::kQ4_0 || kScheme == Scheme::kQ4_1 || IsTable(kScheme)) {
    ReadNibbles(block + kFirstCode, group);
  } else if constexpr (kScheme == Scheme::kQ5_0 || kScheme == Scheme::kQ5_1) {
    ReadNibbles(block + kFirstCode + 4, group);
    AddFifthBits(block + kFirstCode, group);
  } else if constexpr (kScheme == Scheme::kQ2_K) {
    ReadQ2K(block, g, group);
  } else if constexpr (kScheme == Scheme::kQ3_K) {
    ReadQ3K(block, g, group);
  } else if constexpr (kScheme == Scheme::kQ6_K) {
    ReadQ6K(block, g, group);
  } else {
    constexpr size_t kFirstNibble = kScheme == Scheme::kQ5_K ? 48 : 16;
    ReadSixBits(block + kFirstCode, g, group);
    ReadPairedNibbles(block + kFirstNibble, g, group);
    if constexpr (kScheme == Scheme::kQ5_K) {
      for (size_t i = 0; i < kQuadsPerGroup; ++i) {
        group.quads[i] |= (QuadAt(block + 16 + 4 * i) >> g & 0x01010101u) << 4;
      }
    }
  }
  return group;
}

// A column that does not exist: weights of zero. A table has no zero; the scale makes one.
template <Scheme kScheme>
inline StoredGroup EmptyGroup() {
  StoredGroup group = {};
  constexpr uint32_t kCode = IsTable(kScheme) ? 8 : static_cast<uint32_t>(ZeroCode(kScheme));
  for (uint32_t& quad : group.quads) quad = kCode * 0x01010101u;
  return group;
}

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_BLOCKS_H_
