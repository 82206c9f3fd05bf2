// Products with 8-bit to 4-bit weights: rows quantised to 8 bits, exact sums per group, scaled in f32.
//
// Owns the register tiles of the integer schemes; how a target sums one group is in gemm_sums.h. Invariant: an output
// is one chain over groups, ascending: acc = fma(sum, weight scale * row scale, acc), with minima followed by
// acc = fma(minimum, row scale * sum of the row's values, acc); all of it twice where halves of a group have scales.

#include <cstddef>
#include <cstdint>

#include "formats/panel_layout.h"
#include "formats/scheme.h"
#include "ops/targets/gemm_sums.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// A group of a panel as many tiles of rows want it: a line for every quad, and what scales and minima amount to. The
// numbers are those that a tile computes by itself from packed weights.
struct UnpackedGroup {
  alignas(kLineBytes) uint8_t codes[kQuadsPerGroup][kLineBytes];
  float scales[2][kPanelColumns];  // of the spans; minima take the place of a second span's
};

// Groups that are unpacked at a time: beside the rows of a tile, a panel's fit a cache of 32 KiB, those of two panels,
// which AVX-512 wants, one of 48 KiB.
inline constexpr size_t kUnpackedGroups = 24;
// Tiles whose sums are kept from one piece of the depth to the next.
inline constexpr size_t kStripeTiles = 32;
// Of a tile where rows make four tiles or more.
inline constexpr size_t kLeastUnpackedRows = 4;

struct Tile {
  const GemmCall* call;
  size_t panel;
  size_t first_row;
  size_t index;  // of num_tiles that share these weights
  size_t num_tiles;
  // Of a tile of unpacked weights, which are a piece of the depth:
  size_t first_group = 0;
  size_t end_group = 0;
  const UnpackedGroup* unpacked = nullptr;  // [groups of the piece][panels]
  float* unfinished = nullptr;              // [rows][columns]: the sums between two pieces
};

// Scales and minima of the columns of a panel and its neighbour, as formats/panel_layout.h lays them.
template <Scheme kScheme>
struct ColumnScales {
  const uint8_t* first;  // behind the panel's codes
  size_t groups;
  size_t panel_bytes;

  // Register c of a tile: where its columns' bytes, or halves, are from the first column's.
  static constexpr size_t Column(size_t c) { return c % kPanelRegisters * kLanes; }
  inline __attribute__((always_inline)) const uint8_t* Panel(size_t c) const {
    return first + c / kPanelRegisters * panel_bytes;
  }
  inline __attribute__((always_inline)) F32 Half(size_t c, size_t g, size_t h) const {
    size_t place;
    if constexpr (HasBlockScales(kScheme)) {
      place = g / kGroupsPerBlock * NumHalves(kScheme) + h;
    } else {
      place = h * groups + g;
    }
    const uint8_t* halves = Panel(c) + groups * NumSubScales(kScheme) * kPanelColumns;
    return LoadF16(reinterpret_cast<const uint16_t*>(halves) + place * kPanelColumns + Column(c));
  }
  inline __attribute__((always_inline)) I32 SubScale(size_t c, size_t g, size_t s) const {
    const uint8_t* at = Panel(c) + (g * NumSubScales(kScheme) + s) * kPanelColumns + Column(c);
    if constexpr (NumSpans(kScheme) == 2) return LoadInt8(reinterpret_cast<const int8_t*>(at));
    return LoadUint8(at);
  }
  // The product is exact.
  inline __attribute__((always_inline)) F32 Scale(size_t c, size_t g, size_t span) const {
    if constexpr (HasFloatScales(kScheme)) {
      const size_t place = (g * NumSpans(kScheme) + span) * kPanelColumns + Column(c);
      return Load(reinterpret_cast<const float*>(Panel(c)) + place);
    }
    if constexpr (HasBlockScales(kScheme)) return Mul(Half(c, g, 0), FloatOfInt(SubScale(c, g, span)));
    return Half(c, g, 0);
  }
  inline __attribute__((always_inline)) F32 Minimum(size_t c, size_t g, size_t span) const {
    if constexpr (!HasBlockScales(kScheme)) return Half(c, g, 1);
    // These are subtracted. Both products are exact.
    return Mul(Mul(Half(c, g, 1), FloatOfInt(SubScale(c, g, NumSpans(kScheme) + span))), Broadcast(-1.0f));
  }
  // Fetches those of group g of the panel whose codes begin at `next`, which are of the same shape.
  inline __attribute__((always_inline)) void Fetch(const uint8_t* next, size_t code_bytes, size_t g) const {
    const uint8_t* at = next + code_bytes;
    if constexpr (HasBlockScales(kScheme)) {
      AskFor(at + g * NumSubScales(kScheme) * kPanelColumns);
      at += groups * NumSubScales(kScheme) * kPanelColumns;
      AskFor(at + g / kGroupsPerBlock * NumHalves(kScheme) * 2 * kPanelColumns);
    } else if constexpr (HasFloatScales(kScheme)) {
      for (size_t s = 0; s < NumSpans(kScheme); ++s) {
        AskFor(at + (g * NumSpans(kScheme) + s) * kPanelColumns * sizeof(float));
      }
    } else {
      AskFor(at + g * kPanelColumns * 2);
      if constexpr (HasMinima(kScheme)) AskFor(at + (groups + g) * kPanelColumns * 2);
    }
  }
};

template <Scheme kScheme, bool kIsUnpacked, size_t kPanels, size_t kRows>
void MultiplyTile(const Tile& tile) {
  constexpr size_t kRegisters = kPanels * kPanelRegisters;
  constexpr size_t kGroupBytes = LinesPerGroup(kScheme) * kLineBytes;
  const GemmCall& call = *tile.call;
  const size_t groups = call.weights.depth / kGroupSize;
  const size_t panel_bytes = call.weights.bytes_per_panel;
  const uint8_t* codes = call.weights.panel(tile.panel);
  const ColumnScales<kScheme> scales{codes + groups * kGroupBytes, groups, panel_bytes};
  const uint8_t* next_codes = PanelsAfter(call, tile.panel, kPanels);
  const size_t first_group = kIsUnpacked ? tile.first_group : 0;
  const size_t end_group = kIsUnpacked ? tile.end_group : groups;
  const uint8_t* next_group = end_group < groups ? codes + end_group * kGroupBytes : next_codes;
  NextWeights next(next_group, (end_group - first_group) * LinesPerGroup(kScheme), tile.index, tile.num_tiles);
  GroupRows<kRows> rows(call.quantized.from_row(tile.first_row), first_group);
  const UnpackedGroup* unpacked = tile.unpacked;

  F32 sums[kRows][kRegisters];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) {
      sums[r][c] = Zero();
      if constexpr (kIsUnpacked) {
        if (first_group > 0) sums[r][c] = Load(tile.unfinished + (r * kRegisters + c) * kLanes);
      }
    }
  }
  for (size_t g = first_group; g < end_group; ++g) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) scales.Fetch(next_codes + p * panel_bytes, groups * kGroupBytes, g);
    ForEach<0, NumSpans(kScheme)>([&](auto index) __attribute__((always_inline)) {
      constexpr size_t kSpan = decltype(index)::kValue;
      I32 span_sums[kRows][kRegisters];
      if constexpr (kIsUnpacked) {
        SumSpan<kScheme, true, kSpan, kPanels, kRows>(unpacked->codes[0], sizeof(UnpackedGroup), next, panel_bytes,
                                                      rows, span_sums);
      } else {
        SumSpan<kScheme, false, kSpan, kPanels, kRows>(codes, panel_bytes, next, panel_bytes, rows, span_sums);
      }
      F32 column_scales[kRegisters];
#pragma GCC unroll 16
      for (size_t c = 0; c < kRegisters; ++c) {
        if constexpr (kIsUnpacked) {
          column_scales[c] = Load(unpacked[c / kPanelRegisters].scales[kSpan] + c % kPanelRegisters * kLanes);
        } else {
          column_scales[c] = scales.Scale(c, g, kSpan);
        }
      }
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const F32 scale = Broadcast(rows.Of(r).scale);
#pragma GCC unroll 16
        for (size_t c = 0; c < kRegisters; ++c) {
          sums[r][c] = Fma(FloatOfInt(span_sums[r][c]), Mul(column_scales[c], scale), sums[r][c]);
        }
      }
      if constexpr (HasMinima(kScheme)) {
        F32 minima[kRegisters];
#pragma GCC unroll 16
        for (size_t c = 0; c < kRegisters; ++c) {
          if constexpr (kIsUnpacked) {
            minima[c] = Load(unpacked[c / kPanelRegisters].scales[1] + c % kPanelRegisters * kLanes);
          } else {
            minima[c] = scales.Minimum(c, g, kSpan);
          }
        }
#pragma GCC unroll 16
        for (size_t r = 0; r < kRows; ++r) {
          const F32 total = Broadcast(SpanTotal<kScheme, kSpan>(rows.Of(r)));
#pragma GCC unroll 16
          for (size_t c = 0; c < kRegisters; ++c) sums[r][c] = Fma(minima[c], total, sums[r][c]);
        }
      }
    });
    codes += kGroupBytes;
    if constexpr (kIsUnpacked) unpacked += kPanels;
    rows.Advance();
  }
  if constexpr (kIsUnpacked) {
    if (end_group < groups) {
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (size_t c = 0; c < kRegisters; ++c) Store(tile.unfinished + (r * kRegisters + c) * kLanes, sums[r][c]);
      }
      return;
    }
  }
  StoreTile<kRows, kRegisters>(call, tile.first_row, tile.panel * kPanelColumns, sums);
}

template <Scheme kScheme, bool kIsUnpacked, size_t kPanels, size_t kLeastRows, size_t kRows>
void MultiplyRows(const Tile& tile, size_t rows) {
  if (rows == kRows) return MultiplyTile<kScheme, kIsUnpacked, kPanels, kRows>(tile);
  if constexpr (kRows > kLeastRows) {
    MultiplyRows<kScheme, kIsUnpacked, kPanels, kLeastRows, kRows - 1>(tile, rows);
  }
}

// Groups [first_group, end_group) of the panels [panel, panel + kPanels).
template <Scheme kScheme, size_t kPanels>
void UnpackGroups(const GemmCall& call, size_t panel, size_t first_group, size_t end_group, UnpackedGroup* to) {
  constexpr size_t kGroupBytes = LinesPerGroup(kScheme) * kLineBytes;
  const size_t groups = call.weights.depth / kGroupSize;
  for (size_t g = first_group; g < end_group; ++g) {
    for (size_t p = 0; p < kPanels; ++p, ++to) {
      const uint8_t* codes = call.weights.panel(panel + p);
      const ColumnScales<kScheme> scales{codes + groups * kGroupBytes, groups, 0};
      UnpackCodes<kScheme>(codes + g * kGroupBytes, to->codes[0]);
      for (size_t c = 0; c < kPanelRegisters; ++c) {
        Store(to->scales[0] + c * kLanes, scales.Scale(c, g, 0));
        if constexpr (NumSpans(kScheme) == 2) Store(to->scales[1] + c * kLanes, scales.Scale(c, g, 1));
        if constexpr (HasMinima(kScheme)) Store(to->scales[1] + c * kLanes, scales.Minimum(c, g, 0));
      }
    }
  }
}

// All rows, for the panels [panel, panel + kPanels): piece after piece of the depth is unpacked and multiplied by all
// tiles of a stripe of rows.
template <Scheme kScheme, size_t kPanels>
void MultiplyUnpacked(const GemmCall& call, size_t panel, const RowTiles& tiles) {
  constexpr size_t kTileSums = kMaxIntegerRows * kPanels * kPanelColumns;
  alignas(kLineBytes) UnpackedGroup unpacked[kUnpackedGroups * kPanels];
  alignas(kLineBytes) float unfinished[kStripeTiles * kTileSums];
  const size_t groups = call.weights.depth / kGroupSize;
  const RowTiles pieces = RowTiles::Of(groups, kUnpackedGroups);
  size_t stripe_row = 0;
  for (size_t stripe = 0; stripe < tiles.count(); stripe += kStripeTiles) {
    const size_t end = stripe + kStripeTiles < tiles.count() ? stripe + kStripeTiles : tiles.count();
    size_t group = 0;
    size_t row = stripe_row;
    for (size_t i = 0; i < pieces.count(); ++i) {
      const size_t end_group = group + pieces.rows(i);
      UnpackGroups<kScheme, kPanels>(call, panel, group, end_group, unpacked);
      row = stripe_row;
      for (size_t t = stripe; t < end; ++t) {
        const Tile tile{&call,      panel,        row,
                        t - stripe, end - stripe, group,
                        end_group,  unpacked,     unfinished + (t - stripe) * kTileSums};
        MultiplyRows<kScheme, true, kPanels, kLeastUnpackedRows, kMaxIntegerRows>(tile, tiles.rows(t));
        row += tiles.rows(t);
      }
      group = end_group;
    }
    stripe_row = row;
  }
}

// All rows, for the panels [panel, panel + kPanels).
template <Scheme kScheme, size_t kPanels>
void MultiplyPanels(const GemmCall& call, size_t panel) {
  const RowTiles tiles = RowTiles::Of(call.num_rows, kMaxIntegerRows);
  if constexpr (LeastUnpackedTiles(kScheme) != kNeverUnpacked && kPanels == kMaxIntegerPanels) {
    constexpr size_t kLeast = LeastUnpackedTiles(kScheme);
    static_assert(((kLeast - 1) * kMaxIntegerRows + 1) / kLeast >= kLeastUnpackedRows,
                  "the smallest tile there can be");
    static_assert(NumScalesPerGroup(kScheme) <= 2, "one pair of scales a group");
    if (tiles.count() >= kLeast) return MultiplyUnpacked<kScheme, kPanels>(call, panel, tiles);
  }
  size_t row = 0;
  for (size_t t = 0; t < tiles.count(); ++t) {
    MultiplyRows<kScheme, false, kPanels, 1, kMaxIntegerRows>(Tile{&call, panel, row, t, tiles.count()}, tiles.rows(t));
    row += tiles.rows(t);
  }
}

template <Scheme kScheme>
void MultiplyAll(const GemmCall& call) {
  size_t panel = call.first_panel;
  const size_t end = call.first_panel + call.num_panels;
  FetchFirstPanels(call, kMaxIntegerPanels);
  if constexpr (kMaxIntegerPanels == 2) {
    for (; panel + 2 <= end; panel += 2) MultiplyPanels<kScheme, 2>(call, panel);
  }
  for (; panel < end; ++panel) MultiplyPanels<kScheme, 1>(call, panel);
}

}  // namespace

void IntegerGemm(const GemmCall& call) {
  switch (call.weights.scheme) {
    case Scheme::kQ4_0:
      return MultiplyAll<Scheme::kQ4_0>(call);
    case Scheme::kQ4_1:
      return MultiplyAll<Scheme::kQ4_1>(call);
    case Scheme::kQ5_0:
      return MultiplyAll<Scheme::kQ5_0>(call);
    case Scheme::kQ5_1:
      return MultiplyAll<Scheme::kQ5_1>(call);
    case Scheme::kQ4_K:
      return MultiplyAll<Scheme::kQ4_K>(call);
    case Scheme::kQ5_K:
      return MultiplyAll<Scheme::kQ5_K>(call);
    case Scheme::kQ6_K:
      return MultiplyAll<Scheme::kQ6_K>(call);
    case Scheme::kInt8:
      return WideGemm(call);
    case Scheme::kQ2_K:
      return MultiplyAll<Scheme::kQ2_K>(call);
    case Scheme::kQ3_K:
      return MultiplyAll<Scheme::kQ3_K>(call);
    case Scheme::kIQ4:
      return MultiplyAll<Scheme::kIQ4>(call);
    case Scheme::kQ8_16:
      return MultiplyAll<Scheme::kQ8_16>(call);
    default:
      return MultiplyAll<Scheme::kQ8_0>(call);
  }
}

}  // namespace plait::PLAIT_TARGET
