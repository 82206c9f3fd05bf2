// Sampler loops: the passes over a whole vocabulary, once per instruction set.
//
// Owns their meaning; ops/targets/sampler_loops.cc implements them for every target, ops/sampler.cc calls them. What is
// chosen or summed is not decided here. Invariant: every column's result is a function of that column and of the
// call's scalars, without fused multiply-adds, so all targets give the same bits and a tail those of a body.

#ifndef PLAIT_CSRC_OPS_SAMPLER_LOOPS_H_
#define PLAIT_CSRC_OPS_SAMPLER_LOOPS_H_

#include <cstddef>

namespace plait {

struct LargestValue {
  double value;    // -inf where nothing is larger
  size_t column;   // the lowest of those that hold it
  bool is_finite;  // no column holds a NaN or an infinity
};

// Columns whose largest value `chunk_maxima` finds together.
inline constexpr size_t kMaximaChunk = 32;

// What `weigh` calls zero: the smallest exponent whose power of e is surely a normal number. Sums hold a weight of 1,
// so nothing smaller could move them.
inline constexpr double kLeastExponent = -708.0;

struct SamplerLoops {
  LargestValue (*largest_f32)(const float* z, size_t count);
  LargestValue (*largest_f64)(const double* y, size_t count);
  // y = z / divisor, in f64. The second divides in place.
  void (*widen)(const float* z, size_t count, double divisor, double* y);
  void (*divide)(double* y, size_t count, double divisor);
  // weights = exp(y - max), or 0 where y - max < kLeastExponent. Relative error below 1 ulp. No y is above max.
  void (*weigh_f32)(const float* z, size_t count, double max, double* weights);
  void (*weigh_f64)(const double* y, size_t count, double max, double* weights);
  // The largest value of every chunk of columns; the last chunk may be short.
  void (*chunk_maxima_f32)(const float* z, size_t count, double* maxima);
  void (*chunk_maxima_f64)(const double* y, size_t count, double* maxima);
};

namespace baseline {
extern const SamplerLoops kSamplerLoops;
}
#if defined(__x86_64__)
namespace avx2 {
extern const SamplerLoops kSamplerLoops;
}
namespace avx512 {
extern const SamplerLoops kSamplerLoops;
}
#endif

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_SAMPLER_LOOPS_H_
