// Carrying out recurrences: chunk after chunk, from snapshot to snapshot.
//
// A sequence that begins has a state of zeros, whatever its block holds. Invariant: a chunk that was cancelled leaves a
// state that nobody will read.

#include "runtime/recurrence.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "ops/recurrence.h"
#include "ops/shift.h"
#include "runtime/operands.h"

namespace plait {
namespace {

class Recurrence {
 public:
  Recurrence(const Machine& machine, const Arena& arena, const OpSpec& op)
      : machine_(machine), tape_(machine.tape), arena_(arena), op_(op) {}

  // Parts [first, first + count) of the chunk's state.
  void Go(const ChunkRun& chunk, uint32_t first, uint32_t count) const {
    if (op_.kind == OpKind::kScan) return Scan(chunk, first, count);
    const uint32_t column = first * kConvColumns;
    const uint32_t width = std::min(count * kConvColumns, op_.in[0].width - column);
    op_.kind == OpKind::kConv ? Convolve(chunk, column, width) : Shift(chunk, column, width);
  }

 private:
  // The op's part of the layer's state in a block of its group.
  float* StateIn(int32_t block) const {
    const GroupSpec& group = tape_.groups[static_cast<size_t>(op_.group)];
    uint8_t* bytes = machine_.pool + static_cast<size_t>(block) * group.block_bytes + op_.layer * group.layer_bytes;
    return reinterpret_cast<float*>(bytes) + op_.state_begin;
  }
  float* StateOf(const ChunkRun& chunk) const { return StateIn(chunk.tables[static_cast<size_t>(op_.group)][0]); }
  bool IsKeptHere(const SnapshotSpec& snapshot) const { return snapshot.group == static_cast<size_t>(op_.group); }

  void Convolve(const ChunkRun& chunk, uint32_t column, uint32_t width) const {
    const Floats x = FloatsOf(tape_, arena_, op_.in[0]);
    const Floats y = FloatsOf(tape_, arena_, op_.out[0]);
    float* state = StateOf(chunk) + column;
    ConvCall call;
    call.x = x.row(chunk.first_row) + column, call.x_stride = x.stride;
    call.y = y.row(chunk.first_row) + column, call.y_stride = y.stride;
    call.num_rows = chunk.spec.num_tokens, call.width = width;
    call.taps = VectorOf(tape_, op_.weight[0]) + column, call.taps_stride = x.width, call.num_taps = op_.taps;
    if (op_.bias != kNone) call.bias = VectorOf(tape_, op_.bias) + column;
    if (chunk.spec.start > 0) call.state = state;
    call.state_stride = x.width;
    call.is_silu = op_.activates;
    machine_.kernels.conv(call);
    for (const SnapshotSpec& snapshot : chunk.spec.snapshots) {
      if (IsKeptHere(snapshot)) KeepRows(call, snapshot.offset + 1, StateIn(snapshot.block) + column);
    }
    KeepRows(call, call.num_rows, state);
  }

  // The state behind so many rows of the call: the rows before, oldest first. `to` may be the call's state itself: a
  // row is read no later than its place is written.
  static void KeepRows(const ConvCall& call, size_t num_rows, float* to) {
    const size_t before = call.num_taps - 1;
    for (size_t i = 0; i < before; ++i, to += call.state_stride) {
      const size_t at = num_rows + i;  // counted from the oldest row of the state
      if (at >= before) {
        std::memcpy(to, call.x + (at - before) * call.x_stride, call.width * sizeof(float));
      } else if (call.state != nullptr) {
        std::memcpy(to, call.state + at * call.state_stride, call.width * sizeof(float));
      } else {
        std::memset(to, 0, call.width * sizeof(float));
      }
    }
  }

  void Shift(const ChunkRun& chunk, uint32_t column, uint32_t width) const {
    const Floats x = FloatsOf(tape_, arena_, op_.in[0]);
    const Floats y = FloatsOf(tape_, arena_, op_.out[0]);
    float* state = StateOf(chunk) + column;
    ShiftCall call;
    call.x = x.row(chunk.first_row) + column, call.x_stride = x.stride;
    call.y = y.row(chunk.first_row) + column, call.y_stride = y.stride;
    call.num_rows = chunk.spec.num_tokens, call.width = width;
    call.weight = VectorOf(tape_, op_.weight[0]) + column;
    call.mixes = y.width / x.width, call.stride = x.width;
    if (chunk.spec.start > 0) call.before = state;
    machine_.kernels.shift(call);
    const auto keep = [&](uint32_t row, float* to) {
      std::memcpy(to, call.x + row * call.x_stride, width * sizeof(float));
    };
    for (const SnapshotSpec& snapshot : chunk.spec.snapshots) {
      if (IsKeptHere(snapshot)) keep(snapshot.offset, StateIn(snapshot.block) + column);
    }
    keep(chunk.spec.num_tokens - 1, state);
  }

  void Scan(const ChunkRun& chunk, uint32_t first_head, uint32_t num_heads) const {
    const size_t head_floats = size_t{op_.head_dim_k} * op_.head_dim_v;
    const size_t first = first_head * head_floats;
    const size_t bytes = num_heads * head_floats * sizeof(float);
    float* state = StateOf(chunk);
    if (chunk.spec.start == 0) std::memset(state + first, 0, bytes);
    uint32_t row = 0;
    for (const SnapshotSpec& snapshot : chunk.spec.snapshots) {
      if (!IsKeptHere(snapshot)) continue;
      ScanRows(chunk, row, snapshot.offset + 1, first_head, num_heads, state);
      row = snapshot.offset + 1;
      std::memcpy(StateIn(snapshot.block) + first, state + first, bytes);
    }
    ScanRows(chunk, row, chunk.spec.num_tokens, first_head, num_heads, state);
  }

  void ScanRows(const ChunkRun& chunk, uint32_t row, uint32_t end, uint32_t first_head, uint32_t num_heads,
                float* state) const {
    if (row == end) return;
    ScanCall call;
    call.kind = op_.scan;
    for (size_t i = 0; i < kMostScanInputs; ++i) {
      const Floats in = FloatsOf(tape_, arena_, op_.in[i]);
      if (in) call.in[i] = in.row(chunk.first_row + row), call.in_stride[i] = in.stride;
    }
    for (size_t i = 0; i < kMostScanWeights; ++i) call.weight[i] = VectorOf(tape_, op_.weight[i]);
    const Floats y = FloatsOf(tape_, arena_, op_.out[0]);
    call.y = y.row(chunk.first_row + row), call.y_stride = y.stride;
    call.num_rows = end - row;
    call.heads = op_.heads, call.head_dim = op_.head_dim_v, call.state_dim = op_.head_dim_k;
    call.groups = op_.kv_heads;
    call.first_head = first_head, call.num_heads = num_heads;
    call.state = state;
    machine_.kernels.scan(call);
  }

  const Machine& machine_;
  const Tape& tape_;
  const Arena& arena_;
  const OpSpec& op_;
};

}  // namespace

void CarryOutRecurrence(const Machine& machine, const Arena& arena, Context& context, uint32_t index) {
  const RecurrenceSplit::Unit unit = context.split().recurrence->unit(index);
  const Recurrence recurrence(machine, arena, context.op());
  for (uint32_t i = unit.first_chunk; i < unit.end_chunk; ++i) {
    const ChunkRun& chunk = context.chunks()[i];
    if (chunk.is_live()) recurrence.Go(chunk, unit.first_part, unit.num_parts);
  }
}

}  // namespace plait
