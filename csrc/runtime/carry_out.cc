// Carrying out: one function per kind of op.
//
// Rows of cancelled chunks are left out where that costs nothing to find out: in attention of their own, cache writes
// and sampling, and wherever a whole block of rows is cancelled. Elsewhere, in stacks too, they are computed with the
// others and never looked at.
// Invariant: what a unit computes for a row does not depend on the unit.

#include "runtime/carry_out.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "formats/pack.h"
#include "runtime/cache_slots.h"
#include "runtime/carry_experts.h"
#include "runtime/operands.h"

namespace plait {
namespace {

// Room for rows is a multiple of this, so that partials, which lie behind them, begin on a cache line.
constexpr size_t kRowMultiple = 16;

size_t AttendScratchBytes(const Machine& machine) {
  size_t bytes = 0;
  for (const AttendShape& shape : machine.attend_shapes) {
    bytes = std::max(bytes, machine.kernels.attend_scratch_bytes(shape.group, shape.head_dim_k, shape.head_dim_v));
  }
  return RoundUp(bytes, kCacheLine);
}

size_t AttendedBytes(const Machine& machine) {
  size_t floats = 0;
  for (const AttendShape& shape : machine.attend_shapes) {
    floats = std::max(floats, kMaxAttendRows * shape.group * shape.head_dim_v);
  }
  return RoundUp(floats * sizeof(float), kCacheLine);
}

class Unit {
 public:
  Unit(const Machine& machine, const Arena& arena, Context& context, Scratch& scratch)
      : machine_(machine),
        tape_(machine.tape),
        kernels_(machine.kernels),
        arena_(arena),
        context_(context),
        op_(context.op()),
        scratch_(scratch) {}

  void CarryOut(uint32_t unit) {
    if (op_.kind == OpKind::kAttend) return Attend(unit);
    if (op_.kind == OpKind::kExpertsGlu || op_.kind == OpKind::kExpertsOut) {
      return CarryOutExperts(machine_, arena_, context_, unit, scratch_);
    }
    if (IsProduct(op_.kind)) {
      const GemmSplit::Unit block = context_.split().gemm.unit(unit);
      if (!context_.IsAnyLive(block.first_row, block.num_rows)) return;
      return op_.kind == OpKind::kGemm ? Gemm(block) : GemmGlu(block);
    }
    const size_t first = context_.split().rows.first(unit);
    const size_t count = context_.split().rows.count(unit);
    if (context_.IsAnyLive(first, count)) OfRows(first, count);
  }

 private:
  void OfRows(size_t first, size_t count) {
    switch (op_.kind) {
      case OpKind::kEmbed:
        return Embed(first, count);
      case OpKind::kNorm:
        return Norm(first, count);
      case OpKind::kQuantize:
        return Quantize(first, count);
      case OpKind::kRope:
        return Rope(op_.in[0], op_.out[0], op_.heads, first, count);
      case OpKind::kCacheWrite:
        return CacheWrite(op_.in[0], op_.in[1], first, count);
      case OpKind::kRopeWrite:
        Rope(op_.in[0], op_.out[0], op_.heads, first, count);
        Rope(op_.in[1], op_.in[1], op_.kv_heads, first, count);
        return CacheWrite(op_.in[1], op_.in[2], first, count);
      case OpKind::kGlu:
        return Glu(first, count);
      case OpKind::kArithmetic:
        return Arithmetic(first, count);
      case OpKind::kSelect:
        return Select(first, count);
      case OpKind::kSample:
        for (size_t row = first; row < first + count; ++row) Sample(row);
        return;
      case OpKind::kPool:
        for (size_t row = first; row < first + count; ++row) Pool(row);
        return;
      case OpKind::kRoute:
        return RouteRows(machine_, arena_, context_, first, count);
      case OpKind::kExpertsMix:
        return MixExperts(machine_, arena_, context_, first, count);
      default:
        assert(false);
    }
  }

  const BufferSpec& BufferOf(const Operand& operand) const { return plait::BufferOf(tape_, operand); }
  Floats FloatsOf(const Operand& operand) const { return plait::FloatsOf(tape_, arena_, operand); }
  QuantizedRows QuantizedOf(const Operand& operand, size_t first_row) const {
    return plait::QuantizedOf(tape_, arena_, operand, first_row);
  }
  const float* VectorOf(int32_t index) const { return plait::VectorOf(tape_, index); }

  void Embed(size_t first, size_t count) {
    const Floats y = FloatsOf(op_.out[0]);
    const std::span<const int32_t> indices = op_.by_position ? context_.positions() : context_.tokens();
    for (size_t row = first; row < first + count; ++row) {
      const auto index = static_cast<size_t>(indices[row]);
      if (op_.matrix[0] != kNone) {
        UnpackColumn(tape_.matrices[static_cast<size_t>(op_.matrix[0])], index, y.row(row));
      } else {
        std::memcpy(y.row(row), VectorOf(op_.weight[0]) + index * y.width, y.width * sizeof(float));
      }
    }
    if (op_.scale == 1.0f) return;
    ArithmeticCall call;
    call.kind = plait::Arithmetic::kScale;
    call.a = y.row(first), call.a_stride = y.stride;
    call.y = y.row(first), call.y_stride = y.stride;
    call.num_rows = count, call.width = y.width, call.factor = op_.scale;
    kernels_.arithmetic(call);
  }

  void Norm(size_t first, size_t count) {
    const Floats x = FloatsOf(op_.in[0]);
    const Floats y = FloatsOf(op_.out[0]);
    NormCall call;
    call.x = x.row(first), call.x_stride = x.stride;
    if (y) call.y = y.row(first), call.y_stride = y.stride;
    call.quantized = QuantizedOf(op_.out[1], first);
    call.num_rows = count, call.width = x.width, call.parts = op_.parts;
    call.weight = VectorOf(op_.weight[0]);
    call.bias = VectorOf(op_.bias);
    const int32_t sized = op_.weight[0] != kNone ? op_.weight[0] : op_.bias;
    call.weight_width = sized == kNone ? x.width / op_.parts : tape_.vectors[static_cast<size_t>(sized)].size();
    call.eps = op_.eps, call.offset = op_.offset, call.kind = op_.norm_kind;
    kernels_.norm(call);
  }

  void Quantize(size_t first, size_t count) {
    const Floats x = FloatsOf(op_.in[0]);
    kernels_.quantize(x.row(first), x.stride, count, QuantizedOf(op_.out[1], first));
  }

  GemmCall GemmOf(int index, size_t first_row, size_t num_rows) const {
    GemmCall call;
    call.weights = tape_.matrices[static_cast<size_t>(op_.matrix[index])];
    call.num_rows = num_rows;
    if (IsInteger(call.weights.scheme)) {
      call.quantized = QuantizedOf(op_.in[0], first_row);
    } else {
      const Floats x = FloatsOf(op_.in[0]);
      call.x = x.row(first_row), call.x_stride = x.stride;
    }
    call.bias = VectorOf(op_.weight[index]);
    call.out_scale = op_.out_scale[index];
    return call;
  }

  void Gemm(const GemmSplit::Unit& block) {
    GemmCall call = GemmOf(static_cast<int>(block.matrix), block.first_row, block.num_rows);
    call.first_panel = block.first_panel, call.num_panels = block.num_panels;
    const Floats y = FloatsOf(op_.out[block.matrix]);
    call.y = y.row(block.first_row), call.y_stride = y.stride;
    const Floats residual = block.matrix == 0 ? FloatsOf(op_.in[1]) : Floats{};
    if (residual) call.residual = residual.row(block.first_row), call.residual_stride = residual.stride;
    kernels_.gemm(call);
  }

  // Gate and up of a tile go through scratch, never through memory.
  void GemmGlu(const GemmSplit::Unit& block) {
    size_t rows = block.num_rows;
    // Whole groups of what is quantised.
    const size_t multiple = op_.out[1].buffer == kNone ? 2 : BufferOf(op_.out[1]).group_size / kPanelColumns;
    const size_t least = multiple * kPanelColumns;
    while (rows * least > kGluTile) rows = (rows + 1) / 2;
    const size_t panels = std::max<size_t>(kGluTile / rows / least * multiple, multiple);
    for (size_t row = 0; row < block.num_rows; row += rows) {
      const size_t num_rows = std::min<size_t>(rows, block.num_rows - row);
      for (size_t panel = 0; panel < block.num_panels; panel += panels) {
        const size_t num_panels = std::min<size_t>(panels, block.num_panels - panel);
        GluTile(block.first_row + row, num_rows, block.first_panel + panel, num_panels);
      }
    }
  }

  void GluTile(size_t first_row, size_t num_rows, size_t first_panel, size_t num_panels) {
    const size_t column = first_panel * kPanelColumns;
    const size_t stride = num_panels * kPanelColumns;
    const size_t columns = tape_.matrices[static_cast<size_t>(op_.matrix[0])].columns;
    const size_t width = std::min(stride, columns - column);
    for (int index = 0; index < 2; ++index) {
      GemmCall call = GemmOf(index, first_row, num_rows);
      call.first_panel = first_panel, call.num_panels = num_panels;
      call.y = Before(index == 0 ? scratch_.gate() : scratch_.up(), column), call.y_stride = stride;
      kernels_.gemm(call);
    }
    GluCall call;
    call.activation = op_.activation;
    call.a = scratch_.gate(), call.a_stride = stride;
    call.b = scratch_.up(), call.b_stride = stride;
    call.y = scratch_.gate(), call.y_stride = stride;
    if (const Floats y = FloatsOf(op_.out[0])) call.y = y.row(first_row) + column, call.y_stride = y.stride;
    call.num_rows = num_rows, call.width = width;
    kernels_.glu(call);
    QuantizeColumns(call.y, call.y_stride, num_rows, column, width, first_row);
  }

  // Into out1, if it is wanted. `x` holds columns [column, column + width).
  void QuantizeColumns(const float* x, size_t stride, size_t num_rows, size_t column, size_t width, size_t first_row) {
    if (op_.out[1].buffer == kNone) return;
    kernels_.quantize_columns(Before(x, column), stride, num_rows, column, width, QuantizedOf(op_.out[1], first_row));
  }

  void Rope(const Operand& in, const Operand& out, size_t heads, size_t first, size_t count) {
    const RopeTable& table = tape_.ropes[static_cast<size_t>(op_.rope)];
    const Floats x = FloatsOf(in);
    const Floats y = FloatsOf(out);
    RopeCall call;
    call.x = x.row(first), call.x_stride = x.stride;
    call.y = y.row(first), call.y_stride = y.stride;
    call.num_rows = count, call.positions = context_.positions().data() + first;
    call.cos = table.cos.data(), call.sin = table.sin.data();
    call.heads = heads, call.head_dim = op_.head_dim_k;
    call.rotary_dim = table.rotary_dim, call.interleaved = table.interleaved;
    kernels_.rope(call);
  }

  CachePlace Place() const { return PlaceOf(tape_.groups[static_cast<size_t>(op_.group)], machine_.pool, op_.layer); }

  void CacheWrite(const Operand& keys, const Operand& values, size_t first, size_t count) {
    const Floats k = FloatsOf(keys);
    const Floats v = FloatsOf(values);
    CacheWriteCall call;
    call.place = Place();
    call.k_stride = k.stride, call.v_stride = v.stride;
    RowPiece piece;
    piece.row = static_cast<uint32_t>(first);
    while (context_.NextPiece(&piece, first + count)) {
      call.table = piece.chunk->tables[static_cast<size_t>(op_.group)].data();
      call.start = static_cast<size_t>(piece.chunk->spec.start) + piece.in_chunk;
      call.num_rows = piece.num_rows;
      call.k = k.row(piece.row), call.v = v.row(piece.row);
      kernels_.write_cache(call);
    }
  }

  void Attend(uint32_t unit) {
    const AttendTasks& tasks = *context_.split().attend;
    for (uint32_t i = tasks.unit_begins[unit]; i < tasks.unit_begins[unit + 1]; ++i) {
      const AttendTask& task = tasks.tasks[i];
      if (task.stack != kNoIndex) {
        AttendStacked(tasks, task);
      } else if (context_.chunks()[task.chunk].is_live()) {
        AttendPart(tasks, task);
        if (task.whole != kNoIndex) FinishPart(tasks, static_cast<size_t>(task.whole));
      }
    }
  }

  void FinishPart(const AttendTasks& tasks, size_t whole) {
    if (context_.FinishPart(tasks, whole)) Merge(tasks.wholes[whole]);
  }

  size_t Group() const { return op_.heads / op_.kv_heads; }
  // Of (m, l, o), for every query head of a KV head.
  size_t FloatsPerRow() const { return Group() * (2 + op_.head_dim_v); }

  // Where the first row goes, as column 0 of the heads' columns: the output, or scratch on the way to `out1`.
  Floats Attended(uint32_t kv_head, size_t first_row) const {
    const size_t width = Group() * op_.head_dim_v;
    if (const Floats y = FloatsOf(op_.out[0])) return {y.row(first_row), y.stride, y.width};
    return {Before(scratch_.attended(), kv_head * width), width, width};
  }

  void QuantizeAttended(uint32_t kv_head, size_t num_rows, const Floats& y, size_t first_row) {
    const size_t width = Group() * op_.head_dim_v;
    const size_t column = kv_head * width;
    const auto* x = reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(y.first) + column * sizeof(float));
    QuantizeColumns(x, y.stride, num_rows, column, width, first_row);
  }

  float* PartialsOf(const AttendWhole& whole, uint32_t tile) const {
    return arena_.partials() + whole.first_partial + (tile - whole.first_tile) * whole.num_rows * FloatsPerRow();
  }

  // What is the same for every call of the op.
  AttendCall CallOf(uint32_t chunk, uint32_t kv_head) const {
    const Floats q = FloatsOf(op_.in[0]);
    AttendCall call;
    call.place = Place();
    call.table = context_.chunks()[chunk].tables[static_cast<size_t>(op_.group)].data();
    call.kv_head = kv_head, call.group = Group();
    call.q = q.first, call.q_stride = q.stride;
    call.scale = op_.scale, call.softcap = op_.softcap;
    call.reach = op_.reach, call.reach_size = op_.reach_size;
    call.sinks = VectorOf(op_.sinks);
    return call;
  }

  void AttendPart(const AttendTasks& tasks, const AttendTask& task) {
    const ChunkRun& chunk = context_.chunks()[task.chunk];
    const size_t first_row = chunk.first_row + task.first_row;
    const Floats y = Attended(task.kv_head, first_row);
    AttendCall call = CallOf(task.chunk, task.kv_head);
    call.q += first_row * call.q_stride;
    call.y = y.first, call.y_stride = y.stride;
    call.start = static_cast<size_t>(chunk.spec.start) + task.first_row, call.num_rows = task.num_rows;
    if (task.whole != kNoIndex) {
      call.partials = PartialsOf(tasks.wholes[static_cast<size_t>(task.whole)], task.first_tile);
      call.first_tile = task.first_tile, call.num_tiles = task.num_tiles;
    }
    kernels_.attend(call, scratch_.attend());
    if (task.whole == kNoIndex) QuantizeAttended(task.kv_head, task.num_rows, y, first_row);
  }

  // A task of a stack goes on for all of its rows while one of them is wanted.
  void AttendStacked(const AttendTasks& tasks, const AttendTask& task) {
    const AttendStack& stack = tasks.stacks[static_cast<size_t>(task.stack)];
    const size_t end = size_t{task.first_row} + task.num_rows;
    const auto is_live = [&](uint32_t whole) { return context_.chunks()[tasks.wholes[whole].chunk].is_live(); };
    const auto wholes = std::span(stack.whole_of_row).subspan(task.first_row, task.num_rows);
    if (std::none_of(wholes.begin(), wholes.end(), is_live)) return;
    AttendCall call = CallOf(task.chunk, task.kv_head);
    call.q_rows = &stack.rows[task.first_row], call.num_rows = task.num_rows;
    call.start = task.num_tiles * kKeyTile, call.num_tiles = task.num_tiles;
    call.state =
        arena_.partials() + stack.first_state + task.kv_head * stack.floats_per_head + task.first_row * FloatsPerRow();
    kernels_.attend(call, scratch_.attend());
    for (size_t row = task.first_row; row < end; row += tasks.wholes[stack.whole_of_row[row]].num_rows) {
      const size_t whole = stack.whole_of_row[row] + task.kv_head;
      if (context_.chunks()[tasks.wholes[whole].chunk].is_live()) FinishPart(tasks, whole);
    }
  }

  void Merge(const AttendWhole& whole) {
    const size_t first_row = context_.chunks()[whole.chunk].first_row + whole.first_row;
    const Floats y = Attended(whole.kv_head, first_row);
    MergeCall call;
    if (whole.first_state != kNoState) call.state = arena_.partials() + whole.first_state;
    call.partials = PartialsOf(whole, whole.first_tile);
    call.num_tiles = whole.num_tiles, call.num_rows = whole.num_rows;
    call.group = Group(), call.head_dim_v = op_.head_dim_v;
    call.kv_head = whole.kv_head, call.sinks = VectorOf(op_.sinks);
    call.y = y.first, call.y_stride = y.stride;
    kernels_.merge(call);
    QuantizeAttended(whole.kv_head, whole.num_rows, y, first_row);
  }

  void Glu(size_t first, size_t count) {
    const Floats a = FloatsOf(op_.in[0]);
    const Floats b = FloatsOf(op_.in[1]);
    const Floats y = FloatsOf(op_.out[0]);
    if (y) return GluPart(a, b, y, first, count, 0, a.width);
    // Without an output of floats it passes through scratch, as much at a time as fits.
    const size_t columns = std::min(a.width, kGluTile);
    const size_t rows = kGluTile / columns;
    for (size_t row = first; row < first + count; row += rows) {
      const size_t num_rows = std::min(rows, first + count - row);
      for (size_t column = 0; column < a.width; column += columns) {
        GluPart(a, b, {}, row, num_rows, column, std::min(columns, a.width - column));
      }
    }
  }

  void GluPart(const Floats& a, const Floats& b, const Floats& y, size_t first, size_t count, size_t column,
               size_t width) {
    GluCall call;
    call.activation = op_.activation, call.num_rows = count, call.width = width;
    call.a = a.row(first) + column, call.a_stride = a.stride;
    if (b) call.b = b.row(first) + column, call.b_stride = b.stride;
    call.y = y ? y.row(first) + column : scratch_.gate(), call.y_stride = y ? y.stride : width;
    kernels_.glu(call);
    QuantizeColumns(call.y, call.y_stride, count, column, width, first);
  }

  void Arithmetic(size_t first, size_t count) {
    const Floats a = FloatsOf(op_.in[0]);
    const Floats b = FloatsOf(op_.in[1]);
    const Floats y = FloatsOf(op_.out[0]);
    ArithmeticCall call;
    call.kind = op_.arithmetic;
    call.a = a.row(first), call.a_stride = a.stride;
    if (b) call.b = b.row(first), call.b_stride = b.stride, call.b_width = b.width;
    call.y = y.row(first), call.y_stride = y.stride;
    call.num_rows = count, call.width = a.width, call.factor = op_.scale;
    kernels_.arithmetic(call);
  }

  OutputRow& Output(size_t row) { return context_.outputs()[context_.first_output() + row]; }

  void Select(size_t first, size_t count) {
    const Floats x = FloatsOf(op_.in[0]);
    const Floats y = FloatsOf(op_.out[0]);
    for (size_t row = first; row < first + count; ++row) {
      std::memcpy(y.row(row), x.row(context_.row_of(Output(row))), x.width * sizeof(float));
    }
  }

  void Pool(size_t row) {
    const OutputRow& output = Output(row);
    ChunkRun& chunk = context_.chunks()[output.chunk];
    if (output.kind != OutputKind::kPool || !chunk.is_live()) return;
    const Floats x = FloatsOf(op_.in[0]);
    chunk.pool.Add({x.row(row), x.width});
  }

  void Sample(size_t row) {
    if (Output(row).kind == OutputKind::kPool) return;
    float* logits = FloatsOf(op_.in[0]).row(row);
    if (op_.scale != 1.0f || op_.softcap != 0.0f) kernels_.cap_logits(logits, op_.vocab_size, op_.scale, op_.softcap);
    OutputRow& output = Output(row);
    const ChunkRun& chunk = context_.chunks()[output.chunk];
    if (!scratch_.sampler().Load(logits)) {
      output.status = SampleStatus::kNotANumber;
      return;
    }
    if (output.kind == OutputKind::kLogprobs) return Score(output, output.target);
    const SampleOutcome outcome = scratch_.sampler().Sample(RequestOf(chunk, output));
    output.status = outcome.status;
    output.result.token = outcome.token;
    if (outcome.status == SampleStatus::kOk && output.top >= 0) Score(output, outcome.token);
  }

  void Score(OutputRow& output, int32_t token) {
    const size_t num_top = std::min<size_t>(static_cast<size_t>(output.top), op_.vocab_size);
    std::vector<TokenLogProbability> top(num_top);
    output.result.token = token;
    output.result.logprob = scratch_.sampler().Score(token, top);
    for (const TokenLogProbability& one : top) output.result.top.emplace_back(one.token, one.log_probability);
  }

  SampleRequest RequestOf(const ChunkRun& chunk, const OutputRow& output) {
    const Seat& seat = *chunk.spec.seat;
    const SamplingSpec& sampling = seat.join.sampling;
    SampleRequest request;
    request.temperature = sampling.temperature;
    request.top_k = sampling.top_k;
    request.top_p = sampling.top_p;
    request.min_p = sampling.min_p;
    request.repetition_penalty = sampling.repetition_penalty;
    request.frequency_penalty = sampling.frequency_penalty;
    request.presence_penalty = sampling.presence_penalty;
    request.logit_bias = sampling.logit_bias;
    request.allowed = output.allowed;
    request.seed = seat.join.seed;
    request.choice = seat.join.choice;
    const int64_t position = chunk.spec.start + output.row + 1;
    request.position = static_cast<uint64_t>(position);
    if (position - seat.join.num_prompt < sampling.min_tokens) request.forbidden = sampling.end_tokens;
    if (seat.has_penalties) request.counts = CountsOf(seat, static_cast<size_t>(position));
    return request;
  }

  // Of the tokens before `position`. Only a chunk that samples behind several of its tokens asks for less than all.
  const PenaltyCounts* CountsOf(const Seat& seat, size_t position) {
    if (position >= seat.history.size()) return &seat.counts;
    scratch_.counts().Rebuild(std::span(seat.history).first(position), static_cast<size_t>(seat.join.num_prompt));
    return &scratch_.counts();
  }

  const Machine& machine_;
  const Tape& tape_;
  const Kernels& kernels_;
  const Arena& arena_;
  Context& context_;
  const OpSpec& op_;
  Scratch& scratch_;
};

}  // namespace

Arena::Arena(const Machine& machine) : memory_(BytesFor(machine)) {
  max_rows_[0] = RoundUp(machine.config.max_step_tokens, kRowMultiple);
  max_rows_[1] = RoundUp(machine.config.output_tile_rows, kRowMultiple);
  base_[0] = memory_.data();
  base_[1] = base_[0] + max_rows_[0] * machine.tape.ArenaRowBytes(Space::kTokens);
  uint8_t* const behind = base_[1] + max_rows_[1] * machine.tape.ArenaRowBytes(Space::kOutputs);
  partials_ = reinterpret_cast<float*>(behind);
  hidden_ = behind + kMaxPartials * sizeof(float);
  expert_outputs_ = reinterpret_cast<float*>(hidden_ + max_rows_[0] * HiddenRowBytes(machine.tape));
}

size_t Arena::BytesFor(const Machine& machine) {
  return RoundUp(machine.config.max_step_tokens, kRowMultiple) * machine.tape.ArenaRowBytes(Space::kTokens) +
         RoundUp(machine.config.output_tile_rows, kRowMultiple) * machine.tape.ArenaRowBytes(Space::kOutputs) +
         kMaxPartials * sizeof(float) +
         RoundUp(machine.config.max_step_tokens, kRowMultiple) *
             (HiddenRowBytes(machine.tape) + ExpertOutputRowBytes(machine.tape));
}

Scratch::Scratch(const Machine& machine)
    : memory_(AttendScratchBytes(machine) + AttendedBytes(machine) + 2 * kGluTile * sizeof(float) +
              GatheredBytes(machine.tape)),
      sampler_(*machine.kernels.sampler, machine.tape.vocab_size) {
  attended_ = reinterpret_cast<float*>(memory_.data() + AttendScratchBytes(machine));
  gate_ = attended_ + AttendedBytes(machine) / sizeof(float);
  up_ = gate_ + kGluTile;
  gathered_ = reinterpret_cast<uint8_t*>(up_ + kGluTile);
}

void CarryOut(const Machine& machine, const Arena& arena, Context& context, uint32_t unit, Scratch& scratch) {
  Unit(machine, arena, context, scratch).CarryOut(unit);
}

}  // namespace plait
