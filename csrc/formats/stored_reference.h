// Weights of stored rows one by one, from the definitions of the formats: what tests compare with.
//
// Owns a second account of every format's bits, as plain as can be. For tests alone; shares no code with
// formats/blocks.h. Invariant: a weight is scale * number + minimum, with the scale and the minimum rounded as the
// format means them.

#ifndef PLAIT_CSRC_FORMATS_STORED_REFERENCE_H_
#define PLAIT_CSRC_FORMATS_STORED_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/half.h"
#include "formats/scheme.h"

namespace plait::testing {

struct StoredWeight {
  int number = 0;
  float scale = 0.0f;
  float minimum = 0.0f;
  bool has_minimum = false;

  float value() const {
    const float product = scale * static_cast<float>(number);
    return has_minimum ? product + minimum : product;
  }
};

inline float StoredHalf(const uint8_t* at) { return HalfToFloat(static_cast<uint16_t>(at[0] | at[1] << 8)); }

inline int Nibble(const uint8_t* bytes, size_t k) { return k < 16 ? bytes[k] & 15 : bytes[k - 16] >> 4; }

// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1: blocks of 32.
inline StoredWeight SmallBlockWeight(Scheme scheme, const uint8_t* row, size_t k) {
  const size_t in_block = k % 32;
  const auto block = [&](size_t bytes) { return row + k / 32 * bytes; };
  const auto fifth = [&](const uint8_t* bits) { return (bits[in_block / 8] >> in_block % 8 & 1) * 16; };
  const uint8_t* at;
  switch (scheme) {
    case Scheme::kQ8_0:
      at = block(34);
      return {static_cast<int8_t>(at[2 + in_block]), StoredHalf(at)};
    case Scheme::kQ4_0:
      at = block(18);
      return {Nibble(at + 2, in_block) - 8, StoredHalf(at)};
    case Scheme::kQ4_1:
      at = block(20);
      return {Nibble(at + 4, in_block), StoredHalf(at), StoredHalf(at + 2), true};
    case Scheme::kQ5_0:
      at = block(22);
      return {Nibble(at + 6, in_block) + fifth(at + 2) - 16, StoredHalf(at)};
    default:
      at = block(24);
      return {Nibble(at + 8, in_block) + fifth(at + 4), StoredHalf(at), StoredHalf(at + 2), true};
  }
}

// Q2_K: 16 bytes of scale and minimum, 64 of numbers, two halves.
inline StoredWeight TwoBitWeight(const uint8_t* row, size_t k) {
  const uint8_t* block = row + k / 256 * 84;
  const size_t in_block = k % 256;
  const int number = block[16 + in_block / 128 * 32 + in_block % 32] >> in_block % 128 / 32 * 2 & 3;
  const uint8_t both = block[in_block / 16];
  return {number, StoredHalf(block + 80) * static_cast<float>(both % 16),
          -(StoredHalf(block + 82) * static_cast<float>(both / 16)), true};
}

// Q3_K: 32 bytes of upper bits, 64 of lower ones, 12 of scales, a half.
inline StoredWeight ThreeBitWeight(const uint8_t* row, size_t k) {
  const uint8_t* block = row + k / 256 * 110;
  const size_t in_block = k % 256;
  const int low = block[32 + in_block / 128 * 32 + in_block % 32] >> in_block % 128 / 32 * 2 & 3;
  const int high = block[in_block % 32] >> in_block / 32 & 1;
  const size_t sixteen = in_block / 16;
  const uint8_t nibbles = block[96 + sixteen % 8];
  const int upper = block[104 + sixteen % 4] >> sixteen / 4 * 2 & 3;
  const int scale = (sixteen < 8 ? nibbles % 16 : nibbles / 16) + 16 * upper - 32;
  return {low + 4 * high - 4, StoredHalf(block + 108) * static_cast<float>(scale)};
}

// Q4_K, Q5_K and Q6_K: blocks of 256.
inline StoredWeight LargeBlockWeight(Scheme scheme, const uint8_t* row, size_t k) {
  const size_t in_block = k % 256;
  const size_t g = in_block / 32;
  if (scheme == Scheme::kQ6_K) {
    const uint8_t* block = row + k / 256 * 210;
    const size_t of_half = in_block % 128;
    const uint8_t low = block[in_block / 128 * 64 + of_half % 64];
    const uint8_t high = block[128 + in_block / 128 * 32 + of_half % 32];
    const int number = (of_half < 64 ? low & 15 : low >> 4) + (high >> of_half / 32 * 2 & 3) * 16 - 32;
    const float scale = static_cast<float>(static_cast<int8_t>(block[192 + in_block / 16]));
    return {number, StoredHalf(block + 208) * scale};
  }
  const uint8_t* block = row + k / 256 * (scheme == Scheme::kQ4_K ? 144 : 176);
  const uint8_t* six = block + 4;
  const int scale = g < 4 ? six[g] % 64 : six[g + 4] % 16 + six[g - 4] / 64 * 16;
  const int minimum = g < 4 ? six[g + 4] % 64 : six[g + 4] / 16 + six[g] / 64 * 16;
  const uint8_t byte = block[(scheme == Scheme::kQ4_K ? 16 : 48) + g / 2 * 32 + in_block % 32];
  int number = g % 2 == 0 ? byte & 15 : byte >> 4;
  if (scheme == Scheme::kQ5_K) number += (block[16 + in_block % 32] >> g & 1) * 16;
  return {number, StoredHalf(block) * static_cast<float>(scale), -(StoredHalf(block + 2) * static_cast<float>(minimum)),
          true};
}

inline float StoredFloat(const uint8_t* at) {
  float value;
  std::memcpy(&value, at, 4);
  return value;
}

// Our own scheme: blocks of 32, whose scale is that of the 128 that they are a part of. The weight is still mixed.
inline StoredWeight WideWeight(const uint8_t* row, size_t k) {
  const uint8_t* at = row + k / 32 * 36;
  return {static_cast<int8_t>(at[4 + k % 32]), StoredFloat(at)};
}

// Behind one or two float scales, codes of the table or bytes.
inline StoredWeight FloatScaledWeight(Scheme scheme, const uint8_t* row, size_t k) {
  constexpr int kNumbers[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const size_t in_block = k % 32;
  if (scheme == Scheme::kIQ4) {
    const uint8_t* at = row + k / 32 * 20;
    return {kNumbers[Nibble(at + 4, in_block)], StoredFloat(at)};
  }
  const uint8_t* at = row + k / 32 * 40;
  return {static_cast<int8_t>(at[8 + in_block]), StoredFloat(at + in_block / 16 * 4)};
}

// Weight k of a row in an integer scheme.
inline StoredWeight WeightAt(Scheme scheme, const uint8_t* row, size_t k) {
  if (IsWide(scheme)) return WideWeight(row, k);
  if (HasFloatScales(scheme)) return FloatScaledWeight(scheme, row, k);
  if (scheme == Scheme::kQ2_K) return TwoBitWeight(row, k);
  if (scheme == Scheme::kQ3_K) return ThreeBitWeight(row, k);
  return HasBlockScales(scheme) ? LargeBlockWeight(scheme, row, k) : SmallBlockWeight(scheme, row, k);
}

// Weight k of a row in a float scheme.
inline float FloatWeightAt(Scheme scheme, const uint8_t* row, size_t k) {
  if (scheme == Scheme::kF16) return StoredHalf(row + 2 * k);
  float weight;
  if (scheme == Scheme::kF32) {
    std::memcpy(&weight, row + 4 * k, 4);
  } else {
    const uint8_t bytes[4] = {0, 0, row[2 * k], row[2 * k + 1]};
    std::memcpy(&weight, bytes, 4);
  }
  return weight;
}

}  // namespace plait::testing

#endif  // PLAIT_CSRC_FORMATS_STORED_REFERENCE_H_
