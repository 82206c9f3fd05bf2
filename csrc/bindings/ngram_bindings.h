// The n-gram window for Python, which asks it once a look for each sequence.
//
// Owns the declaration of the class NgramWindow of plait._native. Invariant: it answers as plait.draft.window does.

#ifndef PLAIT_CSRC_BINDINGS_NGRAM_BINDINGS_H_
#define PLAIT_CSRC_BINDINGS_NGRAM_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace plait {

void BindNgrams(nanobind::module_& module);

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_NGRAM_BINDINGS_H_
