#include "runtime/task_table.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/testing.h"

namespace plait {
namespace {

std::vector<uint32_t> OrderOf(const std::vector<TokenRow>& rows, const std::vector<TaskTile>& tiles) {
  std::vector<double> loads;
  for (const TaskTile& tile : tiles) loads.push_back(tile.load(rows[tile.row]));
  return HeaviestFirst(loads);
}

std::vector<std::vector<CoreTask>> Deal(const std::vector<TokenRow>& rows, uint32_t num_heads, uint32_t num_cores) {
  return DealSnake(OrderOf(rows, CutTiles(rows)), num_heads, num_cores);
}

}  // namespace

// XY-Serve (ASPLOS 2026), figure 7b: a prompt, a decode, a verify and a decode, two heads, four cores.
TEST(TheTableOfTheXyServePaperIsReproduced) {
  const std::vector<TokenRow> rows = {{0, 362, 1318, 128}, {362, 1, 1657, 16}, {363, 53, 2036, 64}, {416, 1, 1986, 16}};
  const std::vector<TaskTile> tiles = CutTiles(rows);
  CHECK_EQ(tiles.size(), 6u);
  CHECK(tiles[0].num_tokens == 128 && tiles[2].num_tokens == 106 && tiles[2].num_keys == 1318);
  CHECK_EQ(tiles[0].num_keys, 1318u - 362 + 128);
  // [tile, head], counted from 1 as printed there.
  using Printed = std::vector<std::vector<CoreTask>>;
  const Printed printed = {
      {{3, 1}, {5, 2}, {6, 1}}, {{3, 2}, {5, 1}, {6, 2}}, {{2, 1}, {1, 2}, {4, 1}}, {{2, 2}, {1, 1}, {4, 2}}};
  Printed dealt = Deal(rows, 2, 4);
  double most = 0.0, sum = 0.0;
  for (std::vector<CoreTask>& core : dealt) {
    double load = 0.0;
    for (const CoreTask& task : core) load += tiles[task.tile].load(rows[tiles[task.tile].row]);
    most = std::max(most, load);
    sum += load;
    for (CoreTask& task : core) ++task.tile, ++task.head;
  }
  CHECK(dealt == printed);
  // The imbalance that these tiles have: 1.016.
  CHECK(most / (sum / 4) > 1.015 && most / (sum / 4) < 1.017);
}

TEST(TheTableIsTheSameWhetherKeysAreCountedWithOrWithoutTheNewTokens) {
  std::vector<TokenRow> rows = {{0, 362, 1318, 128}, {362, 1, 1657, 16}, {363, 53, 2036, 64}, {416, 1, 1986, 16}};
  const std::vector<std::vector<CoreTask>> with = Deal(rows, 2, 4);
  for (TokenRow& row : rows) row.kv_len += row.num_tokens;
  CHECK(Deal(rows, 2, 4) == with);
}

TEST(EqualLoadsKeepTheirOrderAndEveryHeadIsDealtOnce) {
  CHECK(HeaviestFirst(std::vector<double>{2, 3, 2, 3}) == (std::vector<uint32_t>{1, 3, 0, 2}));
  CHECK(HeaviestFirst({}).empty());
  std::vector<uint32_t> order(37);
  std::iota(order.begin(), order.end(), 0u);
  for (const uint32_t num_cores : {1u, 2u, 5u, 24u}) {
    std::vector<std::vector<int>> times(37, std::vector<int>(3, 0));
    size_t least = SIZE_MAX, most = 0;
    for (const std::vector<CoreTask>& core : DealSnake(order, 3, num_cores)) {
      for (const CoreTask& task : core) ++times[task.tile][task.head];
      least = std::min(least, core.size());
      most = std::max(most, core.size());
    }
    CHECK(most - least <= 1);
    for (const std::vector<int>& heads : times) CHECK(heads == (std::vector<int>{1, 1, 1}));
  }
}

}  // namespace plait
