// Progress: how far the running op of a lane has come, in units of work, without a lock.
//
// Owns the claim word and the count of finished units. What a unit is, and which op runs, is the lane's business.
// Invariant: every unit of a published op is claimed once or closed once, and exactly one caller, of Finish or of
// Close, is told that the op is complete. A claim that succeeded therefore pins the op, and the step that it belongs
// to, until it is finished; one that comes too late finds nothing, whatever it believed to be running.

#ifndef PLAIT_CSRC_RUNTIME_PROGRESS_H_
#define PLAIT_CSRC_RUNTIME_PROGRESS_H_

#include <atomic>
#include <cassert>
#include <cstdint>

#include "base/aligned.h"

namespace plait {

// Units of one op; leaves room for every worker to add one to `next` in vain.
inline constexpr uint32_t kMaxUnits = (uint32_t{1} << 20) - 4096;

class Progress {
 public:
  struct Claim {
    uint32_t unit = 0;
    uint32_t num_units = 0;  // of the op; 0: nothing was claimed

    explicit operator bool() const { return num_units > 0; }
  };

  // Only when the op before is complete, by whoever was told so. Sequentially consistent: what is stored before and
  // loaded behind it may be used to agree with a thread that stores first and then closes. `claims_first`: the caller
  // has the first unit, which is claimed with the publication, so that nobody is faster.
  Claim Publish(uint32_t num_units, bool claims_first) {
    assert(num_units > 0 && num_units <= kMaxUnits);
    const uint64_t generation = (word_.load(std::memory_order_relaxed) >> 40) + 1;
    num_done_.store(0, std::memory_order_relaxed);
    word_.store(generation << 40 | uint64_t{num_units} << 20 | uint64_t{claims_first}, std::memory_order_seq_cst);
    return claims_first ? Claim{0, num_units} : Claim{};
  }

  bool HasUnits() const {
    const uint64_t word = word_.load(std::memory_order_seq_cst);
    return Next(word) < NumUnits(word);
  }

  Claim TryClaim() {
    if (!HasUnits()) return {};
    const uint64_t word = word_.fetch_add(1, std::memory_order_acq_rel);
    return Next(word) < NumUnits(word) ? Claim{Next(word), NumUnits(word)} : Claim{};
  }

  // True: this was the last unit of the op.
  bool Finish(const Claim& claim) { return num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == claim.num_units; }

  // Takes what is left of the op away from the workers. True: nobody is at work on it, it is complete. A second call
  // finds nothing to take away.
  bool Close() {
    uint64_t word = word_.load(std::memory_order_seq_cst);
    do {
      if (Next(word) >= NumUnits(word)) return false;
    } while (!word_.compare_exchange_weak(word, word + NumUnits(word) - Next(word), std::memory_order_seq_cst));
    const uint32_t num_left = NumUnits(word) - Next(word);
    return num_done_.fetch_add(num_left, std::memory_order_acq_rel) + num_left == NumUnits(word);
  }

  // Units in work at the moment of `claim`, itself included: roughly, for statistics.
  uint32_t NumAtWork(const Claim& claim) const {
    const uint32_t num_done = num_done_.load(std::memory_order_relaxed);
    return claim.unit >= num_done ? claim.unit + 1 - num_done : 1;
  }

 private:
  static constexpr uint32_t kField = (uint32_t{1} << 20) - 1;
  static uint32_t Next(uint64_t word) { return static_cast<uint32_t>(word) & kField; }
  static uint32_t NumUnits(uint64_t word) { return static_cast<uint32_t>(word >> 20) & kField; }

  // Generation in 24 bits, units of the op in 20, the next unit to be claimed in 20.
  alignas(kCacheLine) std::atomic<uint64_t> word_ = 0;
  alignas(kCacheLine) std::atomic<uint32_t> num_done_ = 0;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_PROGRESS_H_
