// Carrying out: one unit of one op, from the tape's numbers to a call of the kernels.
//
// Owns where values lie (a lane's arena) and what a worker keeps beside them (its scratch). Which unit, and when, is
// runtime.cc's business. Invariant: a unit writes its own rows and columns only, so units of an op run in any order.

#ifndef PLAIT_CSRC_RUNTIME_CARRY_OUT_H_
#define PLAIT_CSRC_RUNTIME_CARRY_OUT_H_

#include <cstddef>
#include <cstdint>

#include "base/aligned.h"
#include "ops/sampler.h"
#include "runtime/context.h"

namespace plait {

// Floats of gate, and of up, that a worker computes before it multiplies them: together they stay in its cache.
inline constexpr size_t kGluTile = size_t{16} * 1024;

// Values between ops. Steps of a lane share it: one of them runs at a time.
class Arena {
 public:
  Arena() = default;
  explicit Arena(const Machine& machine);

  bool is_empty() const { return memory_.size() == 0; }
  static size_t BytesFor(const Machine& machine);

  uint8_t* buffer(const BufferSpec& spec) const { return base(spec.space) + spec.first_byte * max_rows(spec.space); }
  size_t max_rows(Space space) const { return max_rows_[static_cast<size_t>(space)]; }
  float* partials() const { return partials_; }
  // Of a mixture of experts under way, a row for each place (runtime/expert_rows.h).
  uint8_t* hidden() const { return hidden_; }
  float* expert_outputs() const { return expert_outputs_; }

 private:
  uint8_t* base(Space space) const { return base_[static_cast<size_t>(space)]; }

  AlignedBuffer memory_;
  size_t max_rows_[2] = {0, 0};
  uint8_t* base_[2] = {nullptr, nullptr};
  float* partials_ = nullptr;
  uint8_t* hidden_ = nullptr;
  float* expert_outputs_ = nullptr;
};

// A worker's own memory. Only the worker touches it, so it lies near its core.
class Scratch {
 public:
  explicit Scratch(const Machine& machine);

  size_t num_bytes() const { return memory_.size() + sampler_.ScratchBytes(); }

  uint8_t* attend() const { return memory_.data(); }
  float* attended() const { return attended_; }  // [kMaxAttendRows][columns of a KV head]
  float* gate() const { return gate_; }          // kGluTile floats
  float* up() const { return up_; }
  uint8_t* gathered() const { return gathered_; }  // rows of an expert, one after another
  Sampler& sampler() { return sampler_; }
  PenaltyCounts& counts() { return counts_; }

 private:
  AlignedBuffer memory_;
  float* attended_ = nullptr;
  float* gate_ = nullptr;
  float* up_ = nullptr;
  uint8_t* gathered_ = nullptr;
  Sampler sampler_;
  PenaltyCounts counts_;
};

// Unit `unit` of the context's current op.
void CarryOut(const Machine& machine, const Arena& arena, Context& context, uint32_t unit, Scratch& scratch);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_CARRY_OUT_H_
