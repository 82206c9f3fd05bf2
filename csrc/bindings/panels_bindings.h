// Panels: the packed matrices of one model, for Python to fill and for the runtime to multiply with.
//
// Owns their memory, one allocation. What a panel looks like is formats/pack.h's business.
// Invariant: a matrix is packed from its first row to its last, in one piece or several, before the runtime gets it.

#ifndef PLAIT_CSRC_BINDINGS_PANELS_BINDINGS_H_
#define PLAIT_CSRC_BINDINGS_PANELS_BINDINGS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "formats/scheme.h"

namespace plait {

class Panels {
 public:
  using Stored = nanobind::ndarray<const uint8_t, nanobind::c_contig, nanobind::device::cpu>;

  // `shapes`: (scheme, columns, depth) of each matrix.
  explicit Panels(nanobind::sequence shapes);

  // `stored`: rows of matrix `index` from `first_row` on, behind those that were packed before, as a file of its scheme
  // holds them: whole panels, or all that are left. Releases the interpreter.
  void Pack(size_t index, const Stored& stored, size_t first_row, size_t num_threads);

  size_t num_bytes() const { return memory_.size(); }
  // Throws a ValueError if a matrix has not been packed.
  std::vector<WeightPanels> Packed() const;

 private:
  std::vector<WeightPanels> matrices_;
  std::vector<size_t> packed_rows_;  // of each matrix
  AlignedBuffer memory_;
};

void BindPanels(nanobind::module_& module);

}  // namespace plait

#endif  // PLAIT_CSRC_BINDINGS_PANELS_BINDINGS_H_
