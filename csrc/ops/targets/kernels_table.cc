// The table of this target's kernels.
//
// Owns the table only. Invariant: it is a constant, so that no code of this target runs before it was chosen.

#include "ops/sampler_loops.h"
#include "ops/targets/functions.h"

namespace plait::PLAIT_TARGET {

#define PLAIT_STRING(text) #text
#define PLAIT_TARGET_NAME(target) PLAIT_STRING(target)

constinit const Kernels kKernels = {
    .target = PLAIT_TARGET_NAME(PLAIT_TARGET),
    .gemm = Gemm,
    .quantize = Quantize,
    .quantize_columns = QuantizeColumns,
    .norm = Norm,
    .rope = RotateRows,
    .write_cache = WriteCache,
    .attend_scratch_bytes = AttendScratchBytes,
    .attend = Attend,
    .merge = Merge,
    .glu = Glu,
    .arithmetic = RowArithmetic,
    .route = Route,
    .mix = Mix,
    .cap_logits = CapLogits,
    .sampler = &kSamplerLoops,
};

}  // namespace plait::PLAIT_TARGET
