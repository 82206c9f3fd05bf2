// Runtime and Seat of plait._native.
//
// Owns cache memory and panels for as long as the runtime lives, copies of logits for whoever wants to see them, and
// the form in which reports go to Python. Short calls keep the interpreter: giving it up could cost a wait for it.
// Invariants: workers have stopped before anything that they read is freed; in a process that was forked off, which has
// none of the threads, nothing of the runtime is touched: it waits for them in vain, and its locks may be held forever.

#include "bindings/runtime_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "base/aligned.h"
#include "base/cpu.h"
#include "base/page_toucher.h"
#include "bindings/arguments.h"
#include "bindings/panels_bindings.h"
#include "bindings/plan_reading.h"
#include "bindings/tape_reading.h"
#include "runtime/runtime.h"
#include "runtime/tape.h"

namespace nb = nanobind;

namespace plait {
namespace {

constexpr size_t kMaxWorkers = 1024;
constexpr size_t kMaxLanes = 64;
constexpr size_t kMaxStepTokens = size_t{1} << 20;
constexpr size_t kMaxRecordEvents = size_t{1} << 28;
constexpr int kMaxProcessor = (1 << 16) - 1;
// Of the cache, taken from the system beyond the blocks that are in use: a few steps' worth of a small model.
constexpr size_t kBytesAhead = size_t{32} << 20;

const Kernels& KernelsOf(Target target) {
  switch (target) {
#if defined(__x86_64__)
    case Target::kAvx512:
      return avx512::kKernels;
    case Target::kAvx2:
      return avx2::kKernels;
#endif
    default:
      return baseline::kKernels;
  }
}

// The kernels of a target by name; empty: the best that runs here.
const Kernels& KernelsNamed(const std::string& name) {
  if (name.empty()) return KernelsOf(BestTarget());
  std::string known;
  for (const Target target : SupportedTargets()) {
    if (name == TargetName(target)) return KernelsOf(target);
    known += (known.empty() ? "" : ", ") + std::string(TargetName(target));
  }
  ThrowValueError("target is " + name + " but this machine runs " + known);
}

// Numbers runtimes, so that a seat tells where it belongs.
uint64_t NextRuntimeNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Logits of output rows by step, kept until they are taken.
class LogitsStore {
 public:
  static void Observe(void* store, int64_t step, size_t first_row, size_t num_rows, const float* logits, size_t stride,
                      size_t vocab_size) {
    static_cast<LogitsStore*>(store)->Put(step, first_row, num_rows, logits, stride, vocab_size);
  }

  std::vector<float> Take(int64_t step) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto node = rows_.extract(step);
    return node.empty() ? std::vector<float>() : std::move(node.mapped());
  }

 private:
  void Put(int64_t step, size_t first_row, size_t num_rows, const float* logits, size_t stride, size_t vocab_size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<float>& kept = rows_[step];
    kept.resize(std::max(kept.size(), (first_row + num_rows) * vocab_size));
    for (size_t row = 0; row < num_rows; ++row) {
      std::memcpy(&kept[(first_row + row) * vocab_size], logits + row * stride, vocab_size * sizeof(float));
    }
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<float>> rows_;
};

nb::tuple TupleOf(const std::vector<int32_t>& numbers) {
  nb::tuple made = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLong(numbers[i]));
  }
  return made;
}

nb::tuple TupleOf(const std::vector<TokenLogprobSpec>& logprobs) {
  nb::list made;
  for (const TokenLogprobSpec& one : logprobs) {
    nb::list top;
    for (const auto& [token, logprob] : one.top) top.append(nb::make_tuple(token, logprob));
    made.append(nb::make_tuple(one.token, one.logprob, nb::tuple(top)));
  }
  return nb::tuple(made);
}

// Nothing was pooled: None.
nb::object PooledOf(const std::vector<float>& numbers) {
  if (numbers.empty()) return nb::none();
  nb::tuple made = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), PyFloat_FromDouble(numbers[i]));
  }
  return made;
}

nb::tuple TupleOf(const StepReport& report) {
  nb::list chunks;
  for (const ChunkResult& chunk : report.chunks) {
    chunks.append(nb::make_tuple(static_cast<int>(chunk.status), chunk.failed_row, TupleOf(chunk.tokens),
                                 TupleOf(chunk.logprobs), TupleOf(chunk.scored), PooledOf(chunk.pooled)));
  }
  return nb::make_tuple(report.step, report.lane, report.start_s, report.end_s, report.workers, chunks);
}

// Cache memory. Runtimes of several models may have it together: whoever grants blocks sees to it that each is one's.
class CachePool {
 public:
  explicit CachePool(size_t bytes) : memory_(bytes), pages_(memory_.data(), memory_.size(), kBytesAhead) {}

  uint8_t* data() const { return memory_.data(); }
  size_t size() const { return memory_.size(); }
  void Expect(size_t end) { pages_.Expect(end); }

 private:
  const AlignedBuffer memory_;
  PageToucher pages_;  // of memory_
};

class PyRuntime {
 public:
  PyRuntime(nb::handle tape, const Panels& panels, nb::sequence vectors, nb::sequence ropes, nb::sequence groups,
            size_t pool_bytes, const std::vector<int>& cores, size_t num_lanes, size_t max_step_tokens,
            const std::string& target, uint64_t blocking_seed, bool poison, bool observes, size_t record_events,
            const PyRuntime* pool_of)
      : groups_(ReadGroups(groups)),
        number_(NextRuntimeNumber()),
        reader_(groups_.size(), number_),
        pool_(pool_of == nullptr ? std::make_shared<CachePool>(pool_bytes) : pool_of->pool_),
        num_workers_(cores.size()),
        num_lanes_(num_lanes) {
    if (pool_->size() != pool_bytes) {
      ThrowValueError("the pool has " + std::to_string(pool_->size()) + " bytes, not " + std::to_string(pool_bytes));
    }
    CheckSizes(cores, max_step_tokens, record_events);
    Tape made = ReadTape(tape);
    made.matrices = panels.Packed();
    made.vectors = ReadVectors(vectors);
    made.ropes = ReadRopes(ropes);
    made.groups = groups_;
    vocab_size_ = made.vocab_size;
    const std::string fault = TapeFault(made);
    if (!fault.empty()) ThrowValueError("the tape cannot be carried out: " + fault);
    RuntimeConfig config;
    config.cores = cores;
    config.num_lanes = num_lanes;
    config.max_step_tokens = max_step_tokens;
    config.blocking_seed = blocking_seed;
    config.poison = poison;
    config.record_events = record_events;
    const Kernels& kernels = KernelsNamed(target);
    target_ = kernels.target;
    try {
      runtime_ = std::make_unique<Runtime>(config, std::move(made), kernels, pool_->data(), pool_->size());
    } catch (const std::system_error& error) {
      PyErr_Format(PyExc_OSError, "%zu workers could not be started: %s", num_workers_, error.what());
      throw nb::python_error();
    }
    if (observes) runtime_->ObserveLogits(&LogitsStore::Observe, &logits_);
  }
  ~PyRuntime() {
    Close();
    if (IsHere()) return;
    // Both would join their threads. What they hold goes with the process.
    static_cast<void>(runtime_.release());
    static_cast<void>(new std::shared_ptr<CachePool>(std::move(pool_)));
  }

  SeatHandle Join(nb::handle join) { return {Alive().Join(reader_.ReadJoin(join)), number_}; }

  void Submit(nb::handle plan, nb::list seats, nb::list grant_seats) {
    StepSpec step = reader_.ReadPlan(plan, std::move(seats), std::move(grant_seats));
    CheckLane(step.lane);
    Runtime& runtime = Alive();
    ExpectBlocks(step.grants);
    runtime.Submit(std::move(step));
  }

  void Retune(nb::handle sizes, nb::handle gemms) { Alive().Retune(ReadBlocking(sizes, gemms)); }

  void Assign(const std::vector<std::vector<uint32_t>>& shares, bool idle_may_help) {
    if (shares.size() != num_lanes_) {
      ThrowValueError(std::to_string(shares.size()) + " shares for " + std::to_string(num_lanes_) + " lanes");
    }
    for (const std::vector<uint32_t>& share : shares) {
      for (const uint32_t worker : share) {
        if (worker < num_workers_) continue;
        ThrowValueError("worker " + std::to_string(worker) + " of " + std::to_string(num_workers_));
      }
    }
    Alive().Assign(shares, idle_may_help);
  }
  void Suspend(uint32_t lane) { CheckLane(lane), Alive().Suspend(lane); }
  void Resume(uint32_t lane) { CheckLane(lane), Alive().Resume(lane); }
  void Cancel(int64_t step, const std::vector<int64_t>& seqs) { Alive().Cancel(step, seqs); }

  nb::list Collect() {
    nb::list reports;
    if (!IsAlive()) return reports;
    for (const StepReport& report : runtime_->Collect()) reports.append(TupleOf(report));
    return reports;
  }
  bool HasFinished() const { return IsAlive() && runtime_->HasFinished(); }
  void Notify(int fd) {
    if (IsHere()) Alive().NotifyFd(fd);
  }

  bool WaitFinished(double timeout_s) {
    if (std::isnan(timeout_s)) ThrowValueError("timeout_s is not a number");
    nb::gil_scoped_release without_gil;
    return IsAlive() && runtime_->WaitFinished(timeout_s);
  }

  nb::ndarray<nb::numpy, float, nb::ndim<2>> TakeLogits(int64_t step) {
    auto kept = std::make_unique<std::vector<float>>(logits_.Take(step));
    const size_t num_rows = kept->size() / std::max<size_t>(vocab_size_, 1);
    std::vector<float>* const rows = kept.get();
    nb::capsule owner(rows, [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
    static_cast<void>(kept.release());  // The capsule has it now.
    return nb::ndarray<nb::numpy, float, nb::ndim<2>>(rows->data(), {num_rows, vocab_size_}, owner);
  }

  nb::list TakeWork() {
    nb::list made;
    if (!IsHere()) return made;
    for (WorkTaken& taken : Alive().TakeWork()) {
      auto kept = std::make_unique<std::vector<WorkEvent>>(std::move(taken.events));
      std::vector<WorkEvent>* const events = kept.get();
      nb::capsule owner(events, [](void* memory) noexcept { delete static_cast<std::vector<WorkEvent>*>(memory); });
      static_cast<void>(kept.release());  // The capsule has it now.
      auto* const bytes = reinterpret_cast<uint8_t*>(events->data());
      const size_t num_bytes = events->size() * sizeof(WorkEvent);
      made.append(
          nb::make_tuple(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(bytes, {num_bytes}, owner), taken.num_lost));
    }
    return made;
  }

  nb::dict Counters() {
    const RuntimeCounters counters = Alive().Counters();
    nb::dict made;
    made["units"] = counters.units;
    made["steps"] = counters.steps;
    made["kernel_s"] = counters.kernel_s;
    made["busy_s"] = counters.busy_s;
    made["parked_s"] = counters.parked_s;
    made["parks"] = counters.parks;
    return made;
  }

  nb::tuple ChangeDelays() { return Buckets(Alive().ChangeDelays()); }
  nb::tuple OwnChangeDelays() { return Buckets(Alive().OwnChangeDelays()); }
  size_t arena_bytes() { return Alive().ArenaBytes(); }
  size_t lane_bytes() { return Alive().LaneBytes(); }
  const std::string& target() const { return target_; }

  void Close() {
    nb::gil_scoped_release without_gil;
    if (IsAlive()) runtime_->Close();
  }

 private:
  // Upper bounds of the buckets but the last, in seconds, counts by bucket, and the sum of all delays in seconds.
  static nb::tuple Buckets(const DelayCounts& delays) {
    nb::list bounds;
    nb::list counts;
    for (const int64_t bound : kDelayBoundsNs) bounds.append(static_cast<double>(bound) * 1e-9);
    for (const uint64_t count : delays.counts) counts.append(count);
    return nb::make_tuple(nb::tuple(bounds), nb::tuple(counts), static_cast<double>(delays.total_ns) * 1e-9);
  }
  void CheckSizes(const std::vector<int>& cores, size_t max_step_tokens, size_t record_events) const {
    if (num_workers_ < 1 || num_workers_ > kMaxWorkers) {
      ThrowValueError(std::to_string(num_workers_) + " workers; 1 to " + std::to_string(kMaxWorkers) + " are possible");
    }
    for (const int core : cores) {
      if (core < -1 || core > kMaxProcessor) {
        ThrowValueError("a worker is bound to processor " + std::to_string(core) + "; -1 (to none) to " +
                        std::to_string(kMaxProcessor) + " are possible");
      }
    }
    if (num_lanes_ < 1 || num_lanes_ > kMaxLanes) {
      ThrowValueError(std::to_string(num_lanes_) + " lanes; 1 to " + std::to_string(kMaxLanes) + " are possible");
    }
    if (max_step_tokens < 1 || max_step_tokens > kMaxStepTokens) {
      ThrowValueError("max_step_tokens is " + std::to_string(max_step_tokens) + " but must be between 1 and " +
                      std::to_string(kMaxStepTokens));
    }
    if (record_events > kMaxRecordEvents) {
      ThrowValueError("record_events is " + std::to_string(record_events) + " but may be " +
                      std::to_string(kMaxRecordEvents) + " at most");
    }
    for (const GroupSpec& group : groups_) {
      if (group.block_bytes != 0 && group.num_blocks > pool_->size() / group.block_bytes) {
        ThrowValueError("a cache group has more blocks than the pool holds");
      }
    }
  }
  void ExpectBlocks(const std::vector<GrantSpec>& grants) {
    size_t end = 0;
    for (const GrantSpec& grant : grants) {
      for (const int32_t block : grant.blocks) {
        end = std::max(end, (static_cast<size_t>(std::max(block, 0)) + 1) * groups_[grant.group].block_bytes);
      }
    }
    pool_->Expect(end);
  }
  void CheckLane(size_t lane) const {
    if (lane >= num_lanes_) ThrowValueError("lane " + std::to_string(lane) + " of " + std::to_string(num_lanes_));
  }
  // In the process that its workers are threads of.
  bool IsHere() const { return getpid() == process_; }
  bool IsAlive() const { return runtime_ != nullptr && IsHere(); }
  Runtime& Alive() {
    if (runtime_ == nullptr) ThrowValueError("the runtime was never started");
    if (!IsHere()) {
      ThrowValueError("the runtime works in process " + std::to_string(process_) + ", and process " +
                      std::to_string(getpid()) + " was forked off it without workers; start an engine there");
    }
    return *runtime_;
  }

  const std::vector<GroupSpec> groups_;
  const pid_t process_ = getpid();
  const uint64_t number_;
  const PlanReader reader_;
  std::shared_ptr<CachePool> pool_;
  const size_t num_workers_;
  const size_t num_lanes_;
  size_t vocab_size_ = 0;
  std::string target_;
  LogitsStore logits_;
  std::unique_ptr<Runtime> runtime_;  // the last member, so that its workers stop first
};

}  // namespace

void BindRuntime(nb::module_& module) {
  nb::class_<SeatHandle>(module, "Seat", "A joined sequence, as the runtime keeps it.");
  nb::class_<PyRuntime>(module, "Runtime", "Lanes of steps, carried out by workers of this process.")
      .def(
          nb::init<nb::handle, const Panels&, nb::sequence, nb::sequence, nb::sequence, size_t, const std::vector<int>&,
                   size_t, size_t, const std::string&, uint64_t, bool, bool, size_t, const PyRuntime*>(),
          nb::arg("tape"), nb::arg("panels"), nb::arg("vectors"), nb::arg("ropes"), nb::arg("groups"),
          nb::arg("pool_bytes"), nb::arg("cores"), nb::arg("num_lanes"), nb::arg("max_step_tokens"), nb::arg("target"),
          nb::arg("blocking_seed"), nb::arg("poison"), nb::arg("observes_logits"), nb::arg("record_events"),
          nb::arg("pool_of").none() = nb::none(), nb::keep_alive<1, 3>(),
          "Take a tape over with what it refers to, and start one worker for each core. `pool_of`: the runtime whose "
          "cache memory this one has, too; None: it has its own.")
      .def("join", &PyRuntime::Join, nb::arg("join"), "Return the seat of a core.step.Join.")
      .def("submit", &PyRuntime::Submit, nb::arg("plan"), nb::arg("seats"), nb::arg("grant_seats"),
           "Queue a core.step.StepPlan with the seats of its chunks and of its grants.")
      .def("retune", &PyRuntime::Retune, nb::arg("sizes"), nb::arg("gemms"),
           "Cut ops so from now on: UnitSizes, and (op, bucket, most rows, panels per block) of products.")
      .def("assign", &PyRuntime::Assign, nb::arg("shares"), nb::arg("idle_may_help"),
           "Give each lane its workers; those whose lane has no step may help others meanwhile.")
      .def("suspend", &PyRuntime::Suspend, nb::arg("lane"), "Stop a lane within one unit of work.")
      .def("resume", &PyRuntime::Resume, nb::arg("lane"), "Let a lane go on.")
      .def("cancel", &PyRuntime::Cancel, nb::arg("step"), nb::arg("seqs"), "Skip chunks of a step from now on.")
      .def("collect", &PyRuntime::Collect, "Return reports of finished steps, oldest first.")
      .def("has_finished", &PyRuntime::HasFinished, "Say whether collect has something.")
      .def("notify", &PyRuntime::Notify, nb::arg("fd"), "Write eight bytes to `fd` each time a step finished.")
      .def("wait_finished", &PyRuntime::WaitFinished, nb::arg("timeout_s"),
           "Wait for a finished step, without the interpreter; say whether there is one.")
      .def("take_logits", &PyRuntime::TakeLogits, nb::arg("step"), "Return the logits of a step's output rows, once.")
      .def(
          "take_work", &PyRuntime::TakeWork,
          "Return by worker what it recorded since the last look, as bytes of WorkEvents, and how many events found no "
          "room since the start; nothing without record_events.")
      .def("counters", &PyRuntime::Counters, "Return what the workers did since the start.")
      .def("change_delays", &PyRuntime::ChangeDelays,
           "Return how long workers took to look at what assign, suspend and resume changed: bounds, counts, sum.")
      .def("own_change_delays", &PyRuntime::OwnChangeDelays,
           "Return for how long of that they ran themselves: bounds, counts, sum.")
      .def("close", &PyRuntime::Close, "Stop the workers; steps in flight are abandoned.")
      .def_prop_ro("arena_bytes", &PyRuntime::arena_bytes, "Bytes for activations and scratch by now.")
      .def_prop_ro("lane_bytes", &PyRuntime::lane_bytes,
                   "Bytes that a lane takes; all but lane 0 when they get their first step.")
      .def_prop_ro("target", &PyRuntime::target, "The instruction set that its kernels use.");
}

}  // namespace plait
