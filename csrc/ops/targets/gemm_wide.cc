// Products in our own number scheme: weights and rows share scales along 128 numbers, so that a kernel does little but
// multiply integers.
//
// Owns the register tiles of the scheme; how a target sums a part of 32 is in gemm_wide_sums.h. Invariant: an output is
// one chain over wide groups, ascending: acc = fma(sum, weight scale * row scale, acc). The last group of a row may be
// shorter; it is like the others.

#include <cstddef>
#include <cstdint>

#include "formats/panel_layout.h"
#include "formats/scheme.h"
#include "ops/targets/gemm_sums.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/gemm_wide_sums.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

struct Tile {
  const GemmCall* call;
  size_t panel;
  size_t first_row;
  size_t index;  // of num_tiles that share these weights
  size_t num_tiles;
  float* floats;  // [rows][columns] of the tile. Wanted once per 128 numbers; registers are for the integer sums
};

// Onto the tile's floats. `scales`: of the first panel's columns, the next panel's lie `distance` floats behind.
template <size_t kRows, size_t kRegisters>
PLAIT_INLINE void AddScaled(const float* scales, size_t distance, const GroupRows<kRows>& rows,
                            const I32 (&sums)[kRows][kRegisters], float* floats) {
  F32 column_scales[kRegisters];
#pragma GCC unroll 4
  for (size_t c = 0; c < kRegisters; ++c) {
    column_scales[c] = Load(scales + c / kPanelRegisters * distance + c % kPanelRegisters * kLanes);
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    const F32 scale = Broadcast(rows.Of(r).scale);
#pragma GCC unroll 4
    for (size_t c = 0; c < kRegisters; ++c) {
      float* at = floats + (r * kRegisters + c) * kLanes;
      Store(at, Fma(FloatOfInt(sums[r][c]), Mul(column_scales[c], scale), Load(at)));
    }
  }
}

template <size_t kPanels, size_t kRows>
void MultiplyTile(const Tile& tile) {
  constexpr size_t kRegisters = kPanels * kPanelRegisters;
  const GemmCall& call = *tile.call;
  const size_t groups = call.weights.depth / kGroupSize;
  const size_t panel_bytes = call.weights.bytes_per_panel;
  const uint8_t* codes = call.weights.panel(tile.panel);
  const uint8_t* next_codes = PanelsAfter(call, tile.panel, kPanels);
  const float* scales = reinterpret_cast<const float*>(codes + groups * kPartBytes);
  const uint8_t* next_scales = next_codes + groups * kPartBytes;
  NextWeights next(next_codes, groups * kQuadsPerGroup, tile.index, tile.num_tiles);
  GroupRows<kRows> rows(call.quantized.from_row(tile.first_row), 0);
#pragma GCC unroll 4
  for (size_t i = 0; i < kRows * kRegisters; ++i) Store(tile.floats + i * kLanes, Zero());
  for (size_t left = groups; left > 0;) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) AskFor(next_scales + p * panel_bytes);
    I32 sums[kRows][kRegisters];
    StartSums(rows, sums);
    for (size_t parts = left < kGroupsPerWide ? left : kGroupsPerWide;;) {
      AddPart<kPanels, kRows>(codes, panel_bytes, next, rows, sums);
      codes += kPartBytes;
      --left;
      if (--parts == 0) break;
      rows.Advance();
    }
    AddScaled(scales, panel_bytes / sizeof(float), rows, sums, tile.floats);
    scales += kPanelColumns;
    next_scales += kLineBytes;
    rows.Advance();
  }
  F32 finished[kRows][kRegisters];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t c = 0; c < kRegisters; ++c) finished[r][c] = Load(tile.floats + (r * kRegisters + c) * kLanes);
  }
  StoreTile<kRows, kRegisters>(call, tile.first_row, tile.panel * kPanelColumns, finished);
}

template <size_t kPanels, size_t kRows>
void MultiplyRows(const Tile& tile, size_t rows) {
  if (rows == kRows) return MultiplyTile<kPanels, kRows>(tile);
  if constexpr (kRows > 1) MultiplyRows<kPanels, kRows - 1>(tile, rows);
}

// All rows, for the panels [panel, panel + kPanels).
template <size_t kPanels>
void MultiplyPanels(const GemmCall& call, size_t panel) {
  const RowTiles tiles = RowTiles::Of(call.num_rows, kMaxWideRows);
  // Not the tile's own: a frame that is aligned so costs it a general register, and rows have pointers.
  alignas(kLineBytes) float floats[kMaxWideRows * kPanels * kPanelColumns];
  size_t row = 0;
  for (size_t t = 0; t < tiles.count(); ++t) {
    MultiplyRows<kPanels, kMaxWideRows>(Tile{&call, panel, row, t, tiles.count(), floats}, tiles.rows(t));
    row += tiles.rows(t);
  }
}

}  // namespace

void WideGemm(const GemmCall& call) {
  size_t panel = call.first_panel;
  const size_t end = call.first_panel + call.num_panels;
  FetchFirstPanels(call, kMaxWidePanels);
  if constexpr (kMaxWidePanels > 1) {
    for (; panel + kMaxWidePanels <= end; panel += kMaxWidePanels) MultiplyPanels<kMaxWidePanels>(call, panel);
  }
  for (; panel < end; ++panel) MultiplyPanels<1>(call, panel);
}

}  // namespace plait::PLAIT_TARGET
