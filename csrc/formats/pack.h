// Packing: from the rows of a model file to column panels, once, when a model is loaded.
//
// Owns the conversion of every scheme's stored form. Computes nothing with the weights.
// Invariant: packing keeps every weight's value exactly; the packed bytes do not depend on the instruction set.

#ifndef PLAIT_CSRC_FORMATS_PACK_H_
#define PLAIT_CSRC_FORMATS_PACK_H_

#include <cstddef>
#include <cstdint>

#include "formats/scheme.h"

namespace plait {

// Bytes of one panel, a multiple of 64. `depth` is a multiple of DepthMultiple(scheme).
size_t BytesPerPanel(Scheme scheme, size_t depth);

// Bytes of one row of `depth` weights as a GGUF file stores it.
size_t BytesPerStoredRow(Scheme scheme, size_t depth);

// Packs panels [first_panel, first_panel + num_panels) of a matrix of `columns` rows as stored in a file (row n of the
// file is output column n), from `stored` (the whole matrix) to `panels` (the whole packed matrix). Different panels
// may be packed by different threads.
void PackPanels(Scheme scheme, const uint8_t* stored, size_t columns, size_t depth, size_t first_panel,
                size_t num_panels, uint8_t* panels);

// Writes output column `column` (a row of an embedding table) as `depth` floats: exactly what the file's format means.
void UnpackColumn(const WeightPanels& weights, size_t column, float* out);

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_PACK_H_
