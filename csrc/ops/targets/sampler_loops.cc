// Sampler loops for one target: vectors as wide as its registers, one text for all of them.
//
// Owns the exponential of the sampler and the shape of its passes. Decides nothing about tokens (ops/sampler.cc).
// Invariant: no operation mixes columns except comparisons, which are exact; so the width of a vector moves no bit.

#include "ops/sampler_loops.h"

#include <cstddef>
#include <cstdint>

// Every function here is inlined or of this file, so no vector crosses a border where its width would matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define PLAIT_INLINE inline __attribute__((always_inline))

namespace plait {
namespace PLAIT_TARGET {
namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

constexpr size_t kLanes = kVectorBytes / sizeof(double);

using Doubles = double __attribute__((vector_size(kVectorBytes)));
using Words = uint64_t __attribute__((vector_size(kVectorBytes)));
using Floats = float __attribute__((vector_size(kVectorBytes)));
using HalfFloats = float __attribute__((vector_size(kVectorBytes / 2)));

template <typename Number>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = Floats;
};
template <>
struct VectorOf<double> {
  using Type = Doubles;
};

PLAIT_INLINE Doubles Splat(double value) { return Doubles{} + value; }

template <typename Vector, typename Number>
PLAIT_INLINE Vector LoadVector(const Number* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

PLAIT_INLINE Doubles Load(const double* from) { return LoadVector<Doubles>(from); }
PLAIT_INLINE Doubles Load(const float* from) { return __builtin_convertvector(LoadVector<HalfFloats>(from), Doubles); }

PLAIT_INLINE void Store(double* to, Doubles vector) { __builtin_memcpy(to, &vector, sizeof(vector)); }

// to[i] = function(from[i]). The columns of the last, short vector are computed by the same instructions.
template <typename Number, typename Function>
PLAIT_INLINE void ForEach(const Number* from, size_t count, double* to, const Function& function) {
  size_t column = 0;
  for (; column + kLanes <= count; column += kLanes) Store(to + column, function(Load(from + column)));
  if (column == count) return;
  Number padded[kLanes] = {};
  double results[kLanes];
  for (size_t lane = 0; column + lane < count; ++lane) padded[lane] = from[column + lane];
  Store(results, function(Load(padded)));
  for (size_t lane = 0; column + lane < count; ++lane) to[column + lane] = results[lane];
}

constexpr double kLog2E = 0x1.71547652b82fep0;
// ln 2 in two parts. The first has 21 zero bits at its end, so that its product with any exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
// Adding 1.5 * 2^52 rounds to a whole number, and leaves it in the lowest bits of the sum.
constexpr double kRounder = 0x1.8p52;
constexpr uint64_t kMantissaBits = 52;
constexpr uint64_t kExponentOfOne = uint64_t{1023} << kMantissaBits;

// (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2: Chebyshev fit, 2^-61 away from exp(r) once its coefficients are rounded.
constexpr double kSeries[] = {0x1.0000000000000p-1,  0x1.5555555555557p-3,  0x1.5555555555556p-5,
                              0x1.11111111100dcp-7,  0x1.6c16c16c162d4p-10, 0x1.a01a01abe7fe1p-13,
                              0x1.a01a01a6d889cp-16, 0x1.71de0231960ebp-19, 0x1.27e4db646b17ep-22,
                              0x1.af4de97ca4194p-26, 0x1.1f730349868cep-29};

// The series in pairs, pairs of pairs and so on: a shorter chain than Horner's.
PLAIT_INLINE Doubles Series(Doubles r, Doubles r2) {
  const Doubles r4 = r2 * r2;
  const Doubles r8 = r4 * r4;
  const Doubles low = (kSeries[0] + kSeries[1] * r) + (kSeries[2] + kSeries[3] * r) * r2;
  const Doubles middle = (kSeries[4] + kSeries[5] * r) + (kSeries[6] + kSeries[7] * r) * r2;
  const Doubles high = (kSeries[8] + kSeries[9] * r) + kSeries[10] * r2;
  return (low + middle * r4) + high * r8;
}

// exp(x) for x <= 0, and 0 below kLeastExponent.
PLAIT_INLINE Doubles Exp(Doubles x) {
  const auto is_zero = x < kLeastExponent;
  const Doubles safe = is_zero ? Splat(kLeastExponent) : x;
  const Doubles rounded = safe * kLog2E + kRounder;
  const Doubles exponent = rounded - kRounder;
  const Doubles high = safe - exponent * kLn2High;
  const Doubles low = exponent * kLn2Low;
  const Doubles r = high - low;
  const Doubles lost = (high - r) - low;  // What rounding took from r.
  const Doubles r2 = r * r;
  const Doubles power = 1.0 + (r + (lost + r2 * Series(r, r2)));
  const Doubles scale = (Doubles)(((Words)rounded << kMantissaBits) + kExponentOfOne);
  return is_zero ? Splat(0.0) : power * scale;
}

template <typename Number>
void Weigh(const Number* values, size_t count, double max, double* weights) {
  ForEach(values, count, weights, [max](Doubles y) __attribute__((always_inline)) { return Exp(y - max); });
}

template <typename Number>
PLAIT_INLINE void Divided(const Number* values, size_t count, double divisor, double* to) {
  if (divisor == 1.0) {
    ForEach(values, count, to, [](Doubles y) __attribute__((always_inline)) { return y; });
  } else {
    ForEach(values, count, to, [divisor](Doubles y) __attribute__((always_inline)) { return y / divisor; });
  }
}

void Widen(const float* z, size_t count, double divisor, double* y) { Divided(z, count, divisor, y); }

void Divide(double* y, size_t count, double divisor) { Divided(y, count, divisor, y); }

// The larger of two; the first where they are equal or one is not a number.
template <typename Vector>
PLAIT_INLINE Vector Larger(Vector left, Vector right) {
  return right > left ? right : left;
}

template <typename Number, typename Vector>
PLAIT_INLINE Number LargestLane(Vector vector) {
  constexpr size_t kCount = sizeof(Vector) / sizeof(Number);
  Number lanes[kCount];
  __builtin_memcpy(lanes, &vector, sizeof(vector));
  Number largest = lanes[0];
  for (size_t lane = 1; lane < kCount; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  return largest;
}

constexpr size_t kChains = 4;  // An addition and a maximum take up to 4 cycles, and a load comes twice a cycle.

// The largest of whole groups of kChains vectors. `poison` becomes NaN where a column is NaN or infinite: x - x is 0
// for any other.
template <typename Number, typename Vector>
PLAIT_INLINE Number LargestOf(const Number* values, size_t count, Vector* poison) {
  constexpr size_t kWidth = sizeof(Vector) / sizeof(Number);
  Vector largest[kChains];
  for (size_t chain = 0; chain < kChains; ++chain) largest[chain] = Vector{} - static_cast<Number>(__builtin_inf());
  for (size_t column = 0; column < count; column += kChains * kWidth) {
    for (size_t chain = 0; chain < kChains; ++chain) {
      const Vector x = LoadVector<Vector>(values + column + chain * kWidth);
      largest[chain] = Larger(largest[chain], x);
      poison[chain] += x - x;
    }
  }
  return LargestLane<Number>(Larger(Larger(largest[0], largest[1]), Larger(largest[2], largest[3])));
}

// Columns after which the place of the largest value so far is noted. A multiple of every group of vectors.
constexpr size_t kSearchBlock = 1024;

template <typename Number>
LargestValue Largest(const Number* values, size_t count) {
  using Vector = typename VectorOf<Number>::Type;
  Vector poison[kChains] = {};
  Number best = -static_cast<Number>(__builtin_inf());
  size_t best_block = 0;
  size_t column = 0;
  for (; column + kSearchBlock <= count; column += kSearchBlock) {
    const Number largest = LargestOf<Number, Vector>(values + column, kSearchBlock, poison);
    if (largest > best) {
      best = largest;
      best_block = column;
    }
  }
  Number loose = 0;  // As poison, for the columns behind the last whole block.
  for (; column < count; ++column) {
    loose += values[column] - values[column];
    if (values[column] > best) {
      best = values[column];
      best_block = column;
    }
  }
  for (size_t chain = 0; chain < kChains; ++chain) {
    for (size_t lane = 0; lane < sizeof(Vector) / sizeof(Number); ++lane) loose += poison[chain][lane];
  }
  size_t place = best_block;
  while (place < count && !(values[place] == best)) ++place;
  if (place == count) place = 0;  // Nothing is larger than -inf.
  return {place < count ? static_cast<double>(values[place]) : static_cast<double>(best), place, loose == 0};
}

template <typename Number>
void ChunkMaxima(const Number* values, size_t count, double* maxima) {
  using Vector = typename VectorOf<Number>::Type;
  constexpr size_t kWidth = sizeof(Vector) / sizeof(Number);
  const size_t num_whole = count / kMaximaChunk;
  for (size_t chunk = 0; chunk < num_whole; ++chunk) {
    const Number* const first = values + chunk * kMaximaChunk;
    Vector largest = LoadVector<Vector>(first);
    for (size_t column = kWidth; column < kMaximaChunk; column += kWidth) {
      largest = Larger(largest, LoadVector<Vector>(first + column));
    }
    maxima[chunk] = static_cast<double>(LargestLane<Number>(largest));
  }
  if (num_whole * kMaximaChunk == count) return;
  Number largest = values[num_whole * kMaximaChunk];
  for (size_t column = num_whole * kMaximaChunk; column < count; ++column) {
    largest = values[column] > largest ? values[column] : largest;
  }
  maxima[num_whole] = static_cast<double>(largest);
}

}  // namespace

const SamplerLoops kSamplerLoops = {
    .largest_f32 = Largest<float>,
    .largest_f64 = Largest<double>,
    .widen = Widen,
    .divide = Divide,
    .weigh_f32 = Weigh<float>,
    .weigh_f64 = Weigh<double>,
    .chunk_maxima_f32 = ChunkMaxima<float>,
    .chunk_maxima_f64 = ChunkMaxima<double>,
};

}  // namespace PLAIT_TARGET
}  // namespace plait
