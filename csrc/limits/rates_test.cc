// Rates and wakes: that the work is done by all threads and that every notice arrives. How fast is not tested.

#include "limits/rates.h"

#include <cstring>
#include <vector>

#include "base/testing.h"
#include "limits/compute_loops.h"
#include "limits/wake_probe.h"

namespace plait::limits {
namespace {

TEST(EveryMachineHasALoopForFloatsAndOneForIntegers) {
  bool has_floats = false, has_integers = false;
  for (const ComputeLoop& loop : AvailableComputeLoops()) {
    has_floats |= std::strcmp(loop.kind, "f32") == 0;
    has_integers |= std::strcmp(loop.kind, "int8") == 0;
  }
  CHECK(has_floats && has_integers);
}

// Chains of floats all go to 1, so their sum tells how many chains were computed; one of 13 is added to itself.
TEST(NoChainOfAFloatLoopIsLeftOut) {
  for (const ComputeLoop& loop : AvailableComputeLoops()) {
    if (std::strcmp(loop.kind, "f32") != 0) continue;
    const double sum = loop.run(20000);
    CHECK(sum > 12.99 && sum < 13.01);
  }
}

TEST(ALoopDependsOnItsNumberOfRounds) {
  for (const ComputeLoop& loop : AvailableComputeLoops()) CHECK(loop.run(1) != loop.run(100));
}

TEST(EachSampleIsARate) {
  const std::vector<double> rates = ComputeRates(AvailableComputeLoops().front(), 2, 3, 0.001);
  CHECK_EQ(rates.size(), size_t{3});
  for (const double rate : rates) CHECK(rate > 0.0);
}

TEST(ReadingLessThanAPieceForEachThreadWorksToo) {
  const std::vector<double> rates = ReadRates(1, 3, 2, 0.001);
  CHECK_EQ(rates.size(), size_t{2});
  for (const double rate : rates) CHECK(rate > 0.0);
}

TEST(EveryNoticeArrivesAfterItWasSent) {
  for (const int num_workers : {0, 2}) {
    WakeProbe probe(num_workers, 5, 0.0005);
    double last = 0.0;
    for (int wake = 0; wake < 20; ++wake) {
      const double sent_at = probe.Wait();
      CHECK(sent_at > last && sent_at <= Now());
      last = sent_at;
    }
  }
}

}  // namespace
}  // namespace plait::limits
