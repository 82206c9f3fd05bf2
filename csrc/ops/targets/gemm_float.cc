// Products with float weights: f32, f16 and bf16, the latter two widened in registers.
//
// Owns the register tiles and the blocking of the float schemes. Invariant: an output is one chain of fused
// multiply-adds over k from 0; a chain that is interrupted between two blocks of k continues from its own value.

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/targets/gemm_tiles.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// Sums of a tile fill the registers but for a row of weights and one activation: 12 x 2 of 32, 6 x 2 of 16, 2 x 4.
#if defined(__AVX512F__)
constexpr size_t kMaxRows = 12;
constexpr size_t kMaxPanels = 2;
#elif defined(__AVX2__)
constexpr size_t kMaxRows = 6;
constexpr size_t kMaxPanels = 1;
#else
constexpr size_t kMaxRows = 2;
constexpr size_t kMaxPanels = 1;
#endif

// Deeper matrices are multiplied block by block, so that a panel's block stays in the L2 cache while the tiles of a
// stripe of rows pass over it.
constexpr size_t kBlockBytes = 256 * 1024;
constexpr size_t kStripeTiles = 8;

struct F32Weights {
  using Stored = float;
  PLAIT_INLINE F32 LoadColumns(const float* from) { return Load(from); }
};
struct F16Weights {
  using Stored = uint16_t;
  PLAIT_INLINE F32 LoadColumns(const uint16_t* from) { return LoadF16(from); }
};
struct Bf16Weights {
  using Stored = uint16_t;
  PLAIT_INLINE F32 LoadColumns(const uint16_t* from) { return LoadBf16(from); }
};

// One tile over one block of k.
struct Tile {
  const GemmCall* call;
  size_t panel;
  size_t first_row;
  size_t first_k;
  size_t last_k;
  size_t index;  // of num_tiles that share these weights
  size_t num_tiles;
  float* unfinished;  // sums [rows][registers][lanes] between two blocks
};

template <typename Weights, size_t kPanels, size_t kRows>
void MultiplyTile(const Tile& tile) {
  using Stored = typename Weights::Stored;
  constexpr size_t kRegisters = kPanels * kPanelRegisters;
  constexpr size_t kDepthPerLine = kLineBytes / (kPanelColumns * sizeof(Stored));
  const GemmCall& call = *tile.call;
  const size_t stride = call.x_stride;
  const size_t panel_elements = call.weights.bytes_per_panel / sizeof(Stored);
  const Stored* weights =
      reinterpret_cast<const Stored*>(call.weights.panel(tile.panel)) + tile.first_k * kPanelColumns;
  const float* rows[NumPointers(kRows)];
  for (size_t i = 0; i < NumPointers(kRows); ++i) {
    rows[i] = call.x + (tile.first_row + i * kRowsPerPointer) * stride + tile.first_k;
    KeepPointer(rows[i]);
  }

  F32 sums[kRows][kRegisters];
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) {
      sums[r][c] = tile.first_k == 0 ? Zero() : Load(tile.unfinished + (r * kRegisters + c) * kLanes);
    }
  }
  const size_t block_elements = (tile.last_k - tile.first_k) * kPanelColumns;
  const Stored* next_weights = tile.last_k < call.weights.depth
                                   ? weights + block_elements
                                   : reinterpret_cast<const Stored*>(PanelsAfter(call, tile.panel, kPanels));
  NextWeights next(next_weights, block_elements * sizeof(Stored) / kLineBytes, tile.index, tile.num_tiles);
  const auto multiply = [&](size_t ahead) __attribute__((always_inline)) {
    F32 columns[kRegisters];
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) {
      columns[c] = Weights::LoadColumns(weights + c / kPanelRegisters * panel_elements + ahead * kPanelColumns +
                                        c % kPanelRegisters * kLanes);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const F32 x = Broadcast(rows[r / kRowsPerPointer][r % kRowsPerPointer * stride + ahead]);
#pragma GCC unroll 16
      for (size_t c = 0; c < kRegisters; ++c) sums[r][c] = Fma(x, columns[c], sums[r][c]);
    }
  };
  const auto advance = [&](size_t count) __attribute__((always_inline)) {
    weights += count * kPanelColumns;
    for (size_t i = 0; i < NumPointers(kRows); ++i) rows[i] += count;
  };
  constexpr size_t kStep = 4;
  size_t left = tile.last_k - tile.first_k;
  for (; left >= kStep; left -= kStep) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kStep; ++s) {
      if (s % kDepthPerLine == 0) next.Fetch<kPanels>(call.weights.bytes_per_panel);
      multiply(s);
    }
    advance(kStep);
  }
  for (; left > 0; --left) {
    multiply(0);
    advance(1);
  }

  if (tile.last_k == call.weights.depth) {
    StoreTile<kRows, kRegisters>(call, tile.first_row, tile.panel * kPanelColumns, sums);
    return;
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) Store(tile.unfinished + (r * kRegisters + c) * kLanes, sums[r][c]);
  }
}

template <typename Weights, size_t kPanels, size_t kRows>
void MultiplyRows(const Tile& tile, size_t rows) {
  if (rows == kRows) return MultiplyTile<Weights, kPanels, kRows>(tile);
  if constexpr (kRows > 1) MultiplyRows<Weights, kPanels, kRows - 1>(tile, rows);
}

// All rows, for the panels [panel, panel + kPanels).
template <typename Weights, size_t kPanels>
void MultiplyPanels(const GemmCall& call, size_t panel) {
  constexpr size_t kTileSums = kMaxRows * kPanels * kPanelColumns;
  constexpr size_t kBlock = kBlockBytes / (kPanels * kPanelColumns * sizeof(typename Weights::Stored));
  alignas(kLineBytes) float unfinished[kStripeTiles * kTileSums];
  const RowTiles tiles = RowTiles::Of(call.num_rows, kMaxRows);
  const size_t depth = call.weights.depth;
  size_t stripe_row = 0;
  for (size_t stripe = 0; stripe < tiles.count(); stripe += kStripeTiles) {
    const size_t end = stripe + kStripeTiles < tiles.count() ? stripe + kStripeTiles : tiles.count();
    size_t row = stripe_row;
    for (size_t k = 0; k < depth; k += kBlock) {
      row = stripe_row;
      for (size_t t = stripe; t < end; ++t) {
        const size_t last_k = k + kBlock < depth ? k + kBlock : depth;
        MultiplyRows<Weights, kPanels, kMaxRows>(
            Tile{&call, panel, row, k, last_k, t - stripe, end - stripe, unfinished + (t - stripe) * kTileSums},
            tiles.rows(t));
        row += tiles.rows(t);
      }
    }
    stripe_row = row;
  }
}

template <typename Weights>
void MultiplyAll(const GemmCall& call) {
  size_t panel = call.first_panel;
  const size_t end = call.first_panel + call.num_panels;
  FetchFirstPanels(call, kMaxPanels);
  if constexpr (kMaxPanels == 2) {
    for (; panel + 2 <= end; panel += 2) MultiplyPanels<Weights, 2>(call, panel);
  }
  for (; panel < end; ++panel) MultiplyPanels<Weights, 1>(call, panel);
}

}  // namespace

void FloatGemm(const GemmCall& call) {
  switch (call.weights.scheme) {
    case Scheme::kF16:
      return MultiplyAll<F16Weights>(call);
    case Scheme::kBf16:
      return MultiplyAll<Bf16Weights>(call);
    default:
      return MultiplyAll<F32Weights>(call);
  }
}

}  // namespace plait::PLAIT_TARGET
