// The sampler of plait._native: one row at a time, for one instruction set.
//
// Owns the checks of rows, tokens and parameters. Holds no arithmetic. Invariant: no token beyond the vocabulary and no
// number beyond its range reaches the sampler, which checks nothing again.

#include "bindings/sampler_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "bindings/arguments.h"
#include "bindings/plan_reading.h"
#include "ops/sampler.h"

namespace nb = nanobind;

namespace plait {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr uint64_t kMaxVocab = uint64_t{1} << 24;

const SamplerLoops& LoopsOf(const std::string& name) {
  for (const Target target : SupportedTargets()) {
    if (TargetName(target) != name) continue;
#if defined(__x86_64__)
    if (target == Target::kAvx2) return avx2::kSamplerLoops;
    if (target == Target::kAvx512) return avx512::kSamplerLoops;
#endif
    return baseline::kSamplerLoops;
  }
  ThrowValueError("target is " + name + ", which this machine cannot run; targets() lists what it can");
}

void CheckRange(const char* name, double value, double low, double high) {
  if (low <= value && value <= high) return;  // nothing compares with NaN
  ThrowValueError(std::string(name) + " is " + std::to_string(value) + " but must be between " + std::to_string(low) +
                  " and " + std::to_string(high));
}

class BoundSampler {
 public:
  BoundSampler(const std::string& target, nb::handle vocab_size)
      : logits_(CheckedUnsigned(vocab_size, "vocab_size", kMaxVocab)), sampler_(LoopsOf(target), CheckedSize()) {}

  bool Load(const Logits& logits) {
    if (logits.size() != logits_.size()) {
      ThrowValueError("the row has " + std::to_string(logits.size()) + " logits but the vocabulary " +
                      std::to_string(logits_.size()) + " tokens");
    }
    std::copy(logits.data(), logits.data() + logits.size(), logits_.data());
    is_finite_ = sampler_.Load(logits_.data());
    is_loaded_ = true;
    return is_finite_;
  }

  // The token; None if none is left.
  nb::object Sample(nb::handle join, nb::handle position, nb::handle allowed) {
    CheckLoaded();
    const JoinSpec spec = PlanReader(0).ReadJoin(join);
    CheckSampling(spec.sampling);
    SampleRequest request;
    request.temperature = spec.sampling.temperature;
    request.top_k = spec.sampling.top_k;
    request.top_p = spec.sampling.top_p;
    request.min_p = spec.sampling.min_p;
    request.repetition_penalty = spec.sampling.repetition_penalty;
    request.frequency_penalty = spec.sampling.frequency_penalty;
    request.presence_penalty = spec.sampling.presence_penalty;
    request.logit_bias = spec.sampling.logit_bias;
    request.seed = spec.seed;
    request.choice = spec.choice;
    request.position = CheckedUnsigned(position, "position", std::numeric_limits<int64_t>::max());
    if (static_cast<int64_t>(request.position) - spec.num_prompt < spec.sampling.min_tokens) {
      request.forbidden = spec.sampling.end_tokens;
    }
    CheckTokens(spec.history, "history");
    PenaltyCounts counts;
    counts.Rebuild(spec.history, static_cast<size_t>(spec.num_prompt));
    if (!spec.history.empty()) request.counts = &counts;
    if (!allowed.is_none()) request.allowed = MaskOf(allowed);
    const SampleOutcome outcome = sampler_.Sample(request);
    return outcome.status == SampleStatus::kOk ? nb::object(nb::int_(outcome.token)) : nb::none();
  }

  // (log-probability of `token`, the most likely tokens with theirs).
  nb::tuple Score(nb::handle token, nb::handle num_top) {
    CheckLoaded();
    const auto checked = static_cast<int32_t>(CheckedUnsigned(token, "token", logits_.size() - 1));
    const size_t count = std::min<size_t>(CheckedUnsigned(num_top, "num_top", kMaxVocab), logits_.size());
    std::vector<TokenLogProbability> top(count);
    const double log_probability = sampler_.Score(checked, top);
    nb::list pairs;
    for (const TokenLogProbability& one : top) pairs.append(nb::make_tuple(one.token, one.log_probability));
    return nb::make_tuple(log_probability, nb::tuple(pairs));
  }

 private:
  size_t CheckedSize() const {
    if (logits_.empty()) ThrowValueError("vocab_size is 0 but must be at least 1");
    return logits_.size();
  }

  void CheckLoaded() const {
    if (!is_loaded_ || !is_finite_) ThrowValueError("no row of finite logits is loaded; load one first");
  }

  void CheckTokens(std::span<const int32_t> tokens, const char* name) const {
    for (const int32_t token : tokens) {
      if (token < 0 || static_cast<size_t>(token) >= logits_.size()) {
        ThrowValueError(std::string(name) + " holds token " + std::to_string(token) + "; ids go from 0 to " +
                        std::to_string(logits_.size() - 1));
      }
    }
  }

  void CheckSampling(const SamplingSpec& sampling) const {
    CheckRange("temperature", sampling.temperature, 0.0, 2.0);
    CheckRange("top_p", sampling.top_p, 0.0, 1.0);
    CheckRange("min_p", sampling.min_p, 0.0, 1.0);
    CheckRange("repetition_penalty", sampling.repetition_penalty, 0.0, 1e6);
    CheckRange("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0);
    CheckRange("presence_penalty", sampling.presence_penalty, -2.0, 2.0);
    CheckTokens(sampling.end_tokens, "end_tokens");
    for (const auto& [token, bias] : sampling.logit_bias) {
      CheckTokens(std::span(&token, 1), "logit_bias");
      CheckRange("logit_bias", bias, -100.0, 100.0);
    }
  }

  const uint8_t* MaskOf(nb::handle allowed) const {
    if (!PyBytes_Check(allowed.ptr())) throw nb::type_error("allowed is not bytes");
    const auto size = static_cast<size_t>(PyBytes_Size(allowed.ptr()));
    const size_t least = (logits_.size() + 7) / 8;
    if (size < least) {
      ThrowValueError("the mask has " + std::to_string(size) + " bytes but the vocabulary needs " +
                      std::to_string(least));
    }
    return reinterpret_cast<const uint8_t*>(PyBytes_AsString(allowed.ptr()));
  }

  std::vector<float> logits_;  // a copy: Python's array may go at any time
  Sampler sampler_;
  bool is_loaded_ = false;
  bool is_finite_ = false;
};

}  // namespace

void BindSampler(nb::module_& module) {
  nb::class_<BoundSampler>(module, "Sampler", "The native sampler on single rows, for one instruction set.")
      .def(nb::init<const std::string&, nb::handle>(), nb::arg("target"), nb::arg("vocab_size"))
      .def("load", &BoundSampler::Load, nb::arg("logits").noconvert(),
           "Take up a row of float32 logits; False if one is NaN or infinite.")
      .def("sample", &BoundSampler::Sample, nb::arg("join"), nb::arg("position"), nb::arg("allowed").none(),
           "Return the token at `position` for a core.step.Join whose history is all that came before; None if no "
           "token is left.")
      .def("score", &BoundSampler::Score, nb::arg("token"), nb::arg("num_top"),
           "Return the log-probability of `token`, and the most likely tokens with theirs.");
}

}  // namespace plait
