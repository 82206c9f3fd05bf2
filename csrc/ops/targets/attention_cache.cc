// Writing keys and values into cache blocks.
//
// Owns the transposition of keys into the layout of ops/cache_layout.h. Reading them is attention.cc's.
// Invariant: a number is rounded to the cache's type once, to nearest with ties to even, and nothing but the rows'
// own slots is written.

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/attention_tiles.h"
#include "ops/targets/functions.h"
#include "ops/targets/quantize.h"
#include "ops/targets/simd.h"

namespace plait::PLAIT_TARGET {
namespace {

// Tokens and columns of a transposed square.
constexpr size_t kSquare = 16;

PLAIT_INLINE size_t Smaller(size_t a, size_t b) { return a < b ? a : b; }

PLAIT_INLINE void Round(const float* from, size_t count, float* to) {
  size_t c = 0;
  for (; c + kLanes <= count; c += kLanes) Store(to + c, Load(from + c));
  for (; c < count; ++c) to[c] = from[c];
}

PLAIT_INLINE void Round(const float* from, size_t count, Half* to) {
  size_t c = 0;
  for (; c + kLanes <= count; c += kLanes) StoreF16(&to[c].bits, Load(from + c));
  for (; c < count; ++c) to[c].bits = F16Of(from[c]);
}

PLAIT_INLINE void Round(const float* from, size_t count, Bfloat* to) {
  for (size_t c = 0; c < count; ++c) to[c].bits = FloatToBf16(from[c]);
}

// k[row * stride + d] to keys[d * tokens + row], for `rows` rows.
template <typename Number>
void WriteKeys(const float* k, size_t stride, size_t rows, size_t depth, size_t tokens, Number* keys) {
  Number square[kSquare][kSquare];
  for (size_t row = 0; row < rows; row += kSquare) {
    const size_t num_rows = Smaller(rows - row, kSquare);
    for (size_t d = 0; d < depth; d += kSquare) {
      const size_t num_columns = Smaller(depth - d, kSquare);
      for (size_t r = 0; r < num_rows; ++r) Round(k + (row + r) * stride + d, num_columns, square[r]);
      for (size_t c = 0; c < num_columns; ++c) {
        Number* to = keys + (d + c) * tokens + row;
        for (size_t r = 0; r < num_rows; ++r) to[r] = square[r][c];
      }
    }
  }
}

template <typename Number>
void WriteRows(const CacheWriteCall& call) {
  const CachePlace& place = call.place;
  const size_t tokens = place.tokens_per_block;
  for (size_t row = 0; row < call.num_rows;) {
    const size_t slot = call.start + row;
    const size_t inside = slot % tokens;
    const size_t rows = Smaller(call.num_rows - row, tokens - inside);
    uint8_t* block = place.pool + static_cast<size_t>(call.table[slot / tokens]) * place.block_bytes;
    for (size_t head = 0; head < place.kv_heads; ++head) {
      Number* keys = reinterpret_cast<Number*>(block + place.layer_offset + head * place.head_bytes);
      Number* values = keys + place.head_dim_k * tokens + inside * place.head_dim_v;
      WriteKeys(call.k + row * call.k_stride + head * place.head_dim_k, call.k_stride, rows, place.head_dim_k, tokens,
                keys + inside);
      const float* v = call.v + row * call.v_stride + head * place.head_dim_v;
      for (size_t r = 0; r < rows; ++r) Round(v + r * call.v_stride, place.head_dim_v, values + r * place.head_dim_v);
    }
    row += rows;
  }
}

// One head of one token, in 8 bits.
void WriteInt8(const CachePlace& place, uint8_t* head, size_t inside, const float* k, const float* v) {
  const size_t tokens = place.tokens_per_block;
  int8_t values[kMaxInt8Width];
  const float key_scale = RoundToInt8(k, place.head_dim_k, values);
  for (size_t d = 0; d < place.head_dim_k; ++d) {
    head[(d / 4 * tokens + inside) * 4 + d % 4] = static_cast<uint8_t>(values[d] + 128);
  }
  uint8_t* scales = head + KeyScalesAt(place.type, place.head_dim_k, tokens);
  __builtin_memcpy(scales + inside * sizeof(float), &key_scale, sizeof(float));
  const float value_scale = RoundToInt8(v, place.head_dim_v, values);
  int8_t* to = reinterpret_cast<int8_t*>(head + ValuesAt(place.type, place.head_dim_k, tokens)) +
               inside / 2 * 2 * StoredWidth(place.type, place.head_dim_v) + inside % 2;
  for (size_t c = 0; c < place.head_dim_v; ++c) to[2 * c] = values[c];
  scales = head + ValueScalesAt(place.type, place.head_dim_k, place.head_dim_v, tokens);
  __builtin_memcpy(scales + inside * sizeof(float), &value_scale, sizeof(float));
}

void WriteRowsInt8(const CacheWriteCall& call) {
  const CachePlace& place = call.place;
  for (size_t row = 0; row < call.num_rows; ++row) {
    const size_t slot = call.start + row;
    const size_t entry = slot / place.tokens_per_block;
    uint8_t* block = place.pool + static_cast<size_t>(call.table[entry]) * place.block_bytes + place.layer_offset;
    for (size_t head = 0; head < place.kv_heads; ++head) {
      WriteInt8(place, block + head * place.head_bytes, slot % place.tokens_per_block,
                call.k + row * call.k_stride + head * place.head_dim_k,
                call.v + row * call.v_stride + head * place.head_dim_v);
    }
  }
}

}  // namespace

void WriteCache(const CacheWriteCall& call) {
  switch (call.place.type) {
    case CacheType::kF32:
      return WriteRows<float>(call);
    case CacheType::kF16:
      return WriteRows<Half>(call);
    case CacheType::kBf16:
      return WriteRows<Bfloat>(call);
    case CacheType::kInt8:
      return WriteRowsInt8(call);
  }
}

}  // namespace plait::PLAIT_TARGET
