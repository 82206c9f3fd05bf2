// Operand rows: where an operand's numbers lie in an arena.
//
// Owns nothing; pointers into the arena of the step's lane. Invariant: the operand was checked with the tape.

#ifndef PLAIT_CSRC_RUNTIME_OPERAND_ROWS_H_
#define PLAIT_CSRC_RUNTIME_OPERAND_ROWS_H_

#include <cstddef>

#include "runtime/carry_out.h"
#include "runtime/tape.h"

namespace plait {

// Rows of floats, from the first column of an operand.
struct Floats {
  float* first = nullptr;
  size_t stride = 0;
  size_t width = 0;

  float* row(size_t index) const { return first + index * stride; }
  explicit operator bool() const { return first != nullptr; }
};

inline Floats FloatsOf(const Tape& tape, const Arena& arena, const Operand& operand) {
  if (operand.buffer == kNone) return {};
  const BufferSpec& spec = tape.buffers[static_cast<size_t>(operand.buffer)];
  const size_t stride = BufferRowBytes(spec) / sizeof(float);
  return {reinterpret_cast<float*>(arena.buffer(spec)) + operand.column, stride, operand.width};
}

inline const float* VectorOf(const Tape& tape, int32_t index) {
  return index == kNone ? nullptr : tape.vectors[static_cast<size_t>(index)].data();
}

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_OPERAND_ROWS_H_
