// Units: how an op is cut into pieces that one worker carries out without looking up.
//
// Owns sizes of blocks, by rough cost, by what was measured, or at random where a test asks for it. Pure functions:
// they know neither threads nor memory. Invariant: units cover an op's rows and columns exactly once; how they are cut
// decides when something happens, never what comes out.

#ifndef PLAIT_CSRC_RUNTIME_UNITS_H_
#define PLAIT_CSRC_RUNTIME_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/kernels.h"
#include "runtime/blocking.h"
#include "runtime/tape.h"

namespace plait {

// Numbers for the blocking of one op of one step, drawn from a seed (SplitMix64).
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint32_t Between(uint32_t low, uint32_t high);  // both included

 private:
  uint64_t state_;
};

// For how many workers units are made, and whether by cost (draws null) or at random.
struct SplitPolicy {
  uint32_t num_workers = 1;
  Draws* draws = nullptr;
  UnitSizes sizes = {};
  GemmBlocks gemm = {};  // of the op, where that was measured
  bool is_wide = false;  // kernels are those of AVX-512, which multiply several times as fast
};

// Rows in blocks, in order.
struct RowSplit {
  uint32_t num_rows = 0;
  uint32_t rows_per_block = 1;

  uint32_t num_units() const { return (num_rows + rows_per_block - 1) / rows_per_block; }
  uint32_t first(uint32_t unit) const { return unit * rows_per_block; }
  uint32_t count(uint32_t unit) const;
};

// As many units of a product as a cost is worth.
uint32_t WantedUnits(double cost_us, const SplitPolicy& policy);
// The same for ops that do not wait for weights when they begin: a little work is shared, too, and workers have equally
// many units. `share_us`: what taking part costs, for each worker.
uint32_t SharedUnits(double cost_us, double share_us, const SplitPolicy& policy);
// Of an op on rows or states: a claim, and rows that lie with another core.
inline constexpr double kShareUs = 0.3;

RowSplit SplitRows(size_t num_rows, double row_us, const SplitPolicy& policy);

struct GemmShape {
  size_t num_rows = 0;
  size_t num_panels[3] = {0, 0, 0};  // of each matrix; the same rows go through all of them
  double panel_bytes = 0.0;          // of one panel, on average
  size_t depth = 0;
  Scheme scheme = Scheme::kF32;
  uint32_t panel_multiple = 1;  // blocks of panels are multiples of this, but for the last

  bool operator==(const GemmShape&) const = default;
};

// (row block, block of panels of one matrix); units of the same panels follow one another.
struct GemmSplit {
  uint32_t num_rows = 0;
  uint32_t rows_per_block = 1;
  uint32_t panels_per_block = 1;
  uint32_t num_panels[3] = {0, 0, 0};

  struct Unit {
    uint32_t matrix = 0;
    uint32_t first_panel = 0;
    uint32_t num_panels = 0;
    uint32_t first_row = 0;
    uint32_t num_rows = 0;
  };
  uint32_t num_units() const;
  Unit unit(uint32_t index) const;

 private:
  uint32_t num_row_blocks() const { return (num_rows + rows_per_block - 1) / rows_per_block; }
  uint32_t num_blocks(int matrix) const { return (num_panels[matrix] + panels_per_block - 1) / panels_per_block; }
};

GemmSplit SplitGemm(const GemmShape& shape, const SplitPolicy& policy);

// What attention tasks depend on; ops with equal shapes share one list of tasks.
struct AttendShape {
  Reach reach = Reach::kCausal;
  uint32_t reach_size = 0;
  uint32_t kv_heads = 0;
  uint32_t group = 0;  // query heads per KV head
  uint32_t head_dim_k = 0;
  uint32_t head_dim_v = 0;
  uint32_t key_bytes = 0;  // of a key and its value, in the cache
  uint32_t cache_group = 0;
  uint32_t tokens_per_block = 1;

  bool operator==(const AttendShape&) const = default;
};

AttendShape AttendShapeOf(const Tape& tape, const OpSpec& op);

struct ChunkExtent {
  uint32_t first_row = 0;  // in the step
  uint32_t num_rows = 0;
  uint64_t start = 0;              // slot of its first row
  std::span<const int32_t> table;  // blocks in the shape's cache group
};

inline constexpr int32_t kNoIndex = -1;

// Some rows of a chunk for one KV head: all tiles that they see, or some of them. Or some rows of a stack: its tiles.
struct AttendTask {
  uint32_t chunk = 0;      // of a stack: one that has the stack's blocks
  uint32_t first_row = 0;  // in the chunk, or in the stack
  uint32_t num_rows = 0;
  uint32_t kv_head = 0;
  uint32_t first_tile = 0;
  uint32_t num_tiles = 0;
  int32_t whole = kNoIndex;  // what it is a part of; kNoIndex: it is whole, or of a stack
  int32_t stack = kNoIndex;
};

inline constexpr size_t kNoState = SIZE_MAX;

// What tasks of some tiles each add up to: whoever finishes the last of them merges.
struct AttendWhole {
  uint32_t chunk = 0;
  uint32_t first_row = 0;  // in the chunk
  uint32_t num_rows = 0;
  uint32_t kv_head = 0;
  uint32_t first_tile = 0;  // tiles that have partials
  uint32_t num_tiles = 0;
  uint32_t num_tasks = 0;
  // Floats, in the lane's memory for partials.
  size_t first_partial = 0;
  size_t first_state = kNoState;  // what a stack's tiles came to, which stand before these
};

// Rows of several chunks whose first tiles are the same blocks: these are attended to once for all of them.
struct AttendStack {
  std::vector<uint32_t> rows;          // in the step
  std::vector<uint32_t> whole_of_row;  // of KV head 0; those of the others follow
  uint32_t num_tiles = 0;
  size_t first_state = 0;      // floats
  size_t floats_per_head = 0;  // of states
};

// Unit u does tasks [unit_begins[u], unit_begins[u + 1]); stacks first, then heavier units, so that none is left
// alone at the end.
struct AttendTasks {
  std::vector<AttendTask> tasks;
  std::vector<uint32_t> unit_begins;
  std::vector<AttendWhole> wholes;
  std::vector<AttendStack> stacks;

  uint32_t num_units() const { return static_cast<uint32_t>(unit_begins.size() - 1); }
};

// Floats that a lane keeps for partials of split tasks.
inline constexpr size_t kMaxPartials = size_t{1} << 19;

AttendTasks SplitAttend(const AttendShape& shape, std::span<const ChunkExtent> chunks, const SplitPolicy& policy);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_UNITS_H_
