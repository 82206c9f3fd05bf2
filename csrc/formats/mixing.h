// Mixing: what our own scheme does to a wide group before its numbers are rounded, so that a large one does not set the
// scale of all others.
//
// Owns the rule. Numbers that lie 8, 16, 24, ... apart are multiplied by a Hadamard matrix H of as many of them as the
// largest power of two that divides the group's size allows: the sixteen of a whole group, 8 or 4 of a shorter one,
// block by block. H H is that many times the identity, so rows are multiplied by H, weights by H divided by it, and
// products stay what they were. Invariant: sums and differences at distance 8, 16, ..., in this order, each rounded.

#ifndef PLAIT_CSRC_FORMATS_MIXING_H_
#define PLAIT_CSRC_FORMATS_MIXING_H_

#include <cstddef>

namespace plait {

inline constexpr size_t kLeastMixed = 8;  // the smallest distance

// The blocks of a group of `count` numbers, a multiple of 32, within which numbers are mixed.
constexpr size_t MixedNumbers(size_t count) { return count % 128 == 0 ? 128 : count % 64 == 0 ? 64 : 32; }

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_MIXING_H_
