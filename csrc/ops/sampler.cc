// Sampler: the rules of docs/concepts/numerics.md "Sampling", one function each.
//
// Owns selection and sums; whole passes over a row are loops of a target. Invariant: wherever a shortcut is taken
// (bounds from chunk maxima, sums by bucket, blocks summed side by side), what comes out is what the definition gives,
// bit for bit: a shortcut that cannot tell falls back to the definition.

#include "ops/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "ops/sampler_math.h"

namespace plait {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Up to here sorting everything is quicker than a pass over the buckets.
constexpr size_t kSortAll = 512;

// Buckets of top_p: distances from the maximum in steps of 1/32, up to 64. What is further has a weight below 2e-28.
constexpr size_t kNumBuckets = 2048;
constexpr double kBucketsPerUnit = 32.0;

// Where top_p looks first: tokens at least e^-10 = 1/22,000 as likely as the likeliest.
constexpr double kNear = 10.0;

size_t BucketOf(double value, double max) {
  const double distance = (max - value) * kBucketsPerUnit;
  return distance < static_cast<double>(kNumBuckets - 1) ? static_cast<size_t>(distance) : kNumBuckets - 1;
}

size_t DivideUp(size_t count, size_t by) { return (count + by - 1) / by; }

}  // namespace

Sampler::Sampler(const SamplerLoops& loops, size_t vocab_size)
    : loops_(loops),
      vocab_size_(vocab_size),
      values_(vocab_size),
      weights_(vocab_size),
      ids_(vocab_size),
      order_(vocab_size),
      maxima_(DivideUp(vocab_size, kMaximaChunk)),
      sorted_maxima_(maxima_.size()),
      buckets_(kNumBuckets),
      block_ends_(DivideUp(vocab_size, kColumnBlock)),
      block_sums_(block_ends_.size()) {
  assert(vocab_size > 0);
}

size_t Sampler::ScratchBytes() const {
  return sizeof(double) * (values_.size() + weights_.size() + 2 * maxima_.size() + buckets_.size()) +
         sizeof(int32_t) * (ids_.size() + order_.size()) + (sizeof(double) + sizeof(size_t)) * block_ends_.size();
}

bool Sampler::Load(const float* logits) {
  logits_ = logits;
  log_total_.reset();
  largest_ = loops_.largest_f32(logits, vocab_size_);
  return largest_.is_finite;
}

SampleOutcome Sampler::Sample(const SampleRequest& request) {
  if (!largest_.is_finite) return {SampleStatus::kNotANumber, 0};
  const bool is_greedy = request.temperature <= kGreedyBelow;
  const LargestValue largest = Adjust(request, is_greedy ? 1.0 : request.temperature);
  // Every token is forbidden, or an extreme penalty went beyond every number.
  if (!std::isfinite(largest.value)) return {SampleStatus::kNoToken, 0};
  if (is_greedy) return {SampleStatus::kOk, static_cast<int32_t>(largest.column)};

  KeepAll();
  const size_t top_k = request.top_k > 0 ? static_cast<size_t>(request.top_k) : vocab_size_;
  if (request.min_p > 0.0 || top_k < vocab_size_) {
    KeepLikely(request.min_p > 0.0 ? largest.value + NaturalLog(request.min_p) : -kInfinity, top_k);
  }
  loops_.weigh_f64(values_.data(), num_kept_, largest.value, weights_.data());
  if (request.top_p < 1.0) KeepNucleus(request.top_p, largest.value);
  return {SampleStatus::kOk, Draw(PhiloxUniform(request.seed, request.choice, request.position, 0))};
}

LargestValue Sampler::Adjust(const SampleRequest& request, double divisor) {
  const bool is_adjusted = !request.logit_bias.empty() || request.counts != nullptr || request.allowed != nullptr ||
                           !request.forbidden.empty();
  if (!is_adjusted) {
    if (request.temperature <= kGreedyBelow) return largest_;
    loops_.widen(logits_, vocab_size_, divisor, values_.data());
    return {largest_.value / divisor, largest_.column, true};  // Division keeps the order of values.
  }
  loops_.widen(logits_, vocab_size_, 1.0, values_.data());
  for (const auto& [token, bias] : request.logit_bias) values_[token] += bias;
  if (request.counts != nullptr) Penalize(request);
  if (request.allowed != nullptr) Mask(request.allowed);
  for (const int32_t token : request.forbidden) values_[token] = -kInfinity;
  if (divisor != 1.0) loops_.divide(values_.data(), vocab_size_, divisor);
  return loops_.largest_f64(values_.data(), vocab_size_);
}

void Sampler::Penalize(const SampleRequest& request) {
  const double factor = request.repetition_penalty;
  for (const PenaltyCounts::Entry& entry : request.counts->entries()) {
    if (entry.num_prompt == 0 && entry.num_output == 0) continue;
    double& value = values_[entry.token];
    value = value > 0.0 ? value / factor : value * factor;
    if (entry.num_output == 0) continue;
    value -= request.frequency_penalty * static_cast<double>(entry.num_output) + request.presence_penalty;
  }
}

void Sampler::Mask(const uint8_t* allowed) {
  for (size_t first = 0; first < vocab_size_; first += 8) {
    const unsigned bits = allowed[first / 8];
    if (bits == 0xFF) continue;
    const size_t end = std::min(first + 8, vocab_size_);
    for (size_t column = first; column < end; ++column) {
      if ((bits >> (column - first) & 1) == 0) values_[column] = -kInfinity;
    }
  }
}

// What may be drawn

void Sampler::KeepAll() {
  is_dense_ = true;
  num_kept_ = vocab_size_;
}

void Sampler::KeepLikely(double least, size_t top_k) {
  const bool use_maxima = least > -kInfinity || top_k < maxima_.size();
  if (use_maxima) loops_.chunk_maxima_f64(values_.data(), vocab_size_, maxima_.data());
  if (top_k < maxima_.size()) least = std::max(least, BoundOfLargest(top_k));
  Gather(values_.data(), least, use_maxima);
  if (top_k < num_kept_) KeepLargest(top_k);
}

// A value that the `count` largest columns reach: that many chunks have a column that does.
double Sampler::BoundOfLargest(size_t count) {
  std::copy(maxima_.begin(), maxima_.end(), sorted_maxima_.begin());
  const auto place = sorted_maxima_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(sorted_maxima_.begin(), place, sorted_maxima_.end(), std::greater<>());
  return *place;
}

// Keeps the columns that reach `least` and are not forbidden. Writing to values_ never overtakes reading.
template <typename Number>
void Sampler::Gather(const Number* values, double least, bool use_maxima) {
  least = std::max(least, std::numeric_limits<double>::lowest());
  num_kept_ = 0;
  is_dense_ = false;
  for (size_t first = 0; first < vocab_size_; first += kMaximaChunk) {
    if (use_maxima && maxima_[first / kMaximaChunk] < least) continue;
    const size_t end = std::min(first + kMaximaChunk, vocab_size_);
    for (size_t column = first; column < end; ++column) {
      const double value = static_cast<double>(values[column]);
      // Without a branch: about the threshold no processor could foretell it.
      ids_[num_kept_] = static_cast<int32_t>(column);
      values_[num_kept_] = value;
      num_kept_ += value >= least ? 1 : 0;
    }
  }
}

bool Sampler::ComesBefore(int32_t left, int32_t right) const {
  return values_[left] > values_[right] || (values_[left] == values_[right] && left < right);
}

void Sampler::ListAll() {
  for (size_t at = 0; at < num_kept_; ++at) order_[at] = static_cast<int32_t>(at);
}

// Positions of values that reach `least`, ascending; how many there are. maxima_ are those of the row if it is dense.
size_t Sampler::ListFrom(double least) {
  size_t count = 0;
  for (size_t first = 0; first < num_kept_; first += kMaximaChunk) {
    if (is_dense_ && maxima_[first / kMaximaChunk] < least) continue;
    const size_t end = std::min(first + kMaximaChunk, num_kept_);
    for (size_t at = first; at < end; ++at) {
      order_[count] = static_cast<int32_t>(at);
      count += values_[at] >= least ? 1 : 0;
    }
  }
  return count;
}

void Sampler::SortByValue(size_t count) {
  std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count),
            [this](int32_t left, int32_t right) { return ComesBefore(left, right); });
}

void Sampler::KeepLargest(size_t count) {
  assert(0 < count && count < num_kept_);
  ListAll();
  const auto place = order_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(order_.begin(), place, order_.begin() + static_cast<std::ptrdiff_t>(num_kept_),
                   [this](int32_t left, int32_t right) { return ComesBefore(left, right); });
  KeepUpTo(static_cast<size_t>(*place));
}

// Keeps what is not behind position `last` in the order by value.
void Sampler::KeepUpTo(size_t last) {
  const double value = values_[last];
  const size_t num_listed = ListFrom(value);
  size_t num_kept = 0;
  for (size_t listed = 0; listed < num_listed; ++listed) {
    const auto at = static_cast<size_t>(order_[listed]);
    if (values_[at] == value && at > last) continue;
    ids_[num_kept] = IdOf(at);
    values_[num_kept] = values_[at];
    weights_[num_kept] = weights_[at];
    ++num_kept;
  }
  num_kept_ = num_kept;
  is_dense_ = false;
}

void Sampler::KeepNucleus(double top_p, double max) {
  if (is_dense_) loops_.chunk_maxima_f64(values_.data(), vocab_size_, maxima_.data());
  std::optional<size_t> last;
  if (num_kept_ > kSortAll) last = CutByBuckets(top_p, max);
  KeepUpTo(last ? *last : CutBySorting(top_p));
}

// The definition: running sums in descending order, and the first that reaches top_p times the last.
size_t Sampler::CutBySorting(double top_p) {
  ListAll();
  SortByValue(num_kept_);
  double total = 0.0;
  for (size_t at = 0; at < num_kept_; ++at) total += weights_[order_[at]];
  const double target = top_p * total;
  double running = 0.0;
  size_t at = 0;
  for (; at + 1 < num_kept_; ++at) {
    running += weights_[order_[at]];
    if (running >= target) break;
  }
  return static_cast<size_t>(order_[at]);
}

// The same cut from sums in another order, with only one bucket sorted. Nothing where these sums cannot tell: where a
// running sum lies so close to the target that rounding could decide.
std::optional<size_t> Sampler::CutByBuckets(double top_p, double max) {
  const double total = SumBlocks();
  const double target = top_p * total;
  // Both running sums and both totals are sums of at most num_kept_ terms, so each is less than num_kept_ * 2^-53 of
  // the total away from the exact one. Twice the four of them leaves room for the products.
  const double tolerance = 8.0 * static_cast<double>(num_kept_) * 0x1p-53 * total;
  size_t num_listed = ListFrom(max - kNear);
  if (FillBuckets(num_listed, max) < target + tolerance) {
    ListAll();
    num_listed = num_kept_;
    FillBuckets(num_listed, max);
  }

  double running = 0.0;
  size_t bucket = 0;
  while (bucket < kNumBuckets && running + buckets_[bucket] < target - tolerance) running += buckets_[bucket++];
  size_t count = 0;
  for (size_t listed = 0; listed < num_listed; ++listed) {
    const int32_t at = order_[listed];
    order_[count] = at;
    count += BucketOf(values_[at], max) == bucket ? 1 : 0;
  }
  SortByValue(count);
  for (size_t at = 0; at < count; ++at) {
    running += weights_[order_[at]];
    if (running < target - tolerance) continue;
    if (running <= target + tolerance) return std::nullopt;
    return static_cast<size_t>(order_[at]);
  }
  return std::nullopt;
}

// Sums the weights of the first `count` listed positions by bucket; returns the sum of all.
double Sampler::FillBuckets(size_t count, double max) {
  std::fill(buckets_.begin(), buckets_.end(), 0.0);
  for (size_t listed = 0; listed < count; ++listed) {
    const int32_t at = order_[listed];
    buckets_[BucketOf(values_[at], max)] += weights_[at];
  }
  double sum = 0.0;
  for (const double bucket : buckets_) sum += bucket;
  return sum;
}

// Sums and draws

// Sums the weights of each block of columns in a chain of its own, and returns the sum of the blocks in order.
double Sampler::SumBlocks() {
  const size_t num_blocks = block_ends_.size();
  size_t at = 0;
  for (size_t block = 0; block < num_blocks; ++block) {
    const size_t behind = std::min((block + 1) * kColumnBlock, vocab_size_);
    if (is_dense_) {
      at = behind;
    } else {
      while (at < num_kept_ && static_cast<size_t>(ids_[at]) < behind) ++at;
    }
    block_ends_[block] = at;
  }

  size_t block = 0;
  // An addition waits for the one before it: four blocks side by side take the time of one.
  for (; is_dense_ && (block + 4) * kColumnBlock <= vocab_size_; block += 4) {
    const double* const weights = weights_.data() + block * kColumnBlock;
    double sums[4] = {};
    for (size_t column = 0; column < kColumnBlock; ++column) {
      sums[0] += weights[column];
      sums[1] += weights[column + kColumnBlock];
      sums[2] += weights[column + 2 * kColumnBlock];
      sums[3] += weights[column + 3 * kColumnBlock];
    }
    std::copy(sums, sums + 4, block_sums_.begin() + static_cast<std::ptrdiff_t>(block));
  }
  for (; block < num_blocks; ++block)
    block_sums_[block] = SumOf(block == 0 ? 0 : block_ends_[block - 1], block_ends_[block]);

  double total = 0.0;
  for (const double sum : block_sums_) total += sum;
  return total;
}

double Sampler::SumOf(size_t begin, size_t end) const {
  double sum = 0.0;
  for (size_t at = begin; at < end; ++at) sum += weights_[at];
  return sum;
}

// The first token at which the running sum of weights exceeds `uniform` times their total.
int32_t Sampler::Draw(double uniform) {
  const double target = uniform * SumBlocks();
  double before = 0.0;
  for (size_t block = 0; block < block_ends_.size(); ++block) {
    if (before + block_sums_[block] <= target) {
      before += block_sums_[block];
      continue;
    }
    double chain = 0.0;
    for (size_t at = block == 0 ? 0 : block_ends_[block - 1]; at < block_ends_[block]; ++at) {
      chain += weights_[at];
      if (before + chain > target) return IdOf(at);
    }
  }
  // The product was rounded up to the total: the last token that is kept.
  size_t at = num_kept_ - 1;
  while (at > 0 && values_[at] == -kInfinity) --at;
  return IdOf(at);
}

double Sampler::Score(int32_t token, std::span<TokenLogProbability> top) {
  assert(largest_.is_finite);
  if (!log_total_) {
    loops_.weigh_f32(logits_, vocab_size_, largest_.value, weights_.data());
    KeepAll();
    log_total_ = largest_.value + NaturalLog(SumBlocks());
  }
  const size_t num_top = std::min(top.size(), vocab_size_);
  if (num_top > 0) {
    const bool use_maxima = num_top < maxima_.size();
    if (use_maxima) loops_.chunk_maxima_f32(logits_, vocab_size_, maxima_.data());
    Gather(logits_, use_maxima ? BoundOfLargest(num_top) : -kInfinity, use_maxima);
    if (num_top < num_kept_) KeepLargest(num_top);
    for (size_t at = 0; at < num_top; ++at) order_[at] = static_cast<int32_t>(at);
    SortByValue(num_top);
  }
  for (size_t at = 0; at < num_top; ++at) {
    top[at] = {ids_[order_[at]], values_[order_[at]] - *log_total_};
  }
  return static_cast<double>(logits_[token]) - *log_total_;
}

}  // namespace plait
