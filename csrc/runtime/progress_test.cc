#include "runtime/progress.h"

#include <atomic>
#include <thread>
#include <vector>

#include "base/testing.h"

namespace plait {

TEST(EveryUnitIsClaimedOnceAndTheLastToFinishIsTold) {
  Progress progress;
  CHECK(!progress.HasUnits() && !progress.TryClaim());
  progress.Publish(3, false);
  const Progress::Claim first = progress.TryClaim();
  const Progress::Claim second = progress.TryClaim();
  const Progress::Claim third = progress.TryClaim();
  CHECK(first && second && third && !progress.TryClaim() && !progress.HasUnits());
  CHECK_EQ(first.unit + second.unit + third.unit, 3u);
  CHECK_EQ(progress.NumAtWork(third), 3u);
  CHECK(!progress.Finish(third) && !progress.Finish(first) && progress.Finish(second));
}

TEST(WhoeverPublishesMayHaveTheFirstUnit) {
  Progress progress;
  CHECK(!progress.Publish(1, false) && progress.Close());
  const Progress::Claim first = progress.Publish(2, true);
  CHECK(first && first.unit == 0 && first.num_units == 2);
  const Progress::Claim second = progress.TryClaim();
  CHECK(second && second.unit == 1 && !progress.HasUnits());
  CHECK(!progress.Finish(second) && progress.Finish(first));
  const Progress::Claim kept = progress.Publish(5, true);
  CHECK(!progress.Close() && progress.Finish(kept));
}

TEST(ClosingTakesWhatIsLeftAndTellsWhetherSomebodyIsStillAtWork) {
  Progress progress;
  progress.Publish(5, false);
  CHECK(progress.Close());
  CHECK(!progress.Close() && !progress.TryClaim());
  progress.Publish(5, false);
  const Progress::Claim claim = progress.TryClaim();
  CHECK(!progress.Close());
  CHECK(!progress.TryClaim());
  CHECK(progress.Finish(claim));
}

TEST(WhoeverCompletesAnOpIsAlone) {
  constexpr uint32_t kOps = 3000;
  constexpr uint32_t kUnits = 5;
  Progress progress;
  std::atomic<uint32_t> num_complete = 0;
  std::atomic<uint32_t> num_units = 0;
  const auto complete = [&] {
    if (num_complete.fetch_add(1) + 1 < kOps) progress.Publish(kUnits, false);
  };
  const auto work = [&] {
    while (num_complete.load() < kOps) {
      const Progress::Claim claim = progress.TryClaim();
      if (!claim) {
        std::this_thread::yield();
        continue;
      }
      ++num_units;
      if (progress.Finish(claim)) complete();
    }
  };
  const auto close = [&] {
    while (num_complete.load() < kOps) {
      if (progress.Close()) complete();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  };
  progress.Publish(kUnits, false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(work);
  threads.emplace_back(close);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(num_complete.load(), kOps);
  CHECK(num_units.load() > 0 && num_units.load() <= kOps * kUnits);
}

}  // namespace plait
