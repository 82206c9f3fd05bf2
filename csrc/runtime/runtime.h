// Runtime: lanes of steps, carried out by one worker per core that belongs to whichever lane the core is assigned to.
//
// Owns lanes, their queues, workers and the control verbs of core/executor.py. What one op does is in
// runtime/carry_out.h, what a step keeps in runtime/context.h. Plans were checked before (exec/intake.py, the binding).
// Invariant: steps of one lane run one after another in order of submission; every submitted step is collected exactly
// once; a control verb takes effect within one unit of work.

#ifndef PLAIT_CSRC_RUNTIME_RUNTIME_H_
#define PLAIT_CSRC_RUNTIME_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels.h"
#include "runtime/blocking.h"
#include "runtime/delays.h"
#include "runtime/tape.h"
#include "runtime/work_record.h"

namespace plait {

struct RuntimeConfig {
  std::vector<int> cores;  // one worker each, pinned; -1: not pinned
  size_t num_lanes = 2;
  size_t max_step_tokens = 512;
  size_t output_tile_rows = 64;  // output rows that run through the head at once
  int nice = 5;                  // more than the caller, so that a woken Python thread preempts a worker
  int spin_us = 50;              // before a worker parks
  uint64_t blocking_seed = 0;    // not 0: every op's row and panel blocks and key-tile splits are drawn at random from
                                 // it instead of by cost; answers must not change by a bit (tests)
  size_t record_events = 0;      // not 0: each worker records what it does, so many events until TakeWork
  bool poison = false;           // fill the pool, and the slots a chunk will write, with NaN first: for tests
};

// Sampling parameters of a sequence: core/sampling.py and core/step.py Join.
struct SamplingSpec {
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  int64_t min_tokens = 0;
  int32_t logprobs = -1;  // -1: not wanted
  std::vector<std::pair<int32_t, double>> logit_bias;
  std::vector<int32_t> end_tokens;  // eos and stop ids that min_tokens forbids
};

struct JoinSpec {
  SamplingSpec sampling;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t num_prompt = 0;
  std::vector<int32_t> history;  // only with penalties
};

// A joined sequence. Steps in flight share it; it outlives a leave until the last of them is collected.
class Seat;
using SeatRef = std::shared_ptr<Seat>;

struct GrantSpec {
  SeatRef seat;
  size_t group = 0;
  size_t first = 0;
  std::vector<int32_t> blocks;
};

struct MoveSpec {
  size_t group = 0;
  int32_t src_block = 0;
  uint32_t src_slot = 0;
  int32_t dst_block = 0;
  uint32_t dst_slot = 0;
  uint32_t num_tokens = 0;
};

enum class OutputKind : uint8_t { kSample, kLogprobs, kPool };

struct OutputSpec {
  uint32_t first = 0;
  uint32_t num_rows = 0;
  OutputKind kind = OutputKind::kSample;
  std::vector<int32_t> targets;  // kLogprobs
  uint32_t top = 0;
};

struct MaskSpec {
  uint32_t row = 0;              // row of the chunk
  std::vector<uint8_t> allowed;  // bit t, little-endian
};

// Behind the chunk's row `offset` the state of `group` is copied into `block`.
struct SnapshotSpec {
  uint32_t offset = 0;
  size_t group = 0;
  int32_t block = 0;
};

struct ChunkSpec {
  SeatRef seat;
  int64_t seq = 0;
  int64_t start = 0;
  uint32_t num_tokens = 0;
  bool from_device = false;        // the first token is the one that the seat sampled last
  std::vector<int32_t> tokens;     // behind that one, if from_device
  uint32_t num_drafts = 0;         // of the tokens, the last ones, are guesses: a chain, with a row that samples each
  std::vector<int32_t> positions;  // empty: start, start + 1, ...
  std::vector<OutputSpec> outputs;
  std::vector<MaskSpec> masks;
  std::vector<SnapshotSpec> snapshots;  // by offset, ascending
};

struct StepSpec {
  int64_t step = 0;
  uint32_t lane = 0;
  std::vector<GrantSpec> grants;  // applied when submitted
  std::vector<MoveSpec> moves;    // carried out first, when the step runs
  std::vector<ChunkSpec> chunks;
};

enum class ChunkStatus : uint8_t { kOk, kCancelled, kNotANumber, kNoToken, kPoolNotANumber };

struct TokenLogprobSpec {
  int32_t token = 0;
  double logprob = 0.0;
  std::vector<std::pair<int32_t, double>> top;
};

struct ChunkResult {
  int64_t seq = 0;
  ChunkStatus status = ChunkStatus::kOk;
  int64_t failed_row = 0;       // slot of the row that failed
  std::vector<int32_t> tokens;  // with drafts: those that were accepted, and the one behind them
  std::vector<TokenLogprobSpec> logprobs;
  std::vector<TokenLogprobSpec> scored;
  std::vector<float> pooled;  // the mean of all rows pooled since the join; empty: none was in this chunk
};

enum class StepOutcome : uint8_t { kCompleted, kCancelled };

struct StepReport {
  int64_t step = 0;
  uint32_t lane = 0;
  StepOutcome outcome = StepOutcome::kCompleted;
  double start_s = 0.0;  // CLOCK_MONOTONIC
  double end_s = 0.0;
  uint32_t workers = 0;  // the largest number at work at one time
  std::vector<ChunkResult> chunks;
};

// What the workers did since the start, for metrics and for the share of overhead outside kernels.
struct RuntimeCounters {
  uint64_t units = 0;
  uint64_t steps = 0;
  double kernel_s = 0.0;  // inside ops, all workers together
  double busy_s = 0.0;    // not parked, all workers together: kernels, claiming, waiting for one another
  double parked_s = 0.0;
  uint64_t parks = 0;
};

// What one worker recorded since the last look.
struct WorkTaken {
  std::vector<WorkEvent> events;
  uint64_t num_lost = 0;  // since the start: events that found no room
};

// Control verbs (Join, Submit, Retune, Assign, Suspend, Resume, Cancel, Collect, TakeWork, Close) come from one thread
// at a time; HasFinished, WaitFinished, Counters and delays from any.
class Runtime {
 public:
  // Takes the tape over, which must be free of faults (TapeFault); `pool` is the cache memory that the groups describe
  // (64-byte aligned, pool_bytes long) and, like the matrices' panels, outlives the runtime. Starts the workers. Lane 0
  // has every worker until the first Assign. Throws std::system_error if the system has no more threads.
  Runtime(const RuntimeConfig& config, Tape tape, const Kernels& kernels, uint8_t* pool, size_t pool_bytes);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  SeatRef Join(const JoinSpec& join);

  // Never blocks on running work. Depth, order and contents were checked; a step of more than max_step_tokens, the one
  // fault that would spoil other steps' memory, is refused here too: std::length_error, and nothing has changed.
  void Submit(StepSpec step);
  // Steps from now on are cut so. std::invalid_argument, and nothing has changed: a number is out of its limits, or a
  // step is under way.
  void Retune(const Blocking& blocking);
  // shares[lane]: workers of that lane, disjoint. A worker in no share rests. `idle_may_help`: workers whose lane has
  // no step, or who have none, meanwhile take units of other lanes' steps that began, suspended ones excepted.
  void Assign(const std::vector<std::vector<uint32_t>>& shares, bool idle_may_help = false);
  void Suspend(uint32_t lane);
  void Resume(uint32_t lane);
  // Unknown ids are ignored. A step without live chunks ends as cancelled, on a resting lane too. Chunks queued behind
  // a cancelled or failed chunk of the same seat are cancelled with it.
  void Cancel(int64_t step, const std::vector<int64_t>& seqs);
  std::vector<StepReport> Collect();
  bool HasFinished() const;

  // Written to (8 bytes, as an eventfd wants them) each time a step finished; -1: nothing. May be set at any time:
  // whoever does looks at HasFinished afterwards. The descriptor outlives Close.
  void NotifyFd(int fd);
  // Blocks until a step has finished, `timeout_s` has passed or Close was called. True: something is finished.
  bool WaitFinished(double timeout_s);

  // Copy of the logits of every output row of the last steps, for goldens: set before the first Submit.
  // Called from a worker with [num_rows, vocab_size] of one output tile; must be quick.
  using LogitsObserver = void (*)(void* context, int64_t step, size_t first_row, size_t num_rows, const float* logits,
                                  size_t stride, size_t vocab_size);
  void ObserveLogits(LogitsObserver observer, void* context);

  // By worker; empty without record_events. Behind Collect it has every unit of the steps that were collected, behind
  // Close everything.
  std::vector<WorkTaken> TakeWork();

  RuntimeCounters Counters() const;
  // How long workers took, once Assign, Suspend or Resume had changed what they are to work for, to look at it.
  DelayCounts ChangeDelays() const;
  // For how long of that they ran themselves, where the system tells: the rest of the time others had their cores.
  DelayCounts OwnChangeDelays() const;
  size_t ArenaBytes() const;  // activation arenas of lanes and scratch of workers together
  size_t LaneBytes() const;   // the arena that a lane takes; all but lane 0 when they get their first step

  // From any thread, again too.
  void Close();  // stops the workers; steps in flight are abandoned

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_RUNTIME_H_
