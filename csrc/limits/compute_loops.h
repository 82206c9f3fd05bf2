// Compute loops: the fastest that a core can multiply and add, one loop for each target and kind of number.
//
// Owns the loops, which live in registers and touch no memory. Knows nothing about threads and time.
// Invariant: a loop that AvailableComputeLoops returns runs on this machine.

#ifndef PLAIT_CSRC_LIMITS_COMPUTE_LOOPS_H_
#define PLAIT_CSRC_LIMITS_COMPUTE_LOOPS_H_

#include <cstdint>
#include <vector>

namespace plait::limits {

struct ComputeLoop {
  const char* kind;                // "f32", "int8" or "bf16"
  const char* target;              // The name of a Target
  uint64_t operations_per_round;   // A multiplication and an addition are two.
  double (*run)(uint64_t rounds);  // Returns something of its result, which must be used: else there is no loop.
};

// Kind by kind, targets in their own order within each.
std::vector<ComputeLoop> AvailableComputeLoops();

}  // namespace plait::limits

#endif  // PLAIT_CSRC_LIMITS_COMPUTE_LOOPS_H_
