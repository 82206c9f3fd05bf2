// Compute loops, a function for each target and kind of number.
//
// Owns the arithmetic. The chains of a loop are independent, and enough of them to hide a latency of five cycles at two
// operations a cycle. Invariant: the compiler can neither compute a product ahead of its loop nor leave one out.

#include "limits/compute_loops.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace plait::limits {
namespace {

// 12 chains, two operands and a product fit the 16 registers of AVX2.
constexpr size_t kChains = 12;
using Chains = std::make_index_sequence<kChains>;

constexpr float kFactor = 0.999f;  // With kAddend, chains go to 1: never to subnormals, which are slow.
constexpr float kAddend = 0.001f;

#if defined(__x86_64__)

// These functions are not compiled with a target's flags like kernels: there is one of each, and the target is an
// attribute of it. It reaches neither into lambdas nor into other functions, which is why loops unroll by a fold.
#define PLAIT_FOR_AVX2 __attribute__((target("avx2,fma")))
#define PLAIT_FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define PLAIT_FOR_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define PLAIT_INSIDE inline __attribute__((always_inline))

// Returns `value`, unknown to the compiler from then on: products of it cannot leave a loop. No instruction.
PLAIT_INSIDE __m128i Opaque(__m128i value) {
  asm("" : "+x"(value));
  return value;
}

PLAIT_FOR_AVX2 PLAIT_INSIDE __m256i Opaque(__m256i value) {
  asm("" : "+x"(value));
  return value;
}

// SSE2 has no fused multiply-add.
template <size_t... kChain>
double F32Baseline(uint64_t rounds, std::index_sequence<kChain...>) {
  __m128 sums[] = {_mm_set1_ps(static_cast<float>(kChain))...};
  const __m128 factor = _mm_set1_ps(kFactor), addend = _mm_set1_ps(kAddend);
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] = _mm_add_ps(_mm_mul_ps(sums[kChain], factor), addend)), ...);
  }
  ((sums[0] = _mm_add_ps(sums[0], sums[kChain])), ...);
  return _mm_cvtss_f32(sums[0]);
}

template <size_t... kChain>
PLAIT_FOR_AVX2 double F32Avx2(uint64_t rounds, std::index_sequence<kChain...>) {
  __m256 sums[] = {_mm256_set1_ps(static_cast<float>(kChain))...};
  const __m256 factor = _mm256_set1_ps(kFactor), addend = _mm256_set1_ps(kAddend);
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] = _mm256_fmadd_ps(sums[kChain], factor, addend)), ...);
  }
  ((sums[0] = _mm256_add_ps(sums[0], sums[kChain])), ...);
  return _mm256_cvtss_f32(sums[0]);
}

template <size_t... kChain>
PLAIT_FOR_AVX512 double F32Avx512(uint64_t rounds, std::index_sequence<kChain...>) {
  __m512 sums[] = {_mm512_set1_ps(static_cast<float>(kChain))...};
  const __m512 factor = _mm512_set1_ps(kFactor), addend = _mm512_set1_ps(kAddend);
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] = _mm512_fmadd_ps(sums[kChain], factor, addend)), ...);
  }
  ((sums[0] = _mm512_add_ps(sums[0], sums[kChain])), ...);
  return _mm512_cvtss_f32(sums[0]);
}

// SSE2 multiplies 16-bit numbers in pairs: what 8-bit ones become there.
template <size_t... kChain>
double Int8Baseline(uint64_t rounds, std::index_sequence<kChain...>) {
  __m128i sums[] = {_mm_set1_epi32(static_cast<int>(kChain))...};
  __m128i left = _mm_set1_epi16(3);
  const __m128i right = _mm_set1_epi16(-5);
  for (uint64_t round = 0; round < rounds; ++round) {
    ((left = Opaque(left), sums[kChain] = _mm_add_epi32(sums[kChain], _mm_madd_epi16(left, right))), ...);
  }
  ((sums[0] = _mm_add_epi32(sums[0], sums[kChain])), ...);
  return _mm_cvtsi128_si32(sums[0]);
}

// vpmaddubsw, vpmaddwd, vpaddd: 32 products.
template <size_t... kChain>
PLAIT_FOR_AVX2 double Int8Avx2(uint64_t rounds, std::index_sequence<kChain...>) {
  __m256i sums[] = {_mm256_set1_epi32(static_cast<int>(kChain))...};
  __m256i left = _mm256_set1_epi8(3);
  const __m256i right = _mm256_set1_epi8(-5), ones = _mm256_set1_epi16(1);
  for (uint64_t round = 0; round < rounds; ++round) {
    ((left = Opaque(left),
      sums[kChain] = _mm256_add_epi32(sums[kChain], _mm256_madd_epi16(_mm256_maddubs_epi16(left, right), ones))),
     ...);
  }
  ((sums[0] = _mm256_add_epi32(sums[0], sums[kChain])), ...);
  return _mm_cvtsi128_si32(_mm256_castsi256_si128(sums[0]));
}

// vpdpbusd: 64 products. The running sum keeps it in the loop.
template <size_t... kChain>
PLAIT_FOR_AVX512 double Int8Avx512(uint64_t rounds, std::index_sequence<kChain...>) {
  __m512i sums[] = {_mm512_set1_epi32(static_cast<int>(kChain))...};
  const __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(-5);
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] = _mm512_dpbusd_epi32(sums[kChain], left, right)), ...);
  }
  ((sums[0] = _mm512_add_epi32(sums[0], sums[kChain])), ...);
  int32_t lanes[16];  // By way of memory: GCC 12 warns about its own cast to __m128i.
  _mm512_storeu_si512(lanes, sums[0]);
  return lanes[0];
}

// vdpbf16ps: 32 products. No kernel of ours; other engines' bfloat16 is measured against it.
template <size_t... kChain>
PLAIT_FOR_BF16 double Bf16Avx512(uint64_t rounds, std::index_sequence<kChain...>) {
  __m512 sums[] = {_mm512_set1_ps(static_cast<float>(kChain))...};
  const __m512bh left = _mm512_cvtne2ps_pbh(_mm512_set1_ps(kFactor), _mm512_set1_ps(kAddend));
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] = _mm512_dpbf16_ps(sums[kChain], left, left)), ...);
  }
  ((sums[0] = _mm512_add_ps(sums[0], sums[kChain])), ...);
  return _mm512_cvtss_f32(sums[0]);
}

std::vector<ComputeLoop> LoopsOf(Target target) {
  const char* name = TargetName(target);
  switch (target) {
    case Target::kBaseline:
      return {{"f32", name, kChains * 4 * 2, [](uint64_t rounds) { return F32Baseline(rounds, Chains()); }},
              {"int8", name, kChains * 8 * 2, [](uint64_t rounds) { return Int8Baseline(rounds, Chains()); }}};
    case Target::kAvx2:
      return {{"f32", name, kChains * 8 * 2, [](uint64_t rounds) { return F32Avx2(rounds, Chains()); }},
              {"int8", name, kChains * 32 * 2, [](uint64_t rounds) { return Int8Avx2(rounds, Chains()); }}};
    case Target::kAvx512:
      return {{"f32", name, kChains * 16 * 2, [](uint64_t rounds) { return F32Avx512(rounds, Chains()); }},
              {"int8", name, kChains * 64 * 2, [](uint64_t rounds) { return Int8Avx512(rounds, Chains()); }}};
  }
  return {};
}

std::vector<ComputeLoop> Bf16Loops() {
  if (BestTarget() != Target::kAvx512 || !__builtin_cpu_supports("avx512bf16")) return {};
  return {{"bf16", TargetName(Target::kAvx512), kChains * 32 * 2,
           [](uint64_t rounds) { return Bf16Avx512(rounds, Chains()); }}};
}

#else

// Four floats, whatever the architecture makes of them.
typedef float FourFloats __attribute__((vector_size(16)));

template <size_t... kChain>
double F32Baseline(uint64_t rounds, std::index_sequence<kChain...>) {
  FourFloats sums[] = {(FourFloats{} + static_cast<float>(kChain))...};
  const FourFloats factor = FourFloats{} + kFactor, addend = FourFloats{} + kAddend;
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] = sums[kChain] * factor + addend), ...);
  }
  ((sums[0] = sums[0] + sums[kChain]), ...);
  return sums[0][0];
}

// Four products of 8-bit numbers that were widened to 32 bits; unsigned, because sums wrap.
typedef uint32_t FourInts __attribute__((vector_size(16)));

template <size_t... kChain>
double Int8Baseline(uint64_t rounds, std::index_sequence<kChain...>) {
  FourInts sums[] = {(FourInts{} + static_cast<uint32_t>(kChain))...};
  const FourInts left = FourInts{} + 3;
  for (uint64_t round = 0; round < rounds; ++round) {
    ((sums[kChain] += left * sums[(kChain + 1) % kChains]), ...);
  }
  ((sums[0] = sums[0] + sums[kChain]), ...);
  return sums[0][0];
}

std::vector<ComputeLoop> LoopsOf(Target target) {
  return {
      {"f32", TargetName(target), kChains * 4 * 2, [](uint64_t rounds) { return F32Baseline(rounds, Chains()); }},
      {"int8", TargetName(target), kChains * 4 * 2, [](uint64_t rounds) { return Int8Baseline(rounds, Chains()); }}};
}

std::vector<ComputeLoop> Bf16Loops() { return {}; }

#endif

}  // namespace

std::vector<ComputeLoop> AvailableComputeLoops() {
  std::vector<ComputeLoop> floats, integers;
  for (const Target target : SupportedTargets()) {
    const std::vector<ComputeLoop> loops = LoopsOf(target);
    floats.push_back(loops[0]);
    integers.push_back(loops[1]);
  }
  floats.insert(floats.end(), integers.begin(), integers.end());
  const std::vector<ComputeLoop> bf16 = Bf16Loops();
  floats.insert(floats.end(), bf16.begin(), bf16.end());
  return floats;
}

}  // namespace plait::limits
