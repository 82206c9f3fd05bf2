// The sampler for Python, without a runtime around it.
//
// Owns the declaration of the class Sampler of plait._native, with which tests hold the native sampler against the
// reference's. Invariant: what it computes is what the runtime computes.

#ifndef PLAIT_CSRC_BINDINGS_SAMPLER_BINDINGS_H_
#define PLAIT_CSRC_BINDINGS_SAMPLER_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace plait {

void BindSampler(nanobind::module_& module);

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_SAMPLER_BINDINGS_H_
