// The suffix automaton says what looking through the whole text would say, and stays linear.

#include "draft/suffix_automaton.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/testing.h"

namespace plait {
namespace {

using Text = std::vector<int32_t>;

bool EndsAlike(const Text& text, size_t end, size_t length) {
  for (size_t back = 0; back < length; ++back) {
    if (text[end - back] != text[text.size() - 1 - back]) return false;
  }
  return true;
}

int32_t LongestRepeatedEnding(const Text& text) {
  for (size_t length = text.size() - 1; length > 0; --length) {
    for (size_t end = length - 1; end + 1 < text.size(); ++end) {
      if (EndsAlike(text, end, length)) return static_cast<int32_t>(length);
    }
  }
  return 0;
}

Text Random(std::mt19937& dice, size_t size, int32_t num_words) {
  Text text(size);
  for (int32_t& token : text) token = static_cast<int32_t>(dice() % static_cast<uint32_t>(num_words));
  return text;
}

TEST(BehindEveryTokenItHasTheLongestEndingThatStoodThereBefore) {
  std::mt19937 dice(1);
  for (int round = 0; round < 60; ++round) {
    SuffixAutomaton automaton;
    Text said;
    for (const int32_t token : Random(dice, 1 + dice() % 60, 1 + static_cast<int32_t>(dice() % 4))) {
      automaton.Add(token);
      said.push_back(token);
      const int32_t length = automaton.match_length();
      CHECK_EQ(length, LongestRepeatedEnding(said));
      if (length == 0) {
        CHECK_EQ(automaton.match_end(), -1);
        continue;
      }
      const auto end = static_cast<size_t>(automaton.match_end());
      CHECK(end + 1 < said.size());
      CHECK(end + 1 >= static_cast<size_t>(length));
      CHECK(EndsAlike(said, end, static_cast<size_t>(length)));
    }
  }
}

TEST(ItStaysLinearOnTheTextsThatMakeAutomataLarge) {
  constexpr size_t kSize = 4000;
  std::mt19937 dice(2);
  Text ones(kSize, 1);
  ones[0] = 0;
  Text all_different(kSize);
  Text one_before_each(kSize);  // a state with as many transitions as the text has tokens
  for (size_t at = 0; at < kSize; ++at) {
    all_different[at] = static_cast<int32_t>(at);
    one_before_each[at] = at % 2 == 0 ? 0 : static_cast<int32_t>(at);
  }
  for (const Text& text : {Text(kSize, 0), ones, Random(dice, kSize, 2), all_different, one_before_each}) {
    SuffixAutomaton automaton;
    for (const int32_t token : text) automaton.Add(token);
    CHECK(automaton.num_states() <= 2 * kSize);
    CHECK(automaton.num_transitions() <= 3 * kSize);
    // Two states of 24 bytes a token, an edge of 16 and its slots, and arrays that are half empty at worst.
    CHECK(automaton.num_bytes() <= 250 * kSize);
  }
}

TEST(OfTwoEarlierPlacesItNamesTheNewerOne) {
  SuffixAutomaton automaton;
  for (const int32_t token : {1, 2, 7, 1, 2, 8, 1, 2}) automaton.Add(token);
  CHECK_EQ(automaton.match_length(), 2);
  CHECK_EQ(automaton.match_end(), 4);
}

TEST(TheLargestTokensAreTokensLikeOthers) {
  constexpr int32_t kLargest = 0x7FFFFFFF;
  SuffixAutomaton automaton;
  for (const int32_t token : {kLargest, 0, kLargest - 1, 5, kLargest, 0}) automaton.Add(token);
  CHECK_EQ(automaton.match_length(), 2);
  CHECK_EQ(automaton.match_end(), 1);
}

}  // namespace
}  // namespace plait
