// Arguments: checks of what Python hands over.
//
// Owns the conversion of numbers with their limits. Knows no function that takes them.
// Invariant: what does not fit is a ValueError that names argument, value and limits.

#ifndef PLAIT_CSRC_BINDINGS_ARGUMENTS_H_
#define PLAIT_CSRC_BINDINGS_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <string>

namespace plait {

// Python's integers have no limit; ours do. A wrapped seed would silently share another seed's numbers.
uint64_t CheckedUnsigned(nanobind::handle value, const char* name, uint64_t max);
int64_t CheckedSigned(nanobind::handle value, const char* name, int64_t min, int64_t max);

template <typename Number>
Number CheckedNumber(nanobind::handle value, const char* name) {
  return static_cast<Number>(CheckedUnsigned(value, name, std::numeric_limits<Number>::max()));
}

// A token, block or place in a table: 0 or more, and fits 32 bits with a sign.
inline int32_t CheckedIndex(nanobind::handle value, const char* name) {
  return static_cast<int32_t>(CheckedUnsigned(value, name, std::numeric_limits<int32_t>::max()));
}

[[noreturn]] void ThrowValueError(const std::string& text);

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_ARGUMENTS_H_
