// Philox4x32-10: random numbers that are a function of a key and a counter, with no state in between.
//
// Owns the generator and the way in which Plait keys it. Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011. src/plait/core/random.py says the same in Python; a test holds the two together bit for bit.
// Invariant: a number depends on (seed, choice, position, draw) alone, never on the batch, the thread or the order.

#ifndef PLAIT_CSRC_BASE_PHILOX_H_
#define PLAIT_CSRC_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace plait {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Ten rounds pass every statistical battery with a margin of three: the paper finds seven to be enough.
inline constexpr int kPhiloxRounds = 10;

// Multipliers of the S-boxes, chosen in the paper by their avalanche.
inline constexpr uint64_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr uint64_t kPhiloxMultiplier1 = 0xCD9E8D57;

// The key moves along a Weyl sequence: the fractions of the golden ratio and of sqrt(3), times 2^32.
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85;

// Maps a counter to four random words; for a fixed key this is a bijection, so no two counters collide.
constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = kPhiloxMultiplier0 * counter[0];
    const uint64_t product1 = kPhiloxMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
  return counter;
}

// The 53 bits of a double's mantissa from two words, in [0, 1). Every operation is exact, so every machine agrees.
constexpr double UniformFromWords(uint32_t high, uint32_t low) {
  constexpr double kTwoTo26 = 67108864.0;
  constexpr double kTwoToMinus53 = 1.0 / 9007199254740992.0;
  return (static_cast<double>(high >> 5) * kTwoTo26 + static_cast<double>(low >> 6)) * kTwoToMinus53;
}

// Number `draw` of the token at `position` of answer `choice` under `seed`.
constexpr double PhiloxUniform(uint64_t seed, uint32_t choice, uint64_t position, uint32_t draw) {
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const PhiloxCounter counter = {draw, choice, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)};
  const PhiloxCounter words = Philox4x32(counter, key);
  return UniformFromWords(words[0], words[1]);
}

}  // namespace plait

#endif  // PLAIT_CSRC_BASE_PHILOX_H_
