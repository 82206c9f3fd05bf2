// Tiny model: the tape, and the interpreter that is the oracle of the runtime's tests.
//
// Owns the arithmetic of one sequence alone: every op over all rows in one call, attention row by row, the cache in
// blocks one behind another. Invariant: it shares no code with runtime/ but the tape and the kernels.

#include "runtime/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "base/cpu.h"
#include "base/testing.h"
#include "formats/half.h"
#include "formats/pack.h"
#include "runtime/units.h"

namespace plait::testing {
namespace {

constexpr uint32_t kWidth = 64;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeadDim = 16;
constexpr uint32_t kInner = 160;
constexpr uint32_t kLayers = 3;  // the first and the last attend alike
constexpr uint32_t kWindow = 40;
constexpr uint32_t kExperts = 5;
constexpr uint32_t kTopK = 2;
constexpr uint32_t kExpertInner = 96;
constexpr float kPi = 3.14159265f;

Operand Columns(const Operand& of, uint32_t column, uint32_t width) { return {of.buffer, column, width}; }

RopeTable MakeRope() {
  RopeTable table;
  table.max_positions = kTinyPositions;
  table.rotary_dim = kHeadDim;
  for (size_t position = 0; position < kTinyPositions; ++position) {
    for (size_t pair = 0; pair < kHeadDim / 2; ++pair) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(pair) / kHeadDim);
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

GroupSpec MakeGroup(CacheType type) {
  GroupSpec group;
  group.num_blocks = kTinyBlocks;
  group.tokens_per_block = kTinyBlock;
  group.kv_heads = kKvHeads;
  group.head_dim_k = group.head_dim_v = kHeadDim;
  group.type = type;
  group.num_layers = kLayers;
  group.head_bytes = kTinyBlock * 2 * kHeadDim * (type == CacheType::kF16 ? 2 : 4);
  group.layer_bytes = kKvHeads * group.head_bytes;
  group.block_bytes = kLayers * group.layer_bytes;
  return group;
}

}  // namespace

TinyModel::TinyModel(TinyKind kind, uint64_t seed) : kind_(kind), state_(seed) {
  const bool is_integer = kind != TinyKind::kFloats;
  tape_.vocab_size = kTinyVocab;
  tape_.groups.push_back(MakeGroup(is_integer ? CacheType::kF16 : CacheType::kF32));
  tape_.ropes.push_back(MakeRope());
  const Operand x = AddBuffer(Space::kTokens, kWidth);
  const int32_t embedding = AddMatrix(kTinyVocab, kWidth, 1.0f);
  OpSpec& embed = Add(OpKind::kEmbed);
  embed.out[0] = x;
  embed.matrix[0] = embedding;
  embed.scale = 1.5f;
  for (uint32_t layer = 0; layer < kLayers; ++layer) AddLayer(layer, x);
  AddHead(x);
}

float TinyModel::NextNumber() {
  Draws draws(state_++);
  return static_cast<float>(draws.Next() >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

int32_t TinyModel::AddVector(size_t size, float around, float size_of) {
  std::vector<float> numbers(size);
  for (float& number : numbers) number = around + size_of * NextNumber();
  tape_.vectors.push_back(std::move(numbers));
  return static_cast<int32_t>(tape_.vectors.size()) - 1;
}

int32_t TinyModel::AddMatrix(size_t columns, size_t depth, float size) {
  const Scheme scheme = kind_ == TinyKind::kFloats ? Scheme::kF32
                        : kind_ == TinyKind::kOwn  ? Scheme::kInt8
                                                   : Scheme::kQ8_0;
  std::vector<uint8_t> stored(columns * BytesPerStoredRow(scheme, depth));
  if (scheme == Scheme::kF32) {
    for (size_t i = 0; i < columns * depth; ++i) {
      const float number = size * NextNumber();
      std::memcpy(&stored[i * sizeof(float)], &number, sizeof(float));
    }
  } else {
    const size_t scale_bytes = BytesPerStoredRow(scheme, kGroupSize) - kGroupSize;
    const size_t stored_group = scale_bytes + kGroupSize;
    for (size_t i = 0; i < columns * depth / kGroupSize; ++i) {
      const uint16_t scale = static_cast<uint16_t>(size * 8.0f) == 0 ? 0x1400 : 0x2000;  // 2^-10, 2^-7
      const float wide_scale = HalfToFloat(scale);
      std::memcpy(&stored[i * stored_group],
                  scale_bytes == sizeof(float) ? static_cast<const void*>(&wide_scale) : &scale, scale_bytes);
      for (size_t j = 0; j < kGroupSize; ++j) {
        stored[i * stored_group + scale_bytes + j] = static_cast<uint8_t>(static_cast<int8_t>(127.0f * NextNumber()));
      }
    }
  }
  WeightPanels panels;
  panels.scheme = scheme;
  panels.columns = columns;
  panels.depth = depth;
  panels.bytes_per_panel = BytesPerPanel(scheme, depth);
  panels_.emplace_back(panels.num_panels() * panels.bytes_per_panel);
  PackPanels(scheme, stored.data(), columns, depth, 0, panels.num_panels(), panels_.back().data());
  panels.bytes = panels_.back().data();
  tape_.matrices.push_back(panels);
  return static_cast<int32_t>(tape_.matrices.size()) - 1;
}

Operand TinyModel::AddBuffer(Space space, size_t width, size_t group_size) {
  BufferSpec spec = {space, group_size, width, tape_.ArenaRowBytes(space)};
  tape_.buffers.push_back(spec);
  return {static_cast<int32_t>(tape_.buffers.size()) - 1, 0, static_cast<uint32_t>(width)};
}

size_t TinyModel::GroupSize() const {
  return kind_ == TinyKind::kFloats ? 0 : kind_ == TinyKind::kOwn ? kWideGroupSize : kGroupSize;
}

OpSpec& TinyModel::Add(OpKind kind) {
  OpSpec& op = tape_.ops.emplace_back();
  op.kind = kind;
  return op;
}

void TinyModel::AddLayer(uint32_t layer, const Operand& x) {
  const bool fused = kind_ != TinyKind::kFloats;
  const size_t group_size = GroupSize();
  const int32_t norms[2] = {AddVector(kWidth, 1.0f, 0.2f), AddVector(kWidth, 1.0f, 0.2f)};
  const int32_t bias = AddVector(kHeads * kHeadDim, 0.0f, 0.1f);
  const Operand normed = AddBuffer(Space::kTokens, kWidth, group_size);
  const Operand qkv = AddBuffer(Space::kTokens, (kHeads + 2 * kKvHeads) * kHeadDim);
  const Operand q = Columns(qkv, 0, kHeads * kHeadDim);
  const Operand k = Columns(qkv, kHeads * kHeadDim, kKvHeads * kHeadDim);
  const Operand v = Columns(qkv, (kHeads + kKvHeads) * kHeadDim, kKvHeads * kHeadDim);
  const bool is_apart = group_size != 0 && kHeads / kKvHeads * kHeadDim % group_size != 0;
  const Operand attended = AddBuffer(Space::kTokens, kHeads * kHeadDim, is_apart ? 0 : group_size);
  const Operand gathered = is_apart ? AddBuffer(Space::kTokens, kHeads * kHeadDim, group_size) : attended;
  const Operand inner = AddBuffer(Space::kTokens, kInner, group_size);

  const auto norm = [&](int32_t weight) {
    OpSpec& op = Add(OpKind::kNorm);
    op.in[0] = x;
    op.out[fused ? 1 : 0] = normed;
    op.weight[0] = weight;
    op.eps = 1e-5f;
  };
  norm(norms[0]);
  const int32_t projections[3] = {AddMatrix(q.width, kWidth, 0.15f), AddMatrix(k.width, kWidth, 0.15f),
                                  AddMatrix(v.width, kWidth, 0.15f)};
  OpSpec& project = Add(OpKind::kGemm);
  project.in[0] = normed;
  for (int i = 0; i < 3; ++i) project.matrix[i] = projections[i];
  project.weight[0] = bias;
  project.out[0] = q, project.out[1] = k, project.out[2] = v;

  const auto cached = [&](OpKind kind) -> OpSpec& {
    OpSpec& op = Add(kind);
    op.group = 0, op.layer = layer, op.rope = 0;
    op.heads = kHeads, op.kv_heads = kKvHeads, op.head_dim_k = op.head_dim_v = kHeadDim;
    return op;
  };
  if (fused) {
    OpSpec& write = cached(OpKind::kRopeWrite);
    write.in[0] = q, write.in[1] = k, write.in[2] = v, write.out[0] = q;
  } else {
    OpSpec& rope_q = cached(OpKind::kRope);
    rope_q.in[0] = rope_q.out[0] = q;
    OpSpec& rope_k = cached(OpKind::kRope);
    rope_k.in[0] = rope_k.out[0] = k;
    rope_k.heads = kKvHeads;
    OpSpec& write = cached(OpKind::kCacheWrite);
    write.in[0] = k, write.in[1] = v;
  }
  OpSpec& attend = cached(OpKind::kAttend);
  attend.in[0] = q;
  attend.out[fused && !is_apart ? 1 : 0] = attended;
  attend.scale = 0.25f;
  if (layer == 1) attend.reach = Reach::kWindow, attend.reach_size = kWindow;

  if (is_apart) {
    OpSpec& quantize = Add(OpKind::kQuantize);
    quantize.in[0] = attended, quantize.out[1] = gathered;
  }
  const int32_t output = AddMatrix(kWidth, attended.width, 0.15f);
  OpSpec& gather = Add(OpKind::kGemm);
  gather.in[0] = gathered;
  gather.matrix[0] = output;
  if (fused) {
    gather.in[1] = gather.out[0] = x;
  } else {
    const Operand added = AddBuffer(Space::kTokens, kWidth);
    gather.out[0] = added;
    OpSpec& add = Add(OpKind::kArithmetic);
    add.in[0] = add.out[0] = x;
    add.in[1] = added;
  }

  norm(norms[1]);
  if (layer == 1) return AddExperts(x, normed);
  const int32_t gate = AddMatrix(kInner, kWidth, 0.15f);
  const int32_t up = AddMatrix(kInner, kWidth, 0.15f);
  if (fused) {
    OpSpec& glu = Add(OpKind::kGemmGlu);
    glu.in[0] = normed, glu.out[1] = inner;
    glu.matrix[0] = gate, glu.matrix[1] = up;
  } else {
    const Operand upper = AddBuffer(Space::kTokens, kInner);
    OpSpec& both = Add(OpKind::kGemm);
    both.in[0] = normed;
    both.matrix[0] = gate, both.matrix[1] = up;
    both.out[0] = inner, both.out[1] = upper;
    OpSpec& glu = Add(OpKind::kGlu);
    glu.in[0] = inner, glu.in[1] = upper, glu.out[0] = inner;
  }
  const int32_t down = AddMatrix(kWidth, kInner, 0.1f);
  OpSpec& shrink = Add(OpKind::kGemm);
  shrink.in[0] = inner;
  shrink.in[1] = shrink.out[0] = x;
  shrink.matrix[0] = down;
}

// The router multiplies in the model's numbers, as everything here.
void TinyModel::AddExperts(const Operand& x, const Operand& normed) {
  const Operand logits = AddBuffer(Space::kTokens, kExperts);
  const Operand routing = AddBuffer(Space::kTokens, 2 * kTopK);
  const Operand mixed = AddBuffer(Space::kTokens, kWidth);
  const int32_t router = AddMatrix(kExperts, kWidth, 0.5f);
  OpSpec& score = Add(OpKind::kGemm);
  score.in[0] = normed, score.out[0] = logits;
  score.matrix[0] = router;
  OpSpec& route = Add(OpKind::kRoute);
  route.in[0] = logits, route.out[0] = routing;
  route.experts = kExperts, route.top_k = kTopK;

  const auto matrices = [&](size_t columns, size_t depth) {
    const int32_t first = AddMatrix(columns, depth, 0.15f);
    for (uint32_t expert = 1; expert < kExperts; ++expert) AddMatrix(columns, depth, 0.15f);
    return first;
  };
  const int32_t first[3] = {matrices(kExpertInner, kWidth), matrices(kExpertInner, kWidth),
                            matrices(kWidth, kExpertInner)};
  const int32_t biases[3] = {AddVector(kExperts * kExpertInner, 0.0f, 0.1f),
                             AddVector(kExperts * kExpertInner, 0.0f, 0.1f), AddVector(kExperts * kWidth, 0.0f, 0.1f)};
  for (const OpKind kind : {OpKind::kExpertsGlu, OpKind::kExpertsOut, OpKind::kExpertsMix}) {
    OpSpec& op = Add(kind);
    op.in[0] = kind == OpKind::kExpertsGlu ? normed : routing;
    if (kind == OpKind::kExpertsGlu) op.in[1] = routing;
    if (kind == OpKind::kExpertsMix) op.out[0] = mixed;
    op.experts = kExperts, op.top_k = kTopK;
    std::copy_n(first, 3, op.matrix);
    std::copy_n(biases, 3, op.weight);
    op.activation = Activation::kClampedSwish, op.alpha = 1.702f, op.limit = 1.5f;
  }
  OpSpec& add = Add(OpKind::kArithmetic);
  add.in[0] = add.out[0] = x;
  add.in[1] = mixed;
}

void TinyModel::AddHead(const Operand& x) {
  const bool is_integer = kind_ != TinyKind::kFloats;
  tape_.first_output_op = tape_.ops.size();
  const Operand selected = AddBuffer(Space::kOutputs, kWidth);
  const Operand logits = AddBuffer(Space::kOutputs, kTinyVocab);
  OpSpec& select = Add(OpKind::kSelect);
  select.in[0] = x, select.out[0] = selected;
  OpSpec& norm = Add(OpKind::kNorm);
  norm.in[0] = norm.out[0] = selected;
  norm.eps = 1e-5f;
  norm.parts = 2;
  Operand input = selected;
  if (is_integer) {
    input = AddBuffer(Space::kOutputs, kWidth, GroupSize());
    OpSpec& quantize = Add(OpKind::kQuantize);
    quantize.in[0] = selected, quantize.out[1] = input;
  }
  const int32_t head = AddMatrix(kTinyVocab, kWidth, 0.5f);
  OpSpec& gemm = Add(OpKind::kGemm);
  gemm.in[0] = input, gemm.out[0] = logits;
  gemm.matrix[0] = head;
  OpSpec& sample = Add(OpKind::kSample);
  sample.in[0] = logits;
  sample.vocab_size = kTinyVocab;
  sample.softcap = 30.0f;
  for (size_t i = tape_.first_output_op; i < tape_.ops.size(); ++i) tape_.ops[i].space = Space::kOutputs;
}

void TinyModel::AddPool() {
  const auto norm =
      std::find_if(tape_.ops.rbegin(), tape_.ops.rend(), [](const OpSpec& op) { return op.kind == OpKind::kNorm; });
  OpSpec pool;
  pool.kind = OpKind::kPool;
  pool.space = Space::kOutputs;
  pool.in[0] = norm->out[0];
  tape_.ops.insert(norm.base(), pool);
}

void TinyModel::SpoilToken(int32_t token) {
  // Only the f32 panels are this simple.
  auto* panel = reinterpret_cast<float*>(panels_[0].data() + static_cast<size_t>(token) / kPanelColumns *
                                                                 BytesPerPanel(Scheme::kF32, kWidth));
  for (size_t k = 0; k < kWidth; ++k) {
    panel[k * kPanelColumns + static_cast<size_t>(token) % kPanelColumns] = std::numeric_limits<float>::quiet_NaN();
  }
}

const Kernels& KernelsHere() {
#if defined(__x86_64__)
  if (BestTarget() == Target::kAvx512) return avx512::kKernels;
  if (BestTarget() == Target::kAvx2) return avx2::kKernels;
#endif
  return baseline::kKernels;
}

namespace {

// All values of one sequence, and its cache.
class Run {
 public:
  Run(const Tape& tape, const Kernels& kernels, const std::vector<int32_t>& tokens)
      : tape_(tape),
        kernels_(kernels),
        tokens_(tokens),
        num_rows_(tokens.size()),
        positions_(tokens.size()),
        pool_(tape.groups[0].num_blocks * tape.groups[0].block_bytes),
        scratch_(kernels.attend_scratch_bytes(kHeads / kKvHeads, kHeadDim, kHeadDim)),
        table_(kTinyBlocks) {
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(table_.begin(), table_.end(), 0);
    for (const BufferSpec& spec : tape.buffers) {
      floats_.emplace_back(spec.is_quantized() ? 0 : num_rows_ * spec.width);
      groups_.emplace_back(spec.is_quantized() ? num_rows_ * spec.width / kGroupSize : 0);
    }
  }

  std::vector<std::vector<float>> Logits() {
    for (const OpSpec& op : tape_.ops) Do(op);
    const Operand& logits = tape_.ops.back().in[0];
    std::vector<std::vector<float>> rows;
    for (size_t row = 0; row < num_rows_; ++row)
      rows.emplace_back(At(logits) + row * Stride(logits), At(logits) + row * Stride(logits) + kTinyVocab);
    return rows;
  }

 private:
  float* At(const Operand& operand) {
    return operand.buffer == kNone ? nullptr : floats_[static_cast<size_t>(operand.buffer)].data() + operand.column;
  }
  size_t Stride(const Operand& operand) const {
    return operand.buffer == kNone ? 0 : tape_.buffers[static_cast<size_t>(operand.buffer)].width;
  }
  bool IsQuantized(const Operand& operand) const {
    return operand.buffer != kNone && tape_.buffers[static_cast<size_t>(operand.buffer)].is_quantized();
  }
  QuantizedRows Quantized(const Operand& operand) {
    if (operand.buffer == kNone) return {};
    const auto index = static_cast<size_t>(operand.buffer);
    return {groups_[index].data(), operand.width, tape_.buffers[index].group_size};
  }
  const float* Vector(int32_t index) const {
    return index == kNone ? nullptr : tape_.vectors[static_cast<size_t>(index)].data();
  }

  void Do(const OpSpec& op) {
    switch (op.kind) {
      case OpKind::kEmbed:
        return Embed(op);
      case OpKind::kNorm:
        return Norm(op);
      case OpKind::kQuantize:
        return kernels_.quantize(At(op.in[0]), Stride(op.in[0]), num_rows_, Quantized(op.out[1]));
      case OpKind::kGemm:
        return Gemm(op);
      case OpKind::kGemmGlu:
        return GemmGlu(op);
      case OpKind::kRope:
        return Rope(op.in[0], op.heads);
      case OpKind::kCacheWrite:
        return Write(op, op.in[0], op.in[1]);
      case OpKind::kRopeWrite:
        Rope(op.in[0], kHeads);
        Rope(op.in[1], kKvHeads);
        return Write(op, op.in[1], op.in[2]);
      case OpKind::kAttend:
        return Attend(op);
      case OpKind::kGlu:
        return Glu(op, At(op.in[0]), At(op.in[1]), Stride(op.in[0]), At(op.out[0]));
      case OpKind::kArithmetic: {
        float* y = At(op.out[0]);
        for (size_t i = 0; i < num_rows_ * Stride(op.out[0]); ++i) y[i] = At(op.in[0])[i] + At(op.in[1])[i];
        return;
      }
      case OpKind::kSelect:
        std::copy_n(At(op.in[0]), num_rows_ * Stride(op.in[0]), At(op.out[0]));
        return;
      case OpKind::kPool:
        break;
      case OpKind::kRoute:
        return Route(op);
      case OpKind::kExpertsGlu:
        return ExpertsGlu(op);
      case OpKind::kExpertsOut:
        return ExpertsOut(op);
      case OpKind::kExpertsMix:
        return ExpertsMix(op);
      case OpKind::kSample:
        for (size_t row = 0; row < num_rows_; ++row) {
          kernels_.cap_logits(At(op.in[0]) + row * Stride(op.in[0]), kTinyVocab, op.scale, op.softcap);
        }
        return;
    }
  }

  void Embed(const OpSpec& op) {
    for (size_t row = 0; row < num_rows_; ++row) {
      float* y = At(op.out[0]) + row * kWidth;
      UnpackColumn(tape_.matrices[static_cast<size_t>(op.matrix[0])], static_cast<size_t>(tokens_[row]), y);
      for (size_t column = 0; column < kWidth; ++column) y[column] *= op.scale;
    }
  }

  void Norm(const OpSpec& op) {
    NormCall call;
    call.x = At(op.in[0]), call.x_stride = Stride(op.in[0]);
    if (!IsQuantized(op.out[1])) call.y = At(op.out[0]), call.y_stride = Stride(op.out[0]);
    if (IsQuantized(op.out[1])) call.quantized = Quantized(op.out[1]);
    call.num_rows = num_rows_, call.width = op.in[0].width, call.parts = op.parts;
    call.weight = Vector(op.weight[0]), call.weight_width = call.width, call.eps = op.eps;
    if (call.weight == nullptr) call.weight_width = call.width / call.parts;
    kernels_.norm(call);
  }

  GemmCall CallOf(const OpSpec& op, int index, float* y, size_t y_stride) {
    GemmCall call;
    call.weights = tape_.matrices[static_cast<size_t>(op.matrix[index])];
    call.num_panels = call.weights.num_panels(), call.num_rows = num_rows_;
    if (IsQuantized(op.in[0])) {
      call.quantized = Quantized(op.in[0]);
    } else {
      call.x = At(op.in[0]), call.x_stride = Stride(op.in[0]);
    }
    call.bias = Vector(op.weight[index]);
    call.y = y, call.y_stride = y_stride;
    return call;
  }

  void Gemm(const OpSpec& op) {
    for (int index = 0; index < 3; ++index) {
      if (op.matrix[index] == kNone) continue;
      GemmCall call = CallOf(op, index, At(op.out[index]), Stride(op.out[index]));
      if (index == 0 && op.in[1].buffer != kNone) call.residual = At(op.in[1]), call.residual_stride = Stride(op.in[1]);
      kernels_.gemm(call);
    }
  }

  void GemmGlu(const OpSpec& op) {
    std::vector<float> gate(num_rows_ * kInner), up(num_rows_ * kInner);
    kernels_.gemm(CallOf(op, 0, gate.data(), kInner));
    kernels_.gemm(CallOf(op, 1, up.data(), kInner));
    Glu(op, gate.data(), up.data(), kInner, gate.data());
    kernels_.quantize(gate.data(), kInner, num_rows_, Quantized(op.out[1]));
  }

  void Glu(const OpSpec& op, const float* a, const float* b, size_t stride, float* y) {
    GluCall call;
    call.activation = op.activation;
    call.a = a, call.b = b, call.y = y;
    call.a_stride = call.b_stride = call.y_stride = stride;
    call.num_rows = num_rows_, call.width = kInner;
    kernels_.glu(call);
  }

  void Route(const OpSpec& op) {
    chosen_.resize(num_rows_ * op.top_k);
    RouteCall call;
    call.logits = At(op.in[0]), call.logits_stride = Stride(op.in[0]);
    call.y = At(op.out[0]), call.y_stride = Stride(op.out[0]), call.chosen = chosen_.data();
    call.num_rows = num_rows_, call.experts = op.experts, call.top_k = op.top_k;
    kernels_.route(call);
  }

  // One row of one expert after another, in the order in which rows chose them.
  GemmCall OfExpert(const OpSpec& op, int index, uint32_t expert, float* y) {
    GemmCall call;
    call.weights = tape_.matrices[static_cast<size_t>(op.matrix[index]) + expert];
    call.num_panels = call.weights.num_panels(), call.num_rows = 1;
    call.bias = Vector(op.weight[index]) + expert * call.weights.columns;
    call.y = y;
    return call;
  }

  void ExpertsGlu(const OpSpec& op) {
    hidden_.resize(chosen_.size() * kExpertInner);
    for (size_t i = 0; i < chosen_.size(); ++i) {
      std::vector<float> both[2] = {std::vector<float>(kExpertInner), std::vector<float>(kExpertInner)};
      for (int index = 0; index < 2; ++index) {
        GemmCall call = OfExpert(op, index, chosen_[i], both[index].data());
        if (IsQuantized(op.in[0])) call.quantized = Quantized(op.in[0]).from_row(i / op.top_k);
        if (!IsQuantized(op.in[0])) call.x = At(op.in[0]) + i / op.top_k * Stride(op.in[0]);
        kernels_.gemm(call);
      }
      GluCall call;
      call.activation = op.activation, call.alpha = op.alpha, call.limit = op.limit;
      call.a = both[0].data(), call.b = both[1].data(), call.y = &hidden_[i * kExpertInner];
      call.num_rows = 1, call.width = kExpertInner;
      kernels_.glu(call);
    }
  }

  void ExpertsOut(const OpSpec& op) {
    outputs_.resize(chosen_.size() * kWidth);
    for (size_t i = 0; i < chosen_.size(); ++i) {
      GemmCall call = OfExpert(op, 2, chosen_[i], &outputs_[i * kWidth]);
      std::vector<QuantizedGroup> groups(kExpertInner / kGroupSize);
      const size_t group_size = RowGroupSize(call.weights.scheme);
      call.x = &hidden_[i * kExpertInner];
      if (group_size != 0) {
        call.quantized = {groups.data(), kExpertInner, group_size};
        kernels_.quantize(call.x, kExpertInner, 1, call.quantized);
      }
      kernels_.gemm(call);
    }
  }

  void ExpertsMix(const OpSpec& op) {
    for (size_t row = 0; row < num_rows_; ++row) {
      const float* weights = At(op.in[0]) + row * Stride(op.in[0]) + op.top_k;
      for (size_t column = 0; column < kWidth; ++column) {
        float sum = 0.0f;
        for (size_t i = 0; i < op.top_k; ++i) {
          const float term = weights[i] * outputs_[(row * op.top_k + i) * kWidth + column];
          sum += term;
        }
        At(op.out[0])[row * kWidth + column] = sum;
      }
    }
  }

  void Rope(const Operand& x, size_t heads) {
    RopeCall call;
    call.x = call.y = At(x), call.y = At(x);
    call.x_stride = call.y_stride = Stride(x);
    call.num_rows = num_rows_, call.positions = positions_.data();
    call.cos = tape_.ropes[0].cos.data(), call.sin = tape_.ropes[0].sin.data();
    call.heads = heads, call.head_dim = call.rotary_dim = kHeadDim;
    kernels_.rope(call);
  }

  CachePlace Place(const OpSpec& op) {
    const GroupSpec& group = tape_.groups[0];
    return {pool_.data(),     group.block_bytes, op.layer * group.layer_bytes,
            group.head_bytes, kTinyBlock,        kKvHeads,
            kHeadDim,         kHeadDim,          group.type};
  }

  void Write(const OpSpec& op, const Operand& k, const Operand& v) {
    CacheWriteCall call;
    call.place = Place(op), call.table = table_.data();
    call.num_rows = num_rows_;
    call.k = At(k), call.k_stride = Stride(k), call.v = At(v), call.v_stride = Stride(v);
    kernels_.write_cache(call);
  }

  void Attend(const OpSpec& op) {
    std::vector<float> attended(num_rows_ * kHeads * kHeadDim);
    for (size_t row = 0; row < num_rows_; ++row) {
      for (uint32_t head = 0; head < kKvHeads; ++head) {
        AttendCall call;
        call.place = Place(op), call.table = table_.data();
        call.kv_head = head, call.group = kHeads / kKvHeads;
        call.q = At(op.in[0]) + row * Stride(op.in[0]), call.q_stride = Stride(op.in[0]);
        call.y = &attended[row * kHeads * kHeadDim], call.y_stride = kHeads * kHeadDim;
        call.start = row, call.num_rows = 1, call.scale = op.scale;
        call.reach = op.reach, call.reach_size = op.reach_size;
        kernels_.attend(call, scratch_.data());
      }
    }
    if (op.out[0].buffer != kNone) std::copy(attended.begin(), attended.end(), At(op.out[0]));
    if (op.out[1].buffer != kNone)
      kernels_.quantize(attended.data(), kHeads * kHeadDim, num_rows_, Quantized(op.out[1]));
  }

  const Tape& tape_;
  const Kernels& kernels_;
  const std::vector<int32_t>& tokens_;
  const size_t num_rows_;
  std::vector<int32_t> positions_;
  AlignedBuffer pool_;
  AlignedBuffer scratch_;
  std::vector<int32_t> table_;
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<QuantizedGroup>> groups_;
  std::vector<uint32_t> chosen_;  // [row][kTopK]
  std::vector<float> hidden_;
  std::vector<float> outputs_;
};

}  // namespace

Interpreter::Interpreter(const TinyModel& model, const Kernels& kernels) : model_(model), kernels_(kernels) {}

std::vector<std::vector<float>> Interpreter::Logits(const std::vector<int32_t>& tokens) const {
  return Run(model_.tape(), kernels_, tokens).Logits();
}

std::vector<int32_t> Interpreter::Greedy(std::vector<int32_t> tokens, size_t count) const {
  std::vector<int32_t> given;
  for (size_t i = 0; i < count; ++i) {
    const std::vector<float> last = Logits(tokens).back();
    given.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    tokens.push_back(given.back());
  }
  return given;
}

}  // namespace plait::testing

using plait::testing::Interpreter;
using plait::testing::KernelsHere;
using plait::testing::TinyKind;
using plait::testing::TinyModel;

TEST(TheTinyModelsAreSoundAndTellSequencesApart) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model(kind);
    CHECK_EQ(plait::TapeFault(model.tape()), "");
    const Interpreter alone(model, KernelsHere());
    const auto one = alone.Logits({1, 2, 3, 4});
    const auto other = alone.Logits({1, 9, 3, 4});
    CHECK(one[0] == other[0]);
    CHECK(one[3] != other[3]);
    for (const float logit : one[3]) CHECK(std::isfinite(logit));
    CHECK(*std::max_element(one[3].begin(), one[3].end()) - *std::min_element(one[3].begin(), one[3].end()) > 1.0f);
  }
}
