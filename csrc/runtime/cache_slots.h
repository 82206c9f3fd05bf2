// Cache slots: moves and poison, the two things that happen to the cache's memory apart from ops.
//
// Owns nothing; works on bytes of a group's blocks, whatever numbers they are. Who may move what was checked by the
// roster. Invariant: slots outside the range named are not touched.

#ifndef PLAIT_CSRC_RUNTIME_CACHE_SLOTS_H_
#define PLAIT_CSRC_RUNTIME_CACHE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/runtime.h"
#include "runtime/tape.h"

namespace plait {

// The place of one layer of a group.
CachePlace PlaceOf(const GroupSpec& group, uint8_t* pool, size_t layer);

// Copies token slots of every layer of a group from one block into another; a state, whole.
void MoveSlots(const GroupSpec& group, uint8_t* pool, const MoveSpec& move);

// Fills every slot of a table from `start` on with NaN; a state, where a sequence begins.
void PoisonSlots(const GroupSpec& group, uint8_t* pool, const std::vector<int32_t>& table, size_t start);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_CACHE_SLOTS_H_
