// Suffix automaton: states in one array, further transitions in another, found through a hash table.
//
// Owns their layout and growth. A list of edges for each state alone would be walked token by token where one word is
// followed by many. Invariant: at least half of the slots are free, so a search ends.

#include "draft/suffix_automaton.h"

#include <cassert>

namespace plait {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kRoot = 0;
constexpr size_t kFirstSlots = 64;

// Fibonacci hashing, as in ops/sampler_counts.cc.
constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;
constexpr int kHashBits = 32;

}  // namespace

SuffixAutomaton::SuffixAutomaton() { NewState(0, kNone, kNone); }

void SuffixAutomaton::Add(int32_t token) {
  assert(token >= 0);
  const int32_t place = states_[last_].length;
  const int32_t fresh = NewState(place + 1, kRoot, place);
  int32_t state = last_;
  const int32_t* target = nullptr;
  for (; state != kNone; state = states_[state].link) {
    target = TargetOf(state, token);
    if (target != nullptr) break;
    AddTransition(state, token, fresh);
  }
  if (state != kNone) {
    const int32_t link = Split(state, token, *target);
    states_[fresh].link = link;
  }
  last_ = fresh;
  // The link of the whole text's state has its longest ending that occurred before.
  State& match = states_[states_[fresh].link];
  match_length_ = match.length;
  match_end_ = match.length == 0 ? kNone : match.end;
  // Who comes by again finds the newest occurrence: what was said last is said again more often.
  match.end = place;
}

size_t SuffixAutomaton::num_bytes() const {
  return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) + slots_.capacity() * sizeof(uint32_t);
}

int32_t SuffixAutomaton::NewState(int32_t length, int32_t link, int32_t end) {
  states_.push_back(
      {.length = length, .link = link, .end = end, .token = kNone, .target = kNone, .newest_edge = kNone});
  return static_cast<int32_t>(states_.size()) - 1;
}

int32_t* SuffixAutomaton::TargetOf(int32_t state, int32_t token) {
  State& from = states_[state];
  if (from.token == token) return &from.target;
  if (from.newest_edge == kNone) return nullptr;
  const uint32_t slot = slots_[SlotOf(state, token)];
  return slot == 0 ? nullptr : &edges_[slot - 1].target;
}

void SuffixAutomaton::AddTransition(int32_t state, int32_t token, int32_t target) {
  State& from = states_[state];
  if (from.token != kNone) {
    AddEdge(state, token, target);
    return;
  }
  from.token = token;
  from.target = target;
  ++num_first_;
}

void SuffixAutomaton::AddEdge(int32_t state, int32_t token, int32_t target) {
  if (2 * (edges_.size() + 1) > slots_.size()) GrowSlots();
  edges_.push_back({.state = state, .token = token, .target = target, .older = states_[state].newest_edge});
  states_[state].newest_edge = static_cast<int32_t>(edges_.size()) - 1;
  slots_[SlotOf(state, token)] = static_cast<uint32_t>(edges_.size());
}

int32_t SuffixAutomaton::Split(int32_t state, int32_t token, int32_t target) {
  const int32_t length = states_[state].length + 1;
  if (states_[target].length == length) return target;
  const int32_t copy = NewState(length, states_[target].link, states_[target].end);
  if (states_[target].token != kNone) AddTransition(copy, states_[target].token, states_[target].target);
  for (int32_t at = states_[target].newest_edge; at != kNone; at = edges_[at].older) {
    AddEdge(copy, edges_[at].token, edges_[at].target);
  }
  for (; state != kNone; state = states_[state].link) {
    int32_t* const its = TargetOf(state, token);
    if (its == nullptr || *its != target) break;
    *its = copy;
  }
  states_[target].link = copy;
  return copy;
}

size_t SuffixAutomaton::SlotOf(int32_t state, int32_t token) const {
  const uint64_t key = (static_cast<uint64_t>(state) << 32) | static_cast<uint32_t>(token);
  const size_t last = slots_.size() - 1;
  for (size_t slot = static_cast<size_t>((key * kSpread) >> kHashBits) & last;; slot = (slot + 1) & last) {
    if (slots_[slot] == 0) return slot;
    const Edge& edge = edges_[slots_[slot] - 1];
    if (edge.state == state && edge.token == token) return slot;
  }
}

void SuffixAutomaton::GrowSlots() {
  slots_.assign(slots_.empty() ? kFirstSlots : 2 * slots_.size(), 0);
  for (size_t at = 0; at < edges_.size(); ++at) {
    slots_[SlotOf(edges_[at].state, edges_[at].token)] = static_cast<uint32_t>(at + 1);
  }
}

}  // namespace plait
