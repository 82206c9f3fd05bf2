// Stacks: candidates in the order of their tables stand beside those that they share the most with.
//
// Owns the walk over that order: a range of neighbours shares its least common beginning, and falls apart where that
// ends. Invariant: equal candidates give equal stacks, in order of their first block.

#include "runtime/stacks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace plait {
namespace {

// Sixteen blocks at a time: tables that share a long beginning are compared with one another most.
size_t FirstDifference(std::span<const int32_t> left, std::span<const int32_t> right) {
  constexpr size_t kAtOnce = 16;
  const size_t end = std::min(left.size(), right.size());
  size_t at = 0;
  while (at + kAtOnce <= end && std::memcmp(&left[at], &right[at], kAtOnce * sizeof(int32_t)) == 0) at += kAtOnce;
  while (at < end && left[at] == right[at]) ++at;
  return at;
}

class StackFinder {
 public:
  StackFinder(std::span<const StackCandidate> candidates, size_t blocks_per_tile)
      : candidates_(candidates), blocks_per_tile_(blocks_per_tile), order_(candidates.size()) {
    std::iota(order_.begin(), order_.end(), 0u);
    std::stable_sort(order_.begin(), order_.end(), [&](uint32_t left, uint32_t right) {
      const std::span<const int32_t> one = Blocks(left), other = Blocks(right);
      const size_t at = FirstDifference(one, other);
      return at < other.size() && (at == one.size() || one[at] < other[at]);
    });
    for (size_t i = 0; i + 1 < order_.size(); ++i) shared_.push_back(SharedTiles(order_[i], order_[i + 1]));
  }

  std::vector<Stack> Find() { return order_.empty() ? std::vector<Stack>() : Best(0, order_.size()).stacks; }

 private:
  struct Choice {
    uint64_t saved = 0;
    std::vector<Stack> stacks;
  };

  std::span<const int32_t> Blocks(uint32_t candidate) const {
    const StackCandidate& one = candidates_[candidate];
    return one.table.first(std::min(one.table.size(), one.num_tiles * blocks_per_tile_));
  }

  uint32_t SharedTiles(uint32_t left, uint32_t right) const {
    const std::span<const int32_t> shared = Blocks(left).first(FirstDifference(Blocks(left), Blocks(right)));
    // Behind a window there are no blocks, and nothing to share.
    const auto first_hole = std::find_if(shared.begin(), shared.end(), [](int32_t block) { return block < 0; });
    return static_cast<uint32_t>(static_cast<size_t>(first_hole - shared.begin()) / blocks_per_tile_);
  }

  // Candidates [begin, end) of the order.
  Choice Best(size_t begin, size_t end) const {
    if (end - begin < 2) return {};
    const auto first = shared_.begin() + static_cast<ptrdiff_t>(begin);
    const uint32_t least = *std::min_element(first, shared_.begin() + static_cast<ptrdiff_t>(end) - 1);
    const uint64_t together = uint64_t{least} * (end - begin - 1);
    Choice apart;
    for (size_t at = begin; at < end;) {
      size_t next = at + 1;
      while (next < end && shared_[next - 1] != least) ++next;
      Choice part = Best(at, next);
      apart.saved += part.saved;
      std::move(part.stacks.begin(), part.stacks.end(), std::back_inserter(apart.stacks));
      at = next;
    }
    if (together == 0 || together < apart.saved) return apart;
    Stack stack;
    for (size_t at = begin; at < end; ++at) stack.members.push_back(order_[at]);
    stack.num_tiles = least;
    return {together, {std::move(stack)}};
  }

  const std::span<const StackCandidate> candidates_;
  const size_t blocks_per_tile_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> shared_;  // whole tiles that a candidate of the order and the one behind it have in common
};

}  // namespace

std::vector<Stack> FindStacks(std::span<const StackCandidate> candidates, size_t blocks_per_tile) {
  return StackFinder(candidates, blocks_per_tile).Find();
}

}  // namespace plait
