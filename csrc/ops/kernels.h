// Kernels: the arithmetic that exists once per instruction set, as a table of functions.
//
// Owns the calls' arguments and their meaning. Implementations are ops/targets/*.cc, compiled for every target; who
// calls what, in which pieces and from which thread is runtime/'s business. No kernel allocates or throws.
// Invariant: a result is a function of the row, the weights and the visible keys alone, whatever else is in the call;
// all targets give the same bits (docs/concepts/numerics.md).

#ifndef PLAIT_CSRC_OPS_KERNELS_H_
#define PLAIT_CSRC_OPS_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/cache_layout.h"

namespace plait {

// y[r, n] = out_scale * (sum_k x[r, k] w[n, k] + bias[n]) (+ residual[r, n]) for rows [0, num_rows) and the columns of
// panels [first_panel, first_panel + num_panels). n is the matrix's own column: y[r * y_stride + n].
// Float schemes: the sum is one chain of fused multiply-adds over k from 0. Integer schemes: per group an exact integer
// sum, then one chain over groups, ascending (docs/adr/0006-number-schemes.md).
// y may be the residual itself; it must not be x.
struct GemmCall {
  WeightPanels weights;
  size_t first_panel = 0;
  size_t num_panels = 0;
  size_t num_rows = 0;
  const float* x = nullptr;  // float schemes
  size_t x_stride = 0;
  QuantizedRows quantized;  // integer schemes, from the call's first row
  float* y = nullptr;
  size_t y_stride = 0;
  const float* bias = nullptr;  // [columns]
  float out_scale = 1.0f;
  const float* residual = nullptr;
  size_t residual_stride = 0;
};

enum class NormKind : uint8_t { kRms, kLayer };

// As `Norm` in model/ops.py. Means are 16 lanes (column c of a part goes to lane c mod 16), then a fixed tree.
// y may be x; y may be null when only `quantized` is wanted. `quantized.groups` null: not wanted.
struct NormCall {
  const float* x = nullptr;
  size_t x_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  QuantizedRows quantized;
  size_t num_rows = 0;
  size_t width = 0;
  size_t parts = 1;
  const float* weight = nullptr;  // [weight_width], null: 1
  const float* bias = nullptr;    // [weight_width], null: 0
  size_t weight_width = 0;        // width, or width / parts and used by every part
  float eps = 0.0f;
  float offset = 0.0f;
  NormKind kind = NormKind::kRms;
};

// As `Rope` in model/ops.py; y may be x. cos, sin: [max_positions][rotary_dim / 2], mscale included.
struct RopeCall {
  const float* x = nullptr;
  size_t x_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
  const int32_t* positions = nullptr;  // [num_rows]
  const float* cos = nullptr;
  const float* sin = nullptr;
  size_t heads = 0;
  size_t head_dim = 0;
  size_t rotary_dim = 0;
  bool interleaved = false;
};

// Where one layer of a cache group lies, in blocks as ops/cache_layout.h lays them out; block b begins at pool + b *
// block_bytes.
struct CachePlace {
  uint8_t* pool = nullptr;
  size_t block_bytes = 0;
  size_t layer_offset = 0;  // byte of this layer inside a block
  size_t head_bytes = 0;    // K and V of one KV head
  size_t tokens_per_block = 0;
  size_t kv_heads = 0;
  size_t head_dim_k = 0;
  size_t head_dim_v = 0;
  CacheType type = CacheType::kF32;
};

// Writes rows of one chunk, rounded to the cache's type (nearest, ties to even; kInt8: of x * (127 / max|x|), with the
// scale max|x| / 127, for every token and head), into slots start, start + 1, ...
struct CacheWriteCall {
  CachePlace place;
  const int32_t* table = nullptr;  // blocks of the sequence, by slot / tokens_per_block
  size_t start = 0;
  size_t num_rows = 0;
  const float* k = nullptr;  // [rows][kv_heads * head_dim_k]
  size_t k_stride = 0;
  const float* v = nullptr;
  size_t v_stride = 0;
};

enum class Reach : uint8_t { kCausal, kWindow, kChunk, kAll };

inline constexpr size_t kKeyTile = 256;

// Canonical attention of rows of one chunk, for one KV head and its `group` query heads.
// Row r (slot start + r) and query head kv_head * group + h read q[r * q_stride + (kv_head * group + h) * head_dim_k]
// and write y[r * y_stride + (kv_head * group + h) * head_dim_v]. With `partials` only tiles [first_tile, first_tile +
// num_tiles) are computed and (m, l, o[head_dim_v]) of each tile is left there for MergeCall: [tile -
// first_tile][row][h][2 + head_dim_v]; a tile that a row does not see has l = 0. With `state` it is these tiles too,
// and what they come to, sinks included, is left there for MergeCall to go on from: [row][h][2 + head_dim_v].
struct AttendCall {
  CachePlace place;
  const int32_t* table = nullptr;
  size_t kv_head = 0;
  size_t group = 0;  // query heads per KV head
  const float* q = nullptr;
  size_t q_stride = 0;
  const uint32_t* q_rows = nullptr;  // row r reads q[q_rows[r] * q_stride] instead; null: q[r * q_stride]
  float* y = nullptr;
  size_t y_stride = 0;
  size_t start = 0;  // slot of the call's first row
  size_t num_rows = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  Reach reach = Reach::kCausal;
  size_t reach_size = 0;         // window W, chunk C; for kAll the number of slots
  const float* sinks = nullptr;  // [heads] or null
  float* partials = nullptr;
  float* state = nullptr;
  size_t first_tile = 0;
  size_t num_tiles = 0;
};

// Bytes of scratch, 64-byte aligned, that `attend` needs for up to kMaxAttendRows rows of `group` heads.
inline constexpr size_t kMaxAttendRows = 64;

// Merges the partials of tiles first_tile .. first_tile + num_tiles - 1, in order; sinks first, or the state that the
// tiles before them left.
struct MergeCall {
  const float* state = nullptr;     // [row][h][2 + head_dim_v] or null
  const float* partials = nullptr;  // [tile][row][h][2 + head_dim_v]
  size_t num_tiles = 0;
  size_t num_rows = 0;
  size_t group = 0;
  size_t head_dim_v = 0;
  size_t kv_head = 0;
  const float* sinks = nullptr;
  float* y = nullptr;
  size_t y_stride = 0;
};

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu2, kSigmoid, kClampedSwish };

// Elementwise on rows [num_rows][width]; every pointer has its own stride. `b` null: y = act(a). kClampedSwish takes
// both: with g = min(a, limit) and u = min(max(b, -limit), limit), y = g / (1 + exp(-alpha g)) * (u + 1).
struct GluCall {
  Activation activation = Activation::kSilu;
  const float* a = nullptr;
  size_t a_stride = 0;
  const float* b = nullptr;
  size_t b_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
  size_t width = 0;
  float alpha = 1.0f;
  float limit = 0.0f;
};

// y = a + factor * b (product rounded first), y = a * b (b_width 1: one factor a row), y = factor * a.
enum class Arithmetic : uint8_t { kAdd, kMul, kScale };
struct ArithmeticCall {
  Arithmetic kind = Arithmetic::kAdd;
  const float* a = nullptr;
  size_t a_stride = 0;
  const float* b = nullptr;
  size_t b_stride = 0;
  size_t b_width = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
  size_t width = 0;
  float factor = 1.0f;
};

// More experts than any model has; a row's scores are kept on the stack while its best are chosen.
inline constexpr size_t kMaxExperts = 4096;

// As `Route` in model/ops.py, without groups: y[r] is top_k experts in ranking order, then their weights; `chosen` gets
// the experts once more. The sum of a softmax is one chain over the experts.
struct RouteCall {
  const float* logits = nullptr;
  size_t logits_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  uint32_t* chosen = nullptr;  // [num_rows][top_k]
  size_t num_rows = 0;
  size_t experts = 0;
  size_t top_k = 0;
  const float* bias = nullptr;  // [experts]: what is added to scores to rank them
  float scale = 1.0f;
  bool is_softmax = true;  // else a sigmoid of each
  bool normalizes = true;
};

// y[r] = sum over i < top_k of weights[r][i] * outputs[places[r][i]], a chain from 0 in this order, each product
// rounded first. A place of kNoPlace is left out.
inline constexpr uint32_t kNoPlace = UINT32_MAX;
struct MixCall {
  const float* outputs = nullptr;
  size_t outputs_stride = 0;
  const uint32_t* places = nullptr;  // [num_rows][top_k]
  const float* weights = nullptr;
  size_t weights_stride = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t num_rows = 0;
  size_t width = 0;
  size_t top_k = 0;
};

struct SamplerLoops;  // ops/sampler.h

struct Kernels {
  const char* target;
  void (*gemm)(const GemmCall& call);
  // Rows x[r * stride], [num_rows][to.depth], into 8 bits: per group of to.group_size symmetric, scale = max|x| / 127,
  // round half to even; a group without a finite maximum gets a NaN scale, so that what is not a number stays visible.
  void (*quantize)(const float* x, size_t stride, size_t num_rows, QuantizedRows to);
  // The same for columns [first_column, first_column + num_columns) of wider rows: whole groups, or up to their end.
  void (*quantize_columns)(const float* x, size_t stride, size_t num_rows, size_t first_column, size_t num_columns,
                           QuantizedRows to);
  void (*norm)(const NormCall& call);
  void (*rope)(const RopeCall& call);
  void (*write_cache)(const CacheWriteCall& call);
  size_t (*attend_scratch_bytes)(size_t group, size_t head_dim_k, size_t head_dim_v);
  void (*attend)(const AttendCall& call, uint8_t* scratch);
  void (*merge)(const MergeCall& call);
  void (*glu)(const GluCall& call);
  void (*arithmetic)(const ArithmeticCall& call);
  void (*route)(const RouteCall& call);
  void (*mix)(const MixCall& call);
  // z = softcap * tanh(z * logit_scale / softcap), or z * logit_scale where softcap is 0.
  void (*cap_logits)(float* z, size_t count, float logit_scale, float softcap);
  const SamplerLoops* sampler;
};

namespace baseline {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_KERNELS_H_
