// Penalty counts: a hash table with open addressing beside the list that the sampler reads.
//
// Owns its layout and growth. Knows no penalty. Invariant: at least half of the slots are free, so a search ends.

#include "ops/sampler_counts.h"

#include <cassert>

namespace plait {
namespace {

constexpr size_t kFirstSlots = 64;

// Fibonacci hashing: ids of neighbouring tokens go far apart. 2^64 / golden ratio, odd.
constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;
constexpr int kHashBits = 32;

}  // namespace

void PenaltyCounts::Rebuild(std::span<const int32_t> history, size_t num_prompt) {
  entries_.clear();
  slots_.assign(slots_.size(), 0);
  for (size_t at = 0; at < history.size(); ++at) Add(history[at], at >= num_prompt);
}

void PenaltyCounts::Add(int32_t token, bool is_output) {
  Entry& entry = EntryOf(token);
  ++(is_output ? entry.num_output : entry.num_prompt);
}

void PenaltyCounts::Remove(int32_t token, bool is_output) {
  Entry& entry = EntryOf(token);
  uint32_t& count = is_output ? entry.num_output : entry.num_prompt;
  assert(count > 0);
  --count;
}

size_t PenaltyCounts::SlotOf(int32_t token) const {
  const size_t last = slots_.size() - 1;
  size_t slot = static_cast<size_t>((static_cast<uint64_t>(token) * kSpread) >> kHashBits) & last;
  while (slots_[slot] != 0 && entries_[slots_[slot] - 1].token != token) slot = (slot + 1) & last;
  return slot;
}

PenaltyCounts::Entry& PenaltyCounts::EntryOf(int32_t token) {
  if (2 * (entries_.size() + 1) > slots_.size()) Grow();
  uint32_t& slot = slots_[SlotOf(token)];
  if (slot == 0) {
    entries_.push_back({.token = token});
    slot = static_cast<uint32_t>(entries_.size());
  }
  return entries_[slot - 1];
}

void PenaltyCounts::Grow() {
  slots_.assign(slots_.empty() ? kFirstSlots : 2 * slots_.size(), 0);
  for (size_t at = 0; at < entries_.size(); ++at) {
    slots_[SlotOf(entries_[at].token)] = static_cast<uint32_t>(at + 1);
  }
}

}  // namespace plait
