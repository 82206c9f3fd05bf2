// Products of rows with packed weights: picks the kernel of the number scheme.
//
// Owns the choice only. Invariant: the scheme alone decides, never the number of rows.

#include "ops/targets/functions.h"
#include "ops/targets/gemm_tiles.h"

namespace plait::PLAIT_TARGET {

void Gemm(const GemmCall& call) { IsInteger(call.weights.scheme) ? IntegerGemm(call) : FloatGemm(call); }

}  // namespace plait::PLAIT_TARGET
