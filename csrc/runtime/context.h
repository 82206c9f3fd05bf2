// Context: a submitted step, with everything that its ops look up.
//
// Owns row tables, output rows and their results, lists of attention tasks, and the cursor over the tape. It is laid
// out when the step is submitted; nothing is allocated while it runs, but for log-probabilities and pools that are
// asked for. Invariant: while the step runs its tables do not change, apart from tokens, which `Begin` fills in;
// `cancelled` may be set at any time, everything else is written by whoever carries out the unit that owns it.

#ifndef PLAIT_CSRC_RUNTIME_CONTEXT_H_
#define PLAIT_CSRC_RUNTIME_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/sampler.h"
#include "runtime/expert_rows.h"
#include "runtime/recurrence_split.h"
#include "runtime/runtime.h"
#include "runtime/seat.h"
#include "runtime/tape.h"
#include "runtime/units.h"

namespace plait {

// What every step of a loaded tape shares.
struct Machine {
  const RuntimeConfig& config;
  const Tape& tape;
  const Kernels& kernels;
  uint8_t* pool = nullptr;
  std::vector<AttendShape> attend_shapes;  // each once
  std::vector<GemmShape> gemm_shapes;      // each once, without rows
  std::vector<GemmShape> expert_shapes;    // the same, of one expert
  std::vector<uint32_t> shape_of_op;       // index into these, for attention and products
  size_t pool_op = 0;                      // Tape::PoolOp
  bool is_wide = false;                    // see SplitPolicy
  BlockingTable blocking;                  // changes only while no step is under way

  Machine(const RuntimeConfig& config, const Tape& tape, const Kernels& kernels, uint8_t* pool);
};

// A chunk under way.
struct ChunkRun {
  ChunkSpec spec;
  std::vector<std::vector<int32_t>> tables;  // the seat's, as they were when the step was submitted
  uint32_t first_row = 0;
  uint32_t first_output = 0;
  uint32_t num_outputs = 0;
  bool pools = false;  // some of its outputs are kPool
  RowPool pool;        // the seat's, and on top of it what this chunk adds
  std::atomic<bool> cancelled = false;

  bool is_live() const { return !cancelled.load(std::memory_order_relaxed); }
};

// A row of the space of outputs, and what came of it.
struct OutputRow {
  uint32_t chunk = 0;
  uint32_t row = 0;  // in the chunk
  OutputKind kind = OutputKind::kSample;
  int32_t target = 0;                // kLogprobs
  int32_t top = -1;                  // alternatives to report; -1: not even the token's own log-probability
  const uint8_t* allowed = nullptr;  // kSample
  SampleStatus status = SampleStatus::kOk;
  TokenLogprobSpec result;
};

// A part of a chunk inside a block of rows.
struct RowPiece {
  const ChunkRun* chunk = nullptr;
  uint32_t row = 0;       // in the step
  uint32_t in_chunk = 0;  // in the chunk
  uint32_t num_rows = 0;
};

struct OpSplit {
  uint32_t num_units = 0;
  RowSplit rows;
  GemmSplit gemm;
  const AttendTasks* attend = nullptr;
  const RecurrenceSplit* recurrence = nullptr;
};

// How a product was cut the last time in a step; most of a step's products are of a few shapes.
struct GemmCut {
  size_t num_rows = 0;
  GemmBlocks blocks;
  GemmSplit split;
};

class Context {
 public:
  // Lays the step out. Grants must have been applied to the seats.
  Context(const Machine& machine, StepSpec step);

  int64_t step() const { return spec_.step; }
  uint32_t lane() const { return spec_.lane; }
  std::span<ChunkRun> chunks() const { return {chunks_.get(), num_chunks_}; }
  const std::vector<MoveSpec>& moves() const { return spec_.moves; }

  // True: it was live until now. Under the runtime's lock.
  bool Cancel(ChunkRun& chunk);
  // A step that never had a chunk is not dead: it only moves tokens or changes the roster.
  bool IsDead() const { return num_chunks_ > 0 && num_live_ == 0; }

  // What must happen before the first op: moves, tokens that were sampled meanwhile, histories of penalties.
  void Begin();

  // Goes to the next op that has work and cuts it; false at the end of the step. Only whoever completed the op before.
  bool NextOp();
  const OpSpec& op() const { return machine_.tape.ops[op_]; }
  uint32_t op_index() const { return static_cast<uint32_t>(op_); }
  const OpSplit& split() const { return split_; }
  bool is_first_op() const { return op_ == 0; }
  size_t num_rows() const;  // of the op's space; in the space of outputs, of the tile under way
  uint32_t first_output() const { return first_output_; }

  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> positions() const { return positions_; }
  std::span<OutputRow> outputs() { return outputs_; }
  uint32_t row_of(const OutputRow& output) const { return chunks_[output.chunk].first_row + output.row; }

  // Whether a row of [first_row, first_row + num_rows) of the op's space belongs to a chunk that was not cancelled.
  bool IsAnyLive(size_t first_row, size_t num_rows) const;
  // The parts of token rows [first_row, first_row + num_rows) whose chunks were not cancelled, one after another:
  // starts with row = first_row, num_rows = 0; false when there is none left.
  bool NextPiece(RowPiece* piece, size_t end_row) const;

  // Of the mixture of experts under way.
  ExpertRows& expert_rows() { return expert_rows_; }
  const ExpertRows& expert_rows() const { return expert_rows_; }
  // The same as IsAnyLive for rows of an expert.
  bool IsAnyPlaceLive(size_t first_place, size_t num_places) const;

  // One part of a split attention task is done; true: it was the last one, and the count is ready for the next layer.
  // Parts of a chunk that was cancelled need not be counted: it has no next layer.
  bool FinishPart(const AttendTasks& tasks, size_t whole);

  uint32_t num_workers() const { return num_workers_.load(std::memory_order_relaxed); }
  void NoteWorkers(uint32_t count);
  void NoteStart(double now_s);
  bool has_started() const { return has_started_; }

  // Ends the step: results in order, and what its seats keep of them. Under the runtime's lock.
  StepReport Finish(double now_s);

 private:
  void LayOutChunks();
  void LayOutOutputs(uint32_t index);
  void LayOutAttention();
  void CountPooled();
  void Cut();
  const GemmSplit& CutGemm(const SplitPolicy& policy);
  void CutExperts(const SplitPolicy& policy);
  ChunkResult ResultOf(const ChunkRun& chunk) const;
  // Whether the token that a row sampled is another than the draft behind it.
  bool IsRejected(const ChunkRun& chunk, const OutputRow& row) const;
  static void AddPooled(const ChunkRun& chunk, ChunkResult* result);

  const Machine& machine_;
  StepSpec spec_;
  std::unique_ptr<ChunkRun[]> chunks_;
  size_t num_chunks_ = 0;
  size_t num_live_ = 0;
  std::atomic<bool> is_any_cancelled_ = false;

  std::vector<int32_t> tokens_;     // per row
  std::vector<int32_t> positions_;  // per row
  std::vector<uint32_t> chunk_of_row_;
  std::vector<OutputRow> outputs_;
  std::vector<AttendTasks> attend_tasks_;                           // per shape
  std::vector<std::unique_ptr<std::atomic<uint32_t>[]>> num_left_;  // per shape, per whole

  ExpertRows expert_rows_;

  int64_t op_ = -1;
  uint32_t first_output_ = 0;
  uint32_t num_pooled_ = 0;  // rows of the tile under way that are pooled
  OpSplit split_;
  std::vector<GemmCut> gemm_cuts_;  // per shape
  std::vector<uint32_t> rows_of_chunk_;
  RecurrenceSplit recurrence_;  // of the op under way

  std::atomic<uint32_t> num_workers_ = 0;
  bool has_started_ = false;
  double start_s_ = 0.0;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_CONTEXT_H_
