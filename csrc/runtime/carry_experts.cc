// Carrying out mixtures of experts.
//
// An expert's rows lie apart from each other: a worker copies as many as its cache holds next to each other before it
// multiplies them; behind that they stay together until they are summed.
// Invariant: what is computed for a row does not depend on the unit, nor on who else chose the expert.

#include "runtime/carry_experts.h"

#include <algorithm>
#include <cstring>

#include "runtime/operands.h"

namespace plait {
namespace {

// Of gathered rows; at least one row, whatever its width.
constexpr size_t kGatheredBytes = 256 * 1024;

const WeightPanels& MatrixOf(const Tape& tape, const OpSpec& op, int index, uint32_t expert = 0) {
  return tape.matrices[static_cast<size_t>(op.matrix[index]) + expert];
}

// Rows between the products: what the second of them takes.
BufferSpec HiddenOf(const Tape& tape, const OpSpec& op) {
  BufferSpec spec;
  spec.group_size = RowGroupSize(MatrixOf(tape, op, 2).scheme);
  spec.width = MatrixOf(tape, op, 2).depth;
  return spec;
}

size_t OutputStride(const Tape& tape, const OpSpec& op) {
  BufferSpec spec;
  spec.width = MatrixOf(tape, op, 2).columns;
  return BufferRowBytes(spec) / sizeof(float);
}

// Bytes of a row of the first product's input, gathered.
size_t InputRowBytes(const Tape& tape, const OpSpec& op) { return BufferRowBytes(BufferOf(tape, op.in[0])); }

template <typename Bytes>
size_t MostOfExperts(const Tape& tape, const Bytes& bytes) {
  size_t most = 0;
  for (const OpSpec& op : tape.ops) most = std::max(most, op.kind == OpKind::kExpertsGlu ? bytes(op) : 0);
  return most;
}

class ExpertsRun {
 public:
  ExpertsRun(const Machine& machine, const Arena& arena, const Context& context, const ExpertUnit& unit,
             Scratch& scratch)
      : tape_(machine.tape),
        kernels_(machine.kernels),
        arena_(arena),
        context_(context),
        op_(context.op()),
        unit_(unit),
        scratch_(scratch) {}

  // As many rows at a time as fit the tiles of gate and up, and what is gathered.
  void Glu() {
    const BufferSpec hidden = HiddenOf(tape_, op_);
    const size_t multiple = hidden.is_quantized() ? hidden.group_size / kPanelColumns : 2;
    const size_t least = multiple * kPanelColumns;
    const size_t fit = std::min(kGluTile / least, GatheredBytes(tape_) / InputRowBytes(tape_, op_));
    const size_t tiles = (unit_.num_places + fit - 1) / fit;
    const size_t rows = (unit_.num_places + tiles - 1) / tiles;
    const size_t panels = std::max(kGluTile / rows / least * multiple, multiple);
    for (size_t row = 0; row < unit_.num_places; row += rows) {
      const size_t num_rows = std::min<size_t>(rows, unit_.num_places - row);
      const GemmCall input = Gathered(unit_.first_place + row, num_rows);
      for (size_t panel = 0; panel < unit_.num_panels; panel += panels) {
        const size_t num_panels = std::min<size_t>(panels, unit_.num_panels - panel);
        GluTile(input, hidden, unit_.first_place + row, unit_.first_panel + panel, num_panels);
      }
    }
  }

  void Out() {
    const BufferSpec hidden = HiddenOf(tape_, op_);
    GemmCall call;
    call.num_rows = unit_.num_places;
    if (hidden.is_quantized()) {
      call.quantized = QuantizedHidden(hidden, unit_.first_place);
    } else {
      call.x = FloatHidden(hidden, unit_.first_place), call.x_stride = BufferRowBytes(hidden) / sizeof(float);
    }
    Weigh(2, unit_.first_panel, unit_.num_panels, &call);
    call.y_stride = OutputStride(tape_, op_);
    call.y = arena_.expert_outputs() + unit_.first_place * call.y_stride;
    kernels_.gemm(call);
  }

 private:
  QuantizedRows QuantizedHidden(const BufferSpec& spec, size_t place) const {
    const QuantizedRows rows = {reinterpret_cast<QuantizedGroup*>(arena_.hidden()), spec.width, spec.group_size};
    return rows.from_row(place);
  }
  float* FloatHidden(const BufferSpec& spec, size_t place) const {
    return reinterpret_cast<float*>(arena_.hidden() + place * BufferRowBytes(spec));
  }

  // The expert's matrix, and its part of the biases.
  void Weigh(int index, size_t first_panel, size_t num_panels, GemmCall* call) const {
    call->weights = MatrixOf(tape_, op_, index, unit_.expert);
    call->first_panel = first_panel, call->num_panels = num_panels;
    const float* biases = VectorOf(tape_, op_.weight[index]);
    call->bias = biases == nullptr ? nullptr : biases + unit_.expert * call->weights.columns;
  }

  // The rows of so many places next to each other; those that are so already stay where they are.
  GemmCall Gathered(size_t first_place, size_t num_rows) const {
    GemmCall call;
    call.num_rows = num_rows;
    const std::span<const uint32_t> rows = context_.expert_rows().rows().subspan(first_place, num_rows);
    const bool is_together = rows.back() - rows.front() + 1 == num_rows;
    const BufferSpec& spec = BufferOf(tape_, op_.in[0]);
    if (spec.is_quantized()) {
      QuantizedRows to = {reinterpret_cast<QuantizedGroup*>(scratch_.gathered()), spec.width, spec.group_size};
      for (size_t i = 0; i < num_rows && !is_together; ++i) {
        const QuantizedRows from = QuantizedOf(tape_, arena_, op_.in[0], rows[i]);
        std::memcpy(to.from_row(i).groups, from.groups, from.groups_per_row() * sizeof(QuantizedGroup));
      }
      call.quantized = is_together ? QuantizedOf(tape_, arena_, op_.in[0], rows.front()) : to;
      return call;
    }
    const Floats x = FloatsOf(tape_, arena_, op_.in[0]);
    auto* to = reinterpret_cast<float*>(scratch_.gathered());
    const size_t stride = BufferRowBytes(spec) / sizeof(float);
    for (size_t i = 0; i < num_rows && !is_together; ++i) {
      std::memcpy(to + i * stride, x.row(rows[i]), x.width * sizeof(float));
    }
    call.x = is_together ? x.row(rows.front()) : to;
    call.x_stride = is_together ? x.stride : stride;
    return call;
  }

  void GluTile(const GemmCall& input, const BufferSpec& hidden, size_t first_place, size_t first_panel,
               size_t num_panels) {
    const size_t column = first_panel * kPanelColumns;
    const size_t stride = num_panels * kPanelColumns;
    const size_t width = std::min(stride, hidden.width - column);
    for (int index = 0; index < 2; ++index) {
      GemmCall call = input;
      Weigh(index, first_panel, num_panels, &call);
      call.y = Before(index == 0 ? scratch_.gate() : scratch_.up(), column), call.y_stride = stride;
      kernels_.gemm(call);
    }
    GluCall call;
    call.activation = op_.activation, call.alpha = op_.alpha, call.limit = op_.limit;
    call.a = scratch_.gate(), call.a_stride = stride;
    call.b = scratch_.up(), call.b_stride = stride;
    call.y = scratch_.gate(), call.y_stride = stride;
    call.num_rows = input.num_rows, call.width = width;
    if (!hidden.is_quantized()) {
      call.y = FloatHidden(hidden, first_place) + column, call.y_stride = BufferRowBytes(hidden) / sizeof(float);
    }
    kernels_.glu(call);
    if (!hidden.is_quantized()) return;
    kernels_.quantize_columns(Before(scratch_.gate(), column), stride, input.num_rows, column, width,
                              QuantizedHidden(hidden, first_place));
  }

  const Tape& tape_;
  const Kernels& kernels_;
  const Arena& arena_;
  const Context& context_;
  const OpSpec& op_;
  const ExpertUnit unit_;
  Scratch& scratch_;
};

}  // namespace

size_t HiddenRowBytes(const Tape& tape) {
  return MostOfExperts(tape, [&](const OpSpec& op) { return op.top_k * BufferRowBytes(HiddenOf(tape, op)); });
}

size_t ExpertOutputRowBytes(const Tape& tape) {
  return MostOfExperts(tape, [&](const OpSpec& op) { return op.top_k * OutputStride(tape, op) * sizeof(float); });
}

size_t GatheredBytes(const Tape& tape) {
  const size_t row = MostOfExperts(tape, [&](const OpSpec& op) { return InputRowBytes(tape, op); });
  return row == 0 ? 0 : std::max(row, kGatheredBytes);
}

void RouteRows(const Machine& machine, const Arena& arena, Context& context, size_t first, size_t count) {
  const OpSpec& op = context.op();
  const Floats logits = FloatsOf(machine.tape, arena, op.in[0]);
  const Floats y = FloatsOf(machine.tape, arena, op.out[0]);
  RouteCall call;
  call.logits = logits.row(first), call.logits_stride = logits.stride;
  call.y = y.row(first), call.y_stride = y.stride;
  call.chosen = context.expert_rows().chosen(first, op.top_k);
  call.num_rows = count, call.experts = op.experts, call.top_k = op.top_k;
  call.bias = VectorOf(machine.tape, op.weight[0]);
  call.scale = op.scale, call.is_softmax = op.is_softmax, call.normalizes = op.normalizes;
  machine.kernels.route(call);
}

void CarryOutExperts(const Machine& machine, const Arena& arena, Context& context, uint32_t unit, Scratch& scratch) {
  const ExpertUnit rows = context.expert_rows().unit(unit);
  if (!context.IsAnyPlaceLive(rows.first_place, rows.num_places)) return;
  ExpertsRun run(machine, arena, context, rows, scratch);
  context.op().kind == OpKind::kExpertsGlu ? run.Glu() : run.Out();
}

void MixExperts(const Machine& machine, const Arena& arena, Context& context, size_t first, size_t count) {
  const OpSpec& op = context.op();
  const Floats routing = FloatsOf(machine.tape, arena, op.in[0]);
  const Floats y = FloatsOf(machine.tape, arena, op.out[0]);
  MixCall call;
  call.outputs = arena.expert_outputs(), call.outputs_stride = OutputStride(machine.tape, op);
  call.places = context.expert_rows().places(first, op.top_k);
  call.weights = routing.row(first) + op.top_k, call.weights_stride = routing.stride;
  call.y = y.row(first), call.y_stride = y.stride;
  call.num_rows = count, call.width = y.width, call.top_k = op.top_k;
  machine.kernels.mix(call);
}

}  // namespace plait
