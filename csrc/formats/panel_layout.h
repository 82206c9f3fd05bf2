// Where the weights of an integer scheme lie in a panel: lines of 64 bytes, then scales.
//
// Owns the geometry that packing and kernels share. Per group of 32, for panel columns j = 0 .. 15, lines [16][4]:
//   whole bytes (8 bits)   line i, byte [j][b] is weight 4 i + b of column j: "quad" i
//   nibbles (the others)   line i holds quad LowQuad(i) in low nibbles and quad HighQuad(i) in high nibbles; behind the
//                          four lines of nibbles, HighBits lines: bit HighBits * q + h of each column's bytes, counted
//                          through these lines by eights, is bit 4 + h of quad q
// Codes are unsigned: a weight is its code minus ZeroCode. Behind the codes of all groups come
//   plain schemes          halves [groups][16]: scales; then, with minima, the same
//   wide groups            floats [wide groups][16]: scales
//   float scales           floats [groups][spans][16]
//   block scales           bytes [groups][2 or 4][16]: scales of all spans, signed where there are two, then minima;
//                          then halves [groups / 8][1 or 2][16]: what they are multiplied by
// Invariant: these functions are used in constant expressions alone, so that no kernel file emits them.

#ifndef PLAIT_CSRC_FORMATS_PANEL_LAYOUT_H_
#define PLAIT_CSRC_FORMATS_PANEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"

namespace plait {

inline constexpr size_t kCodeLineBytes = 64;
inline constexpr size_t kQuadsPerGroup = kGroupSize / 4;

constexpr bool IsWholeBytes(Scheme scheme) {
  return scheme == Scheme::kQ8_0 || scheme == Scheme::kInt8 || scheme == Scheme::kQ8_16;
}

// Whether nibbles are places in a table, formats/iq4_table.h, where the codes are.
constexpr bool IsTable(Scheme scheme) { return scheme == Scheme::kIQ4; }

// Bits above the lower four.
constexpr size_t HighBits(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ5_0:
    case Scheme::kQ5_1:
    case Scheme::kQ5_K:
      return 1;
    case Scheme::kQ6_K:
      return 2;
    default:
      return 0;
  }
}

constexpr size_t NumCodeLines(Scheme scheme) { return IsWholeBytes(scheme) ? kQuadsPerGroup : kQuadsPerGroup / 2; }
constexpr size_t LinesPerGroup(Scheme scheme) { return NumCodeLines(scheme) + HighBits(scheme); }

// Parts of a group that have a scale each: neighbouring sixteens, or the whole group.
constexpr size_t NumSpans(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ2_K:
    case Scheme::kQ3_K:
    case Scheme::kQ6_K:
    case Scheme::kQ8_16:
      return 2;
    default:
      return 1;
  }
}

// Where a quad lies, and the other way round. Both quads of a line are of the same span.
constexpr size_t LineOfQuad(Scheme scheme, size_t quad) { return NumSpans(scheme) == 2 ? quad / 2 : quad % 4; }
constexpr bool IsHighQuad(Scheme scheme, size_t quad) { return (NumSpans(scheme) == 2 ? quad % 2 : quad / 4) != 0; }
constexpr size_t LowQuad(Scheme scheme, size_t line) { return NumSpans(scheme) == 2 ? 2 * line : line; }
constexpr size_t HighQuad(Scheme scheme, size_t line) { return NumSpans(scheme) == 2 ? 2 * line + 1 : line + 4; }

constexpr int32_t ZeroCode(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ8_0:
    case Scheme::kInt8:
    case Scheme::kIQ4:
    case Scheme::kQ8_16:
      return 128;
    case Scheme::kQ3_K:
      return 4;
    case Scheme::kQ4_0:
      return 8;
    case Scheme::kQ5_0:
      return 16;
    case Scheme::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

constexpr bool HasMinima(Scheme scheme) {
  switch (scheme) {
    case Scheme::kQ4_1:
    case Scheme::kQ5_1:
    case Scheme::kQ2_K:
    case Scheme::kQ4_K:
    case Scheme::kQ5_K:
      return true;
    default:
      return false;
  }
}

// Halves per column and group, or block.
constexpr size_t NumHalves(Scheme scheme) { return HasMinima(scheme) ? 2 : 1; }

constexpr size_t NumWideGroups(size_t depth) { return (depth + kWideGroupSize - 1) / kWideGroupSize; }

// Bytes of sub-scales per column and group.
constexpr size_t NumSubScales(Scheme scheme) {
  return HasBlockScales(scheme) ? NumSpans(scheme) * NumHalves(scheme) : 0;
}

// Bytes of floats per column and group.
constexpr size_t FloatScaleBytes(Scheme scheme) {
  return HasFloatScales(scheme) ? NumSpans(scheme) * sizeof(float) : 0;
}

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_PANEL_LAYOUT_H_
