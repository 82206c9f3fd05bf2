// Tests of the sampler: loops of every target against scalar code, the whole against the definition, rule by rule.
//
// Owns a second, plain sampler that sorts everything and sums column by column. Says nothing about speed.
// Invariant: comparisons are of bits, except where a mathematical function is measured against a wider type.

#include "ops/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/philox.h"
#include "base/testing.h"
#include "ops/sampler_math.h"

namespace plait {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kVocab = 49152;
// Around the widths of vectors, groups of vectors, chunks and blocks.
constexpr size_t kSizes[] = {1,  2,  3,  5,  7,    8,    9,    15,   16,   17,   31,   32,
                             33, 63, 64, 65, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 8200};

using Bias = std::vector<std::pair<int32_t, double>>;

const SamplerLoops& LoopsOf(Target target) {
#if defined(__x86_64__)
  if (target == Target::kAvx2) return avx2::kSamplerLoops;
  if (target == Target::kAvx512) return avx512::kSamplerLoops;
#endif
  static_cast<void>(target);
  return baseline::kSamplerLoops;
}

std::vector<const SamplerLoops*> AllLoops() {
  std::vector<const SamplerLoops*> all;
  for (const Target target : SupportedTargets()) all.push_back(&LoopsOf(target));
  return all;
}

bool SameBits(const std::vector<double>& left, const std::vector<double>& right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size() * sizeof(double)) == 0;
}

// Logits as a model gives them, then NaN: tables are padded, and nobody may look there.
struct PaddedRow {
  PaddedRow(size_t count, unsigned seed, float width, bool coarse = false) : size(count), storage(count + 80, kNan) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);  // not of `width`, which may be 0
    for (size_t at = 0; at < count; ++at) {
      const float value = width * normal(generator);
      z()[at] = coarse ? std::nearbyint(value * 4.0f) / 4.0f : value;  // coarse: most values are shared
    }
  }
  // An odd place, so that no vector is aligned.
  float* z() { return storage.data() + 1; }
  const float* z() const { return storage.data() + 1; }

  size_t size;
  std::vector<float> storage;
};

PaddedRow RowOf(const std::vector<float>& values) {
  PaddedRow row(values.size(), 0, 1.0f);
  std::copy(values.begin(), values.end(), row.z());
  return row;
}

// Scalar twins of the loops

double ScalarExp(double x) {
  if (x < kLeastExponent) return 0.0;
  const double exponent = std::nearbyint(x * 0x1.71547652b82fep0);
  const double high = x - exponent * 0x1.62e42feep-1;
  const double low = exponent * 0x1.a39ef35793c76p-33;
  const double r = high - low;
  const double lost = (high - r) - low;
  const double c[] = {0x1.0000000000000p-1,  0x1.5555555555557p-3,  0x1.5555555555556p-5,  0x1.11111111100dcp-7,
                      0x1.6c16c16c162d4p-10, 0x1.a01a01abe7fe1p-13, 0x1.a01a01a6d889cp-16, 0x1.71de0231960ebp-19,
                      0x1.27e4db646b17ep-22, 0x1.af4de97ca4194p-26, 0x1.1f730349868cep-29};
  const double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
  const double series =
      (((c[0] + c[1] * r) + (c[2] + c[3] * r) * r2) + ((c[4] + c[5] * r) + (c[6] + c[7] * r) * r2) * r4) +
      ((c[8] + c[9] * r) + c[10] * r2) * r8;
  return std::ldexp(1.0 + (r + (lost + r2 * series)), static_cast<int>(exponent));
}

template <typename Number>
LargestValue ScalarLargest(const std::vector<Number>& values) {
  LargestValue largest = {static_cast<double>(values[0]), 0, true};
  for (size_t at = 0; at < values.size(); ++at) {
    if (!std::isfinite(values[at])) largest.is_finite = false;
    if (values[at] > largest.value) largest = {values[at], at, largest.is_finite};
  }
  return largest;
}

void CheckLargest(const LargestValue& given, const LargestValue& expected) {
  CHECK_EQ(given.is_finite, expected.is_finite);
  CHECK_EQ(given.value, expected.value);
  CHECK_EQ(given.column, expected.column);
}

// The definition, without a shortcut

struct Definition {
  const float* z;
  size_t count;
  const SampleRequest& request;
  std::vector<double> y = {};
  std::vector<char> kept = {};

  SampleOutcome Answer() {
    for (size_t t = 0; t < count; ++t) {
      if (!std::isfinite(z[t])) return {SampleStatus::kNotANumber, 0};
    }
    Adjust();
    const bool is_greedy = request.temperature <= 1e-5;
    if (!is_greedy) {
      for (double& value : y) value /= request.temperature;
    }
    const auto largest = std::max_element(y.begin(), y.end());  // the first of them
    if (!std::isfinite(*largest)) return {SampleStatus::kNoToken, 0};
    if (is_greedy) return {SampleStatus::kOk, static_cast<int32_t>(largest - y.begin())};
    Filter(*largest);
    return {SampleStatus::kOk, Draw(*largest)};
  }

  void Adjust() {
    y.assign(z, z + count);
    for (const auto& [token, bias] : request.logit_bias) y[token] += bias;
    if (request.counts != nullptr) {
      for (const auto& entry : request.counts->entries()) {
        double& value = y[entry.token];
        if (entry.num_prompt + entry.num_output > 0) {
          value = value > 0 ? value / request.repetition_penalty : value * request.repetition_penalty;
        }
        if (entry.num_output > 0) value -= request.frequency_penalty * entry.num_output + request.presence_penalty;
      }
    }
    for (size_t t = 0; request.allowed != nullptr && t < count; ++t) {
      if (!(request.allowed[t / 8] >> (t % 8) & 1)) y[t] = -kInf;
    }
    for (const int32_t token : request.forbidden) y[token] = -kInf;
  }

  std::vector<size_t> Descending() const {
    std::vector<size_t> order;
    for (size_t t = 0; t < count; ++t) {
      if (kept[t]) order.push_back(t);
    }
    std::stable_sort(order.begin(), order.end(), [this](size_t left, size_t right) { return y[left] > y[right]; });
    return order;
  }

  void KeepFirst(const std::vector<size_t>& order, size_t num_first) {
    std::fill(kept.begin(), kept.end(), 0);
    for (size_t at = 0; at < std::min(num_first, order.size()); ++at) kept[order[at]] = 1;
  }

  void Filter(double max) {
    kept.resize(count);
    for (size_t t = 0; t < count; ++t) {
      kept[t] = std::isfinite(y[t]) && (request.min_p == 0.0 || y[t] >= max + NaturalLog(request.min_p));
    }
    if (request.top_k > 0) KeepFirst(Descending(), request.top_k);
    if (request.top_p >= 1.0) return;
    const std::vector<size_t> order = Descending();
    double total = 0.0, running = 0.0;
    for (const size_t t : order) total += ScalarExp(y[t] - max);
    size_t num_first = 0;
    while (num_first < order.size()) {
      running += ScalarExp(y[order[num_first++]] - max);
      if (running >= request.top_p * total) break;
    }
    KeepFirst(order, num_first);
  }

  int32_t Draw(double max) const {
    std::vector<double> running(count);
    double before = 0.0;
    for (size_t first = 0; first < count; first += 4096) {
      double chain = 0.0;
      for (size_t t = first; t < std::min(first + 4096, count); ++t) {
        chain += kept[t] ? ScalarExp(y[t] - max) : 0.0;
        running[t] = before + chain;
      }
      before = running[std::min(first + 4096, count) - 1];
    }
    const double target = PhiloxUniform(request.seed, request.choice, request.position, 0) * before;
    size_t last = 0;
    for (size_t t = 0; t < count; ++t) {
      if (running[t] > target) return static_cast<int32_t>(t);
      if (kept[t]) last = t;
    }
    return static_cast<int32_t>(last);
  }
};

// Every target's answer, which must be that of the definition.
SampleOutcome Sampled(const PaddedRow& row, const SampleRequest& request) {
  const SampleOutcome expected = Definition{row.z(), row.size, request}.Answer();
  for (const SamplerLoops* const loops : AllLoops()) {
    Sampler sampler(*loops, row.size);
    CHECK_EQ(sampler.Load(row.z()), expected.status != SampleStatus::kNotANumber);
    const SampleOutcome outcome = sampler.Sample(request);
    CHECK(outcome.status == expected.status);
    CHECK_EQ(outcome.token, expected.token);
  }
  return expected;
}

int32_t TokenOf(const std::vector<float>& logits, const SampleRequest& request) {
  const SampleOutcome outcome = Sampled(RowOf(logits), request);
  CHECK(outcome.status == SampleStatus::kOk);
  return outcome.token;
}

SampleRequest Greedy() {
  SampleRequest request;
  request.temperature = 0.0;
  return request;
}

PenaltyCounts CountsOf(const std::vector<int32_t>& history, size_t num_prompt) {
  PenaltyCounts counts;
  counts.Rebuild(history, num_prompt);
  return counts;
}

std::map<int32_t, int> DrawnFrom(const std::vector<float>& logits, SampleRequest request) {
  const PaddedRow row = RowOf(logits);
  Sampler sampler(LoopsOf(BestTarget()), row.size);
  sampler.Load(row.z());
  std::map<int32_t, int> times;
  for (request.seed = 0; request.seed < 400; ++request.seed) ++times[sampler.Sample(request).token];
  return times;
}

std::vector<float> Likely(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double probability : probabilities) logits.push_back(static_cast<float>(std::log(probability) + 3.0));
  return logits;
}

std::vector<int32_t> TokensOf(const std::map<int32_t, int>& times) {
  std::vector<int32_t> tokens;
  for (const auto& [token, count] : times) tokens.push_back(token);
  return tokens;
}

double UlpsOff(double given, long double exact) {
  int exponent = 0;
  std::frexp(static_cast<double>(exact), &exponent);
  return static_cast<double>(std::fabs(static_cast<long double>(given) - exact) / std::ldexp(1.0L, exponent - 53));
}

}  // namespace

// Loops

TEST(LargestOfEverySizeAndPlaceIsThatOfAScalarLoop) {
  for (const SamplerLoops* const loops : AllLoops()) {
    for (const size_t size : kSizes) {
      for (const bool coarse : {false, true}) {
        const PaddedRow row(size, static_cast<unsigned>(size), 2.0f, coarse);
        const std::vector<float> z(row.z(), row.z() + size);
        const std::vector<double> y(z.begin(), z.end());
        CheckLargest(loops->largest_f32(row.z(), size), ScalarLargest(z));
        CheckLargest(loops->largest_f64(y.data(), size), ScalarLargest(y));
      }
    }
  }
}

TEST(EqualLargestValuesGiveTheLowestColumn) {
  for (const SamplerLoops* const loops : AllLoops()) {
    for (size_t first = 0; first < 2100; first += 13) {
      std::vector<float> z(2100, -1.0f);
      z[first] = z[2099] = z[(first + 2099) / 2] = -0.0f;
      if (first + 1 < z.size()) z[first + 1] = 0.0f;  // equal to -0
      CHECK_EQ(loops->largest_f32(z.data(), z.size()).column, first);
      const std::vector<double> y(z.begin(), z.end());
      CHECK_EQ(loops->largest_f64(y.data(), y.size()).column, first);
    }
  }
}

TEST(ANumberThatIsNoneIsSeenInEveryColumn) {
  for (const SamplerLoops* const loops : AllLoops()) {
    for (const float bad : {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      for (size_t column = 0; column < 2060; ++column) {
        std::vector<float> z(2060, 3e38f);
        CHECK(column > 0 || loops->largest_f32(z.data(), z.size()).is_finite);
        z[column] = bad;
        CHECK(!loops->largest_f32(z.data(), z.size()).is_finite);
      }
    }
  }
}

TEST(WhereEverythingIsForbiddenTheLargestIsMinusInfinity) {
  for (const SamplerLoops* const loops : AllLoops()) {
    for (const size_t size : {1, 9, 1024, 3000}) {
      const std::vector<double> y(size, -kInf);
      CheckLargest(loops->largest_f64(y.data(), size), {-kInf, 0, false});
    }
  }
}

TEST(ElementwiseLoopsGiveTheBitsOfScalarCode) {
  for (const SamplerLoops* const loops : AllLoops()) {
    for (const size_t size : kSizes) {
      const PaddedRow row(size, static_cast<unsigned>(size) + 7, 9.0f);
      std::vector<double> expected(size), given(size);
      for (const double divisor : {1.0, 0.7, 1e-4}) {
        for (size_t at = 0; at < size; ++at) expected[at] = static_cast<double>(row.z()[at]) / divisor;
        loops->widen(row.z(), size, divisor, given.data());
        CHECK(SameBits(given, expected));
        std::vector<double> in_place(row.z(), row.z() + size);
        loops->divide(in_place.data(), size, divisor);
        CHECK(SameBits(in_place, expected));
      }
      const double max = 60.0;
      for (size_t at = 0; at < size; ++at) expected[at] = ScalarExp(static_cast<double>(row.z()[at]) - max);
      loops->weigh_f32(row.z(), size, max, given.data());
      CHECK(SameBits(given, expected));
      const std::vector<double> y(row.z(), row.z() + size);
      loops->weigh_f64(y.data(), size, max, given.data());
      CHECK(SameBits(given, expected));
    }
  }
}

TEST(ChunkMaximaAreThoseOfTheirColumns) {
  for (const SamplerLoops* const loops : AllLoops()) {
    for (const size_t size : kSizes) {
      const PaddedRow row(size, static_cast<unsigned>(size) + 3, 2.0f);
      std::vector<double> y(row.z(), row.z() + size), expected;
      if (size > 2) y[size - 1] = y[0] = -kInf;
      for (size_t first = 0; first < size; first += kMaximaChunk) {
        expected.push_back(*std::max_element(y.begin() + first, y.begin() + std::min(first + kMaximaChunk, size)));
      }
      std::vector<double> given(expected.size());
      loops->chunk_maxima_f64(y.data(), size, given.data());
      CHECK(SameBits(given, expected));
      const std::vector<float> narrow(y.begin(), y.end());
      loops->chunk_maxima_f32(narrow.data(), size, given.data());
      CHECK(SameBits(given, expected));
    }
  }
}

TEST(TheExponentialIsWithinOneUlpEverywhere) {
  std::mt19937_64 generator(11);
  std::uniform_real_distribution<double> wide(-708.0, 0.0), near(-3.0, 0.0);
  std::vector<double> x = {0.0, -0.0, -1e-300, -5e-324, -708.0, -1e-17, -0.34657359027997264, -0.34657359027997270};
  for (int at = 0; at < 100000; ++at) x.push_back(at % 2 == 0 ? wide(generator) : near(generator));
  for (const SamplerLoops* const loops : AllLoops()) {
    std::vector<double> given(x.size());
    loops->weigh_f64(x.data(), x.size(), 0.0, given.data());
    double worst = 0.0;
    for (size_t at = 0; at < x.size(); ++at) {
      worst = std::max(worst, UlpsOff(given[at], std::exp(static_cast<long double>(x[at]))));
    }
    CHECK(worst < 1.0);
    CHECK_EQ(given[0], 1.0);
    CHECK_EQ(given[2], 1.0);
  }
}

TEST(WhatIsTooUnlikelyWeighsNothing) {
  for (const SamplerLoops* const loops : AllLoops()) {
    const std::vector<double> x = {-708.0001, -1e9, -1e308, -kInf, -708.0};
    std::vector<double> given(x.size());
    loops->weigh_f64(x.data(), x.size(), 0.0, given.data());
    for (size_t at = 0; at < 4; ++at) CHECK_EQ(given[at], 0.0);
    CHECK(given[4] >= std::numeric_limits<double>::min());
  }
}

TEST(TheLogarithmIsWithinOneUlpEverywhere) {
  std::mt19937_64 generator(12);
  std::uniform_real_distribution<double> exponents(-700.0, 700.0), near(0.5, 2.0);
  std::vector<double> x = {
      1.0, 5e-324, 1e-310, std::numeric_limits<double>::max(), 0.7071067811865475, 0.7071067811865476};
  for (int at = 0; at < 100000; ++at) x.push_back(at % 2 == 0 ? std::exp(exponents(generator)) : near(generator));
  double worst = 0.0;
  for (const double one : x) {
    if (one != 1.0) worst = std::max(worst, UlpsOff(NaturalLog(one), std::log(static_cast<long double>(one))));
  }
  CHECK(worst < 1.0);
  CHECK_EQ(NaturalLog(1.0), 0.0);
}

// Penalty counts

TEST(CountsAreThoseOfTheTokensAddedAndNotRemoved) {
  std::mt19937 generator(13);
  PenaltyCounts counts;
  std::map<int32_t, std::pair<uint32_t, uint32_t>> expected;
  std::vector<std::pair<int32_t, bool>> added;
  for (int step = 0; step < 20000; ++step) {
    if (!added.empty() && generator() % 3 == 0) {
      const auto [token, is_output] = added.back();
      added.pop_back();
      counts.Remove(token, is_output);
      --(is_output ? expected[token].second : expected[token].first);
    } else {
      added.emplace_back(static_cast<int32_t>(generator() % 3000) * 16, generator() % 2 == 0);
      counts.Add(added.back().first, added.back().second);
      ++(added.back().second ? expected[added.back().first].second : expected[added.back().first].first);
    }
  }
  CHECK_EQ(counts.entries().size(), expected.size());
  for (const auto& entry : counts.entries()) {
    CHECK_EQ(entry.num_prompt, expected[entry.token].first);
    CHECK_EQ(entry.num_output, expected[entry.token].second);
  }
}

TEST(RebuiltCountsKnowNothingOfWhatWasBefore) {
  PenaltyCounts counts = CountsOf({9, 9, 9}, 0);
  counts.Rebuild(std::vector<int32_t>{1, 2, 1, 1}, 2);
  CHECK_EQ(counts.entries().size(), size_t{2});
  CHECK_EQ(counts.entries()[0].token, 1);
  CHECK_EQ(counts.entries()[0].num_prompt, 1u);
  CHECK_EQ(counts.entries()[0].num_output, 2u);
  CHECK_EQ(counts.entries()[1].num_output, 0u);
}

// Rules, one by one

TEST(GreedyTakesTheLargestAndAmongEqualsTheLowestId) {
  CHECK_EQ(TokenOf({1, 5, 3, 5}, Greedy()), 1);
  SampleRequest request = Greedy();
  request.temperature = 1e-5;
  CHECK_EQ(TokenOf({1, 5, 3, 5}, request), 1);
}

TEST(BiasComesBeforeTheRepetitionPenaltyAndThatBeforeTheOthers) {
  const Bias bias = {{0, 6.0}};
  const PenaltyCounts prompt = CountsOf({0}, 1), output = CountsOf({0}, 0);
  SampleRequest request = Greedy();
  request.repetition_penalty = 2.0;
  request.logit_bias = bias;
  request.counts = &prompt;
  CHECK_EQ(TokenOf({2, 5}, request), 1);  // (2 + 6) / 2 = 4 < 5
  request.logit_bias = {};
  request.counts = &output;
  request.presence_penalty = 1.2;
  CHECK_EQ(TokenOf({8, 2.9f}, request), 1);  // 8 / 2 - 1.2 < 2.9
  CHECK_EQ(TokenOf({8, 2.7f}, request), 0);
  CHECK_EQ(TokenOf({-1, -3.3f}, request), 0);  // -1 * 2 - 1.2 = -3.2
  CHECK_EQ(TokenOf({-1, -3.1f}, request), 1);
}

TEST(FrequencyCountsEveryOutputTokenPresenceOnceAndThePromptNever) {
  const PenaltyCounts counts = CountsOf({1, 1, 1, 0, 0, 0}, 3);
  SampleRequest request = Greedy();
  request.counts = &counts;
  request.frequency_penalty = 1.0;
  CHECK_EQ(TokenOf({5, 2.1f}, request), 1);
  CHECK_EQ(TokenOf({5, 1.9f}, request), 0);
  request.frequency_penalty = 0.0;
  request.presence_penalty = 1.0;
  CHECK_EQ(TokenOf({5, 4.1f}, request), 1);
  CHECK_EQ(TokenOf({5, 3.9f}, request), 0);
  request.presence_penalty = -2.0;
  CHECK_EQ(TokenOf({3, 4.9f}, request), 0);
}

TEST(TokensTakenBackArePenalizedNoMore) {
  PenaltyCounts counts = CountsOf({0}, 0);
  SampleRequest request = Greedy();
  request.counts = &counts;
  request.repetition_penalty = 4.0;
  CHECK_EQ(TokenOf({5, 4}, request), 1);
  counts.Remove(0, true);
  CHECK_EQ(TokenOf({5, 4}, request), 0);
}

TEST(MasksAndEndTokensForbidAndNoBiasBringsThemBack) {
  const Bias bias = {{8, 100.0}};
  const std::vector<uint8_t> mask = {0b00010010, 0b0};
  const std::vector<int32_t> ends = {4};
  std::vector<float> logits(12);
  std::iota(logits.begin(), logits.end(), 0.0f);
  SampleRequest request = Greedy();
  request.allowed = mask.data();
  request.logit_bias = bias;
  CHECK_EQ(TokenOf(logits, request), 4);
  request.forbidden = ends;
  CHECK_EQ(TokenOf(logits, request), 1);
}

TEST(ASingleAllowedTokenIsDrawnWhateverTheFilters) {
  for (const size_t token : {size_t{0}, size_t{4095}, size_t{4096}, size_t{8199}}) {
    const PaddedRow row(8200, 21, 3.0f);
    std::vector<uint8_t> mask(1025);
    mask[token / 8] = static_cast<uint8_t>(1 << token % 8);
    for (const int32_t top_k : {0, 1, 40, 5000}) {
      for (const double top_p : {1.0, 0.5, 1e-9}) {
        for (const double min_p : {0.0, 1.0}) {
          SampleRequest request;
          request.allowed = mask.data();
          request.top_k = top_k;
          request.top_p = top_p;
          request.min_p = min_p;
          CHECK_EQ(Sampled(row, request).token, static_cast<int32_t>(token));
        }
      }
    }
  }
}

TEST(NothingIsLeftWhenEverythingIsForbidden) {
  const std::vector<uint8_t> mask(2);
  const std::vector<int32_t> all = {0, 1, 2};
  for (const double temperature : {0.0, 0.8}) {
    SampleRequest request;
    request.temperature = temperature;
    request.top_k = 2;
    request.top_p = 0.9;
    request.allowed = mask.data();
    CHECK(Sampled(RowOf({1, 2, 3}), request).status == SampleStatus::kNoToken);
    request.allowed = nullptr;
    request.forbidden = all;
    CHECK(Sampled(RowOf({1, 2, 3}), request).status == SampleStatus::kNoToken);
  }
}

TEST(APenaltyBeyondEveryNumberLeavesNothingRatherThanAWrongToken) {
  const PenaltyCounts counts = CountsOf({0}, 1);
  const std::vector<uint8_t> mask = {0b10};
  for (const double temperature : {0.0, 0.8}) {
    SampleRequest request;
    request.temperature = temperature;
    request.counts = &counts;
    request.repetition_penalty = 5e-324;
    CHECK(Sampled(RowOf({4, 3}), request).status == SampleStatus::kNoToken);
    CHECK(Sampled(RowOf({-4, -3}), request).status == SampleStatus::kOk);
    request.allowed = mask.data();
    CHECK_EQ(TokenOf({4, 3}, request), 1);
  }
}

TEST(ALogitThatIsNoNumberFailsTheRowAndPaddingDoesNot) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      SampleRequest request;
      request.temperature = temperature;
      CHECK(Sampled(RowOf({1, bad, 3}), request).status == SampleStatus::kNotANumber);
      CHECK(Sampled(RowOf({1, 2, 3}), request).status == SampleStatus::kOk);  // NaN is behind it
    }
  }
}

TEST(FiltersKeepWhatTheirDefinitionsSay) {
  const auto kept = [](const std::vector<double>& probabilities, SampleRequest request) {
    return TokensOf(DrawnFrom(Likely(probabilities), request));
  };
  using Tokens = std::vector<int32_t>;
  CHECK(kept({0.4, 0.11, 0.09, 0.4}, {.min_p = 0.25}) == (Tokens{0, 1, 3}));
  CHECK(kept({0.2, 0.5, 0.3}, {.min_p = 1.0}) == (Tokens{1}));
  CHECK(kept({0.1, 0.3, 0.3, 0.3}, {.top_k = 2}) == (Tokens{1, 2}));
  CHECK(kept({0.1, 0.3, 0.6}, {.top_k = 99}) == (Tokens{0, 1, 2}));
  CHECK(kept({0.25, 0.5, 0.125, 0.125}, {.top_p = 0.74}) == (Tokens{0, 1}));
  CHECK(kept({0.25, 0.5, 0.125, 0.125}, {.top_p = 0.76}) == (Tokens{0, 1, 2}));
  CHECK(kept({0.25, 0.25, 0.25, 0.25}, {.top_p = 0.5}) == (Tokens{0, 1}));
  CHECK(kept({0.7, 0.2, 0.1}, {.top_p = 0.65}) == (Tokens{0}));
  CHECK(kept({0.7, 0.2, 0.1}, {.temperature = 2.0, .top_p = 0.65}) == (Tokens{0, 1}));
  CHECK(kept({0.4, 0.3, 0.2, 0.1}, {.top_k = 2, .top_p = 0.55}) == (Tokens{0}));
  CHECK(kept({0.4, 0.3, 0.2, 0.1}, {.top_p = 0.6, .min_p = 0.7}) == (Tokens{0, 1}));
}

TEST(DrawsFollowTheProbabilities) {
  const std::vector<double> probabilities = {0.05, 0.3, 0.15, 0.1, 0.25, 0.15};
  const std::map<int32_t, int> times = DrawnFrom(Likely(probabilities), {});
  double chi_square = 0.0;
  for (const auto& [token, count] : times) {
    const double expected = 400.0 * probabilities[token];
    chi_square += (count - expected) * (count - expected) / expected;
  }
  CHECK(chi_square < 20.5);  // five degrees of freedom: exceeded once in a thousand
}

// All rules together

TEST(RandomRowsAndParametersAgreeWithTheDefinition) {
  std::mt19937 generator(31);
  const auto one_of = [&generator](auto values) { return *(std::begin(values) + generator() % values.size()); };
  using Numbers = std::vector<double>;
  for (int round = 0; round < 400; ++round) {
    const size_t size = one_of(std::vector<size_t>{1, 2, 9, 31, 100, 513, 1500, 4096, 4100, 9001});
    const PaddedRow row(size, generator(), one_of(std::vector<float>{0.0f, 0.3f, 3.0f, 30.0f}), round % 2 == 0);
    Bias bias;
    std::vector<int32_t> history, ends;
    for (int32_t token = 0; token < static_cast<int32_t>(size); token += 1 + generator() % size) {
      bias.emplace_back(token, one_of(Numbers{-100.0, 0.5, 3.0}));
      history.insert(history.end(), 1 + generator() % 3, static_cast<int32_t>(generator() % size));
      ends.push_back(static_cast<int32_t>(generator() % size));
    }
    const PenaltyCounts counts = CountsOf(history, generator() % (history.size() + 1));
    std::vector<uint8_t> mask((size + 7) / 8);
    for (uint8_t& bits : mask) bits = static_cast<uint8_t>(generator() | (round % 4 == 0 ? 0xFF : 0));
    SampleRequest request;
    request.temperature = one_of(Numbers{0.0, 0.2, 1.0, 1.0, 2.0});
    request.top_k = one_of(std::vector<int32_t>{0, 0, 1, 7, 50, 2000});
    request.top_p = one_of(Numbers{1.0, 0.999999, 0.95, 0.5, 0.01});
    request.min_p = one_of(Numbers{0.0, 0.0, 0.05, 1.0});
    request.repetition_penalty = one_of(Numbers{1.0, 1.3, 0.5});
    request.frequency_penalty = one_of(Numbers{0.0, 0.7, -2.0});
    request.presence_penalty = one_of(Numbers{0.0, 1.5});
    if (generator() % 2 == 0) request.logit_bias = bias;
    if (generator() % 2 == 0) request.counts = &counts;
    if (generator() % 3 == 0) request.allowed = mask.data();
    if (generator() % 3 == 0) request.forbidden = ends;
    request.seed = generator();
    request.choice = generator() % 4;
    request.position = generator();
    Sampled(row, request);
  }
}

TEST(AWholeVocabularyAgreesWithTheDefinition) {
  for (const bool coarse : {false, true}) {
    const PaddedRow row(kVocab - 3, 41, 3.0f, coarse);
    for (const int32_t top_k : {0, 50, 1535, 4000}) {
      for (const double top_p : {1.0, 0.95, 0.3}) {
        SampleRequest request;
        request.temperature = 0.8;
        request.top_k = top_k;
        request.top_p = top_p;
        request.seed = static_cast<uint64_t>(top_k) + coarse;
        Sampled(row, request);
      }
    }
  }
}

TEST(FlatRowsAgreeWithTheDefinition) {
  const PaddedRow flat(6000, 0, 0.0f);
  for (const double top_p : {0.5, 0.25, 1.0 / 3.0, 1.0 - 1e-13, 5e-5, 1.0 / 6000.0}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SampleRequest request;
      request.top_p = top_p;
      request.seed = seed;
      Sampled(flat, request);
    }
  }
}

TEST(ANucleusThatEndsWithinARoundingOfItsTargetIsThatOfTheDefinition) {
  const PaddedRow row(700, 71, 0.2f);
  std::vector<float> descending(row.z(), row.z() + row.size);
  std::sort(descending.begin(), descending.end(), std::greater<>());
  std::vector<double> running;
  double sum = 0.0;
  for (const float z : descending) {
    sum += ScalarExp(static_cast<double>(z) - static_cast<double>(descending[0]));
    running.push_back(sum);
  }
  for (size_t num_first = 1; num_first <= 40; ++num_first) {
    SampleRequest request;
    request.top_p = running[num_first - 1] / sum;
    for (request.seed = 0; request.seed < 40; ++request.seed) Sampled(row, request);
  }
}

TEST(ASamplerCarriesNothingFromRowToRow) {
  const PaddedRow first(5000, 51, 2.0f), second(5000, 52, 2.0f);
  SampleRequest filtered;
  filtered.top_k = 20;
  filtered.top_p = 0.9;
  SampleRequest plain;
  plain.seed = 5;
  std::vector<TokenLogProbability> top(7), again(7);
  Sampler used(LoopsOf(BestTarget()), 5000), fresh(LoopsOf(BestTarget()), 5000);
  used.Load(first.z());
  used.Score(3, top);
  used.Sample(filtered);
  used.Load(second.z());
  fresh.Load(second.z());
  CHECK_EQ(used.Sample(plain).token, fresh.Sample(plain).token);
  CHECK_EQ(used.Sample(filtered).token, fresh.Sample(filtered).token);
  CHECK_EQ(used.Score(9, top), fresh.Score(9, again));
  for (size_t at = 0; at < top.size(); ++at) CHECK_EQ(top[at].token, again[at].token);
}

// Log-probabilities

TEST(LogProbabilitiesAreThoseOfTheDefinitionOnEveryTarget) {
  for (const size_t size : kSizes) {
    for (const bool coarse : {false, true}) {
      const PaddedRow row(size, static_cast<unsigned>(size) + 61, 4.0f, coarse);
      const double max = *std::max_element(row.z(), row.z() + size);
      double sum = 0.0;
      for (size_t first = 0; first < size; first += 4096) {
        double chain = 0.0;
        for (size_t t = first; t < std::min(first + 4096, size); ++t) chain += ScalarExp(row.z()[t] - max);
        sum += chain;
      }
      const double log_total = max + NaturalLog(sum);
      std::vector<size_t> order(size);
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t left, size_t right) { return row.z()[left] > row.z()[right]; });
      for (const SamplerLoops* const loops : AllLoops()) {
        Sampler sampler(*loops, size);
        CHECK(sampler.Load(row.z()));
        for (const size_t num_top : {size_t{0}, size_t{1}, size_t{20}}) {
          std::vector<TokenLogProbability> top(num_top, {-1, 0.0});
          const size_t token = size / 2;
          CHECK_EQ(sampler.Score(static_cast<int32_t>(token), top), static_cast<double>(row.z()[token]) - log_total);
          for (size_t at = 0; at < num_top; ++at) {
            const bool is_filled = at < size;
            CHECK_EQ(top[at].token, is_filled ? static_cast<int32_t>(order[at]) : -1);
            CHECK_EQ(top[at].log_probability, is_filled ? static_cast<double>(row.z()[order[at]]) - log_total : 0.0);
          }
        }
      }
    }
  }
}

TEST(ExtremeLogitsNeitherOverflowNorVanish) {
  const PaddedRow row = RowOf({3e38f, -3e38f, 0.0f});
  for (const SamplerLoops* const loops : AllLoops()) {
    Sampler sampler(*loops, row.size);
    CHECK(sampler.Load(row.z()));
    std::vector<TokenLogProbability> top(3);
    CHECK_EQ(sampler.Score(1, top), -2.0 * static_cast<double>(3e38f));
    CHECK_EQ(top[0].token, 0);
    CHECK_EQ(top[0].log_probability, 0.0);
  }
}

}  // namespace plait
