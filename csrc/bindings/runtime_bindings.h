// The runtime for Python.
//
// Owns the declaration of the classes Runtime and Seat of plait._native.
// Invariant: no thread of the runtime ever needs the interpreter.

#ifndef PLAIT_CSRC_BINDINGS_RUNTIME_BINDINGS_H_
#define PLAIT_CSRC_BINDINGS_RUNTIME_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace plait {

void BindRuntime(nanobind::module_& module);

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_RUNTIME_BINDINGS_H_
