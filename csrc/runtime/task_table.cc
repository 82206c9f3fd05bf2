// Task table: tiles trimmed to the keys that they see, sorted, dealt in turns that change direction.
//
// Owns the arithmetic of the table. No tile sees keys behind its last token, so later tiles of a prompt weigh more.
// Invariant: every token of every row is in one tile, and every head of every tile is dealt once.

#include "runtime/task_table.h"

#include <algorithm>
#include <numeric>

namespace plait {

std::vector<TaskTile> CutTiles(std::span<const TokenRow> rows) {
  std::vector<TaskTile> tiles;
  for (uint32_t row = 0; row < rows.size(); ++row) {
    const TokenRow& of = rows[row];
    for (uint32_t first = 0; first < of.num_tokens; first += of.tile_rows) {
      const uint32_t count = std::min(of.tile_rows, of.num_tokens - first);
      tiles.push_back({row, first, count, of.kv_len - of.num_tokens + first + count});
    }
  }
  return tiles;
}

std::vector<uint32_t> HeaviestFirst(std::span<const double> loads) {
  std::vector<uint32_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0u);
  // The index decides between equal loads: as stable as a stable sort, which would allocate.
  std::sort(order.begin(), order.end(), [&](uint32_t left, uint32_t right) {
    return loads[left] != loads[right] ? loads[left] > loads[right] : left < right;
  });
  return order;
}

std::vector<std::vector<CoreTask>> DealSnake(std::span<const uint32_t> order, uint32_t num_heads, uint32_t num_cores) {
  std::vector<std::vector<CoreTask>> cores(num_cores);
  uint64_t dealt = 0;
  for (const uint32_t tile : order) {
    for (uint32_t head = 0; head < num_heads; ++head, ++dealt) {
      const auto at = static_cast<uint32_t>(dealt % num_cores);
      const bool is_back = dealt / num_cores % 2 == 1;
      cores[is_back ? num_cores - 1 - at : at].push_back({tile, head});
    }
  }
  return cores;
}

}  // namespace plait
