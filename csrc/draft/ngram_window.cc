// N-gram window: how it moves on, and how a guess is read from it.
//
// Owns both. Invariant: places of the automaton are those of the window.

#include "draft/ngram_window.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace plait {

NgramWindow::NgramWindow(size_t most_tokens, size_t most_at_once)
    : most_tokens_(most_tokens), most_at_once_(most_at_once), automaton_(std::make_unique<SuffixAutomaton>()) {
  assert(most_tokens > 0 && most_tokens % 2 == 0 && most_at_once > 1);
}

void NgramWindow::Guess(size_t most, int32_t* guessed) const {
  assert(match_length() > 0);
  const size_t first = static_cast<size_t>(automaton_->match_end()) + 1;
  const size_t known = std::min(most, window_.size() - first);
  std::copy_n(window_.begin() + static_cast<std::ptrdiff_t>(first), known, guessed);
  // The two occurrences overlap or touch.
  const size_t period = window_.size() - first;
  for (size_t at = known; at < most; ++at) guessed[at] = guessed[at - period];
}

size_t NgramWindow::num_bytes() const {
  return window_.capacity() * sizeof(int32_t) + automaton_->num_bytes() +
         (newer_half_ == nullptr ? 0 : newer_half_->num_bytes());
}

void NgramWindow::Restart(size_t num_taken) {
  num_taken_ = num_taken;
  window_.clear();
  automaton_ = std::make_unique<SuffixAutomaton>();
  newer_half_ = nullptr;
}

void NgramWindow::Add(int32_t token) {
  window_.push_back(token);
  automaton_->Add(token);
  if (newer_half_ != nullptr) newer_half_->Add(token);
  if (window_.size() == most_tokens_ && newer_half_ != nullptr) {
    automaton_ = std::move(newer_half_);
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(most_tokens_ / 2));
  }
  if (window_.size() == most_tokens_ / 2) newer_half_ = std::make_unique<SuffixAutomaton>();
}

}  // namespace plait
