// Quantisation of rows for the integer schemes.
//
// Owns the walk over rows and groups; what happens to a group is in ops/targets/quantize.h.
// Invariant: a group's values depend on that group alone.

#include "ops/targets/quantize.h"

#include "ops/targets/functions.h"

namespace plait::PLAIT_TARGET {

void QuantizeColumns(const float* x, size_t stride, size_t num_rows, size_t first_column, size_t num_columns,
                     QuantizedRows to) {
  const size_t end = first_column + num_columns;
  for (size_t r = 0; r < num_rows; ++r) {
    QuantizedGroup* groups = to.groups + r * to.groups_per_row();
    for (size_t k = first_column; k < end; k += to.group_size) {
      const size_t count = to.group_size < end - k ? to.group_size : end - k;
      QuantizeGroups(x + r * stride + k, count, groups + k / kGroupSize, to.group_size);
    }
  }
}

void Quantize(const float* x, size_t stride, size_t num_rows, QuantizedRows to) {
  QuantizeColumns(x, stride, num_rows, 0, to.depth, to);
}

}  // namespace plait::PLAIT_TARGET
