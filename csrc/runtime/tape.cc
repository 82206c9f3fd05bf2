// Tape: sizes of buffers, and what is wrong with a tape.
//
// Checks whatever would make an op read or write outside its buffers, tables or the cache, so that nothing is checked
// while a step runs. That values are still alive when they are read is the lowering's word.
// Invariant: indices are checked before they are followed.

#include "runtime/tape.h"

#include <algorithm>
#include <initializer_list>

#include "base/aligned.h"

namespace plait {
namespace {

const char* NameOf(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return "embed";
    case OpKind::kNorm:
      return "norm";
    case OpKind::kQuantize:
      return "quantize";
    case OpKind::kGemm:
      return "gemm";
    case OpKind::kGemmGlu:
      return "gemm_glu";
    case OpKind::kRope:
      return "rope";
    case OpKind::kCacheWrite:
      return "cache_write";
    case OpKind::kRopeWrite:
      return "rope_write";
    case OpKind::kAttend:
      return "attend";
    case OpKind::kGlu:
      return "glu";
    case OpKind::kArithmetic:
      return "arithmetic";
    case OpKind::kSelect:
      return "select";
    case OpKind::kSample:
      return "sample";
    case OpKind::kPool:
      return "pool";
    case OpKind::kRoute:
      return "route";
    case OpKind::kExpertsGlu:
      return "experts_glu";
    case OpKind::kExpertsOut:
      return "experts_out";
    case OpKind::kExpertsMix:
      return "experts_mix";
  }
  return "unknown";
}

// Limits far beyond any model and any memory, so that no product of sizes below overflows.
constexpr size_t kMaxCount = size_t{1} << 20;
constexpr size_t kMaxStride = size_t{1} << 42;

size_t GroupRowBytes(const GroupSpec& group) {
  return VectorBytes(group.type, group.head_dim_k) + VectorBytes(group.type, group.head_dim_v);
}

// Checks one op. Every Check* says what it found in `fault`, the first one wins.
class OpCheck {
 public:
  OpCheck(const Tape& tape, const OpSpec& op) : tape_(tape), op_(op) {}

  std::string Fault() {
    if (op_.space != Space::kTokens && op_.space != Space::kOutputs) return "has no space";
    switch (op_.kind) {
      case OpKind::kEmbed:
        CheckEmbed();
        break;
      case OpKind::kNorm:
        CheckNorm();
        break;
      case OpKind::kQuantize:
        Floats(op_.in[0], op_.in[0].width), Quantized(op_.out[1], op_.in[0].width);
        break;
      case OpKind::kGemm:
        CheckGemm();
        break;
      case OpKind::kGemmGlu:
        CheckGemmGlu();
        break;
      case OpKind::kRope:
        CheckRope(op_.in[0], op_.heads), Floats(op_.out[0], op_.in[0].width);
        break;
      case OpKind::kCacheWrite:
        CheckWrite(op_.in[0], op_.in[1]);
        break;
      case OpKind::kRopeWrite:
        CheckRope(op_.in[0], op_.heads), Floats(op_.out[0], op_.in[0].width);
        CheckRope(op_.in[1], op_.kv_heads), CheckWrite(op_.in[1], op_.in[2]);
        break;
      case OpKind::kAttend:
        CheckAttend();
        break;
      case OpKind::kGlu:
        CheckGlu();
        break;
      case OpKind::kArithmetic:
        CheckArithmetic();
        break;
      case OpKind::kSelect:
        CheckSelect();
        break;
      case OpKind::kSample:
        CheckSample();
        break;
      case OpKind::kPool:
        Require(op_.space == Space::kOutputs, "is not in the space of outputs");
        Floats(op_.in[0], op_.in[0].width);
        break;
      case OpKind::kRoute:
        CheckRoute();
        break;
      case OpKind::kExpertsGlu:
      case OpKind::kExpertsOut:
      case OpKind::kExpertsMix:
        CheckExperts();
        break;
      default:
        Say("is of a kind that there is not");
    }
    return fault_;
  }

 private:
  void Say(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }
  void Require(bool holds, const char* otherwise) {
    if (!holds) Say(otherwise);
  }

  bool Lies(const Operand& operand, Space space) {
    if (operand.buffer < 0 || static_cast<size_t>(operand.buffer) >= tape_.buffers.size()) {
      Say("names buffer " + std::to_string(operand.buffer) + " of " + std::to_string(tape_.buffers.size()));
      return false;
    }
    const BufferSpec& buffer = tape_.buffers[operand.buffer];
    Require(buffer.space == space, "names a buffer of another space");
    Require(operand.width > 0 && size_t{operand.column} + operand.width <= buffer.width,
            "names columns that its buffer does not have");
    return fault_.empty();
  }
  void FloatsIn(Space space, const Operand& operand, size_t width) {
    if (!Lies(operand, space)) return;
    Require(!tape_.buffers[operand.buffer].is_quantized(), "takes a quantised buffer for floats");
    Require(operand.width == width, "has an operand of another width than its shape");
  }
  void Floats(const Operand& operand, size_t width) { FloatsIn(op_.space, operand, width); }
  void Quantized(const Operand& operand, size_t width) {
    if (!Lies(operand, op_.space)) return;
    const BufferSpec& buffer = tape_.buffers[operand.buffer];
    Require(buffer.is_quantized(), "takes floats for a quantised buffer");
    Require(buffer.width == width && operand.width == width, "has a quantised operand of another width than its shape");
  }
  // out0 floats, out1 quantised, at least one of them.
  void Outputs(size_t width) {
    Require(op_.out[0].buffer != kNone || op_.out[1].buffer != kNone, "has no output");
    if (op_.out[0].buffer != kNone) Floats(op_.out[0], width);
    if (op_.out[1].buffer != kNone) Quantized(op_.out[1], width);
  }
  const WeightPanels* Matrix(int32_t index) {
    if (index >= 0 && static_cast<size_t>(index) < tape_.matrices.size()) return &tape_.matrices[index];
    Say("names matrix " + std::to_string(index) + " of " + std::to_string(tape_.matrices.size()));
    return nullptr;
  }
  size_t VectorSize(int32_t index) {
    if (index >= 0 && static_cast<size_t>(index) < tape_.vectors.size()) return tape_.vectors[index].size();
    Say("names vector " + std::to_string(index) + " of " + std::to_string(tape_.vectors.size()));
    return 0;
  }
  const GroupSpec* Group() {
    if (op_.group < 0 || static_cast<size_t>(op_.group) >= tape_.groups.size()) {
      Say("names cache group " + std::to_string(op_.group) + " of " + std::to_string(tape_.groups.size()));
      return nullptr;
    }
    const GroupSpec& group = tape_.groups[op_.group];
    Require(op_.layer < group.num_layers, "names a layer that its cache group does not have");
    return &group;
  }

  void CheckEmbed() {
    Require(op_.space == Space::kTokens, "is not in the space of tokens");
    if (op_.matrix[0] != kNone) {
      if (const WeightPanels* matrix = Matrix(op_.matrix[0])) Floats(op_.out[0], matrix->depth);
    } else {
      const size_t size = VectorSize(op_.weight[0]);
      Floats(op_.out[0], op_.out[0].width);
      Require(fault_.empty() && size >= op_.out[0].width && size % op_.out[0].width == 0,
              "has a table whose size is no multiple of its width");
    }
  }
  void CheckNorm() {
    const size_t width = op_.in[0].width;
    Floats(op_.in[0], width);
    Outputs(width);
    Require(op_.parts > 0 && width % std::max<size_t>(op_.parts, 1) == 0, "does not divide into its parts");
    if (!fault_.empty()) return;
    const size_t of_part = width / op_.parts;
    size_t sizes[2] = {of_part, of_part};
    if (op_.weight[0] != kNone) sizes[0] = VectorSize(op_.weight[0]);
    if (op_.bias != kNone) sizes[1] = VectorSize(op_.bias);
    for (const size_t size : sizes) Require(size == width || size == of_part, "has a weight of another width");
    Require(op_.weight[0] == kNone || op_.bias == kNone || sizes[0] == sizes[1], "has weight and bias of two widths");
  }
  void CheckInput(const WeightPanels& matrix) {
    if (IsInteger(matrix.scheme)) {
      Quantized(op_.in[0], matrix.depth);
      if (!fault_.empty()) return;
      Require(tape_.buffers[op_.in[0].buffer].group_size == RowGroupSize(matrix.scheme),
              "takes rows in other groups than its matrix has");
    } else {
      Floats(op_.in[0], matrix.depth);
    }
  }
  void CheckBias(int index, const WeightPanels& matrix) {
    if (op_.weight[index] == kNone) return;
    Require(VectorSize(op_.weight[index]) == matrix.columns, "has a bias of another width than its matrix");
  }
  void CheckGemm() {
    Require(op_.matrix[0] != kNone, "has no matrix");
    for (int i = 0; i < 3 && fault_.empty(); ++i) {
      if (op_.matrix[i] == kNone) continue;
      const WeightPanels* matrix = Matrix(op_.matrix[i]);
      if (matrix == nullptr) return;
      CheckInput(*matrix);
      CheckBias(i, *matrix);
      Floats(op_.out[i], matrix->columns);
      Require(op_.out[i].buffer != op_.in[0].buffer, "writes into its input");
    }
    if (op_.in[1].buffer != kNone) Floats(op_.in[1], op_.out[0].width);
  }
  void CheckGemmGlu() {
    Require(op_.activation != Activation::kClampedSwish, "clamps its gate, as only experts do");
    const WeightPanels* gate = Matrix(op_.matrix[0]);
    const WeightPanels* up = gate == nullptr ? nullptr : Matrix(op_.matrix[1]);
    if (up == nullptr) return;
    Require(gate->columns == up->columns && gate->depth == up->depth, "has two matrices of different shapes");
    Require(RowGroupSize(gate->scheme) == RowGroupSize(up->scheme), "has matrices that take different inputs");
    CheckInput(*gate);
    CheckBias(0, *gate);
    CheckBias(1, *up);
    Outputs(gate->columns);
  }
  void CheckRope(const Operand& x, size_t heads) {
    Floats(x, heads * op_.head_dim_k);
    if (op_.rope < 0 || static_cast<size_t>(op_.rope) >= tape_.ropes.size()) return Say("has no rope table");
    const RopeTable& table = tape_.ropes[op_.rope];
    const size_t size = table.max_positions * (table.rotary_dim / 2);
    Require(table.rotary_dim <= op_.head_dim_k && table.rotary_dim % 2 == 0, "has a rope table of another width");
    Require(table.cos.size() == size && table.sin.size() == size, "has a rope table of another size than it says");
    Require(op_.space == Space::kTokens, "is not in the space of tokens");
  }
  void CheckWrite(const Operand& k, const Operand& v) {
    const GroupSpec* group = Group();
    if (group == nullptr) return;
    Floats(k, group->kv_heads * group->head_dim_k);
    Floats(v, group->kv_heads * group->head_dim_v);
    Require(op_.space == Space::kTokens, "is not in the space of tokens");
  }
  void CheckAttend() {
    const GroupSpec* group = Group();
    if (group == nullptr) return;
    Require(op_.space == Space::kTokens, "is not in the space of tokens");
    Require(
        op_.kv_heads == group->kv_heads && op_.head_dim_k == group->head_dim_k && op_.head_dim_v == group->head_dim_v,
        "has other heads than its cache group");
    Require(op_.kv_heads > 0 && op_.heads % std::max(op_.kv_heads, 1u) == 0 && op_.heads > 0,
            "does not divide its heads by its KV heads");
    Floats(op_.in[0], size_t{op_.heads} * op_.head_dim_k);
    Outputs(size_t{op_.heads} * op_.head_dim_v);
    Require(op_.reach != Reach::kAll, "sees every key, which depends on the step; only encoders may");
    Require(op_.reach == Reach::kCausal || op_.reach_size > 0, "has a window of no tokens");
    if (op_.sinks != kNone) Require(VectorSize(op_.sinks) == op_.heads, "has another number of sinks than heads");
    if (!fault_.empty() || op_.out[1].buffer == kNone) return;
    Require(op_.heads / op_.kv_heads * op_.head_dim_v % tape_.buffers[op_.out[1].buffer].group_size == 0,
            "cannot quantise its output: the columns of a KV head are not whole groups");
  }
  void CheckGlu() {
    Require(op_.activation != Activation::kClampedSwish, "clamps its gate, as only experts do");
    Floats(op_.in[0], op_.in[0].width);
    if (op_.in[1].buffer != kNone) Floats(op_.in[1], op_.in[0].width);
    Outputs(op_.in[0].width);
  }
  void CheckChoice() {
    Require(op_.space == Space::kTokens, "is not in the space of tokens");
    Require(op_.experts > 0 && op_.experts <= kMaxExperts, "has more experts than possible, or none");
    Require(op_.top_k > 0 && op_.top_k <= op_.experts, "chooses more experts than there are, or none");
  }
  void CheckRoute() {
    CheckChoice();
    Floats(op_.in[0], op_.experts);
    Floats(op_.out[0], 2 * size_t{op_.top_k});
    if (op_.weight[0] != kNone) Require(VectorSize(op_.weight[0]) == op_.experts, "has a bias of another size");
  }
  // Matrices [first, first + experts), all of one shape, for rows of one kind.
  const WeightPanels* Matrices(int32_t first, const char* otherwise) {
    const WeightPanels* one = Matrix(first);
    if (one == nullptr || Matrix(first + static_cast<int32_t>(op_.experts) - 1) == nullptr) return nullptr;
    for (uint32_t e = 1; e < op_.experts; ++e) {
      Require(one[e].columns == one->columns && one[e].depth == one->depth &&
                  RowGroupSize(one[e].scheme) == RowGroupSize(one->scheme),
              otherwise);
    }
    return one;
  }
  void CheckExperts() {
    CheckChoice();
    if (!fault_.empty()) return;
    const WeightPanels* gate = Matrices(op_.matrix[0], "has gates of different shapes");
    const WeightPanels* up = gate == nullptr ? nullptr : Matrices(op_.matrix[1], "has ups of different shapes");
    const WeightPanels* down = up == nullptr ? nullptr : Matrices(op_.matrix[2], "has downs of different shapes");
    if (down == nullptr) return;
    Require(gate->columns == up->columns && gate->depth == up->depth, "has two matrices of different shapes");
    Require(RowGroupSize(gate->scheme) == RowGroupSize(up->scheme), "has matrices that take different inputs");
    Require(down->depth == gate->columns && down->columns == gate->depth, "has experts that do not lead back");
    const size_t widths[3] = {gate->columns, up->columns, down->columns};
    for (int i = 0; i < 3 && fault_.empty(); ++i) {
      if (op_.weight[i] == kNone) continue;
      Require(VectorSize(op_.weight[i]) == op_.experts * widths[i], "has biases of another size than its matrices");
    }
    const bool is_first = op_.kind == OpKind::kExpertsGlu;
    if (is_first) CheckInput(*gate);
    Floats(op_.in[is_first ? 1 : 0], 2 * size_t{op_.top_k});
    if (op_.kind == OpKind::kExpertsMix) Floats(op_.out[0], down->columns);
  }
  void CheckArithmetic() {
    Floats(op_.in[0], op_.in[0].width);
    Floats(op_.out[0], op_.in[0].width);
    if (op_.arithmetic == Arithmetic::kScale) return;
    const bool is_factor = op_.arithmetic == Arithmetic::kMul && op_.in[1].width == 1;
    Floats(op_.in[1], is_factor ? 1 : op_.in[0].width);
  }
  void CheckSelect() {
    Require(op_.space == Space::kOutputs, "is not in the space of outputs");
    FloatsIn(Space::kTokens, op_.in[0], op_.in[0].width);
    Floats(op_.out[0], op_.in[0].width);
  }
  void CheckSample() {
    Require(op_.space == Space::kOutputs, "is not in the space of outputs");
    Floats(op_.in[0], op_.in[0].width);
    Require(op_.vocab_size > 0 && op_.vocab_size <= op_.in[0].width, "samples more tokens than it has logits");
    Require(op_.vocab_size == tape_.vocab_size, "samples another vocabulary than the tape's");
    Require(op_.softcap >= 0.0f, "has a softcap below 0");
  }

  const Tape& tape_;
  const OpSpec& op_;
  std::string fault_;
};

std::string BufferFault(const BufferSpec& buffer) {
  if (buffer.space != Space::kTokens && buffer.space != Space::kOutputs) return "has no space";
  if (buffer.width == 0) return "has no columns";
  if (buffer.first_byte % kCacheLine != 0) return "does not begin on a cache line";
  if (buffer.first_byte > kMaxStride) return "begins too far from the first";
  if (buffer.is_quantized() && buffer.group_size != kGroupSize && buffer.group_size != kWideGroupSize) {
    return "is quantised in groups of another size than there is";
  }
  if (buffer.is_quantized() && buffer.width % kGroupSize != 0)
    return "is quantised and not a whole number of groups wide";
  return "";
}

std::string MatrixFault(const WeightPanels& matrix) {
  if (matrix.columns == 0 || matrix.depth == 0 || matrix.bytes == nullptr) return "is empty";
  if (reinterpret_cast<uintptr_t>(matrix.bytes) % kCacheLine != 0) return "does not begin on a cache line";
  if (matrix.depth % DepthMultiple(matrix.scheme) != 0) return "has a depth of no whole number of groups";
  return "";
}

std::string GroupFault(const GroupSpec& group) {
  if (group.tokens_per_block == 0 || group.kv_heads == 0 || group.num_layers == 0) return "is empty";
  for (const size_t count : {group.num_layers, group.kv_heads, group.head_dim_k, group.head_dim_v}) {
    if (count > kMaxCount) return "has more layers, heads or columns of a head than possible";
  }
  if (std::max(group.head_bytes, group.layer_bytes) > kMaxStride) return "has heads or layers too far apart";
  if (kKeyTile % group.tokens_per_block != 0) return "has blocks of which 256 tokens are no multiple";
  if (group.head_bytes < group.tokens_per_block * GroupRowBytes(group)) return "has heads that overlap";
  if (group.layer_bytes < group.kv_heads * group.head_bytes) return "has layers that overlap";
  if (group.type == CacheType::kInt8) {
    if (group.tokens_per_block % kInt8Tokens != 0) return "has blocks of 8 bits whose tokens are no whole sixteens";
    if (std::max(group.head_dim_k, group.head_dim_v) > kMaxInt8Width) return "has heads too wide for 8 bits";
    if ((group.head_bytes | group.layer_bytes | group.block_bytes) % sizeof(float) != 0)
      return "has scales out of line";
  }
  if (group.block_bytes < group.num_layers * group.layer_bytes) return "has blocks that overlap";
  return "";
}

std::string OrderFault(const Tape& tape) {
  const size_t first = tape.first_output_op;
  if (tape.ops.empty() || first >= tape.ops.size()) return "a tape without output ops";
  if (tape.ops[first].kind != OpKind::kSelect) return "a tape whose output ops do not begin with select";
  if (tape.ops.back().kind != OpKind::kSample) return "a tape that does not end in sample";
  const auto is_pool = [](const OpSpec& op) { return op.kind == OpKind::kPool; };
  if (std::ranges::count_if(tape.ops, is_pool) > 1) return "a tape that pools twice";
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    const bool is_in_place = (tape.ops[i].space == Space::kOutputs) == (i >= first);
    const bool is_single = (tape.ops[i].kind == OpKind::kSample) == (i + 1 == tape.ops.size());
    if (!is_in_place || !is_single || (tape.ops[i].kind == OpKind::kSelect && i != first)) {
      return "op " + std::to_string(i) + " (" + NameOf(tape.ops[i].kind) + ") is out of order";
    }
  }
  return "";
}

// Experts' rows are laid out by the last kRoute, and handed from one op to the next outside of all buffers.
std::string ExpertsFault(const Tape& tape) {
  const auto follows = [](const OpSpec& one, const OpSpec& next) {
    return static_cast<int>(one.kind) + 1 == static_cast<int>(next.kind) && one.experts == next.experts &&
           one.top_k == next.top_k && std::ranges::equal(one.matrix, next.matrix);
  };
  const OpSpec* route = nullptr;
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    const OpSpec& op = tape.ops[i];
    if (op.kind == OpKind::kRoute) route = &op;
    if (!IsOfExperts(op.kind)) continue;
    const bool goes_on = op.kind == OpKind::kExpertsGlu || (i > 0 && follows(tape.ops[i - 1], op));
    const bool ends = op.kind == OpKind::kExpertsMix || (i + 1 < tape.ops.size() && follows(op, tape.ops[i + 1]));
    const int32_t routing = op.in[op.kind == OpKind::kExpertsGlu ? 1 : 0].buffer;
    const bool is_routed = route != nullptr && route->experts == op.experts && route->top_k == op.top_k &&
                           route->out[0].buffer == routing;
    if (!goes_on || !ends || !is_routed) {
      return "op " + std::to_string(i) + " (" + NameOf(op.kind) + ") is out of order";
    }
  }
  return "";
}

template <typename Part>
std::string FirstFault(const char* what, const std::vector<Part>& parts, std::string (*fault_of)(const Part&)) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string fault = fault_of(parts[i]);
    if (!fault.empty()) return std::string(what) + " " + std::to_string(i) + " " + fault;
  }
  return "";
}

// Follows what buffers hold from op to op: each one shares bytes with others whose lives must be over.
std::string LifeFault(const Tape& tape) {
  std::vector<bool> holds(tape.buffers.size(), false);
  const auto is_named = [&](const Operand& operand) {
    return operand.buffer >= 0 && static_cast<size_t>(operand.buffer) < holds.size();
  };
  const auto overlap = [&](size_t left, size_t right) {
    const BufferSpec& one = tape.buffers[left];
    const BufferSpec& other = tape.buffers[right];
    return one.space == other.space && one.first_byte < other.first_byte + BufferRowBytes(other) &&
           other.first_byte < one.first_byte + BufferRowBytes(one);
  };
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    const std::string name = "op " + std::to_string(i) + " (" + NameOf(tape.ops[i].kind) + ") ";
    for (const Operand& in : tape.ops[i].in) {
      if (is_named(in) && !holds[static_cast<size_t>(in.buffer)]) {
        return name + "reads buffer " + std::to_string(in.buffer) + ", which holds nothing, or nothing any more";
      }
    }
    for (const Operand& out : tape.ops[i].out) {
      if (!is_named(out)) continue;
      const auto written = static_cast<size_t>(out.buffer);
      for (size_t other = 0; other < holds.size(); ++other) {
        if (other == written || !overlap(written, other)) continue;
        holds[other] = false;
        const auto is_other = [&](const Operand& operand) { return operand.buffer == static_cast<int32_t>(other); };
        if (std::ranges::any_of(tape.ops[i].in, is_other) || std::ranges::any_of(tape.ops[i].out, is_other)) {
          return name + "has buffers that overlap, " + std::to_string(other) + " and " + std::to_string(written);
        }
      }
      holds[written] = true;
    }
  }
  return "";
}

}  // namespace

size_t BufferRowBytes(const BufferSpec& buffer) {
  if (!buffer.is_quantized()) return RoundUp(buffer.width * sizeof(float), kCacheLine);
  return RoundUp(buffer.width / kGroupSize * sizeof(QuantizedGroup), kCacheLine);
}

size_t Tape::PoolOp() const {
  const auto found = std::ranges::find(ops, OpKind::kPool, &OpSpec::kind);
  return static_cast<size_t>(found - ops.begin());
}

size_t Tape::TopK() const {
  size_t most = 0;
  for (const OpSpec& op : ops) most = std::max<size_t>(most, op.kind == OpKind::kRoute ? op.top_k : 0);
  return most;
}

size_t Tape::ArenaRowBytes(Space space) const {
  size_t bytes = 0;
  for (const BufferSpec& buffer : buffers) {
    if (buffer.space == space) bytes = std::max(bytes, buffer.first_byte + BufferRowBytes(buffer));
  }
  return bytes;
}

std::string TapeFault(const Tape& tape) {
  for (const std::string& fault :
       {FirstFault("buffer", tape.buffers, BufferFault), FirstFault("matrix", tape.matrices, MatrixFault),
        FirstFault("cache group", tape.groups, GroupFault), OrderFault(tape), ExpertsFault(tape)}) {
    if (!fault.empty()) return fault;
  }
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    const std::string fault = OpCheck(tape, tape.ops[i]).Fault();
    if (!fault.empty()) return "op " + std::to_string(i) + " (" + NameOf(tape.ops[i].kind) + ") " + fault;
  }
  return LifeFault(tape);
}

}  // namespace plait
