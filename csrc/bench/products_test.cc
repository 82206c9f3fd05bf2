// Products by all rules: the same rows, bit for bit.

#include "bench/products.h"

#include <cstring>
#include <vector>

#include "base/testing.h"

namespace plait::bench {
namespace {

TEST(AllRulesForRowsGiveTheSameBits) {
  constexpr size_t kColumns = 80;
  Crew crew(2);
  for (size_t code = 0; code < kNumSchemes; ++code) {
    const auto scheme = static_cast<Scheme>(code);
    Products products(baseline::kKernels, scheme, 256, kColumns, 0, 40);
    for (const size_t rows : {1, 7, 12, 39}) {
      std::vector<float> exact;
      for (const RowRule rule : {RowRule::kExact, RowRule::kPadded, RowRule::kFoursAndSingle}) {
        crew.Time([&] { products.Multiply(crew, rows, rule, 1); });
        const float* results = products.results();
        if (rule == RowRule::kExact) exact.assign(results, results + rows * kColumns);
        CHECK(std::memcmp(results, exact.data(), exact.size() * sizeof(float)) == 0);
        CHECK(exact[0] == exact[0]);
      }
    }
  }
}

TEST(CopiesTogetherAreAsLargeAsAsked) {
  const Products products(baseline::kKernels, Scheme::kF32, 64, 32, 3 * 64 * 32 * 4 + 1, 1);
  CHECK_EQ(products.num_copies(), 4u);
}

}  // namespace
}  // namespace plait::bench
