// Writing keys and values into cache blocks.
//
// Owns the transposition of keys: token-contiguous K[d][tokens], then V[tokens][d]. Reading them is attention.cc's.
// Invariant: a number is rounded to the cache's type once, to nearest with ties to even, and nothing but the rows'
// own slots is written.

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"
#include "ops/targets/functions.h"
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

PLAIT_INLINE void Round(const float* from, size_t count, uint16_t* to) {
  size_t c = 0;
  for (; c + kLanes <= count; c += kLanes) StoreF16(to + c, Load(from + c));
  for (; c < count; ++c) to[c] = F16Of(from[c]);
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

}  // namespace

void WriteCache(const CacheWriteCall& call) {
  if (call.place.type == CacheType::kF16) {
    WriteRows<uint16_t>(call);
  } else {
    WriteRows<float>(call);
  }
}

}  // namespace plait::PLAIT_TARGET
