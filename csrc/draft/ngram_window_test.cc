// The window goes on as the text did before, takes up so much at once, and moves on to its newer half.

#include "draft/ngram_window.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/testing.h"

namespace plait {
namespace {

using Text = std::vector<int32_t>;

bool TakeUp(NgramWindow& window, const Text& text, size_t size) {
  return window.TakeUp(size, [&text](size_t place) { return text[place]; });
}

Text Guessed(const NgramWindow& window, size_t most) {
  Text guessed(most);
  window.Guess(most, guessed.data());
  return guessed;
}

void CheckTokens(const Text& got, const Text& expected) {
  CHECK_EQ(got.size(), expected.size());
  for (size_t at = 0; at < got.size() && at < expected.size(); ++at) CHECK_EQ(got[at], expected[at]);
}

TEST(ItGoesOnAsTheTextDidBehindTheSameWords) {
  NgramWindow window(64, 64);
  const Text text = {5, 6, 7, 8, 9, 5, 6, 7};
  CHECK(TakeUp(window, text, text.size()));
  CHECK_EQ(window.match_length(), 3);
  CheckTokens(Guessed(window, 2), {8, 9});
}

TEST(WhatRepeatsGoesOnRepeating) {
  NgramWindow window(64, 64);
  const Text text = {9, 1, 2, 1, 2};
  CHECK(TakeUp(window, text, text.size()));
  CheckTokens(Guessed(window, 5), {1, 2, 1, 2, 1});
}

TEST(ALongTextIsTakenUpOverSeveralCalls) {
  NgramWindow window(64, 10);
  const Text text(25, 3);
  CHECK(!TakeUp(window, text, text.size()));
  CHECK(!TakeUp(window, text, text.size()));
  CHECK(TakeUp(window, text, text.size()));
  CHECK_EQ(window.match_length(), 24);
}

TEST(TheNewerHalfIsAddedTwiceAndCountsTwice) {
  NgramWindow window(8, 4);
  const Text text = {1, 2, 3, 4, 5, 6, 7};
  CHECK(TakeUp(window, text, 4));
  CHECK(TakeUp(window, text, 6));
  CHECK(TakeUp(window, text, 7));
  NgramWindow other(8, 4);
  CHECK(TakeUp(other, text, 4));
  CHECK(!TakeUp(other, text, 7));
}

TEST(TheWindowMovesOnAsIfItHadBegunAtItsNewerHalf) {
  constexpr size_t kMost = 32;
  std::mt19937 dice(3);
  Text text(200);
  for (int32_t& token : text) token = static_cast<int32_t>(dice() % 3);
  NgramWindow moved(kMost, 1000);
  size_t begin = 0;
  for (size_t size = 1; size <= text.size(); ++size) {
    CHECK(TakeUp(moved, text, size));
    if (size - begin == kMost) begin += kMost / 2;
    NgramWindow begun(2 * kMost, 1000);
    const Text kept(text.begin() + static_cast<std::ptrdiff_t>(begin),
                    text.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(TakeUp(begun, kept, kept.size()));
    CHECK_EQ(moved.match_length(), begun.match_length());
    if (begun.match_length() > 0) CheckTokens(Guessed(moved, 9), Guessed(begun, 9));
  }
}

TEST(WhoIsFarBehindBeginsAnewAndMemoryIsBounded) {
  constexpr size_t kMost = 64;
  NgramWindow window(kMost, 2 * kMost);
  Text text(10000);
  for (size_t at = 0; at < text.size(); ++at) text[at] = static_cast<int32_t>(at % 10);
  for (size_t size = 1000; size <= text.size(); size += 1000) {
    CHECK(TakeUp(window, text, size));
    CheckTokens(Guessed(window, 2), {static_cast<int32_t>(size % 10), static_cast<int32_t>((size + 1) % 10)});
    CHECK(window.num_bytes() < 500 * kMost);
  }
}

}  // namespace
}  // namespace plait
