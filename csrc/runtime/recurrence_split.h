// How an op that goes along tokens is cut into units: ranges of chunks times blocks of parts.
//
// Owns the sizes. A part is what of a state belongs together: a head, or some columns of a convolution. Tokens of a
// chunk are never cut. Invariant: every part of every chunk is in exactly one unit.

#ifndef PLAIT_CSRC_RUNTIME_RECURRENCE_SPLIT_H_
#define PLAIT_CSRC_RUNTIME_RECURRENCE_SPLIT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tape.h"
#include "runtime/units.h"

namespace plait {

// Columns of a convolution that are one part: a cache line.
inline constexpr uint32_t kConvColumns = 16;

struct RecurrenceSplit {
  uint32_t num_parts = 0;
  uint32_t parts_per_block = 1;
  std::vector<uint32_t> begins;  // of ranges of chunks, and the end of the last

  struct Unit {
    uint32_t first_chunk = 0;
    uint32_t end_chunk = 0;
    uint32_t first_part = 0;
    uint32_t num_parts = 0;
  };
  uint32_t num_units() const;
  Unit unit(uint32_t index) const;

 private:
  uint32_t num_blocks() const { return (num_parts + parts_per_block - 1) / parts_per_block; }
};

// Parts of a kConv or kScan.
uint32_t PartsOf(const OpSpec& op);

// Rough time of a row of a kConv or kScan, all parts together.
double RecurrenceUs(const OpSpec& op);

// `rows`: of every chunk, at least one. Keeps the memory that `split` has.
void SplitRecurrence(uint32_t num_parts, double row_us, std::span<const uint32_t> rows, const SplitPolicy& policy,
                     RecurrenceSplit* split);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_RECURRENCE_SPLIT_H_
