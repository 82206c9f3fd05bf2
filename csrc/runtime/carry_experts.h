// Carrying out mixtures of experts: routing, the products of one expert's rows, and their sum.
//
// Owns where rows lie between the three ops of a mixture. Which rows are an expert's is runtime/expert_rows.h's business.
// Invariant: a unit writes its own places and columns only, so units of an op run in any order.

#ifndef PLAIT_CSRC_RUNTIME_CARRY_EXPERTS_H_
#define PLAIT_CSRC_RUNTIME_CARRY_EXPERTS_H_

#include <cstddef>
#include <cstdint>

#include "runtime/carry_out.h"

namespace plait {

// Bytes of hidden and of output rows of all experts of one token, the most that an op of the tape needs.
size_t HiddenRowBytes(const Tape& tape);
size_t ExpertOutputRowBytes(const Tape& tape);
// Bytes of rows that a worker gathers at a time.
size_t GatheredBytes(const Tape& tape);

void RouteRows(const Machine& machine, const Arena& arena, Context& context, size_t first, size_t count);
// A unit of kExpertsGlu or kExpertsOut.
void CarryOutExperts(const Machine& machine, const Arena& arena, Context& context, uint32_t unit, Scratch& scratch);
void MixExperts(const Machine& machine, const Arena& arena, Context& context, size_t first, size_t count);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_CARRY_EXPERTS_H_
