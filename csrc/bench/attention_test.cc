// Attention in all ways: the same rows, bit for bit, so that their times compare the same work.

#include "bench/attention.h"

#include <cstring>
#include <vector>

#include "base/testing.h"

namespace plait::bench {
namespace {

constexpr Segment kSegments[] = {{Stage::kPrefill, 300, 70}, {Stage::kDecode, 517, 1}, {Stage::kVerify, 255, 5},
                                 {Stage::kPrefill, 0, 33},   {Stage::kVerify, 64, 2},  {Stage::kDecode, 0, 1}};
constexpr size_t kRows = 70 + 1 + 5 + 33 + 2 + 1;

std::vector<float> ResultsOf(Attention& attention, Crew& crew, Batch& batch, Way way) {
  crew.Time([&] { attention.Attend(crew, batch, way, 1); });
  const float* results = attention.results();
  return {results, results + kRows * attention.row_width()};
}

TEST(AllWaysToAttendGiveTheSameBits) {
  Crew crew(2);
  // One layer: every call is for the same keys.
  Attention attention(baseline::kKernels, {4, 2, 16, CacheType::kF16, 32, 1, 70}, 2, 256);
  const std::unique_ptr<Batch> batch = attention.MakeBatch(kSegments, 2);
  CHECK(batch != nullptr);
  if (batch == nullptr) return;
  const std::vector<float> one_call = ResultsOf(attention, crew, *batch, Way::kOneCall);
  for (const Way way : {Way::kSeparate, Way::kGathered, Way::kPadded, Way::kRepacked, Way::kWidened, Way::kMasked,
                        Way::kTiled, Way::kSingly}) {
    const std::vector<float> results = ResultsOf(attention, crew, *batch, way);
    const bool same = std::memcmp(results.data(), one_call.data(), one_call.size() * sizeof(float)) == 0;
    CHECK_EQ(same ? -1 : static_cast<int>(way), -1);
  }
  CHECK_EQ(attention.UnitSeconds(crew, *batch).size(), 4u);
}

TEST(ABatchThatDoesNotFitIsRefused) {
  const Attention small(baseline::kKernels, {4, 2, 16, CacheType::kF32, 32, 1, 20}, 1, 256);
  CHECK(small.MakeBatch(kSegments, 1) == nullptr);
  const Attention narrow(baseline::kKernels, {4, 2, 16, CacheType::kF32, 32, 1, 70}, 1, 100);
  CHECK(narrow.MakeBatch(kSegments, 1) == nullptr);
}

}  // namespace
}  // namespace plait::bench
