// Sampler: from a row of logits to a token and to log-probabilities, as docs/concepts/numerics.md "Sampling" says.
//
// Owns the rules and their order: bias, penalties, forbidden tokens, filters, the draw, what is reported. Passes over
// the vocabulary are ops/sampler_loops.h; steps, sequences and cancellation are runtime/'s. The Python twin is
// exec/reference/sampler.py. Invariant: a result is a function of the row's logits, parameters, counts and (seed,
// choice, position) alone; only the first `vocab_size` columns are read.

#ifndef PLAIT_CSRC_OPS_SAMPLER_H_
#define PLAIT_CSRC_OPS_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/sampler_counts.h"
#include "ops/sampler_loops.h"

namespace plait {

// Vocabulary columns summed together before the next block is added; part of the numerics contract.
inline constexpr size_t kColumnBlock = 4096;

// Temperatures up to this are greedy, as in core/sampling.py.
inline constexpr double kGreedyBelow = 1e-5;

enum class SampleStatus : uint8_t {
  kOk,
  kNotANumber,  // a logit is NaN or infinite
  kNoToken,     // bias, penalties and masks leave nothing to choose from
};

// How one token is to be chosen. Values lie in the ranges of core/sampling.py, token ids in the vocabulary; nothing is
// checked again. Whatever is pointed to is only read.
struct SampleRequest {
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::span<const std::pair<int32_t, double>> logit_bias = {};  // every token once
  const PenaltyCounts* counts = nullptr;    // of the tokens before; null where there are no penalties
  const uint8_t* allowed = nullptr;         // bit t, little-endian; null allows everything
  std::span<const int32_t> forbidden = {};  // end tokens, while fewer than min_tokens came
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint64_t position = 0;  // absolute, of the token to come
};

struct SampleOutcome {
  SampleStatus status = SampleStatus::kOk;
  int32_t token = 0;
};

struct TokenLogProbability {
  int32_t token = 0;
  double log_probability = 0.0;
};

// One for each worker: it holds what a row needs meanwhile, allocated once.
class Sampler {
 public:
  Sampler(const SamplerLoops& loops, size_t vocab_size);

  // Takes up a row, which must stay where it is until the next one; false if a logit is NaN or infinite. Then Sample
  // says so too, and Score must not be called.
  bool Load(const float* logits);

  // The token that follows the row.
  SampleOutcome Sample(const SampleRequest& request);

  // Natural log-probability of `token` by the logits as they are. Fills the first min(top.size(), vocab_size) of `top`
  // with the most likely tokens: descending, ties by lowest id.
  double Score(int32_t token, std::span<TokenLogProbability> top);

  size_t ScratchBytes() const;

 private:
  // The largest of the row's values once bias, penalties, masks and temperature have had their say, in values_.
  LargestValue Adjust(const SampleRequest& request, double divisor);
  void Penalize(const SampleRequest& request);
  void Mask(const uint8_t* allowed);

  // What may be drawn: all columns (is_dense_), or those that ids_ names, ascending. values_ and weights_ go along.
  void KeepAll();
  void KeepLikely(double least, size_t top_k);
  template <typename Number>
  void Gather(const Number* values, double least, bool use_maxima);
  double BoundOfLargest(size_t count);
  void KeepLargest(size_t count);
  void KeepNucleus(double top_p, double max);
  std::optional<size_t> CutByBuckets(double top_p, double max);
  double FillBuckets(size_t count, double max);
  size_t CutBySorting(double top_p);
  void KeepUpTo(size_t last);

  // Lists of positions among the kept, in order_.
  void ListAll();
  size_t ListFrom(double least);
  void SortByValue(size_t count);
  bool ComesBefore(int32_t left, int32_t right) const;

  int32_t Draw(double uniform);
  double SumBlocks();
  double SumOf(size_t begin, size_t end) const;
  int32_t IdOf(size_t at) const { return is_dense_ ? static_cast<int32_t>(at) : ids_[at]; }

  const SamplerLoops& loops_;
  const size_t vocab_size_;
  const float* logits_ = nullptr;
  LargestValue largest_ = {};
  std::optional<double> log_total_;  // of the loaded row

  size_t num_kept_ = 0;
  bool is_dense_ = true;
  std::vector<double> values_;
  std::vector<double> weights_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> order_;
  std::vector<double> maxima_;  // of chunks of columns
  std::vector<double> sorted_maxima_;
  std::vector<double> buckets_;
  std::vector<size_t> block_ends_;  // behind the last kept column of each block
  std::vector<double> block_sums_;
};

}  // namespace plait

#endif  // PLAIT_CSRC_OPS_SAMPLER_H_
