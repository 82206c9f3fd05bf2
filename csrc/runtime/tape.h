// Tape: a Program lowered for this runtime, as plain numbers.
//
// Owns the form of ops, operands and buffers. src/plait/exec/native/lowering.py writes tapes (and decides what is
// fused), runtime/ carries them out. Knows no step. Invariant: a tape that passed `TapeFault` can be carried out for
// every plan without a further check of it.

#ifndef PLAIT_CSRC_RUNTIME_TAPE_H_
#define PLAIT_CSRC_RUNTIME_TAPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/scheme.h"
#include "ops/kernels.h"

namespace plait {

enum class Space : uint8_t { kTokens, kOutputs };

// A value kept between ops, for all rows of its space. Buffers whose lives do not overlap share bytes: `first_byte` is
// counted per row, so the buffer lies at arena[space] + first_byte * max_rows[space].
struct BufferSpec {
  Space space = Space::kTokens;
  size_t group_size = 0;  // not 0: QuantizedRows of depth `width` with such groups instead of floats
  size_t width = 0;
  size_t first_byte = 0;  // a multiple of 64

  bool is_quantized() const { return group_size != 0; }
};

// Bytes per row of a buffer, a multiple of 64.
size_t BufferRowBytes(const BufferSpec& buffer);

inline constexpr int32_t kNone = -1;

// Columns [column, column + width) of a buffer; buffer kNone: no operand. A quantised buffer is always used whole.
struct Operand {
  int32_t buffer = kNone;
  uint32_t column = 0;
  uint32_t width = 0;
};

enum class OpKind : uint8_t {
  kEmbed,     // out0 = scale * row of weight0 by token id, or by position (by_position)
  kNorm,      // out0 and/or quantised out1 = norm(in0); parts, eps, offset, norm_kind; weight0, bias0: vectors
  kQuantize,  // out1 (quantised) = in0
  kGemm,  // up to three matrices over one input: out_i = epilogue(in0 x matrix_i); residual in1 for out0 (may be out0)
  kGemmGlu,     // out0 and/or quantised out1 = act(in0 x matrix0) * (in0 x matrix1)
  kRope,        // out0 = rope(in0); may be in place
  kCacheWrite,  // k in0, v in1 into (group, layer)
  kRopeWrite,   // out0 = rope(in0) in place (q), then k in1 rotated and written with v in2 into (group, layer)
  kAttend,      // out0 and/or quantised out1 = attend(in0) over (group, layer)
  kGlu,         // out0 and/or quantised out1 = act(in0) * in1; in1 kNone: act(in0)
  kArithmetic,  // out0 = in0 (+ factor *, *) in1, or factor * in0
  kSelect,      // out0 (outputs) = rows of in0 (tokens) that the plan's outputs name
  kSample,      // logits in0: tokens and log-probabilities of the output rows
  kPool,        // in0: output rows that are to be pooled are added to their sequences' pools, in order
  kRoute,       // out0 = experts and weights of each row, by the logits in0; weight0: ranking bias
  // A mixture of experts is these three, one after another. matrix0, 1 and 2 are gate, up and down of the first expert,
  // those of the others follow them; weight0, 1 and 2 the biases of all experts.
  kExpertsGlu,  // a lane's hidden rows = act(in0 x gate) * (in0 x up) of the experts that in1, a kRoute's out0, names
  kExpertsOut,  // a lane's output rows = hidden rows x down; in0: the routing
  kExpertsMix,  // out0 = sum of each row's output rows by the weights in in0, the routing
};

constexpr bool IsOfExperts(OpKind kind) { return kind >= OpKind::kExpertsGlu && kind <= OpKind::kExpertsMix; }
constexpr bool IsProduct(OpKind kind) { return kind == OpKind::kGemm || kind == OpKind::kGemmGlu; }

// One operation. Fields that a kind does not name are ignored.
struct OpSpec {
  OpKind kind = OpKind::kArithmetic;
  Space space = Space::kTokens;
  Operand in[3];
  Operand out[3];
  int32_t matrix[3] = {kNone, kNone, kNone};  // index into Tape::matrices
  int32_t weight[3] = {kNone, kNone, kNone};  // index into Tape::vectors: norm weight, or bias of matrix_i
  int32_t bias = kNone;                       // norm bias, index into Tape::vectors
  int32_t group = kNone;                      // cache group
  uint32_t layer = 0;                         // layer slot in the group
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim_k = 0;
  uint32_t head_dim_v = 0;
  uint32_t parts = 1;
  float eps = 0.0f;
  float offset = 0.0f;
  float scale = 1.0f;  // embed scale, attention scale, arithmetic factor, out_scale of matrix 0, logit scale
  float out_scale[3] = {1.0f, 1.0f, 1.0f};
  float softcap = 0.0f;
  Reach reach = Reach::kCausal;
  uint32_t reach_size = 0;
  int32_t sinks = kNone;  // index into Tape::vectors
  int32_t rope = kNone;   // index into Tape::ropes
  NormKind norm_kind = NormKind::kRms;
  Activation activation = Activation::kSilu;
  Arithmetic arithmetic = Arithmetic::kAdd;
  bool by_position = false;
  uint32_t vocab_size = 0;  // kSample: usable columns
  uint32_t experts = 0;
  uint32_t top_k = 0;
  bool normalizes = true;  // kRoute
  bool is_softmax = true;  // kRoute
  float alpha = 1.0f;      // kClampedSwish
  float limit = 0.0f;      // kClampedSwish
  uint32_t span = 0;        // layer, for traces
};

struct RopeTable {
  size_t max_positions = 0;
  size_t rotary_dim = 0;
  bool interleaved = false;
  std::vector<float> cos;  // [max_positions][rotary_dim / 2], mscale included
  std::vector<float> sin;
};

// How blocks of one cache group lie in the pool.
struct GroupSpec {
  size_t num_blocks = 0;
  size_t block_bytes = 0;
  size_t layer_bytes = 0;
  size_t head_bytes = 0;
  size_t num_layers = 0;
  size_t tokens_per_block = 0;
  size_t kv_heads = 0;
  size_t head_dim_k = 0;
  size_t head_dim_v = 0;
  CacheType type = CacheType::kF32;
};

struct Tape {
  std::vector<OpSpec> ops;
  std::vector<BufferSpec> buffers;
  std::vector<WeightPanels> matrices;  // bytes owned by whoever loads
  std::vector<std::vector<float>> vectors;
  std::vector<RopeTable> ropes;
  std::vector<GroupSpec> groups;
  // kSelect; ops from here on run once per tile of output rows. Of a tile that has no other rows than such as are
  // pooled nothing is carried out behind kPool.
  size_t first_output_op = 0;
  uint32_t vocab_size = 0;

  size_t PoolOp() const;                    // where kPool is; ops.size(): nowhere
  size_t TopK() const;                      // most experts of a row; 0: there are none
  size_t ArenaRowBytes(Space space) const;  // bytes that all buffers of the space take together, per row
};

// The first thing that makes a tape impossible to carry out; empty: none.
std::string TapeFault(const Tape& tape);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_TAPE_H_
