// The machine's limits for Python.
//
// Owns the declaration of the functions that plait._native has from csrc/limits. Needs nanobind, unlike the rest of the
// room. Invariant: every argument is checked before a thread starts.

#ifndef PLAIT_CSRC_LIMITS_LIMITS_BINDINGS_H_
#define PLAIT_CSRC_LIMITS_LIMITS_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace plait {

void BindLimits(nanobind::module_& module);

}  // namespace plait

#endif  // PLAIT_CSRC_LIMITS_LIMITS_BINDINGS_H_
