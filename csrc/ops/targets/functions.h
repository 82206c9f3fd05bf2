// The kernels of this target: every function that kernels_table.cc puts into the table.
//
// Owns the declarations; ops/kernels.h says what each computes. Included by kernel sources only.
// Invariant: everything declared here is in the namespace of the target.

#ifndef PLAIT_CSRC_OPS_TARGETS_FUNCTIONS_H_
#define PLAIT_CSRC_OPS_TARGETS_FUNCTIONS_H_

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"
#include "ops/kernels.h"

namespace plait::PLAIT_TARGET {

void Gemm(const GemmCall& call);
void Quantize(const float* x, size_t stride, size_t num_rows, QuantizedRows to);
void QuantizeColumns(const float* x, size_t stride, size_t num_rows, size_t first_column, size_t num_columns,
                     QuantizedRows to);
void Norm(const NormCall& call);
void RotateRows(const RopeCall& call);
void WriteCache(const CacheWriteCall& call);
size_t AttendScratchBytes(size_t group, size_t head_dim_k, size_t head_dim_v);
void Attend(const AttendCall& call, uint8_t* scratch);
void Merge(const MergeCall& call);
void Glu(const GluCall& call);
void RowArithmetic(const ArithmeticCall& call);
void Route(const RouteCall& call);
void Mix(const MixCall& call);
void CapLogits(float* z, size_t count, float logit_scale, float softcap);

}  // namespace plait::PLAIT_TARGET

#endif  // PLAIT_CSRC_OPS_TARGETS_FUNCTIONS_H_
