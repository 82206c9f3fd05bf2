// Work record: what one worker did and when, kept for whoever profiles.
//
// Owns a ring of events that its worker fills and one reader empties, without a lock between them. There is none unless
// profiling is on. Invariant: events come out in the order in which they ended; one that found the ring full is
// counted, and nothing that was recorded before it is touched.

#ifndef PLAIT_CSRC_RUNTIME_WORK_RECORD_H_
#define PLAIT_CSRC_RUNTIME_WORK_RECORD_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned.h"

namespace plait {

enum class WorkKind : uint8_t {
  kUnit,     // a unit of op `op`
  kAdvance,  // op `op` was cut into units and published, and workers were woken for it
  kBegin,    // a step's moves and tokens, in front of its first op
  kEnd,      // a step's results were gathered; whoever waits for them is told later
  kSpin,     // waiting for units of the lane's running op, awake
  kPark,     // asleep
};

// Times are of the monotonic clock.
struct WorkEvent {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t step = 0;  // not of kSpin and kPark
  uint32_t op = 0;   // index into the tape, of kUnit and kAdvance
  uint8_t lane = 0;
  WorkKind kind = WorkKind::kUnit;
  uint16_t unused = 0;

  bool operator==(const WorkEvent&) const = default;
};
static_assert(sizeof(WorkEvent) == 32, "src/plait/exec/native/work_log.py reads these bytes");

int64_t NowNanoseconds();

class WorkRecord {
 public:
  // Room for at least so many events.
  explicit WorkRecord(size_t num_events)
      : capacity_(std::bit_ceil(num_events)), events_(std::make_unique<WorkEvent[]>(capacity_)) {}

  size_t num_bytes() const { return capacity_ * sizeof(WorkEvent); }

  // Only its worker.
  void Add(const WorkEvent& event) {
    const uint64_t end = end_.load(std::memory_order_relaxed);
    if (end - begin_.load(std::memory_order_acquire) == capacity_) {
      num_lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    events_[end & (capacity_ - 1)] = event;
    end_.store(end + 1, std::memory_order_release);
  }

  // Only one thread at a time. Whatever was recorded before something that this thread knows of is there.
  std::vector<WorkEvent> Take() {
    std::vector<WorkEvent> taken;
    const uint64_t end = end_.load(std::memory_order_acquire);
    uint64_t next = begin_.load(std::memory_order_relaxed);
    taken.reserve(end - next);
    for (; next != end; ++next) taken.push_back(events_[next & (capacity_ - 1)]);
    begin_.store(next, std::memory_order_release);
    return taken;
  }

  // Since the start.
  uint64_t num_lost() const { return num_lost_.load(std::memory_order_relaxed); }

 private:
  const size_t capacity_;
  const std::unique_ptr<WorkEvent[]> events_;
  alignas(kCacheLine) std::atomic<uint64_t> end_ = 0;
  std::atomic<uint64_t> num_lost_ = 0;
  alignas(kCacheLine) std::atomic<uint64_t> begin_ = 0;
};

// An interval that begins now, if there is a record to note it in. Without one it costs a look at a null pointer.
class WorkInterval {
 public:
  explicit WorkInterval(WorkRecord* record) : record_(record), begin_ns_(record == nullptr ? 0 : NowNanoseconds()) {}

  bool is_noted() const { return record_ != nullptr; }

  void End(WorkKind kind, uint32_t lane, int64_t step = 0, uint32_t op = 0) const {
    if (record_ == nullptr) return;
    record_->Add({begin_ns_, NowNanoseconds(), step, op, static_cast<uint8_t>(lane), kind});
  }

  // Not if it is shorter than anybody could see.
  void EndWait(WorkKind kind, uint32_t lane) const {
    if (record_ != nullptr && NowNanoseconds() - begin_ns_ >= kShortestWaitNs) End(kind, lane);
  }

 private:
  static constexpr int64_t kShortestWaitNs = 1000;

  WorkRecord* const record_;
  const int64_t begin_ns_;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_WORK_RECORD_H_
