// Products: one matrix of a layer, as many copies of it as caches do not hold, and the rows that are multiplied.
//
// Owns weights, rows and results, and the order in which copies are used. How a product is cut into units is what the
// runtime does (runtime/units.h). Invariant: with more than one copy, weights come from memory in every call.

#ifndef PLAIT_CSRC_BENCH_PRODUCTS_H_
#define PLAIT_CSRC_BENCH_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "bench/crew.h"
#include "ops/kernels.h"
#include "runtime/units.h"

namespace plait::bench {

enum class RowRule : uint8_t {
  kExact,          // as the runtime multiplies
  kPadded,         // as many rows as make whole tiles of twelve; those behind the last are thrown away
  kFoursAndSingle  // sixteen rows at a time, then four, then each of the rest alone: every one reads the unit's weights
};
inline constexpr size_t kPaddedRows = 12;

class Products {
 public:
  // At least one copy, and so many that together they have `cold_bytes`.
  Products(const Kernels& kernels, Scheme scheme, size_t depth, size_t columns, size_t cold_bytes, size_t max_rows);

  size_t bytes() const { return panels_.num_panels() * panels_.bytes_per_panel; }  // of one copy
  size_t num_copies() const { return num_copies_; }

  // [rows][columns], as the last call left it.
  const float* results() const { return reinterpret_cast<const float*>(y_.data()); }

  // Inside Crew::Time: `num_calls` products of `rows` rows, each with the next copy.
  void Multiply(Crew& crew, size_t rows, RowRule rule, size_t num_calls);
  // Inside Crew::Time: quantises `rows` rows `num_calls` times, as the op in front of a product does.
  void Quantize(Crew& crew, size_t rows, size_t num_calls);

 private:
  QuantizedRows Quantized() const;
  SplitPolicy Policy(const Crew& crew) const;
  void MultiplyUnit(const WeightPanels& weights, const GemmSplit::Unit& unit, RowRule rule);

  const Kernels& kernels_;
  WeightPanels panels_;  // of the first copy
  size_t num_copies_ = 1;
  size_t next_copy_ = 0;
  AlignedBuffer weights_, x_, groups_, y_;
};

}  // namespace plait::bench

#endif  // PLAIT_CSRC_BENCH_PRODUCTS_H_
