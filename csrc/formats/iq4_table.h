// The numbers that the codes of IQ4 stand for.
//
// Owns the table, for packing and kernels alike: 128 more than what a code means, so that codes are unsigned as in
// schemes of whole bytes. src/plait/weights/blocks_table.py has the same numbers.
// Invariant: sixteen bytes of internal linkage, which every translation unit has for itself.

#ifndef PLAIT_CSRC_FORMATS_IQ4_TABLE_H_
#define PLAIT_CSRC_FORMATS_IQ4_TABLE_H_

#include <cstdint>

namespace plait {

alignas(16) constexpr uint8_t kIq4Numbers[16] = {128 - 127, 128 - 104, 128 - 83, 128 - 65, 128 - 49, 128 - 35,
                                                 128 - 22,  128 - 10,  128 + 1,  128 + 13, 128 + 25, 128 + 38,
                                                 128 + 53,  128 + 69,  128 + 89, 128 + 113};

}  // namespace plait

#endif  // PLAIT_CSRC_FORMATS_IQ4_TABLE_H_
