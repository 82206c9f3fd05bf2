// Products with 8-bit and 4-bit weights: rows quantised to 8 bits, exact sums per group, scaled in f32.
//
// Owns the register tiles of the integer schemes; how a target sums one group is in gemm_sums.h. Invariant: an output
// is one chain over groups, ascending: acc = fma(sum, weight scale * row scale, acc), then for Q4_1 acc = fma(minimum,
// row scale * sum of the row's values, acc).

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/targets/gemm_sums.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

struct Tile {
  const GemmCall* call;
  size_t panel;
  size_t first_row;
  size_t index;  // of num_tiles that share these weights
  size_t num_tiles;
};

template <Scheme kScheme, size_t kPanels, size_t kRows>
void MultiplyTile(const Tile& tile) {
  constexpr size_t kRegisters = kPanels * kPanelRegisters;
  constexpr size_t kGroupBytes = kPanelColumns * (kScheme == Scheme::kQ8_0 ? kGroupSize : kGroupSize / 2);
  const GemmCall& call = *tile.call;
  const size_t groups = call.weights.depth / kGroupSize;
  const size_t panel_bytes = call.weights.bytes_per_panel;
  const uint8_t* codes = call.weights.panel(tile.panel);
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(codes + groups * kGroupBytes);
  const uint16_t* minima = scales + groups * kPanelColumns;
  const QuantizedRows rows = call.quantized.from_row(tile.first_row);
  GroupRows<kRows> values(rows.values, rows.depth);
  const uint8_t* next_codes = PanelsAfter(call, tile.panel, kPanels);
  NextWeights next(next_codes, groups * kGroupBytes / kLineBytes, tile.index, tile.num_tiles);

  F32 sums[kRows][kRegisters];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) sums[r][c] = Zero();
  }
  for (size_t g = 0; g < groups; ++g) {
    I32 group_sums[kRows][kRegisters];
    SumGroup<kScheme, kPanels, kRows>(codes, panel_bytes, next, values, rows.sums + g, groups, group_sums);
    F32 column_scales[kRegisters];
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      const uint8_t* next_scales = next_codes + p * panel_bytes + groups * kGroupBytes + g * kPanelColumns * 2;
      __builtin_prefetch(next_scales);
      if constexpr (kScheme == Scheme::kQ4_1) __builtin_prefetch(next_scales + groups * kPanelColumns * 2);
    }
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) {
      column_scales[c] =
          LoadF16(scales + c / kPanelRegisters * (panel_bytes / 2) + g * kPanelColumns + c % kPanelRegisters * kLanes);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const F32 scale = Broadcast(rows.scales[r * groups + g]);
#pragma GCC unroll 16
      for (size_t c = 0; c < kRegisters; ++c) {
        sums[r][c] = Fma(FloatOfInt(group_sums[r][c]), Mul(column_scales[c], scale), sums[r][c]);
      }
    }
    if constexpr (kScheme == Scheme::kQ4_1) {
#pragma GCC unroll 16
      for (size_t c = 0; c < kRegisters; ++c) {
        column_scales[c] = LoadF16(minima + c / kPanelRegisters * (panel_bytes / 2) + g * kPanelColumns +
                                   c % kPanelRegisters * kLanes);
      }
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const size_t at = r * groups + g;
        const F32 total = Mul(FloatOfInt(BroadcastInt(rows.sums[at])), Broadcast(rows.scales[at]));
#pragma GCC unroll 16
        for (size_t c = 0; c < kRegisters; ++c) sums[r][c] = Fma(column_scales[c], total, sums[r][c]);
      }
    }
    codes += kGroupBytes;
    values.Advance();
  }
  StoreTile<kRows, kRegisters>(call, tile.first_row, tile.panel * kPanelColumns, sums);
}

template <Scheme kScheme, size_t kPanels, size_t kRows>
void MultiplyRows(const Tile& tile, size_t rows) {
  if (rows == kRows) return MultiplyTile<kScheme, kPanels, kRows>(tile);
  if constexpr (kRows > 1) MultiplyRows<kScheme, kPanels, kRows - 1>(tile, rows);
}

// All rows, for the panels [panel, panel + kPanels).
template <Scheme kScheme, size_t kPanels>
void MultiplyPanels(const GemmCall& call, size_t panel) {
  const RowTiles tiles = RowTiles::Of(call.num_rows, kMaxIntegerRows);
  size_t row = 0;
  for (size_t t = 0; t < tiles.count(); ++t) {
    MultiplyRows<kScheme, kPanels, kMaxIntegerRows>(Tile{&call, panel, row, t, tiles.count()}, tiles.rows(t));
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
    default:
      return MultiplyAll<Scheme::kQ8_0>(call);
  }
}

}  // namespace plait::PLAIT_TARGET
