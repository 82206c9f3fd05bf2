// Context: laying a step out, walking its tape, and gathering its results.
//
// The order of rows is that of model/ops.py: token rows chunk after chunk; output rows chunk after chunk, in a chunk
// output after output. Invariant: a cancelled chunk has no results, whenever it was cancelled.

#include "runtime/context.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/cpu.h"
#include "runtime/cache_slots.h"

namespace plait {
namespace {

// Rough time of a row in an op that only passes over memory.
constexpr double kBytesPerUs = 8'000.0;
// Columns of a panel lie a cache line apart.
constexpr double kEmbedBytes = 64.0;

double RowUs(const Tape& tape, const OpSpec& op) {
  double bytes = 0.0;
  for (const Operand& operand : op.in) bytes += operand.buffer == kNone ? 0.0 : 4.0 * operand.width;
  for (const Operand& operand : op.out) bytes += operand.buffer == kNone ? 0.0 : 4.0 * operand.width;
  if (op.kind == OpKind::kEmbed && op.matrix[0] != kNone) {
    bytes = kEmbedBytes * static_cast<double>(tape.matrices[static_cast<size_t>(op.matrix[0])].depth);
  }
  if (op.kind == OpKind::kGlu) bytes *= 4.0;  // an exponential a column
  if (op.kind == OpKind::kRoute) bytes *= 4.0 + op.top_k;
  if (op.kind == OpKind::kExpertsMix) bytes *= 1.0 + op.top_k;
  return bytes / kBytesPerUs;
}

GemmShape GemmShapeOf(const Tape& tape, const OpSpec& op) {
  GemmShape shape;
  const WeightPanels& first = tape.matrices[static_cast<size_t>(op.matrix[0])];
  shape.depth = first.depth;
  shape.scheme = first.scheme;
  if (op.kind == OpKind::kGemmGlu) {
    // A unit takes the same panels of both matrices: one that is twice as deep, for the cost.
    const WeightPanels& second = tape.matrices[static_cast<size_t>(op.matrix[1])];
    shape.num_panels[0] = first.num_panels();
    shape.depth *= 2;
    shape.panel_bytes = static_cast<double>(first.bytes_per_panel + second.bytes_per_panel);
    const int32_t quantized = op.out[1].buffer;
    shape.panel_multiple =
        quantized == kNone ? 1 : tape.buffers[static_cast<size_t>(quantized)].group_size / kPanelColumns;
    return shape;
  }
  double bytes = 0.0;
  size_t num_panels = 0;
  for (int i = 0; i < 3; ++i) {
    if (op.matrix[i] == kNone) continue;
    const WeightPanels& matrix = tape.matrices[static_cast<size_t>(op.matrix[i])];
    num_panels += shape.num_panels[i] = matrix.num_panels();
    bytes += static_cast<double>(matrix.num_panels() * matrix.bytes_per_panel);
  }
  shape.panel_bytes = bytes / static_cast<double>(num_panels);
  return shape;
}

GemmShape ExpertShapeOf(const Tape& tape, const OpSpec& op) {
  GemmShape shape;
  const bool is_glu = op.kind == OpKind::kExpertsGlu;
  const WeightPanels& first = tape.matrices[static_cast<size_t>(op.matrix[is_glu ? 0 : 2])];
  const WeightPanels& down = tape.matrices[static_cast<size_t>(op.matrix[2])];
  shape.depth = is_glu ? 2 * first.depth : first.depth;
  shape.scheme = first.scheme;
  shape.num_panels[0] = first.num_panels();
  shape.panel_bytes = static_cast<double>(first.bytes_per_panel) * (is_glu ? 2.0 : 1.0);
  const size_t quantized = is_glu ? RowGroupSize(down.scheme) : 0;
  shape.panel_multiple = quantized == 0 ? 1 : static_cast<uint32_t>(quantized / kPanelColumns);
  return shape;
}

// Of a shape among those that there are; it is added if it is new.
template <typename Shape>
uint32_t IndexOf(const Shape& shape, std::vector<Shape>& shapes) {
  const auto found = std::find(shapes.begin(), shapes.end(), shape);
  const auto index = static_cast<uint32_t>(found - shapes.begin());
  if (found == shapes.end()) shapes.push_back(shape);
  return index;
}

}  // namespace

Machine::Machine(const RuntimeConfig& config, const Tape& tape, const Kernels& kernels, uint8_t* pool)
    : config(config), tape(tape), kernels(kernels), pool(pool), shape_of_op(tape.ops.size(), 0) {
  pool_op = tape.PoolOp();
  is_wide = std::string_view(kernels.target) == TargetName(Target::kAvx512);
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    const OpSpec& op = tape.ops[i];
    if (op.kind == OpKind::kAttend) shape_of_op[i] = IndexOf(AttendShapeOf(tape, op), attend_shapes);
    if (IsProduct(op.kind)) shape_of_op[i] = IndexOf(GemmShapeOf(tape, op), gemm_shapes);
    if (op.kind == OpKind::kExpertsGlu || op.kind == OpKind::kExpertsOut) {
      shape_of_op[i] = IndexOf(ExpertShapeOf(tape, op), expert_shapes);
    }
  }
}

Context::Context(const Machine& machine, StepSpec step)
    : machine_(machine),
      spec_(std::move(step)),
      chunks_(std::make_unique<ChunkRun[]>(spec_.chunks.size())),
      num_chunks_(spec_.chunks.size()),
      num_live_(spec_.chunks.size()),
      gemm_cuts_(machine.gemm_shapes.size()) {
  LayOutChunks();
  for (uint32_t index = 0; index < num_chunks_; ++index) LayOutOutputs(index);
  LayOutAttention();
  expert_rows_.Reserve(tokens_.size(), machine.tape.TopK());
}

void Context::LayOutChunks() {
  uint32_t row = 0;
  for (size_t index = 0; index < num_chunks_; ++index) {
    ChunkRun& chunk = chunks_[index];
    chunk.spec = std::move(spec_.chunks[index]);
    chunk.tables = chunk.spec.seat->tables;
    chunk.first_row = row;
    row += chunk.spec.num_tokens;
    rows_of_chunk_.push_back(chunk.spec.num_tokens);
    chunk_of_row_.resize(row, static_cast<uint32_t>(index));
    for (uint32_t i = 0; i < chunk.spec.num_tokens; ++i) {
      const int32_t slot = static_cast<int32_t>(chunk.spec.start + i);
      positions_.push_back(chunk.spec.positions.empty() ? slot : chunk.spec.positions[i]);
    }
  }
  tokens_.resize(row, 0);
  recurrence_.begins.reserve(num_chunks_ + 1);
}

void Context::LayOutOutputs(uint32_t index) {
  ChunkRun& chunk = chunks_[index];
  chunk.first_output = static_cast<uint32_t>(outputs_.size());
  for (const OutputSpec& output : chunk.spec.outputs) {
    for (uint32_t i = 0; i < output.num_rows; ++i) {
      OutputRow row;
      row.chunk = index;
      row.row = output.first + i;
      row.kind = output.kind;
      if (output.kind == OutputKind::kPool) {
        chunk.pools = true;
      } else if (output.kind == OutputKind::kLogprobs) {
        row.target = output.targets[i];
        row.top = static_cast<int32_t>(output.top);
      } else {
        row.top = chunk.spec.seat->join.sampling.logprobs;
        for (const MaskSpec& mask : chunk.spec.masks) {
          if (mask.row == row.row) row.allowed = mask.allowed.data();
        }
      }
      outputs_.push_back(std::move(row));
    }
  }
  chunk.num_outputs = static_cast<uint32_t>(outputs_.size()) - chunk.first_output;
}

void Context::LayOutAttention() {
  if (num_chunks_ == 0) return;
  Draws draws(machine_.config.blocking_seed ^ static_cast<uint64_t>(spec_.step) << 20);
  const SplitPolicy policy = {static_cast<uint32_t>(machine_.config.cores.size()),
                              machine_.config.blocking_seed == 0 ? nullptr : &draws, machine_.blocking.sizes()};
  for (const AttendShape& shape : machine_.attend_shapes) {
    std::vector<ChunkExtent> extents;
    for (const ChunkRun& chunk : chunks()) {
      extents.push_back({chunk.first_row, chunk.spec.num_tokens, static_cast<uint64_t>(chunk.spec.start),
                         chunk.tables[shape.cache_group]});
    }
    AttendTasks& tasks = attend_tasks_.emplace_back(SplitAttend(shape, extents, policy));
    auto& left = num_left_.emplace_back(std::make_unique<std::atomic<uint32_t>[]>(tasks.wholes.size()));
    for (size_t i = 0; i < tasks.wholes.size(); ++i) left[i] = tasks.wholes[i].num_tasks;
  }
}

bool Context::Cancel(ChunkRun& chunk) {
  if (chunk.cancelled.exchange(true, std::memory_order_relaxed)) return false;
  is_any_cancelled_.store(true, std::memory_order_relaxed);
  --num_live_;
  return true;
}

void Context::Begin() {
  // Moves are the step's, not a chunk's: a cancelled sequence goes on from the tokens that were moved for it.
  for (const MoveSpec& move : spec_.moves) MoveSlots(machine_.tape.groups[move.group], machine_.pool, move);
  for (ChunkRun& chunk : chunks()) {
    if (!chunk.is_live()) continue;
    Seat& seat = *chunk.spec.seat;
    const auto rows = std::span(tokens_).subspan(chunk.first_row, chunk.spec.num_tokens);
    if (chunk.spec.from_device) rows[0] = seat.last_sampled;
    std::copy(chunk.spec.tokens.begin(), chunk.spec.tokens.end(), rows.begin() + (chunk.spec.from_device ? 1 : 0));
    seat.Remember(static_cast<size_t>(chunk.spec.start), rows);
    if (chunk.pools) chunk.pool = seat.pool;
    if (!machine_.config.poison) continue;
    for (size_t group = 0; group < chunk.tables.size(); ++group) {
      PoisonSlots(machine_.tape.groups[group], machine_.pool, chunk.tables[group],
                  static_cast<size_t>(chunk.spec.start));
    }
    for (const SnapshotSpec& one : chunk.spec.snapshots) {
      PoisonSlots(machine_.tape.groups[one.group], machine_.pool, {one.block}, 0);
    }
  }
}

size_t Context::num_rows() const {
  if (op().space == Space::kTokens) return tokens_.size();
  return std::min(machine_.config.output_tile_rows, outputs_.size() - first_output_);
}

bool Context::NextOp() {
  if (num_chunks_ == 0) return false;
  const auto first_output_op = static_cast<int64_t>(machine_.tape.first_output_op);
  do {
    ++op_;
    if (op_ == first_output_op && outputs_.empty()) return false;
    if (op_ == static_cast<int64_t>(machine_.tape.ops.size())) {
      first_output_ += static_cast<uint32_t>(machine_.config.output_tile_rows);
      if (first_output_ >= outputs_.size()) return false;
      op_ = first_output_op;
    }
    if (op_ == first_output_op) CountPooled();
    Cut();
  } while (split_.num_units == 0);
  return true;
}

void Context::CountPooled() {
  num_pooled_ = 0;
  for (size_t i = 0; i < num_rows(); ++i) num_pooled_ += outputs_[first_output_ + i].kind == OutputKind::kPool;
}

void Context::Cut() {
  const auto index = static_cast<size_t>(op_);
  const bool is_all_pooled = op().space == Space::kOutputs && num_pooled_ == num_rows();
  if (index > machine_.pool_op && is_all_pooled) {
    split_.num_units = 0;
    return;
  }
  const uint64_t seed = machine_.config.blocking_seed;
  Draws draws(seed ^ static_cast<uint64_t>(spec_.step) << 20 ^ static_cast<uint64_t>(op_ + 1) << 8 ^ first_output_);
  SplitPolicy policy = {static_cast<uint32_t>(machine_.config.cores.size()), seed == 0 ? nullptr : &draws,
                        machine_.blocking.sizes()};
  policy.is_wide = machine_.is_wide;
  split_.attend = nullptr;
  switch (op().kind) {
    case OpKind::kGemm:
    case OpKind::kGemmGlu:
      policy.gemm = machine_.blocking.OfGemm(static_cast<size_t>(op_), num_rows());
      split_.gemm = CutGemm(policy);
      split_.num_units = split_.gemm.num_units();
      return;
    case OpKind::kAttend:
      split_.attend = &attend_tasks_[machine_.shape_of_op[static_cast<size_t>(op_)]];
      split_.num_units = split_.attend->num_units();
      return;
    case OpKind::kConv:
    case OpKind::kScan:
    case OpKind::kShift:
      SplitRecurrence(PartsOf(op()), RecurrenceUs(op()), rows_of_chunk_, policy, &recurrence_);
      split_.recurrence = &recurrence_;
      split_.num_units = recurrence_.num_units();
      return;
    case OpKind::kExpertsGlu:
    case OpKind::kExpertsOut:
      CutExperts(policy);
      return;
    case OpKind::kSample:
      split_.rows = {static_cast<uint32_t>(num_rows()), 1};
      break;
    case OpKind::kPool:
      // One unit, so that rows are added in order.
      split_.rows = {num_pooled_ == 0 ? 0 : static_cast<uint32_t>(num_rows()), static_cast<uint32_t>(num_rows())};
      break;
    default:
      split_.rows = SplitRows(num_rows(), RowUs(machine_.tape, op()), policy);
  }
  split_.num_units = split_.rows.num_units();
}

const GemmSplit& Context::CutGemm(const SplitPolicy& policy) {
  const uint32_t index = machine_.shape_of_op[static_cast<size_t>(op_)];
  GemmCut& cut = gemm_cuts_[index];
  if (policy.draws == nullptr && cut.num_rows == num_rows() && cut.blocks == policy.gemm) return cut.split;
  GemmShape shape = machine_.gemm_shapes[index];
  shape.num_rows = num_rows();
  cut = {shape.num_rows, policy.gemm, SplitGemm(shape, policy)};
  return cut.split;
}

void Context::CutExperts(const SplitPolicy& policy) {
  if (op().kind == OpKind::kExpertsGlu) {
    const auto is_live = [this](size_t row) { return chunks_[chunk_of_row_[row]].is_live(); };
    expert_rows_.Group(num_rows(), op().top_k, op().experts, is_live);
  }
  expert_rows_.Split(machine_.expert_shapes[machine_.shape_of_op[static_cast<size_t>(op_)]], policy);
  split_.num_units = expert_rows_.num_units();
}

bool Context::IsAnyPlaceLive(size_t first_place, size_t num_places) const {
  if (!is_any_cancelled_.load(std::memory_order_relaxed)) return true;
  const std::span<const uint32_t> rows = expert_rows_.rows().subspan(first_place, num_places);
  return std::ranges::any_of(rows, [this](uint32_t row) { return chunks_[chunk_of_row_[row]].is_live(); });
}

bool Context::IsAnyLive(size_t first_row, size_t num_rows) const {
  if (!is_any_cancelled_.load(std::memory_order_relaxed)) return true;
  for (size_t row = first_row; row < first_row + num_rows; ++row) {
    const uint32_t chunk = op().space == Space::kTokens ? chunk_of_row_[row] : outputs_[first_output_ + row].chunk;
    if (chunks_[chunk].is_live()) return true;
  }
  return false;
}

bool Context::NextPiece(RowPiece* piece, size_t end_row) const {
  size_t row = piece->row + piece->num_rows;
  while (row < end_row) {
    const ChunkRun& chunk = chunks_[chunk_of_row_[row]];
    const size_t end = std::min<size_t>(end_row, chunk.first_row + chunk.spec.num_tokens);
    if (chunk.is_live()) {
      *piece = {&chunk, static_cast<uint32_t>(row), static_cast<uint32_t>(row - chunk.first_row),
                static_cast<uint32_t>(end - row)};
      return true;
    }
    row = end;
  }
  return false;
}

bool Context::FinishPart(const AttendTasks& tasks, size_t whole) {
  const auto shape = static_cast<size_t>(&tasks - attend_tasks_.data());
  std::atomic<uint32_t>& left = num_left_[shape][whole];
  if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  left.store(tasks.wholes[whole].num_tasks, std::memory_order_relaxed);
  return true;
}

void Context::NoteWorkers(uint32_t count) {
  uint32_t most = num_workers_.load(std::memory_order_relaxed);
  while (count > most && !num_workers_.compare_exchange_weak(most, count, std::memory_order_relaxed)) {
  }
}

void Context::NoteStart(double now_s) {
  has_started_ = true;
  start_s_ = now_s;
}

StepReport Context::Finish(double now_s) {
  StepReport report;
  report.step = spec_.step;
  report.lane = spec_.lane;
  report.outcome = IsDead() ? StepOutcome::kCancelled : StepOutcome::kCompleted;
  report.start_s = has_started_ ? start_s_ : now_s;
  report.end_s = now_s;
  report.workers = std::max(1u, num_workers_.load(std::memory_order_relaxed));
  report.chunks.reserve(num_chunks_);
  for (ChunkRun& chunk : chunks()) {
    ChunkResult result = ResultOf(chunk);
    Seat& seat = *chunk.spec.seat;
    if (!result.tokens.empty()) seat.last_sampled = result.tokens.back();
    if (!result.pooled.empty()) seat.pool = std::move(chunk.pool);
    seat.broken = seat.broken || result.status != ChunkStatus::kOk;
    report.chunks.push_back(std::move(result));
  }
  return report;
}

ChunkResult Context::ResultOf(const ChunkRun& chunk) const {
  ChunkResult result;
  result.seq = chunk.spec.seq;
  if (!chunk.is_live()) {
    result.status = ChunkStatus::kCancelled;
    return result;
  }
  bool is_rejected = false;
  for (uint32_t i = 0; i < chunk.num_outputs && !is_rejected; ++i) {
    const OutputRow& row = outputs_[chunk.first_output + i];
    // A row behind a draft is asked only when everything before it has ended well: then it fails in a step of its own.
    if (row.status != SampleStatus::kOk && chunk.spec.num_drafts > 0 && !result.tokens.empty()) break;
    if (row.status != SampleStatus::kOk) {
      ChunkResult failed;
      failed.seq = chunk.spec.seq;
      failed.status = row.status == SampleStatus::kNotANumber ? ChunkStatus::kNotANumber : ChunkStatus::kNoToken;
      failed.failed_row = chunk.spec.start + row.row;
      return failed;
    }
    if (row.kind == OutputKind::kPool) continue;
    if (row.kind == OutputKind::kLogprobs) {
      result.scored.push_back(row.result);
      continue;
    }
    result.tokens.push_back(row.result.token);
    if (row.top >= 0) result.logprobs.push_back(row.result);
    is_rejected = IsRejected(chunk, row);
  }
  if (chunk.pools) AddPooled(chunk, &result);
  return result;
}

bool Context::IsRejected(const ChunkRun& chunk, const OutputRow& row) const {
  const uint32_t next = row.row + 1;
  const bool has_draft = next < chunk.spec.num_tokens && next + chunk.spec.num_drafts >= chunk.spec.num_tokens;
  return has_draft && tokens_[chunk.first_row + next] != row.result.token;
}

void Context::AddPooled(const ChunkRun& chunk, ChunkResult* result) {
  std::vector<float> mean = chunk.pool.Mean();
  if (std::all_of(mean.begin(), mean.end(), [](float number) { return std::isfinite(number); })) {
    result->pooled = std::move(mean);
    return;
  }
  *result = ChunkResult{};
  result->seq = chunk.spec.seq;
  result->status = ChunkStatus::kPoolNotANumber;
  result->failed_row = chunk.spec.start + chunk.spec.num_tokens - 1;
}

}  // namespace plait
