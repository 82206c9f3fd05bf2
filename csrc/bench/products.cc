// Calls of the matrix kernels, unit by unit.
//
// Padding and the rule of fours and singles are applied within a unit, where weights are read once from memory and
// again from a cache: as an engine that works so does it. Invariant: all rules compute all of the rows.

#include "bench/products.h"

#include <algorithm>
#include <string_view>

#include "base/cpu.h"
#include "bench/numbers.h"
#include "formats/pack.h"

namespace plait::bench {

Products::Products(const Kernels& kernels, Scheme scheme, size_t depth, size_t columns, size_t cold_bytes,
                   size_t max_rows)
    : kernels_(kernels), panels_{scheme, columns, depth, BytesPerPanel(scheme, depth), nullptr} {
  num_copies_ = std::max<size_t>(1, (cold_bytes + bytes() - 1) / bytes());
  weights_ = AlignedBuffer(num_copies_ * bytes());
  FillWithNumbers(weights_.data(), weights_.size());
  panels_.bytes = weights_.data();
  const size_t rows = RoundUp(max_rows, kPaddedRows);
  x_ = AlignedBuffer(rows * depth * sizeof(float));
  y_ = AlignedBuffer(rows * columns * sizeof(float));
  groups_ = AlignedBuffer(rows * depth / kGroupSize * sizeof(QuantizedGroup));
  auto* x = reinterpret_cast<float*>(x_.data());
  for (size_t i = 0; i < rows * depth; ++i) x[i] = static_cast<float>(i * 7919 % 255) / 127.0f - 1.0f;
  std::fill_n(reinterpret_cast<float*>(y_.data()), rows * columns, 0.0f);
  if (IsInteger(scheme)) kernels_.quantize(x, depth, rows, Quantized());
}

QuantizedRows Products::Quantized() const {
  return {reinterpret_cast<QuantizedGroup*>(groups_.data()), panels_.depth, RowGroupSize(panels_.scheme)};
}

// As the runtime's.
SplitPolicy Products::Policy(const Crew& crew) const {
  SplitPolicy policy;
  policy.num_workers = static_cast<uint32_t>(crew.num_threads());
  policy.is_wide = std::string_view(kernels_.target) == TargetName(Target::kAvx512);
  return policy;
}

void Products::Multiply(Crew& crew, size_t rows, RowRule rule, size_t num_calls) {
  const size_t computed = rule == RowRule::kPadded ? RoundUp(rows, kPaddedRows) : rows;
  GemmShape shape;
  shape.num_rows = computed;
  shape.num_panels[0] = panels_.num_panels();
  shape.panel_bytes = static_cast<double>(panels_.bytes_per_panel);
  shape.depth = panels_.depth;
  shape.scheme = panels_.scheme;
  const GemmSplit split = SplitGemm(shape, Policy(crew));
  for (size_t call = 0; call < num_calls; ++call) {
    WeightPanels weights = panels_;
    weights.bytes += next_copy_ * bytes();
    next_copy_ = (next_copy_ + 1) % num_copies_;
    crew.Claim(split.num_units(), [&](uint32_t unit, int) { MultiplyUnit(weights, split.unit(unit), rule); });
  }
}

void Products::MultiplyUnit(const WeightPanels& weights, const GemmSplit::Unit& unit, RowRule rule) {
  GemmCall call;
  call.weights = weights;
  call.first_panel = unit.first_panel;
  call.num_panels = unit.num_panels;
  call.x_stride = weights.depth;
  call.y_stride = weights.columns;
  const QuantizedRows quantized = Quantized();
  size_t row = unit.first_row;
  const size_t end = row + unit.num_rows;
  while (row < end) {
    const size_t left = end - row;
    call.num_rows = rule != RowRule::kFoursAndSingle ? left : left >= 16 ? 16 : left >= 4 ? 4 : 1;
    call.x = reinterpret_cast<const float*>(x_.data()) + row * weights.depth;
    call.quantized = quantized.from_row(row);
    call.y = reinterpret_cast<float*>(y_.data()) + row * weights.columns;
    kernels_.gemm(call);
    row += call.num_rows;
  }
}

void Products::Quantize(Crew& crew, size_t rows, size_t num_calls) {
  const RowSplit split = SplitRows(rows, 0.2, Policy(crew));
  const QuantizedRows to = Quantized();
  const auto* x = reinterpret_cast<const float*>(x_.data());
  for (size_t call = 0; call < num_calls; ++call) {
    crew.Claim(split.num_units(), [&](uint32_t unit, int) {
      const uint32_t first = split.first(unit);
      kernels_.quantize(x + first * panels_.depth, panels_.depth, split.count(unit), to.from_row(first));
    });
  }
}

}  // namespace plait::bench
