// What the machine says about itself, against a second source: /proc/cpuinfo and where a pinned thread runs.

#include "base/cpu.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "base/testing.h"

namespace plait {
namespace {

TEST(BaselineComesFirstAndTheBestTargetLast) {
  const std::vector<Target> targets = SupportedTargets();
  CHECK(!targets.empty());
  CHECK(targets.front() == Target::kBaseline);
  CHECK(targets.back() == BestTarget());
  CHECK(std::is_sorted(targets.begin(), targets.end()));
}

TEST(TargetsAreCalledLikeTheirNamespaces) {
  CHECK_EQ(std::string(TargetName(Target::kBaseline)), "baseline");
  CHECK_EQ(std::string(TargetName(Target::kAvx2)), "avx2");
  CHECK_EQ(std::string(TargetName(Target::kAvx512)), "avx512");
}

#if defined(__linux__) && defined(__x86_64__)
// The kernel's own list of what this machine can do and what it has switched on.
std::vector<std::string> KernelFlags() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::vector<std::string> flags;
    for (std::string word; words >> word;) flags.push_back(word);
    return flags;
  }
  return {};
}

TEST(TargetsAgreeWithTheKernel) {
  const std::vector<std::string> flags = KernelFlags();
  if (flags.empty()) return;  // A sandbox without /proc.
  const auto has_all = [&flags](const std::vector<std::string>& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&flags](const std::string& name) {
      return std::find(flags.begin(), flags.end(), name) != flags.end();
    });
  };
  const bool avx2 = has_all({"avx2", "fma", "f16c", "bmi2"});
  const bool avx512 = avx2 && has_all({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"});
  CHECK(BestTarget() == (avx512 ? Target::kAvx512 : avx2 ? Target::kAvx2 : Target::kBaseline));
}
#endif

TEST(UsableCpusAreDistinctAndAscending) {
  const std::vector<int> cpus = UsableCpus();
  CHECK(!cpus.empty());
  CHECK(std::adjacent_find(cpus.begin(), cpus.end(), [](int left, int right) { return left >= right; }) == cpus.end());
}

#if defined(__linux__)
TEST(APinnedThreadRunsWhereItWasPinned) {
  for (const int cpu : UsableCpus()) {
    std::thread([cpu] {
      CHECK(PinThread(cpu));
      CHECK_EQ(sched_getcpu(), cpu);
      CHECK_EQ(UsableCpus().size(), size_t{1});
    }).join();
  }
}

TEST(ACpuThatDoesNotExistIsRefused) {
  const std::vector<int> before = UsableCpus();
  CHECK(!PinThread(-1));
  CHECK(!PinThread(60000));
  CHECK(!PinThread(1 << 20));
  CHECK(UsableCpus() == before);
}
#endif

}  // namespace
}  // namespace plait
