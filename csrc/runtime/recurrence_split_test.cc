// Tests of how recurrences are cut: every part of every chunk once, and in pieces that keep all workers at work.

#include "runtime/recurrence_split.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/testing.h"

namespace plait {
namespace {

// Units of each (chunk, part); fails where one is cut twice or not at all.
void CheckCovered(const RecurrenceSplit& split, size_t num_chunks, uint32_t num_parts) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (uint32_t i = 0; i < split.num_units(); ++i) {
    const RecurrenceSplit::Unit unit = split.unit(i);
    CHECK(unit.num_parts > 0 && unit.first_chunk < unit.end_chunk);
    for (uint32_t chunk = unit.first_chunk; chunk < unit.end_chunk; ++chunk) {
      for (uint32_t part = 0; part < unit.num_parts; ++part) {
        CHECK(seen.insert({chunk, unit.first_part + part}).second);
      }
    }
  }
  CHECK_EQ(seen.size(), num_chunks * num_parts);
}

RecurrenceSplit Split(const std::vector<uint32_t>& rows, uint32_t num_parts, double row_us, Draws* draws = nullptr) {
  const SplitPolicy policy = {2, draws};
  RecurrenceSplit split;
  SplitRecurrence(num_parts, row_us, rows, policy, &split);
  CheckCovered(split, rows.size(), num_parts);
  return split;
}

TEST(EveryPartOfEveryChunkIsInOneUnit) {
  Draws draws(7);
  for (const std::vector<uint32_t>& rows :
       std::vector<std::vector<uint32_t>>{{1}, {512}, {1, 1, 1, 1, 1}, {1, 300, 1, 2}, {17, 400, 90}}) {
    for (const uint32_t num_parts : {1u, 3u, 24u, 128u}) {
      for (const double row_us : {0.01, 5.0, 2000.0}) {
        Split(rows, num_parts, row_us);
        Split(rows, num_parts, row_us, &draws);
      }
    }
  }
}

TEST(AStepWithoutTokensHasNoUnits) { CHECK_EQ(Split({}, 8, 1.0).num_units(), 0u); }

TEST(TokensOfOneSequenceAreSharedOutByHeads) {
  const RecurrenceSplit split = Split({512}, 24, 50.0);
  CHECK(split.num_units() > 2);
}

TEST(SequencesOfOneTokenGoTogetherBesideALongOne) {
  const RecurrenceSplit split = Split({1, 1, 1, 1, 500, 1, 1, 1}, 24, 50.0);
  CHECK(split.begins.size() <= 4);
}

TEST(LittleWorkIsOneUnit) { CHECK_EQ(Split({1, 1}, 4, 0.1).num_units(), 1u); }

}  // namespace
}  // namespace plait
