// What the kernels of all number schemes share: how rows are cut into register tiles, and what happens to a sum.
//
// Owns the partition of rows and the epilogue. Sums are made in gemm_float.cc and gemm_integer.cc.
// Invariant: rows are cut by their number alone, and no result depends on where a cut is.

#ifndef PLAIT_CSRC_OPS_TARGETS_GEMM_TILES_H_
#define PLAIT_CSRC_OPS_TARGETS_GEMM_TILES_H_

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/kernels.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {

inline constexpr size_t kLineBytes = 64;

// Registers that hold one panel's columns.
inline constexpr size_t kPanelRegisters = kPanelColumns / kLanes;

// `num_rows` rows in as few tiles of at most `max_rows` as possible, which differ by at most one row: 9 is 5 + 4, not
// 8 + 1.
class RowTiles {
 public:
  static inline __attribute__((always_inline)) RowTiles Of(size_t num_rows, size_t max_rows) {
    RowTiles tiles;
    tiles.count_ = (num_rows + max_rows - 1) / max_rows;
    tiles.least_ = tiles.count_ == 0 ? 0 : num_rows / tiles.count_;
    tiles.larger_ = num_rows - tiles.least_ * tiles.count_;
    return tiles;
  }
  inline __attribute__((always_inline)) size_t count() const { return count_; }
  inline __attribute__((always_inline)) size_t rows(size_t tile) const { return least_ + (tile < larger_ ? 1 : 0); }

 private:
  size_t count_ = 0;
  size_t least_ = 0;
  size_t larger_ = 0;  // the first `larger_` tiles have one row more
};

// Keeps the compiler from deriving one pointer for every row, which would not fit the general registers.
template <typename T>
PLAIT_INLINE void KeepPointer(T*& pointer) {
  asm("" : "+r"(pointer));
}

// The weights that are needed next, in a panel's own order: tile after tile of the rows that share the present weights
// fetches its part of them, a little at every step, so that memory is never idle. A tile takes as many steps as the
// next weights have cache lines.
class NextWeights {
 public:
  inline __attribute__((always_inline)) NextWeights(const void* next, size_t num_lines, size_t tile, size_t num_tiles)
      : bytes_per_step_((kLineBytes + num_tiles - 1) / num_tiles),
        at_(static_cast<const char*>(next) + tile * num_lines * bytes_per_step_) {}
  // `distance` bytes behind lies another panel that is wanted as well.
  template <size_t kPanels>
  inline __attribute__((always_inline)) void Fetch(size_t distance) {
    for (size_t p = 0; p < kPanels; ++p) AskFor(at_ + p * distance);
    at_ += bytes_per_step_;
  }

#if defined(__AVX512F__)
  // The next step comes behind what `made` is now: the compiler would fetch all lines of a group at once, before it
  // multiplies.
  inline __attribute__((always_inline)) void WaitFor(__m512i& made) { asm("" : "+r"(at_), "+v"(made)); }
#endif

 private:
  size_t bytes_per_step_;
  const char* at_;
};

// The panels of a call that come behind `panel` and those beside it; at the end the same again, which costs nothing:
// what lies behind a call's panels is another worker's, on another core.
PLAIT_INLINE const uint8_t* PanelsAfter(const GemmCall& call, size_t panel, size_t num_panels) {
  const size_t next = panel + num_panels;
  return call.weights.panel(next < call.first_panel + call.num_panels ? next : panel);
}

// Fetches the panels that a call begins with.
PLAIT_INLINE void FetchFirstPanels(const GemmCall& call, size_t num_panels) {
  constexpr size_t kMostBytes = 256 * 1024;
  const size_t bytes = (num_panels < call.num_panels ? num_panels : call.num_panels) * call.weights.bytes_per_panel;
  const uint8_t* first = call.weights.panel(call.first_panel);
  for (size_t at = 0; at < bytes && at < kMostBytes; at += kLineBytes) AskFor(first + at);
}

// Rows of a tile are reached from a pointer to every third of them: base, base + stride, base + 2 stride are all
// addresses that an instruction can form.
inline constexpr size_t kRowsPerPointer = 3;
constexpr size_t NumPointers(size_t rows) { return (rows + kRowsPerPointer - 1) / kRowsPerPointer; }

// bias, factor, residual: in this order, each rounded.
PLAIT_INLINE F32 Finished(const GemmCall& call, F32 sum, const float* bias, const float* residual) {
  if (bias != nullptr) sum = Add(sum, Load(bias));
  sum = Mul(sum, Broadcast(call.out_scale));
  return residual != nullptr ? Add(Load(residual), sum) : sum;
}

PLAIT_INLINE F32 FinishedFirst(const GemmCall& call, F32 sum, const float* bias, const float* residual, size_t count) {
  if (bias != nullptr) sum = Add(sum, LoadFirst(bias, count));
  sum = Mul(sum, Broadcast(call.out_scale));
  return residual != nullptr ? Add(LoadFirst(residual, count), sum) : sum;
}

// Finishes and stores sums[kRows][kRegisters], rows from first_row and columns from first_column on.
template <size_t kRows, size_t kRegisters>
PLAIT_INLINE void StoreTile(const GemmCall& call, size_t first_row, size_t first_column,
                            const F32 (&sums)[kRows][kRegisters]) {
  const bool whole = first_column + kRegisters * kLanes <= call.weights.columns;
  const float* bias = call.bias == nullptr ? nullptr : call.bias + first_column;
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    float* y = call.y + (first_row + r) * call.y_stride + first_column;
    const float* residual =
        call.residual == nullptr ? nullptr : call.residual + (first_row + r) * call.residual_stride + first_column;
#pragma GCC unroll 16
    for (size_t c = 0; c < kRegisters; ++c) {
      const size_t at = c * kLanes;
      const float* bias_at = bias == nullptr ? nullptr : bias + at;
      const float* residual_at = residual == nullptr ? nullptr : residual + at;
      if (whole) {
        Store(y + at, Finished(call, sums[r][c], bias_at, residual_at));
      } else if (first_column + at < call.weights.columns) {
        const size_t left = call.weights.columns - first_column - at;
        const size_t count = left < kLanes ? left : kLanes;
        StoreFirst(y + at, FinishedFirst(call, sums[r][c], bias_at, residual_at, count), count);
      }
    }
  }
}

// The kernels of gemm_float.cc, gemm_integer.cc and, for our own scheme, gemm_wide.cc.
void FloatGemm(const GemmCall& call);
void IntegerGemm(const GemmCall& call);
void WideGemm(const GemmCall& call);

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_GEMM_TILES_H_
