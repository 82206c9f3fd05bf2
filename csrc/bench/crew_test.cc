// Crew: every unit once in each round, by all threads together, and time that goes by.

#include "bench/crew.h"

#include <atomic>
#include <vector>

#include "base/testing.h"

namespace plait::bench {
namespace {

TEST(CrewClaimsEveryUnitOnceInEveryRound) {
  Crew crew(2);
  std::vector<std::atomic<int>> done(100);
  std::atomic<int> threads[2] = {0, 0};
  for (int job = 0; job < 3; ++job) {
    const double seconds = crew.Time([&] {
      for (int round = 0; round < 20; ++round) {
        crew.Claim(100, [&](uint32_t unit, int) { done[unit].fetch_add(1); });
        crew.Together([&](int thread) { threads[thread].fetch_add(1); });
      }
    });
    CHECK(seconds > 0.0);
  }
  for (const std::atomic<int>& count : done) CHECK_EQ(count.load(), 60);
  CHECK_EQ(threads[0].load(), 60);
  CHECK_EQ(threads[1].load(), 60);
}

}  // namespace
}  // namespace plait::bench
