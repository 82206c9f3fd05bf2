#include "runtime/stacks.h"

#include <vector>

#include "base/testing.h"

namespace plait {
namespace {

using Tables = std::vector<std::vector<int32_t>>;

std::vector<Stack> Find(const Tables& tables, size_t blocks_per_tile = 2) {
  std::vector<StackCandidate> candidates;
  for (const std::vector<int32_t>& table : tables) {
    candidates.push_back({table, static_cast<uint32_t>(table.size() / blocks_per_tile)});
  }
  return FindStacks(candidates, blocks_per_tile);
}

using Members = std::vector<uint32_t>;

}  // namespace

TEST(SequencesWithOneBeginningAreOneStackWhateverStandsBetweenThem) {
  const std::vector<Stack> stacks = Find({{1, 2, 3, 4, 10, 11}, {7, 8, 9, 6}, {1, 2, 3, 4, 12}, {1, 2, 3, 4, 5, 6}});
  CHECK_EQ(stacks.size(), 1u);
  CHECK(stacks[0].members == (Members{2, 3, 0}));
  CHECK_EQ(stacks[0].num_tiles, 2u);
}

TEST(APartOfATileIsNotShared) {
  CHECK(Find({{1, 2, 3, 4}, {1, 2, 3, 5}})[0].num_tiles == 1);
  CHECK(Find({{1, 2}, {1, 3}}).empty());
  CHECK(Find({{1}, {1}}).empty());
  CHECK(Find({}).empty());
  CHECK(Find({{1, 2, 3, 4}}).empty());
}

TEST(WhatSavesMoreIsChosen) {
  // Four share one tile, two pairs of them three: 3 x 1 against 1 x 3 + 1 x 3.
  const std::vector<Stack> pairs = Find({{1, 2, 3}, {1, 4, 5}, {1, 2, 3}, {1, 4, 5}}, 1);
  CHECK_EQ(pairs.size(), 2u);
  CHECK(pairs[0].members == (Members{0, 2}) && pairs[0].num_tiles == 3);
  CHECK(pairs[1].members == (Members{1, 3}) && pairs[1].num_tiles == 3);
  // Five share two tiles, two of them three: 4 x 2 against 3.
  const std::vector<Stack> all = Find({{1, 2, 3}, {1, 2, 4}, {1, 2, 5}, {1, 2, 6}, {1, 2, 3}}, 1);
  CHECK_EQ(all.size(), 1u);
  CHECK(all[0].members.size() == 5 && all[0].num_tiles == 2);
}

TEST(BlocksThatAreGoneAreNotShared) {
  CHECK(Find({{-1, -1, 3, 4}, {-1, -1, 3, 4}}).empty());
  CHECK_EQ(Find({{1, 2, -1, 4}, {1, 2, -1, 4}})[0].num_tiles, 1u);
}

TEST(TilesThatARowDoesNotSeeWholeDoNotCount) {
  const std::vector<int32_t> table = {1, 2, 3, 4, 5, 6};
  const std::vector<StackCandidate> candidates = {{table, 3}, {table, 1}};
  const std::vector<Stack> stacks = FindStacks(candidates, 2);
  CHECK_EQ(stacks.size(), 1u);
  CHECK_EQ(stacks[0].num_tiles, 1u);
}

}  // namespace plait
