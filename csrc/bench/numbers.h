// Numbers: bytes that are ordinary numbers however a kernel reads them.
//
// Owns the pattern. Read as f32, f16 or bf16 no value is tiny, huge or none; read as codes and scales of any scheme
// they are as good as others. So memory can be filled without knowing how a scheme or a cache lays its numbers out.
// Invariant: every byte is 0x30 to 0x3F, with or without the sign bit.

#ifndef PLAIT_CSRC_BENCH_NUMBERS_H_
#define PLAIT_CSRC_BENCH_NUMBERS_H_

#include <cstddef>
#include <cstdint>

namespace plait::bench {

inline void FillWithNumbers(uint8_t* bytes, size_t count) {
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    bytes[i] = static_cast<uint8_t>(0x30 | (state >> 28) | (state >> 20 & 0x80));
  }
}

}  // namespace plait::bench

#endif  // PLAIT_CSRC_BENCH_NUMBERS_H_
