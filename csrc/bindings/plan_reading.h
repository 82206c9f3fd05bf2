// Reading plans: core.step.StepPlan and its parts become the runtime's StepSpec.
//
// Owns the names of the attributes, interned once, because this runs for every chunk of every step.
// Invariant: a plan that cannot be read changes nothing. What a plan may say was checked in Python (exec/intake.py).

#ifndef PLAIT_CSRC_BINDINGS_PLAN_READING_H_
#define PLAIT_CSRC_BINDINGS_PLAN_READING_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "runtime/runtime.h"

namespace plait {

// A seat as Python holds it.
struct SeatHandle {
  SeatRef seat;
  uint64_t runtime = 0;  // number of the runtime that it joined
};

class PlanReader {
 public:
  // `runtime`: whose seats plans may name.
  explicit PlanReader(size_t num_groups, uint64_t runtime = 0) : num_groups_(num_groups), runtime_(runtime) {}

  JoinSpec ReadJoin(nanobind::handle join) const;

  // `seats`: a SeatHandle for each chunk; `grant_seats`: for each grant.
  StepSpec ReadPlan(nanobind::handle plan, nanobind::list seats, nanobind::list grant_seats) const;

 private:
  // Attribute names as Python keeps them; a lookup with one costs a few nanoseconds instead of a new string.
  struct Name {
    explicit Name(const char* text) : text(text), key(nanobind::steal(PyUnicode_InternFromString(text))) {}
    nanobind::object of(nanobind::handle object) const { return nanobind::getattr(object, key); }
    const char* text;
    nanobind::object key;
  };

  SamplingSpec ReadSampling(nanobind::handle params, nanobind::handle end_tokens) const;
  ChunkSpec ReadChunk(nanobind::handle chunk) const;
  OutputSpec ReadOutput(nanobind::handle output) const;
  MoveSpec ReadMove(nanobind::handle move) const;
  SnapshotSpec ReadSnapshot(nanobind::handle snapshot) const;
  void ReadMasks(nanobind::handle masks, StepSpec& step) const;
  size_t ReadGroup(nanobind::handle of) const;
  const SeatRef& SeatOf(nanobind::handle handle) const;

  const size_t num_groups_;
  const uint64_t runtime_;
  const Name step_{"step"}, lane_{"lane"}, blocks_{"blocks"}, moves_{"moves"}, chunks_{"chunks"}, sampling_{"sampling"};
  const Name seq_{"seq"}, start_{"start"}, num_tokens_{"num_tokens"}, tokens_{"tokens"}, positions_{"positions"},
      outputs_{"outputs"}, snapshots_{"snapshots"}, drafts_{"drafts"}, ids_{"ids"};
  const Name first_{"first"}, num_rows_{"num_rows"}, kind_{"kind"}, targets_{"targets"}, top_{"top"}, group_{"group"};
  const Name row_{"row"}, allowed_{"allowed"};
};

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_PLAN_READING_H_
