// Reading tapes: plait.exec.native.tape in Python becomes runtime/tape.h.
//
// Owns the names of the attributes. Whether a tape can be carried out is for TapeFault to say.
// Invariant: every number fits its field.

#ifndef PLAIT_CSRC_BINDINGS_TAPE_READING_H_
#define PLAIT_CSRC_BINDINGS_TAPE_READING_H_

#include <nanobind/nanobind.h>

#include "runtime/blocking.h"
#include "runtime/tape.h"

namespace plait {

// Ops and buffers of a Python Tape; what its numbers refer to is left empty.
Tape ReadTape(nanobind::handle tape);

// Attributes of a Python UnitSizes, and (op, bucket, most rows, panels per block) for each entry.
Blocking ReadBlocking(nanobind::handle sizes, nanobind::handle gemms);

// (num_blocks, block_bytes, layer_bytes, head_bytes, num_layers, tokens_per_block, kv_heads, head_dim_k, head_dim_v,
// type) for each group.
std::vector<GroupSpec> ReadGroups(nanobind::sequence groups);

// (cos, sin, interleaved) for each table; cos and sin are float32 [positions, rotary_dim / 2].
std::vector<RopeTable> ReadRopes(nanobind::sequence ropes);

std::vector<std::vector<float>> ReadVectors(nanobind::sequence vectors);

// The built-in UnitSizes by name: the Python twin is tested with them.
nanobind::dict UnitSizeDefaults();

// The enumerations of a tape by name, each as its members in order of their values: the Python twin is tested with it.
nanobind::dict TapeEnumerations();

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_TAPE_READING_H_
