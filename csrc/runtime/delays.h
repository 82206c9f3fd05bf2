// Delays: a histogram of how long something took, written by one thread and read by any.
//
// Owns the bounds of its buckets. Invariant: a count never goes down; what is read while somebody writes may lack the
// newest delay, or have it in one of its numbers only.

#ifndef PLAIT_CSRC_RUNTIME_DELAYS_H_
#define PLAIT_CSRC_RUNTIME_DELAYS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace plait {

// Upper bounds of all buckets but the last, which has none.
inline constexpr std::array<int64_t, 15> kDelayBoundsNs = {
    5'000,   10'000,    20'000,    50'000,    100'000,    200'000,    300'000,     400'000,
    500'000, 1'000'000, 2'000'000, 5'000'000, 10'000'000, 50'000'000, 250'000'000,
};
inline constexpr size_t kDelayBuckets = kDelayBoundsNs.size() + 1;

// By bucket, and all of them together.
struct DelayCounts {
  std::array<uint64_t, kDelayBuckets> counts = {};
  int64_t total_ns = 0;
};

class Delays {
 public:
  // Only one thread.
  void Add(int64_t ns) {
    const auto bucket = std::lower_bound(kDelayBoundsNs.begin(), kDelayBoundsNs.end(), ns) - kDelayBoundsNs.begin();
    counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  void AddTo(DelayCounts* sum) const {
    for (size_t i = 0; i < kDelayBuckets; ++i) sum->counts[i] += counts_[i].load(std::memory_order_relaxed);
    sum->total_ns += total_ns_.load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, kDelayBuckets> counts_ = {};
  std::atomic<int64_t> total_ns_ = 0;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_DELAYS_H_
