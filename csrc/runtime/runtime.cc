// Runtime: how steps go from lane to lane's workers, and back.
//
// Two kinds of events. Often, and without a lock: units are claimed and finished, and whoever finishes the last one
// publishes the next op. Rarely, under one mutex: steps are submitted, taken up, ended, cancelled and collected, and
// shares change. Invariant: a running step belongs to whoever was told that its op is complete (runtime/progress.h),
// and to nobody else, until the next op is published; only the owner ends it.

#include "runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "base/aligned.h"
#include "runtime/carry_out.h"
#include "runtime/context.h"
#include "runtime/progress.h"
#include "runtime/seat.h"
#include "runtime/worker.h"

namespace plait {
namespace {

// Rounds of waiting between two looks at the clock.
constexpr int kRelaxRounds = 16;
// Rounds of waiting for the lock before sleeping: longer than a step takes to end and the next one to start.
constexpr int kLockRounds = 2000;

struct Lane {
  Progress progress;

  // Read by workers without a lock, written under it. `running` is null between two steps; whoever claimed a unit may
  // follow it. `dead`: the running step has no live chunk.
  alignas(kCacheLine) std::atomic<Context*> running = nullptr;
  std::atomic<bool> dead = false;
  std::atomic<bool> suspended = false;
  std::atomic<uint32_t> num_waiting = 0;

  // Under the lock.
  uint32_t num_workers = 0;
  std::unique_ptr<Context> current;
  std::deque<std::unique_ptr<Context>> waiting;
  Arena arena;

  bool may_run() const { return num_workers > 0 && !suspended.load(std::memory_order_relaxed); }
};

// A step that ended, with the seats that it keeps in flight until it is collected.
struct Finished {
  StepReport report;
  std::vector<SeatRef> seats;
};

}  // namespace

struct Runtime::Impl {
  Impl(const RuntimeConfig& config, Tape tape, const Kernels& kernels, uint8_t* pool, size_t pool_bytes)
      : config(config),
        tape(std::move(tape)),
        machine(this->config, this->tape, kernels, pool),
        lanes(config.num_lanes),
        workers(config.cores.size()) {
    if (config.poison) std::memset(pool, 0xFF, pool_bytes);
    lanes[0].num_workers = static_cast<uint32_t>(workers.size());
    // Now, because a system that does not give it should say so before anybody waits for a step.
    lanes[0].arena = TakeArena();
    for (Worker& worker : workers) {
      worker.lane = 0;
      worker.scratch = std::make_unique<Scratch>(machine);
      arena_bytes += worker.scratch->num_bytes();
      if (config.record_events > 0) worker.record = std::make_unique<WorkRecord>(config.record_events);
    }
    try {
      for (size_t i = 0; i < workers.size(); ++i) {
        workers[i].thread = std::thread([this, i] { Work(workers[i], this->config.cores[i]); });
      }
    } catch (...) {  // The system gives no more threads: those that there are must end before their memory goes.
      Close();
      throw;
    }
  }

  // What workers do

  void Work(Worker& worker, int core) {
    PrepareWorkerThread(core, config.nice);
    worker.clock.store(ThreadClock(), std::memory_order_relaxed);
    while (!closing.load(std::memory_order_relaxed)) {
      worker.NoteLook();
      Lane* lane = LaneOf(worker);
      if (lane != nullptr && DoUnit(worker, *lane)) continue;
      if (lane != nullptr && MayStart(*lane)) {
        if (std::unique_lock lock = LockToStart(*lane)) StartNext(lock, *lane, &worker);
        continue;
      }
      if (Lane* const other = LaneToHelp(lane); other != nullptr) {
        if (DoUnit(worker, *other)) continue;
        lane = other;
      }
      if (lane != nullptr) {
        const WorkInterval spin(worker.record.get());
        const bool has_come = AwaitUnits(worker, *lane);
        spin.EndWait(WorkKind::kSpin, IndexOf(*lane));
        if (has_come) continue;
      }
      const WorkInterval park(worker.record.get());
      worker.Park(
          [&] {
            worker.NoteLook();
            return HasReason(worker);
          },
          num_parked);
      park.EndWait(WorkKind::kPark, 0);
    }
  }

  Lane* LaneOf(const Worker& worker) {
    const uint32_t lane = worker.lane.load(std::memory_order_seq_cst);
    return lane == kNoLane || lanes[lane].suspended.load(std::memory_order_seq_cst) ? nullptr : &lanes[lane];
  }

  // A look, as between two units.
  bool IsStillOf(Worker& worker, const Lane& lane) {
    worker.NoteLook();
    return LaneOf(worker) == &lane;
  }

  uint32_t IndexOf(const Lane& lane) const { return static_cast<uint32_t>(&lane - lanes.data()); }

  static WorkRecord* RecordOf(Worker* worker) { return worker == nullptr ? nullptr : worker->record.get(); }

  static bool MayStart(const Lane& lane) {
    return lane.running.load(std::memory_order_seq_cst) == nullptr &&
           lane.num_waiting.load(std::memory_order_seq_cst) > 0;
  }

  // The lock, or none if the lane's next step was started meanwhile. Whoever ended the step before is likely to start
  // it, and has the lock for a few microseconds: to sleep until it is free would take longer.
  std::unique_lock<std::mutex> LockToStart(const Lane& lane) {
    for (int round = 0; round < kLockRounds; ++round) {
      if (!MayStart(lane)) return {};
      if (std::unique_lock lock(mutex, std::try_to_lock); lock) return lock;
      Relax();
    }
    return std::unique_lock(mutex);
  }

  bool HasReason(const Worker& worker) {
    const Lane* lane = LaneOf(worker);
    if (closing.load(std::memory_order_seq_cst) || HasWork(lane)) return true;
    const Lane* other = LaneToHelp(lane);
    return other != nullptr && other->progress.HasUnits();
  }

  static bool HasWork(const Lane* lane) { return lane != nullptr && (lane->progress.HasUnits() || MayStart(*lane)); }

  // A lane whose step goes on while `own`, the worker's (null: it has none that may run), has none; null: there is no
  // such lane, or nobody may help. The first one with units to claim goes before one that has none at the moment.
  Lane* LaneToHelp(const Lane* own) {
    if (!may_help.load(std::memory_order_seq_cst)) return nullptr;
    if (own != nullptr && own->running.load(std::memory_order_seq_cst) != nullptr) return nullptr;
    Lane* found = nullptr;
    for (Lane& lane : lanes) {
      if (&lane == own || lane.suspended.load(std::memory_order_seq_cst)) continue;
      if (lane.progress.HasUnits()) return &lane;
      if (found == nullptr && lane.running.load(std::memory_order_seq_cst) != nullptr) found = &lane;
    }
    return found;
  }

  bool DoUnit(Worker& worker, Lane& lane) {
    Progress::Claim claim = lane.progress.TryClaim();
    if (!claim) return false;
    while (claim) {
      Context& context = *lane.running.load(std::memory_order_relaxed);
      // More than all are not at work; the look at the others' count takes it out of their caches.
      if (context.num_workers() < workers.size()) context.NoteWorkers(lane.progress.NumAtWork(claim));
      CarryOutUnit(worker, lane, context, claim.unit);
      claim = lane.progress.Finish(claim) ? Complete(lane, &worker) : Progress::Claim{};
    }
    return true;
  }

  void CarryOutUnit(Worker& worker, const Lane& lane, Context& context, uint32_t unit) {
    const WorkInterval interval(worker.record.get());
    const uint64_t start = Ticks();
    CarryOut(machine, lane.arena, context, unit, *worker.scratch);
    worker.NoteUnit(Ticks() - start);
    // Before the unit counts as finished: behind that the step may be gone, and whoever collects it wants to see this.
    if (interval.is_noted()) interval.End(WorkKind::kUnit, IndexOf(lane), context.step(), context.op_index());
  }

  // Spins while the running op of the lane, the worker's or one that it helps, has no unit left; false when it took too
  // long, or nothing runs.
  bool AwaitUnits(const Worker& worker, const Lane& lane) {
    const uint32_t own_lane = worker.lane.load(std::memory_order_relaxed);
    const bool helps = own_lane != IndexOf(lane);
    const double until = NowSeconds() + config.spin_us * 1e-6;
    while (lane.running.load(std::memory_order_relaxed) != nullptr) {
      for (int round = 0; round < kRelaxRounds; ++round) {
        if (lane.progress.HasUnits()) return true;
        Relax();
      }
      if (worker.lane.load(std::memory_order_relaxed) != own_lane) return true;
      if (helps && HasWork(LaneOf(worker))) return true;
      if (lane.suspended.load(std::memory_order_relaxed) || NowSeconds() >= until) return false;
    }
    return MayStart(lane);
  }

  // How a step goes on. `worker`: who calls, null for the thread of control, which must not be kept for long: it ends
  // dead steps, but leaves live ones to workers.

  // The running op is complete. The caller goes on with the unit that it gets, if any.
  Progress::Claim Complete(Lane& lane, Worker* worker) {
    Context& context = *lane.running.load(std::memory_order_relaxed);
    ObserveLogits(lane, context);
    if (const std::optional<Progress::Claim> next = Publish(lane, worker, worker)) return *next;
    const WorkInterval interval(RecordOf(worker));
    const int64_t step = context.step();
    std::unique_lock lock(mutex);
    // Its memory, which other work has driven from the caches, is let go while others carry out the next step.
    const std::unique_ptr<Context> ended = End(lane);
    interval.End(WorkKind::kEnd, IndexOf(lane), step);
    // Whoever is told of the end is likely to take this worker's core; the next step should run by then.
    StartNext(lock, lane, worker);
    Notify();
    return {};
  }

  // Publishes the next op; nothing if the step has ended. Behind a publication the step belongs to its workers, and may
  // be gone. `taker`: the caller, if it wants the op's first unit and the lane is still its own; it carries out at once
  // what nobody could share with it.
  std::optional<Progress::Claim> Publish(Lane& lane, Worker* worker, Worker* taker) {
    Context& context = *lane.running.load(std::memory_order_relaxed);
    for (;;) {
      const WorkInterval interval(RecordOf(worker));
      if (lane.dead.load(std::memory_order_seq_cst) || !context.NextOp()) return std::nullopt;
      const int64_t step = context.step();
      const uint32_t op = context.op_index();
      const uint32_t num_units = context.split().num_units;
      const bool takes = taker != nullptr && IsStillOf(*taker, lane);
      if (takes && num_units == 1) {
        interval.End(WorkKind::kAdvance, IndexOf(lane), step, op);
        CarryOutUnit(*taker, lane, context, 0);
        ObserveLogits(lane, context);
        continue;
      }
      // At the start of a step everybody comes, so that nobody has to be called in the middle of it.
      const uint32_t num_wanted = context.is_first_op() ? UINT32_MAX : num_units;
      const Progress::Claim claim = lane.progress.Publish(num_units, takes);
      WakeWorkers(lane, worker, num_wanted);
      interval.End(WorkKind::kAdvance, IndexOf(lane), step, op);
      // Whoever cancels says so first and closes the op then; it may have found the op before this one, complete
      // already.
      if (lane.dead.load(std::memory_order_seq_cst)) EndDead(lane, worker);
      return claim;
    }
  }

  void EndDead(Lane& lane, Worker* worker) {
    {
      const std::lock_guard lock(mutex);
      if (!lane.dead.load(std::memory_order_relaxed) || !lane.progress.Close()) return;
    }
    [[maybe_unused]] const Progress::Claim next = Complete(lane, worker);
    assert(!next);  // a dead step has no next op
  }

  // Takes up the lane's next step, if it may run; and as many dead ones as stand at the front of the queue. Lets go of
  // the lock.
  void StartNext(std::unique_lock<std::mutex>& lock, Lane& lane, Worker* worker) {
    bool has_ended = false;
    while (lane.current == nullptr && !lane.waiting.empty() && !closing.load(std::memory_order_relaxed)) {
      const bool is_dead = lane.waiting.front()->IsDead();
      if (!is_dead && !lane.may_run()) break;
      if (!is_dead && worker == nullptr) {
        WakeWorkers(lane, nullptr, 1);
        break;
      }
      lane.current = std::move(lane.waiting.front());
      lane.waiting.pop_front();
      lane.dead.store(is_dead, std::memory_order_seq_cst);
      lane.running.store(lane.current.get(), std::memory_order_seq_cst);
      lane.num_waiting.fetch_sub(1, std::memory_order_seq_cst);
      if (!is_dead) lane.current->NoteStart(NowSeconds());
      Context& context = *lane.current;
      lock.unlock();
      const WorkInterval interval(RecordOf(worker));
      context.Begin();
      interval.End(WorkKind::kBegin, IndexOf(lane), context.step());
      if (Publish(lane, worker, nullptr)) break;
      lock.lock();
      End(lane);
      has_ended = true;
    }
    if (lock.owns_lock()) lock.unlock();
    if (has_ended) Notify();
  }

  // Ends the running step, which the caller owns, under the lock. Whoever waits for it is to be told afterwards.
  std::unique_ptr<Context> End(Lane& lane) {
    Finished ended;
    ended.report = lane.current->Finish(NowSeconds());
    ended.seats.reserve(lane.current->chunks().size());
    for (const ChunkRun& chunk : lane.current->chunks()) ended.seats.push_back(chunk.spec.seat);
    std::unique_ptr<Context> context = std::move(lane.current);
    lane.running.store(nullptr, std::memory_order_seq_cst);
    lane.dead.store(false, std::memory_order_seq_cst);
    for (const std::unique_ptr<Context>& behind : lane.waiting) CancelBroken(*behind);
    finished.push_back(std::move(ended));
    num_finished.store(finished.size(), std::memory_order_seq_cst);
    num_steps.fetch_add(1, std::memory_order_relaxed);
    return context;
  }

  // What is queued behind a chunk that was cancelled or failed has nothing to start from.
  static void CancelBroken(Context& context) {
    for (ChunkRun& chunk : context.chunks()) {
      if (chunk.spec.seat->broken) context.Cancel(chunk);
    }
  }

  // Behind an op that was carried out whole.
  void ObserveLogits(const Lane& lane, Context& context) {
    const OpSpec& op = context.op();
    if (observer == nullptr || op.kind != OpKind::kSample || lane.dead.load(std::memory_order_relaxed)) return;
    const BufferSpec& spec = tape.buffers[static_cast<size_t>(op.in[0].buffer)];
    const float* logits = reinterpret_cast<const float*>(lane.arena.buffer(spec)) + op.in[0].column;
    observer(observer_context, context.step(), context.first_output(), context.num_rows(), logits,
             BufferRowBytes(spec) / sizeof(float), op.vocab_size);
  }

  void Notify() {
    finished_changed.notify_all();
#if defined(__unix__) || defined(__APPLE__)
    const uint64_t one = 1;
    // Ordered behind num_finished: whoever sets a descriptor too late for this sees that something has finished.
    const int fd = notify_fd.load(std::memory_order_seq_cst);
    if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) {
      // Full: then it is readable, which is all that it is for.
    }
#endif
  }

  // Wakes workers of a lane, then those who may help it, one for each of `num_units`. Behind a publication, which a
  // worker calls for, those of the lane who are awake count as one each: they have no unit of the op before any more,
  // and look for others before they sleep.
  void WakeWorkers(const Lane& lane, const Worker* caller, uint32_t num_units) {
    if (num_parked.load(std::memory_order_seq_cst) == 0) return;
    const uint32_t index = IndexOf(lane);
    if (caller != nullptr) {
      for (const Worker& worker : workers) {
        const bool is_awake = worker.parked.load(std::memory_order_seq_cst) == 0;
        if (is_awake && num_units > 0 && worker.lane.load(std::memory_order_seq_cst) == index) --num_units;
      }
    }
    for (Worker& worker : workers) {
      if (num_units == 0) return;
      if (worker.lane.load(std::memory_order_seq_cst) == index && worker.Wake()) --num_units;
    }
    if (!may_help.load(std::memory_order_seq_cst)) return;
    for (Worker& worker : workers) {
      if (num_units == 0) return;
      if (LaneToHelp(LaneOf(worker)) == &lane && worker.Wake()) --num_units;
    }
  }

  void WakeAll() {
    for (Worker& worker : workers) worker.Wake();
  }

  // What control does

  Arena TakeArena() {
    Arena arena(machine);
    arena_bytes.fetch_add(Arena::BytesFor(machine), std::memory_order_relaxed);
    return arena;
  }

  void Submit(StepSpec step) {
    CheckSize(step);
    for (const GrantSpec& grant : step.grants) grant.seat->Grant(grant);
    Lane& lane = lanes[step.lane];
    // Nothing has run on the lane before its first step, so nobody looks at the arena yet.
    if (lane.arena.is_empty()) {
      Arena arena = TakeArena();
      const std::lock_guard lock(mutex);
      lane.arena = std::move(arena);
    }
    auto context = std::make_unique<Context>(machine, std::move(step));
    std::unique_lock lock(mutex);
    CancelBroken(*context);
    for (const ChunkRun& chunk : context->chunks()) ++chunk.spec.seat->num_in_flight;
    lane.waiting.push_back(std::move(context));
    lane.num_waiting.fetch_add(1, std::memory_order_seq_cst);
    StartNext(lock, lane, nullptr);
  }

  // A larger step would write behind the lane's arena, where nothing tells of it.
  void CheckSize(const StepSpec& step) const {
    size_t num_tokens = 0;
    for (const ChunkSpec& chunk : step.chunks) num_tokens += chunk.num_tokens;
    if (num_tokens <= config.max_step_tokens) return;
    throw std::length_error("step " + std::to_string(step.step) + " has " + std::to_string(num_tokens) +
                            " tokens; a lane has room for " + std::to_string(config.max_step_tokens));
  }

  void Retune(const Blocking& blocking) {
    if (const std::string fault = BlockingFault(blocking, tape); !fault.empty()) throw std::invalid_argument(fault);
    const std::lock_guard lock(mutex);
    for (const Lane& lane : lanes) {
      if (lane.current == nullptr && lane.waiting.empty()) continue;
      throw std::invalid_argument("the blocking cannot change while a step is under way; collect it first");
    }
    machine.blocking = BlockingTable(blocking, tape.ops.size());
  }

  void Assign(const std::vector<std::vector<uint32_t>>& shares, bool idle_may_help) {
    std::vector<uint32_t> lane_of(workers.size(), kNoLane);
    for (uint32_t lane = 0; lane < shares.size(); ++lane) {
      for (const uint32_t worker : shares[lane]) lane_of[worker] = lane;
    }
    const std::lock_guard lock(mutex);
    for (uint32_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane].num_workers = static_cast<uint32_t>(std::count(lane_of.begin(), lane_of.end(), lane));
    }
    may_help.store(idle_may_help, std::memory_order_seq_cst);
    for (size_t i = 0; i < workers.size(); ++i) {
      if (workers[i].lane.load(std::memory_order_relaxed) != lane_of[i]) workers[i].NoteChange();
      workers[i].lane.store(lane_of[i], std::memory_order_seq_cst);
    }
    // Those that stay, too: a worker that was woken for a lane's work may have left it before it came.
    WakeAll();
  }

  void Suspend(uint32_t lane) {
    const std::lock_guard lock(mutex);
    NoteChangeOf(lane);
    lanes[lane].suspended.store(true, std::memory_order_seq_cst);
    for (Worker& worker : workers) {
      if (worker.lane.load(std::memory_order_relaxed) == lane) worker.ForgetChangeIfParked();
    }
  }

  void Resume(uint32_t lane) {
    const std::lock_guard lock(mutex);
    NoteChangeOf(lane);
    lanes[lane].suspended.store(false, std::memory_order_seq_cst);
    WakeWorkers(lanes[lane], nullptr, static_cast<uint32_t>(workers.size()));
  }

  void NoteChangeOf(uint32_t lane) {
    for (Worker& worker : workers) {
      if (worker.lane.load(std::memory_order_relaxed) == lane) worker.NoteChange();
    }
  }

  void Cancel(int64_t step, const std::vector<int64_t>& seqs) {
    for (Lane& lane : lanes) {
      std::unique_lock lock(mutex);
      if (lane.current != nullptr && lane.current->step() == step && CancelChunks(*lane.current, seqs)) {
        // First said, then closed: see Publish.
        lane.dead.store(true, std::memory_order_seq_cst);
        if (!lane.progress.Close()) continue;
        lock.unlock();
        Complete(lane, nullptr);
        continue;
      }
      for (const std::unique_ptr<Context>& context : lane.waiting) {
        if (context->step() == step) CancelChunks(*context, seqs);
      }
      StartNext(lock, lane, nullptr);
    }
  }

  // True: the step has died of it.
  static bool CancelChunks(Context& context, const std::vector<int64_t>& seqs) {
    bool has_changed = false;
    for (ChunkRun& chunk : context.chunks()) {
      if (std::find(seqs.begin(), seqs.end(), chunk.spec.seq) == seqs.end()) continue;
      has_changed = context.Cancel(chunk) || has_changed;
    }
    return has_changed && context.IsDead();
  }

  std::vector<StepReport> Collect() {
    std::vector<StepReport> reports;
    const std::lock_guard lock(mutex);
    for (Finished& one : finished) {
      for (const SeatRef& seat : one.seats) {
        if (--seat->num_in_flight == 0) seat->broken = false;
      }
      reports.push_back(std::move(one.report));
    }
    finished.clear();
    num_finished.store(0, std::memory_order_release);
    return reports;
  }

  bool WaitFinished(double timeout_s) {
    std::unique_lock lock(mutex);
    finished_changed.wait_for(lock, std::chrono::duration<double>(std::min(timeout_s, 1e6)),
                              [&] { return !finished.empty() || closing.load(std::memory_order_relaxed); });
    return !finished.empty();
  }

  std::vector<WorkTaken> TakeWork() {
    std::vector<WorkTaken> taken;
    for (Worker& worker : workers) {
      if (worker.record != nullptr) taken.push_back({worker.record->Take(), worker.record->num_lost()});
    }
    return taken;
  }

  void Close() {
    {
      const std::lock_guard lock(mutex);
      closing.store(true, std::memory_order_seq_cst);
    }
    finished_changed.notify_all();
    WakeAll();
    const std::lock_guard lock(joining);  // whoever closes a second time waits for the first
    for (Worker& worker : workers) {
      if (worker.thread.joinable()) worker.thread.join();
    }
  }

  DelayCounts ChangeDelays(bool own) const {
    DelayCounts all;
    for (const Worker& worker : workers) (own ? worker.own_delays : worker.delays).AddTo(&all);
    return all;
  }

  RuntimeCounters Counters() const {
    RuntimeCounters counters;
    counters.steps = num_steps.load(std::memory_order_relaxed);
    const double tick_s = stopwatch.SecondsPerTick();
    const auto lifetime = static_cast<double>(Ticks() - stopwatch.start_ticks()) * tick_s;
    for (const Worker& worker : workers) {
      counters.units += worker.num_units.load(std::memory_order_relaxed);
      counters.kernel_s += static_cast<double>(worker.kernel_ticks.load(std::memory_order_relaxed)) * tick_s;
      counters.parks += worker.num_parks.load(std::memory_order_relaxed);
      const uint64_t since = worker.parked_since.load(std::memory_order_relaxed);
      const uint64_t now = Ticks();
      const uint64_t parked =
          worker.parked_ticks.load(std::memory_order_relaxed) + (since != 0 && now > since ? now - since : 0);
      const double parked_s = std::min(static_cast<double>(parked) * tick_s, lifetime);
      counters.parked_s += parked_s;
      counters.busy_s += lifetime - parked_s;
    }
    return counters;
  }

  const RuntimeConfig config;
  const Tape tape;
  Machine machine;
  const Stopwatch stopwatch;
  std::atomic<bool> closing = false;
  std::atomic<bool> may_help = false;
  std::atomic<uint32_t> num_parked = 0;
  std::atomic<size_t> num_finished = 0;
  std::atomic<uint64_t> num_steps = 0;
  std::atomic<size_t> arena_bytes = 0;

  LogitsObserver observer = nullptr;
  void* observer_context = nullptr;
  std::atomic<int> notify_fd = -1;

  mutable std::mutex mutex;
  std::mutex joining;
  std::condition_variable finished_changed;
  std::vector<Finished> finished;
  std::vector<Lane> lanes;
  std::vector<Worker> workers;
};

Runtime::Runtime(const RuntimeConfig& config, Tape tape, const Kernels& kernels, uint8_t* pool, size_t pool_bytes)
    : impl_(std::make_unique<Impl>(config, std::move(tape), kernels, pool, pool_bytes)) {}

Runtime::~Runtime() { Close(); }

SeatRef Runtime::Join(const JoinSpec& join) { return std::make_shared<Seat>(join, impl_->tape.groups.size()); }

void Runtime::Submit(StepSpec step) { impl_->Submit(std::move(step)); }
void Runtime::Retune(const Blocking& blocking) { impl_->Retune(blocking); }
void Runtime::Assign(const std::vector<std::vector<uint32_t>>& shares, bool idle_may_help) {
  impl_->Assign(shares, idle_may_help);
}
void Runtime::Suspend(uint32_t lane) { impl_->Suspend(lane); }
void Runtime::Resume(uint32_t lane) { impl_->Resume(lane); }
void Runtime::Cancel(int64_t step, const std::vector<int64_t>& seqs) { impl_->Cancel(step, seqs); }
std::vector<StepReport> Runtime::Collect() { return impl_->Collect(); }
bool Runtime::HasFinished() const { return impl_->num_finished.load(std::memory_order_seq_cst) > 0; }
void Runtime::NotifyFd(int fd) { impl_->notify_fd.store(fd, std::memory_order_seq_cst); }
bool Runtime::WaitFinished(double timeout_s) { return impl_->WaitFinished(timeout_s); }

void Runtime::ObserveLogits(LogitsObserver observer, void* context) {
  impl_->observer = observer;
  impl_->observer_context = context;
}

std::vector<WorkTaken> Runtime::TakeWork() { return impl_->TakeWork(); }

RuntimeCounters Runtime::Counters() const { return impl_->Counters(); }

DelayCounts Runtime::ChangeDelays() const { return impl_->ChangeDelays(/*own=*/false); }

DelayCounts Runtime::OwnChangeDelays() const { return impl_->ChangeDelays(/*own=*/true); }

size_t Runtime::ArenaBytes() const { return impl_->arena_bytes.load(std::memory_order_relaxed); }

size_t Runtime::LaneBytes() const { return Arena::BytesFor(impl_->machine); }

void Runtime::Close() { impl_->Close(); }

}  // namespace plait
