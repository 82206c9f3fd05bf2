// Stacks: rows of several sequences that look at the same blocks, found by their block tables.
//
// Owns the choice of what is stacked with what. Pure functions: they know blocks by number only. Invariant: the members
// of a stack have equal blocks in all of its tiles, and each of their rows sees these tiles whole.

#ifndef PLAIT_CSRC_RUNTIME_STACKS_H_
#define PLAIT_CSRC_RUNTIME_STACKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace plait {

// Rows of one sequence that would be stacked, or left out, together.
struct StackCandidate {
  std::span<const int32_t> table;  // blocks of the sequence, by slot / tokens per block
  uint32_t num_tiles = 0;          // leading key tiles that every row sees whole
};

struct Stack {
  std::vector<uint32_t> members;  // candidates, by index
  uint32_t num_tiles = 0;
};

// Disjoint stacks of two or more members that save the most reading: (members - 1) x tiles each, summed. Sequences that
// share a beginning, and some of which share more, are one stack or several, whichever saves more.
std::vector<Stack> FindStacks(std::span<const StackCandidate> candidates, size_t blocks_per_tile);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_STACKS_H_
