// Blocking: the numbers that decide how ops are cut into units, as built in or as measured on this machine.
//
// Owns their defaults, their limits and the table of what was measured for products. How they are used is
// runtime/units.h. Invariant: a blocking without a fault covers every op of every step, whatever its numbers, and
// changes no bit of any answer.

#ifndef PLAIT_CSRC_RUNTIME_BLOCKING_H_
#define PLAIT_CSRC_RUNTIME_BLOCKING_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tape.h"

namespace plait {

// Sizes of units, by rough cost.
struct UnitSizes {
  // Below the smallest a unit is not worth being claimed by another worker. Above the largest a worker that finds no
  // unit left waits for the others so long, half a unit on average, that it goes to sleep.
  double smallest_us = 8.0;
  double largest_us = 80.0;
  double per_worker = 4.0;
  // Keys are read once for all rows of a unit of attention, so these may take longer.
  double largest_attend_us = 250.0;
  uint32_t least_attend_rows = 8;
  // Small tasks leave nobody waiting at the end, and cost nothing where keys are read as they lie.
  uint32_t stack_tasks_per_worker = 9;
};

// How a product of so many rows is cut. No rows: by rough cost.
struct GemmBlocks {
  uint32_t most_rows = 0;  // of a block
  uint32_t panels_per_block = 0;

  explicit operator bool() const { return most_rows != 0; }
  bool operator==(const GemmBlocks&) const = default;
};

// Numbers of rows that share an entry: 1, 2, 3 to 4, 5 to 8, and so on.
inline constexpr uint32_t kNumRowBuckets = 21;
constexpr uint32_t RowBucket(size_t num_rows) {
  const auto bucket = static_cast<uint32_t>(std::bit_width(num_rows > 1 ? num_rows - 1 : size_t{0}));
  return bucket < kNumRowBuckets ? bucket : kNumRowBuckets - 1;
}

struct GemmEntry {
  uint32_t op = 0;  // of the tape: a product
  uint32_t bucket = 0;
  GemmBlocks blocks;
};

struct Blocking {
  UnitSizes sizes;
  std::vector<GemmEntry> gemms;
};

// The first number that is out of its limits; empty: none.
std::string BlockingFault(const Blocking& blocking, const Tape& tape);

// A blocking as ops look it up.
class BlockingTable {
 public:
  BlockingTable() = default;
  // Of a blocking without a fault.
  BlockingTable(const Blocking& blocking, size_t num_ops);

  const UnitSizes& sizes() const { return sizes_; }
  GemmBlocks OfGemm(size_t op, size_t num_rows) const {
    return gemms_.empty() ? GemmBlocks{} : gemms_[op * kNumRowBuckets + RowBucket(num_rows)];
  }

 private:
  UnitSizes sizes_;
  std::vector<GemmBlocks> gemms_;  // [op][bucket]; empty: all by rough cost
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_BLOCKING_H_
