// Penalty counts: how often each token of a sequence came, in its prompt and in its output.
//
// Owns the counts of one sequence, kept up to date token by token, so that a step costs what it brings and not what
// came before. Knows no penalty (ops/sampler.cc). Invariant: a token has at most one entry; counts are those of the
// tokens added and not removed, in whatever order that happened.

#ifndef PLAIT_CSRC_OPS_SAMPLER_COUNTS_H_
#define PLAIT_CSRC_OPS_SAMPLER_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace plait {

class PenaltyCounts {
 public:
  // Both counts may be 0: the token was added and removed again.
  struct Entry {
    int32_t token = 0;
    uint32_t num_prompt = 0;
    uint32_t num_output = 0;
  };

  // Counts of a whole history; its first `num_prompt` tokens are prompt, the others output.
  void Rebuild(std::span<const int32_t> history, size_t num_prompt);

  void Add(int32_t token, bool is_output);
  // Takes back an Add, for a draft that was not accepted.
  void Remove(int32_t token, bool is_output);

  std::span<const Entry> entries() const { return entries_; }

 private:
  // The slot of `token`, or the free one that would take it.
  size_t SlotOf(int32_t token) const;
  Entry& EntryOf(int32_t token);
  void Grow();

  std::vector<Entry> entries_;   // in order of first appearance
  std::vector<uint32_t> slots_;  // hash table, a power of two long: index into entries_ + 1, 0 where free
};

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_SAMPLER_COUNTS_H_
