// Vectors of floats as wide as the target's registers: a thin layer over intrinsics that is inlined away.
//
// Owns names for instructions, and their meaning where targets would differ. Knows nothing about models.
// Invariant: lane by lane every function gives the same bits on every target; only kLanes differs. (A NaN is a NaN: its
// sign and payload are not promised.)

#ifndef PLAIT_CSRC_OPS_TARGETS_SIMD_H_
#define PLAIT_CSRC_OPS_TARGETS_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "formats/half.h"

#if defined(__AVX2__)
// GCC 12 takes the "undefined" operands of its own AVX-512 intrinsics for variables read before they are set.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#ifndef PLAIT_TARGET
#error "kernels are compiled once per target, with -DPLAIT_TARGET=<name>"
#endif

// Kernel sources hold no function that a linker could share between targets (CMakeLists.txt).
#define PLAIT_INLINE static inline __attribute__((always_inline))

namespace plait::PLAIT_TARGET {

PLAIT_INLINE uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
PLAIT_INLINE float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// One lane, for tails and scalars. Exact everywhere: the C library's where the machine has no instruction.
PLAIT_INLINE float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Asks memory for the line that holds `at`, which may be anywhere. Into the second cache, not the first: a request of
// the first holds one of its few miss buffers until memory answers, and what is asked for long before its turn fills
// the cache that holds what is worked on (docs/lab/2026-12-01-asking-ahead.md).
PLAIT_INLINE void AskFor(const void* at) { __builtin_prefetch(at, 0, 2); }

PLAIT_INLINE float FloatOfBf16(uint16_t bits) { return Bf16ToFloat(bits); }

#if defined(__AVX2__)

PLAIT_INLINE float FloatOfF16(uint16_t bits) { return _cvtsh_ss(bits); }
PLAIT_INLINE uint16_t F16Of(float value) {
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else

PLAIT_INLINE float FloatOfF16(uint16_t bits) { return HalfToFloat(bits); }
PLAIT_INLINE uint16_t F16Of(float value) { return FloatToHalf(value); }

#endif

#if defined(__AVX512F__)

inline constexpr size_t kLanes = 16;
struct F32 {
  __m512 raw;
};
struct I32 {
  __m512i raw;
};
struct Mask {
  __mmask16 raw;
};

PLAIT_INLINE F32 Zero() { return {_mm512_setzero_ps()}; }
PLAIT_INLINE F32 Broadcast(float value) { return {_mm512_set1_ps(value)}; }
PLAIT_INLINE F32 Load(const float* from) { return {_mm512_loadu_ps(from)}; }
PLAIT_INLINE void Store(float* to, F32 a) { _mm512_storeu_ps(to, a.raw); }
// The first `count` lanes, count in [0, kLanes]; the others are zero, and nothing behind them is touched.
PLAIT_INLINE F32 LoadFirst(const float* from, size_t count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), from)};
}
PLAIT_INLINE void StoreFirst(float* to, F32 a, size_t count) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1u), a.raw);
}
PLAIT_INLINE F32 LoadF16(const uint16_t* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
PLAIT_INLINE void StoreF16(uint16_t* to, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(a.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PLAIT_INLINE F32 LoadBf16(const uint16_t* from) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
PLAIT_INLINE F32 Add(F32 a, F32 b) { return {_mm512_add_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Sub(F32 a, F32 b) { return {_mm512_sub_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Mul(F32 a, F32 b) { return {_mm512_mul_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Div(F32 a, F32 b) { return {_mm512_div_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Sqrt(F32 a) { return {_mm512_sqrt_ps(a.raw)}; }
PLAIT_INLINE F32 Fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.raw, b.raw, c.raw)}; }
PLAIT_INLINE F32 Max(F32 a, F32 b) { return {_mm512_max_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Min(F32 a, F32 b) { return {_mm512_min_ps(a.raw, b.raw)}; }
PLAIT_INLINE Mask Less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_LT_OQ)}; }
PLAIT_INLINE F32 Select(Mask mask, F32 yes, F32 no) { return {_mm512_mask_blend_ps(mask.raw, no.raw, yes.raw)}; }
PLAIT_INLINE I32 BroadcastInt(int32_t value) { return {_mm512_set1_epi32(value)}; }
PLAIT_INLINE I32 RoundToInt(F32 a) { return {_mm512_cvtps_epi32(a.raw)}; }
PLAIT_INLINE F32 FloatOfInt(I32 a) { return {_mm512_cvtepi32_ps(a.raw)}; }
PLAIT_INLINE I32 AddInt(I32 a, I32 b) { return {_mm512_add_epi32(a.raw, b.raw)}; }
PLAIT_INLINE I32 SubInt(I32 a, I32 b) { return {_mm512_sub_epi32(a.raw, b.raw)}; }
PLAIT_INLINE I32 AndInt(I32 a, I32 b) { return {_mm512_and_si512(a.raw, b.raw)}; }
PLAIT_INLINE I32 OrInt(I32 a, I32 b) { return {_mm512_or_si512(a.raw, b.raw)}; }
template <int kBits>
PLAIT_INLINE I32 ShiftLeft(I32 a) {
  return {_mm512_slli_epi32(a.raw, kBits)};
}
// Copies of the sign come in.
template <int kBits>
PLAIT_INLINE I32 ShiftRight(I32 a) {
  return {_mm512_srai_epi32(a.raw, kBits)};
}
PLAIT_INLINE I32 LoadInt8(const int8_t* from) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
PLAIT_INLINE I32 LoadUint8(const uint8_t* from) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
PLAIT_INLINE F32 AsFloat(I32 a) { return {_mm512_castsi512_ps(a.raw)}; }
PLAIT_INLINE I32 AsInt(F32 a) { return {_mm512_castps_si512(a.raw)}; }

#elif defined(__AVX2__)

inline constexpr size_t kLanes = 8;
struct F32 {
  __m256 raw;
};
struct I32 {
  __m256i raw;
};
struct Mask {
  __m256 raw;
};

// All bits set in the first `count` lanes.
PLAIT_INLINE __m256i FirstLanes(size_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}
PLAIT_INLINE F32 Zero() { return {_mm256_setzero_ps()}; }
PLAIT_INLINE F32 Broadcast(float value) { return {_mm256_set1_ps(value)}; }
PLAIT_INLINE F32 Load(const float* from) { return {_mm256_loadu_ps(from)}; }
PLAIT_INLINE void Store(float* to, F32 a) { _mm256_storeu_ps(to, a.raw); }
PLAIT_INLINE F32 LoadFirst(const float* from, size_t count) { return {_mm256_maskload_ps(from, FirstLanes(count))}; }
PLAIT_INLINE void StoreFirst(float* to, F32 a, size_t count) { _mm256_maskstore_ps(to, FirstLanes(count), a.raw); }
PLAIT_INLINE F32 LoadF16(const uint16_t* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
PLAIT_INLINE void StoreF16(uint16_t* to, F32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(a.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PLAIT_INLINE F32 LoadBf16(const uint16_t* from) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
PLAIT_INLINE F32 Add(F32 a, F32 b) { return {_mm256_add_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Sub(F32 a, F32 b) { return {_mm256_sub_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Mul(F32 a, F32 b) { return {_mm256_mul_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Div(F32 a, F32 b) { return {_mm256_div_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Sqrt(F32 a) { return {_mm256_sqrt_ps(a.raw)}; }
PLAIT_INLINE F32 Fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.raw, b.raw, c.raw)}; }
PLAIT_INLINE F32 Max(F32 a, F32 b) { return {_mm256_max_ps(a.raw, b.raw)}; }
PLAIT_INLINE F32 Min(F32 a, F32 b) { return {_mm256_min_ps(a.raw, b.raw)}; }
PLAIT_INLINE Mask Less(F32 a, F32 b) { return {_mm256_cmp_ps(a.raw, b.raw, _CMP_LT_OQ)}; }
PLAIT_INLINE F32 Select(Mask mask, F32 yes, F32 no) { return {_mm256_blendv_ps(no.raw, yes.raw, mask.raw)}; }
PLAIT_INLINE I32 BroadcastInt(int32_t value) { return {_mm256_set1_epi32(value)}; }
PLAIT_INLINE I32 RoundToInt(F32 a) { return {_mm256_cvtps_epi32(a.raw)}; }
PLAIT_INLINE F32 FloatOfInt(I32 a) { return {_mm256_cvtepi32_ps(a.raw)}; }
PLAIT_INLINE I32 AddInt(I32 a, I32 b) { return {_mm256_add_epi32(a.raw, b.raw)}; }
PLAIT_INLINE I32 SubInt(I32 a, I32 b) { return {_mm256_sub_epi32(a.raw, b.raw)}; }
PLAIT_INLINE I32 AndInt(I32 a, I32 b) { return {_mm256_and_si256(a.raw, b.raw)}; }
PLAIT_INLINE I32 OrInt(I32 a, I32 b) { return {_mm256_or_si256(a.raw, b.raw)}; }
template <int kBits>
PLAIT_INLINE I32 ShiftLeft(I32 a) {
  return {_mm256_slli_epi32(a.raw, kBits)};
}
template <int kBits>
PLAIT_INLINE I32 ShiftRight(I32 a) {
  return {_mm256_srai_epi32(a.raw, kBits)};
}
PLAIT_INLINE I32 LoadInt8(const int8_t* from) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))};
}
PLAIT_INLINE I32 LoadUint8(const uint8_t* from) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))};
}
PLAIT_INLINE F32 AsFloat(I32 a) { return {_mm256_castsi256_ps(a.raw)}; }
PLAIT_INLINE I32 AsInt(F32 a) { return {_mm256_castps_si256(a.raw)}; }

#else

// The compiler's own vectors: SSE2 on x86-64, NEON on AArch64.
inline constexpr size_t kLanes = 4;
typedef float RawF32 __attribute__((vector_size(16)));
typedef int32_t RawI32 __attribute__((vector_size(16)));
typedef uint32_t RawU32 __attribute__((vector_size(16)));
struct F32 {
  RawF32 raw;
};
struct I32 {
  RawI32 raw;
};
struct Mask {
  RawI32 raw;
};

PLAIT_INLINE F32 Zero() { return {RawF32{0, 0, 0, 0}}; }
PLAIT_INLINE F32 Broadcast(float value) { return {RawF32{value, value, value, value}}; }
PLAIT_INLINE F32 Load(const float* from) {
  F32 a;
  __builtin_memcpy(&a.raw, from, sizeof(a.raw));
  return a;
}
PLAIT_INLINE void Store(float* to, F32 a) { __builtin_memcpy(to, &a.raw, sizeof(a.raw)); }
PLAIT_INLINE F32 LoadFirst(const float* from, size_t count) {
  F32 a = Zero();
  for (size_t i = 0; i < count; ++i) a.raw[i] = from[i];
  return a;
}
PLAIT_INLINE void StoreFirst(float* to, F32 a, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = a.raw[i];
}
PLAIT_INLINE F32 LoadF16(const uint16_t* from) {
  return {RawF32{FloatOfF16(from[0]), FloatOfF16(from[1]), FloatOfF16(from[2]), FloatOfF16(from[3])}};
}
PLAIT_INLINE void StoreF16(uint16_t* to, F32 a) {
  for (size_t i = 0; i < kLanes; ++i) to[i] = F16Of(a.raw[i]);
}
PLAIT_INLINE F32 LoadBf16(const uint16_t* from) {
  return {RawF32{FloatOfBf16(from[0]), FloatOfBf16(from[1]), FloatOfBf16(from[2]), FloatOfBf16(from[3])}};
}
PLAIT_INLINE F32 Add(F32 a, F32 b) { return {a.raw + b.raw}; }
PLAIT_INLINE F32 Sub(F32 a, F32 b) { return {a.raw - b.raw}; }
PLAIT_INLINE F32 Mul(F32 a, F32 b) { return {a.raw * b.raw}; }
PLAIT_INLINE F32 Div(F32 a, F32 b) { return {a.raw / b.raw}; }
PLAIT_INLINE F32 Sqrt(F32 a) {
  for (size_t i = 0; i < kLanes; ++i) a.raw[i] = __builtin_sqrtf(a.raw[i]);
  return a;
}
#if defined(__SSE2__)
// a * b + c of two lanes, rounded to odd in f64: what is then rounded to f32 has been rounded once. The product is
// exact, the sum's error too; where there is one and the sum's last bit is even, its neighbour on that side is odd. (A
// sum that is no number or infinite has an error that is no number, and stays.)
PLAIT_INLINE __m128d FmaToOdd(__m128d a, __m128d b, __m128d c) {
  const __m128d product = _mm_mul_pd(a, b);
  const __m128d sum = _mm_add_pd(product, c);
  const __m128d of_c = _mm_sub_pd(sum, product);
  const __m128d error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, of_c)), _mm_sub_pd(c, of_c));
  const __m128d zero = _mm_setzero_pd();
  const __m128i is_inexact = _mm_castpd_si128(_mm_or_pd(_mm_cmplt_pd(error, zero), _mm_cmpgt_pd(error, zero)));
  const __m128i bits = _mm_castpd_si128(sum);
  const __m128i one = _mm_set_epi32(0, 1, 0, 1);
  const __m128i is_even = _mm_sub_epi64(_mm_and_si128(bits, one), one);
  const __m128i is_towards_zero = _mm_srli_epi64(_mm_xor_si128(bits, _mm_castpd_si128(error)), 63);
  const __m128i step = _mm_sub_epi64(one, _mm_add_epi64(is_towards_zero, is_towards_zero));
  return _mm_castsi128_pd(_mm_add_epi64(bits, _mm_and_si128(step, _mm_and_si128(is_inexact, is_even))));
}
PLAIT_INLINE F32 Fma(F32 a, F32 b, F32 c) {
  const __m128 low = _mm_cvtpd_ps(FmaToOdd(_mm_cvtps_pd(a.raw), _mm_cvtps_pd(b.raw), _mm_cvtps_pd(c.raw)));
  const __m128d high = FmaToOdd(_mm_cvtps_pd(_mm_movehl_ps(a.raw, a.raw)), _mm_cvtps_pd(_mm_movehl_ps(b.raw, b.raw)),
                                _mm_cvtps_pd(_mm_movehl_ps(c.raw, c.raw)));
  return {_mm_movelh_ps(low, _mm_cvtpd_ps(high))};
}
#else
PLAIT_INLINE F32 Fma(F32 a, F32 b, F32 c) {
  for (size_t i = 0; i < kLanes; ++i) c.raw[i] = __builtin_fmaf(a.raw[i], b.raw[i], c.raw[i]);
  return c;
}
#endif
PLAIT_INLINE F32 Max(F32 a, F32 b) { return {a.raw > b.raw ? a.raw : b.raw}; }
PLAIT_INLINE F32 Min(F32 a, F32 b) { return {a.raw < b.raw ? a.raw : b.raw}; }
PLAIT_INLINE Mask Less(F32 a, F32 b) { return {a.raw < b.raw}; }
PLAIT_INLINE F32 Select(Mask mask, F32 yes, F32 no) { return {mask.raw ? yes.raw : no.raw}; }
PLAIT_INLINE I32 BroadcastInt(int32_t value) { return {RawI32{value, value, value, value}}; }
// The sum's last place is 1, so the addition rounds; values lie in +-2^22 (the x86 instruction allows more).
PLAIT_INLINE I32 RoundToInt(F32 a) {
  const RawF32 sum = a.raw + 0x1.8p23f;
  return {__builtin_bit_cast(RawI32, __builtin_bit_cast(RawU32, sum) - 0x4b400000u)};
}
PLAIT_INLINE F32 FloatOfInt(I32 a) { return {__builtin_convertvector(a.raw, RawF32)}; }
// Sums wrap around, as the instructions' do: lanes of which nothing is kept may hold any number.
PLAIT_INLINE RawU32 Unsigned(I32 a) { return __builtin_bit_cast(RawU32, a.raw); }
PLAIT_INLINE I32 AddInt(I32 a, I32 b) { return {__builtin_bit_cast(RawI32, Unsigned(a) + Unsigned(b))}; }
PLAIT_INLINE I32 SubInt(I32 a, I32 b) { return {__builtin_bit_cast(RawI32, Unsigned(a) - Unsigned(b))}; }
PLAIT_INLINE I32 AndInt(I32 a, I32 b) { return {a.raw & b.raw}; }
PLAIT_INLINE I32 OrInt(I32 a, I32 b) { return {a.raw | b.raw}; }
template <int kBits>
PLAIT_INLINE I32 ShiftLeft(I32 a) {
  return {__builtin_bit_cast(RawI32, Unsigned(a) << kBits)};
}
PLAIT_INLINE I32 LoadInt8(const int8_t* from) { return {RawI32{from[0], from[1], from[2], from[3]}}; }
PLAIT_INLINE I32 LoadUint8(const uint8_t* from) { return {RawI32{from[0], from[1], from[2], from[3]}}; }
PLAIT_INLINE F32 AsFloat(I32 a) { return {__builtin_bit_cast(RawF32, a.raw)}; }
PLAIT_INLINE I32 AsInt(F32 a) { return {__builtin_bit_cast(RawI32, a.raw)}; }

#endif

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_SIMD_H_
