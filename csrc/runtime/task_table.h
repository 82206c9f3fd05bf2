// Task table: the attention of a step as tiles of rows, in order of what they cost, and which core gets which.
//
// Owns the cut of segments into tiles, their loads, the order by load and the deal over a fixed number of cores. The
// runtime claims tasks in this order (runtime/units.h); a deal is what it would be without claims, and what replays
// compare. Pure functions. Invariant: nothing depends on anything but the arguments; equal loads keep their order.

#ifndef PLAIT_CSRC_RUNTIME_TASK_TABLE_H_
#define PLAIT_CSRC_RUNTIME_TASK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace plait {

// Tokens of one sequence that are computed in this step: a row of the token table.
struct TokenRow {
  uint32_t start = 0;  // in the step
  uint32_t num_tokens = 0;
  uint64_t kv_len = 0;     // keys that the last token sees, itself included
  uint32_t tile_rows = 0;  // at most so many tokens are a tile, and it costs as much as if it had them all
};

struct TaskTile {
  uint32_t row = 0;  // of the token table
  uint32_t first_token = 0;
  uint32_t num_tokens = 0;
  uint64_t num_keys = 0;  // that its last token sees

  double load(const TokenRow& of) const { return static_cast<double>(of.tile_rows) * static_cast<double>(num_keys); }
};

// In the order of the table.
std::vector<TaskTile> CutTiles(std::span<const TokenRow> rows);

// Indices, the largest load first.
std::vector<uint32_t> HeaviestFirst(std::span<const double> loads);

// One head of a tile: what a core does at a time.
struct CoreTask {
  uint32_t tile = 0;
  uint32_t head = 0;

  bool operator==(const CoreTask&) const = default;
};

// Every head of the tiles in `order`, one after another, dealt to cores 0, 1, .., n - 1, n - 1, .., 1, 0, 0, 1, ...
std::vector<std::vector<CoreTask>> DealSnake(std::span<const uint32_t> order, uint32_t num_heads, uint32_t num_cores);

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_TASK_TABLE_H_
