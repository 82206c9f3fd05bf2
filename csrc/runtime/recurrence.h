// Recurrences: how an op that goes along tokens is cut, and one piece of it.
//
// Owns the cut into chunks times parts of the state, and what becomes of states: read, gone on from, kept, copied where
// the plan asks for it. Who owns which block was checked by the roster.
// Invariant: a part of a chunk's state is read and written by one unit alone.

#ifndef PLAIT_CSRC_RUNTIME_RECURRENCE_H_
#define PLAIT_CSRC_RUNTIME_RECURRENCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/carry_out.h"
#include "runtime/context.h"
#include "runtime/recurrence_split.h"

namespace plait {

// Carries out one unit of a kConv or kScan.
void CarryOutRecurrence(const Machine& machine, const Arena& arena, Context& context, uint32_t unit);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_RECURRENCE_H_
