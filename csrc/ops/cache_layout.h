// Layout of a cache block: how many bytes one KV head of one layer takes in it, and where its parts lie.
//
// Owns the formulas, for kernels and for everything that copies or checks blocks. Knows nothing about models.
// Invariant: every part begins at a multiple of its numbers' size, if the head does at a multiple of four bytes.
//
//   floats of 32 or 16 bits:  K[head_dim_k][tokens]  V[tokens][head_dim_v]
//   kInt8:  K[depth / 4][tokens][4]  scale of K[tokens]  V[tokens / 2][width][2]  scale of V[tokens]
//           depth and width are head_dim_k and head_dim_v in whole sixteens (nobody looks at what is behind them), a
//           number of K is its value plus 128, scales are f32. Fours of a key and pairs of values lie together because
//           one instruction multiplies and adds them up.

#ifndef PLAIT_CSRC_OPS_CACHE_LAYOUT_H_
#define PLAIT_CSRC_OPS_CACHE_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace plait {

enum class CacheType : uint8_t { kF32, kF16, kBf16, kInt8 };

inline constexpr size_t kNumCacheTypes = 4;

// Tokens of a block of kInt8 come in whole sixteens.
inline constexpr size_t kInt8Tokens = 16;

// Numbers of a vector that is rounded to 8 bits.
inline constexpr size_t kMaxInt8Width = 1024;

// Never emitted as functions, because kernels include this header as well (CMakeLists.txt).
#define PLAIT_LAYOUT_INLINE static inline __attribute__((always_inline))

// Numbers that a vector of `width` takes.
PLAIT_LAYOUT_INLINE size_t StoredWidth(CacheType type, size_t width) {
  return type == CacheType::kInt8 ? (width + 15) / 16 * 16 : width;
}

PLAIT_LAYOUT_INLINE size_t NumberBytes(CacheType type) {
  return type == CacheType::kF32 ? 4 : type == CacheType::kInt8 ? 1 : 2;
}

PLAIT_LAYOUT_INLINE size_t ScaleBytes(CacheType type) { return type == CacheType::kInt8 ? sizeof(float) : 0; }

// A key or a value of one token, its scale included.
PLAIT_LAYOUT_INLINE size_t VectorBytes(CacheType type, size_t width) {
  return width == 0 ? 0 : StoredWidth(type, width) * NumberBytes(type) + ScaleBytes(type);
}

// From the head's first byte to the scales of K, to V and to the scales of V.
PLAIT_LAYOUT_INLINE size_t KeyScalesAt(CacheType type, size_t head_dim_k, size_t tokens) {
  return StoredWidth(type, head_dim_k) * NumberBytes(type) * tokens;
}
PLAIT_LAYOUT_INLINE size_t ValuesAt(CacheType type, size_t head_dim_k, size_t tokens) {
  return VectorBytes(type, head_dim_k) * tokens;
}
PLAIT_LAYOUT_INLINE size_t ValueScalesAt(CacheType type, size_t head_dim_k, size_t head_dim_v, size_t tokens) {
  return ValuesAt(type, head_dim_k, tokens) + StoredWidth(type, head_dim_v) * NumberBytes(type) * tokens;
}

#undef PLAIT_LAYOUT_INLINE

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_CACHE_LAYOUT_H_
