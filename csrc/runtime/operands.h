// Operands: where a tape's operands lie in a lane's arena.
//
// Owns the way from an operand's numbers to addresses. Knows no op.
// Invariant: an operand that a sound tape names lies inside the arena.

#ifndef PLAIT_CSRC_RUNTIME_OPERANDS_H_
#define PLAIT_CSRC_RUNTIME_OPERANDS_H_

#include <cstddef>
#include <cstdint>

#include "runtime/carry_out.h"

namespace plait {

// Rows of floats, from the first column of an operand.
struct Floats {
  float* first = nullptr;
  size_t stride = 0;
  size_t width = 0;

  float* row(size_t index) const { return first + index * stride; }
  explicit operator bool() const { return first != nullptr; }
};

// Where column 0 would lie if `first` is column `column` of something wider. Only columns from there on are touched.
template <typename Number>
Number* Before(Number* first, size_t column) {
  return reinterpret_cast<Number*>(reinterpret_cast<uintptr_t>(first) - column * sizeof(Number));
}

inline const BufferSpec& BufferOf(const Tape& tape, const Operand& operand) {
  return tape.buffers[static_cast<size_t>(operand.buffer)];
}

inline Floats FloatsOf(const Tape& tape, const Arena& arena, const Operand& operand) {
  if (operand.buffer == kNone) return {};
  const BufferSpec& spec = BufferOf(tape, operand);
  const size_t stride = BufferRowBytes(spec) / sizeof(float);
  return {reinterpret_cast<float*>(arena.buffer(spec)) + operand.column, stride, operand.width};
}

inline QuantizedRows QuantizedOf(const Tape& tape, const Arena& arena, const Operand& operand, size_t first_row) {
  if (operand.buffer == kNone) return {};
  const BufferSpec& spec = BufferOf(tape, operand);
  const QuantizedRows rows = {reinterpret_cast<QuantizedGroup*>(arena.buffer(spec)), spec.width, spec.group_size};
  return rows.from_row(first_row);
}

inline const float* VectorOf(const Tape& tape, int32_t index) {
  return index == kNone ? nullptr : tape.vectors[static_cast<size_t>(index)].data();
}

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_OPERANDS_H_
