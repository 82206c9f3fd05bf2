// N-gram window: the newest tokens of one sequence, and what stood behind its ending when that stood there before.
//
// Owns the bounds: so many tokens, and so many additions a call. Knows nothing of sequences beyond their tokens, and
// not how sure a guess is. src/plait/draft/window.py says the same, and tests hold the two against each other.
// Invariant: memory and the time of a call are bounded, whatever the text; nothing is drawn at random.

#ifndef PLAIT_CSRC_DRAFT_NGRAM_WINDOW_H_
#define PLAIT_CSRC_DRAFT_NGRAM_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "draft/suffix_automaton.h"

namespace plait {

class NgramWindow {
 public:
  // `most_tokens`: of the window, an even number above 0. `most_at_once`: tokens that a call of TakeUp adds to
  // automata.
  NgramWindow(size_t most_tokens, size_t most_at_once);

  // The sequence has `num_tokens` tokens, `token_at(place)`: those of the call before, and what has come since. False:
  // there were too many for one call, so the next one goes on.
  template <typename TokenAt>
  bool TakeUp(size_t num_tokens, const TokenAt& token_at) {
    if (num_tokens > num_taken_ + most_tokens_) Restart(num_tokens - most_tokens_);
    size_t left = most_at_once_;
    while (num_taken_ < num_tokens) {
      const size_t cost = newer_half_ == nullptr ? 1 : 2;
      if (left < cost) return false;
      left -= cost;
      Add(token_at(num_taken_));
      ++num_taken_;
    }
    return true;
  }

  // Of the longest ending that stood in the window before; 0: there is none.
  int32_t match_length() const { return automaton_->match_length(); }

  // Writes the `most` tokens behind that earlier place; what repeats goes on repeating. There is one.
  void Guess(size_t most, int32_t* guessed) const;

  // Of memory that it holds.
  size_t num_bytes() const;

 private:
  void Restart(size_t num_taken);
  void Add(int32_t token);

  size_t most_tokens_;
  size_t most_at_once_;
  size_t num_taken_ = 0;         // of the sequence's tokens
  std::vector<int32_t> window_;  // the text of automaton_
  std::unique_ptr<SuffixAutomaton> automaton_;
  // Of the second half of the window: nothing can be taken out of an automaton, so this one is there when the window is
  // full. Made at once, half a window would hold up everybody's step.
  std::unique_ptr<SuffixAutomaton> newer_half_;
};

}  // namespace plait

#endif  // PLAIT_CSRC_DRAFT_NGRAM_WINDOW_H_
