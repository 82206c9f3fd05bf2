// Reading tapes: attribute by attribute, once when a model is loaded.
//
// Owns nothing but the conversion. Slow and plain: it happens once.
// Invariant: an attribute that is missing or of another type is a Python error.

#include "bindings/tape_reading.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>

#include "bindings/arguments.h"

namespace nb = nanobind;

namespace plait {
namespace {

using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

uint32_t Count(nb::handle of, const char* name) { return CheckedNumber<uint32_t>(nb::getattr(of, name), name); }

// An index, or -1 for none.
int32_t Index(nb::handle value, const char* name) {
  return static_cast<int32_t>(CheckedSigned(value, name, kNone, std::numeric_limits<int32_t>::max()));
}

float Number(nb::handle of, const char* name) { return static_cast<float>(nb::cast<double>(nb::getattr(of, name))); }

template <typename Enumeration>
Enumeration Member(nb::handle of, const char* name, Enumeration last) {
  return static_cast<Enumeration>(CheckedUnsigned(nb::getattr(of, name), name, static_cast<uint64_t>(last)));
}

nb::tuple Three(nb::handle of, const char* name) {
  const nb::tuple parts = nb::cast<nb::tuple>(nb::getattr(of, name));
  if (parts.size() != 3) ThrowValueError(std::string(name) + " has not three parts");
  return parts;
}

void ReadOperands(nb::handle op, const char* name, Operand (&operands)[3]) {
  const nb::tuple parts = Three(op, name);
  for (size_t i = 0; i < 3; ++i) {
    const nb::handle part = parts[i];
    operands[i] = {Index(nb::getattr(part, "buffer"), "buffer"), Count(part, "column"), Count(part, "width")};
  }
}

void ReadIndices(nb::handle op, const char* name, int32_t (&indices)[3]) {
  const nb::tuple parts = Three(op, name);
  for (size_t i = 0; i < 3; ++i) indices[i] = Index(parts[i], name);
}

OpSpec ReadOp(nb::handle op) {
  OpSpec spec;
  spec.kind = Member(op, "kind", OpKind::kExpertsMix);
  spec.space = Member(op, "space", Space::kOutputs);
  ReadOperands(op, "in_", spec.in);
  ReadOperands(op, "out", spec.out);
  ReadIndices(op, "matrix", spec.matrix);
  ReadIndices(op, "weight", spec.weight);
  spec.bias = Index(nb::getattr(op, "bias"), "bias");
  spec.group = Index(nb::getattr(op, "group"), "group");
  spec.layer = Count(op, "layer");
  spec.heads = Count(op, "heads");
  spec.kv_heads = Count(op, "kv_heads");
  spec.head_dim_k = Count(op, "head_dim_k");
  spec.head_dim_v = Count(op, "head_dim_v");
  spec.parts = Count(op, "parts");
  spec.eps = Number(op, "eps");
  spec.offset = Number(op, "offset");
  spec.scale = Number(op, "scale");
  const nb::tuple factors = Three(op, "out_scale");
  for (size_t i = 0; i < 3; ++i) spec.out_scale[i] = static_cast<float>(nb::cast<double>(factors[i]));
  spec.softcap = Number(op, "softcap");
  spec.reach = Member(op, "reach", Reach::kAll);
  spec.reach_size = Count(op, "reach_size");
  spec.sinks = Index(nb::getattr(op, "sinks"), "sinks");
  spec.rope = Index(nb::getattr(op, "rope"), "rope");
  spec.norm_kind = Member(op, "norm_kind", NormKind::kLayer);
  spec.activation = Member(op, "activation", Activation::kClampedSwish);
  spec.arithmetic = Member(op, "arithmetic", Arithmetic::kScale);
  spec.by_position = nb::cast<bool>(nb::getattr(op, "by_position"));
  spec.vocab_size = Count(op, "vocab_size");
  spec.experts = Count(op, "experts");
  spec.top_k = Count(op, "top_k");
  spec.normalizes = nb::cast<bool>(nb::getattr(op, "normalizes"));
  spec.is_softmax = nb::cast<bool>(nb::getattr(op, "is_softmax"));
  spec.alpha = Number(op, "alpha");
  spec.limit = Number(op, "limit");
  spec.span = Count(op, "span");
  return spec;
}

BufferSpec ReadBuffer(nb::handle buffer) {
  return {Member(buffer, "space", Space::kOutputs), Count(buffer, "group_size"), Count(buffer, "width"),
          CheckedNumber<size_t>(nb::getattr(buffer, "first_byte"), "first_byte")};
}

std::vector<float> Copy(const Floats2& table) { return {table.data(), table.data() + table.size()}; }

template <typename... Names>
nb::tuple Members(Names... names) {
  return nb::make_tuple(names...);
}

}  // namespace

Tape ReadTape(nb::handle tape) {
  Tape made;
  for (nb::handle op : nb::cast<nb::tuple>(nb::getattr(tape, "ops"))) made.ops.push_back(ReadOp(op));
  for (nb::handle buffer : nb::cast<nb::tuple>(nb::getattr(tape, "buffers"))) {
    made.buffers.push_back(ReadBuffer(buffer));
  }
  made.first_output_op = Count(tape, "first_output_op");
  made.vocab_size = Count(tape, "vocab_size");
  return made;
}

std::vector<GroupSpec> ReadGroups(nb::sequence groups) {
  std::vector<GroupSpec> made;
  for (nb::handle group : groups) {
    const nb::tuple parts = nb::cast<nb::tuple>(group);
    if (parts.size() != 10) ThrowValueError("a cache group has ten numbers");
    size_t numbers[9];
    for (size_t i = 0; i < 9; ++i) numbers[i] = CheckedNumber<size_t>(parts[i], "a number of a cache group");
    const auto type = CheckedUnsigned(parts[9], "type of a cache group", kNumCacheTypes - 1);
    made.push_back({numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7],
                    numbers[8], static_cast<CacheType>(type)});
  }
  return made;
}

std::vector<RopeTable> ReadRopes(nb::sequence ropes) {
  std::vector<RopeTable> made;
  for (nb::handle rope : ropes) {
    const nb::tuple parts = nb::cast<nb::tuple>(rope);
    if (parts.size() != 3) ThrowValueError("a rope table is (cos, sin, interleaved)");
    const auto cos = nb::cast<Floats2>(parts[0]);
    const auto sin = nb::cast<Floats2>(parts[1]);
    if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1)) {
      ThrowValueError("a rope table has cosines and sines of different shapes");
    }
    made.push_back({cos.shape(0), 2 * cos.shape(1), nb::cast<bool>(parts[2]), Copy(cos), Copy(sin)});
  }
  return made;
}

std::vector<std::vector<float>> ReadVectors(nb::sequence vectors) {
  std::vector<std::vector<float>> made;
  for (nb::handle vector : vectors) {
    const auto floats = nb::cast<Floats1>(vector);
    made.emplace_back(floats.data(), floats.data() + floats.size());
  }
  return made;
}

Blocking ReadBlocking(nb::handle sizes, nb::handle gemms) {
  Blocking made;
  const auto number = [&](const char* name) { return nb::cast<double>(nb::getattr(sizes, name)); };
  made.sizes = {number("smallest_us"),
                number("largest_us"),
                number("per_worker"),
                number("largest_attend_us"),
                Count(sizes, "least_attend_rows"),
                Count(sizes, "stack_tasks_per_worker")};
  for (nb::handle gemm : nb::cast<nb::list>(gemms)) {
    const nb::tuple parts = nb::cast<nb::tuple>(gemm);
    if (parts.size() != 4) ThrowValueError("a product's blocks are four numbers");
    uint32_t numbers[4];
    for (size_t i = 0; i < 4; ++i) numbers[i] = CheckedNumber<uint32_t>(parts[i], "a number of a product's blocks");
    made.gemms.push_back({numbers[0], numbers[1], {numbers[2], numbers[3]}});
  }
  return made;
}

nb::dict UnitSizeDefaults() {
  const UnitSizes sizes;
  nb::dict defaults;
  defaults["smallest_us"] = sizes.smallest_us;
  defaults["largest_us"] = sizes.largest_us;
  defaults["per_worker"] = sizes.per_worker;
  defaults["largest_attend_us"] = sizes.largest_attend_us;
  defaults["least_attend_rows"] = sizes.least_attend_rows;
  defaults["stack_tasks_per_worker"] = sizes.stack_tasks_per_worker;
  return defaults;
}

nb::dict TapeEnumerations() {
  nb::dict names;
  names["Scheme"] = Members("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
                            "INT8", "Q2_K", "Q3_K", "IQ4", "Q8_16");
  static_assert(static_cast<size_t>(Scheme::kQ8_16) + 1 == kNumSchemes);
  names["RowSpace"] = Members("TOKENS", "OUTPUTS");
  names["OpKind"] = Members("EMBED", "NORM", "QUANTIZE", "GEMM", "GEMM_GLU", "ROPE", "CACHE_WRITE", "ROPE_WRITE",
                            "ATTEND", "GLU", "ARITHMETIC", "SELECT", "SAMPLE", "POOL", "ROUTE", "EXPERTS_GLU",
                            "EXPERTS_OUT", "EXPERTS_MIX");
  static_assert(static_cast<int>(OpKind::kGemmGlu) == 4 && static_cast<int>(OpKind::kRopeWrite) == 7 &&
                static_cast<int>(OpKind::kSample) == 12 && static_cast<int>(OpKind::kPool) == 13 &&
                static_cast<int>(OpKind::kExpertsMix) == 17);
  names["ReachCode"] = Members("CAUSAL", "WINDOW", "CHUNK", "ALL");
  static_assert(static_cast<int>(Reach::kChunk) == 2 && static_cast<int>(Reach::kAll) == 3);
  names["NormCode"] = Members("RMS", "LAYER");
  static_assert(static_cast<int>(NormKind::kLayer) == 1);
  names["ActivationCode"] = Members("SILU", "GELU", "GELU_TANH", "RELU2", "SIGMOID", "CLAMPED_SWISH");
  static_assert(static_cast<int>(Activation::kGelu) == 1 && static_cast<int>(Activation::kClampedSwish) == 5);
  names["ArithmeticCode"] = Members("ADD", "MUL", "SCALE");
  static_assert(static_cast<int>(Arithmetic::kMul) == 1 && static_cast<int>(Arithmetic::kScale) == 2);
  names["CacheCode"] = Members("F32", "F16", "BF16", "INT8");
  static_assert(static_cast<size_t>(CacheType::kInt8) + 1 == kNumCacheTypes);
  return names;
}

}  // namespace plait
