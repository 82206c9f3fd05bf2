// Suffix automaton: where the longest ending of a text that stood in it before stands, kept up token by token.
//
// Owns the automaton of Blumer, Blumer, Haussler, Ehrenfeucht, Chen and Seiferas, "The smallest automaton recognizing
// the subwords of a text", 1985, over token ids. Knows no drafts. src/plait/draft/suffixes.py says the same, and tests
// hold the two against each other. Invariant: at most two states a token and three transitions; a token takes amortised
// constant time, whatever the text.

#ifndef PLAIT_CSRC_DRAFT_SUFFIX_AUTOMATON_H_
#define PLAIT_CSRC_DRAFT_SUFFIX_AUTOMATON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

class SuffixAutomaton {
 public:
  SuffixAutomaton();

  // The text, whose places count from 0, goes on with `token`, which is not negative.
  void Add(int32_t token);

  // Of the longest ending of the text that stands in it earlier, too; 0: there is none.
  int32_t match_length() const { return match_length_; }
  // Place of the last token of that earlier occurrence, the newest that was looked for; -1 without one.
  int32_t match_end() const { return match_end_; }

  size_t num_states() const { return states_.size(); }
  size_t num_transitions() const { return num_first_ + edges_.size(); }
  // Of memory that it holds.
  size_t num_bytes() const;

 private:
  // Most states have one transition, which lies in the state. Further ones are edges.
  struct State {
    int32_t length;  // of its longest string
    int32_t link;
    int32_t end;  // place of the last token of one occurrence
    int32_t token;
    int32_t target;
    int32_t newest_edge;
  };
  struct Edge {
    int32_t state;
    int32_t token;
    int32_t target;
    int32_t older;  // the next one of the same state
  };

  int32_t NewState(int32_t length, int32_t link, int32_t end);
  // Where the target of a transition lies; nullptr if there is none. Good until a transition is added.
  int32_t* TargetOf(int32_t state, int32_t token);
  void AddTransition(int32_t state, int32_t token, int32_t target);
  void AddEdge(int32_t state, int32_t token, int32_t target);
  // `target`, or a copy of it for its strings that end like those of `state` and `token`.
  int32_t Split(int32_t state, int32_t token, int32_t target);
  // The slot of an edge, or the free one that would take it.
  size_t SlotOf(int32_t state, int32_t token) const;
  void GrowSlots();

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<uint32_t> slots_;  // hash table, a power of two long: index into edges_ + 1, 0 where free
  size_t num_first_ = 0;         // transitions that lie in states
  int32_t last_ = 0;
  int32_t match_length_ = 0;
  int32_t match_end_ = -1;
};

}  // namespace plait

#endif  // PLAIT_CSRC_DRAFT_SUFFIX_AUTOMATON_H_
