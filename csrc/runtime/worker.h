// Worker: a thread that belongs to a core, and at any moment to one lane or to none.
//
// Owns what only this thread touches, its counters, and how it sleeps and is woken. What it does is runtime.cc's
// business. Invariant: whoever gives a worker a reason to be awake stores the reason before it calls Wake, and the
// worker looks for reasons after it has said that it sleeps; both sequentially consistent, so no reason is missed.

#ifndef PLAIT_CSRC_RUNTIME_WORKER_H_
#define PLAIT_CSRC_RUNTIME_WORKER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/aligned.h"
#include "runtime/carry_out.h"
#include "runtime/delays.h"
#include "runtime/work_record.h"

namespace plait {

inline constexpr uint32_t kNoLane = UINT32_MAX;

// A clock that costs next to nothing to read; its unit is known from a comparison with a real one (Stopwatch).
uint64_t Ticks();
double NowSeconds();

// Ticks per second since it was made.
class Stopwatch {
 public:
  Stopwatch() : start_ticks_(Ticks()), start_s_(NowSeconds()) {}
  uint64_t start_ticks() const { return start_ticks_; }
  double SecondsPerTick() const;

 private:
  uint64_t start_ticks_;
  double start_s_;
};

// Processor time of a thread, by its clock (ThreadClock); 0 where there is none.
int64_t ProcessorNanoseconds(int clock);
inline constexpr int kNoClock = INT32_MIN;
// Of the calling thread, for any thread to read.
int ThreadClock();

// Tells the core that this thread is waiting for another one.
void Relax();

// Pins the calling thread (core -1: not), makes it nicer by `nice` than it is, and sets the floating-point modes that
// the numerics require: round to nearest, no flushing of denormals. What the system does not grant is left as it is.
void PrepareWorkerThread(int core, int nice);

struct alignas(kCacheLine) Worker {
  // Sleeps unless `has_reason()` holds. Returns when woken; reasons must then be looked for again.
  template <typename HasReason>
  void Park(HasReason has_reason, std::atomic<uint32_t>& num_parked) {
    parked.store(1, std::memory_order_seq_cst);
    num_parked.fetch_add(1, std::memory_order_seq_cst);
    if (!has_reason()) {
      num_parks.fetch_add(1, std::memory_order_relaxed);
      const uint64_t since = Ticks();
      parked_since.store(since, std::memory_order_relaxed);
      parked.wait(1, std::memory_order_seq_cst);
      parked_since.store(0, std::memory_order_relaxed);
      parked_ticks.fetch_add(Ticks() - since, std::memory_order_relaxed);
    }
    num_parked.fetch_sub(1, std::memory_order_relaxed);
    parked.store(0, std::memory_order_relaxed);
  }
  // Only the worker itself: nobody else writes these.
  void NoteUnit(uint64_t ticks) {
    kernel_ticks.store(kernel_ticks.load(std::memory_order_relaxed) + ticks, std::memory_order_relaxed);
    num_units.store(num_units.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // True: it was asleep, or about to be.
  bool Wake() {
    if (parked.load(std::memory_order_seq_cst) == 0 || parked.exchange(0, std::memory_order_seq_cst) == 0) return false;
    parked.notify_one();
    return true;
  }

  // What it is to work for changes now; called before the change is stored.
  void NoteChange() {
    // One thread calls this, and the worker looks at what is written first only behind the exchange.
    if (changed_ns.load(std::memory_order_seq_cst) != 0) return;
    changed_processor_ns.store(ProcessorNanoseconds(clock.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    changed_ns.store(NowNanoseconds(), std::memory_order_seq_cst);
  }
  // The change needs nobody who sleeps, and wakes nobody.
  void ForgetChangeIfParked() {
    if (parked.load(std::memory_order_seq_cst) != 0) changed_ns.store(0, std::memory_order_seq_cst);
  }
  // The worker looks at what it is to work for.
  void NoteLook() {
    if (changed_ns.load(std::memory_order_seq_cst) == 0) return;
    const int64_t processor_since = changed_processor_ns.load(std::memory_order_relaxed);
    const int64_t since = changed_ns.exchange(0, std::memory_order_seq_cst);
    if (since == 0) return;
    delays.Add(NowNanoseconds() - since);
    const int64_t ran = ProcessorNanoseconds(clock.load(std::memory_order_relaxed)) - processor_since;
    own_delays.Add(ran > 0 ? ran : 0);
  }

  std::atomic<uint32_t> lane = kNoLane;
  std::atomic<int64_t> changed_ns = 0;            // 0: it has looked since the last change
  std::atomic<int64_t> changed_processor_ns = 0;  // its processor time then
  std::atomic<int> clock = kNoClock;              // of its processor time
  alignas(kCacheLine) std::atomic<uint32_t> parked = 0;

  // Written by the worker, read by whoever asks for counters.
  alignas(kCacheLine) std::atomic<uint64_t> num_units = 0;
  std::atomic<uint64_t> kernel_ticks = 0;
  std::atomic<uint64_t> num_parks = 0;
  std::atomic<uint64_t> parked_ticks = 0;
  std::atomic<uint64_t> parked_since = 0;  // 0: awake
  Delays delays;                           // from a change to the look at it
  Delays own_delays;                       // of that, for how long it ran

  std::unique_ptr<Scratch> scratch;
  std::unique_ptr<WorkRecord> record;  // null: nobody profiles
  std::thread thread;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_WORKER_H_
