#include "runtime/units.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

#include "base/testing.h"
#include "runtime/progress.h"

namespace plait {
namespace {

GemmShape ShapeOf(size_t num_rows, size_t depth, std::vector<size_t> panels, uint32_t multiple = 1) {
  GemmShape shape;
  shape.num_rows = num_rows;
  shape.depth = depth;
  for (size_t i = 0; i < panels.size(); ++i) shape.num_panels[i] = panels[i];
  shape.panel_bytes = static_cast<double>(depth) * kPanelColumns * 4;
  shape.panel_multiple = multiple;
  return shape;
}

// How often every (matrix, panel, row) is done.
void CheckGemmCovers(const GemmShape& shape, const GemmSplit& split) {
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int> times;
  for (uint32_t index = 0; index < split.num_units(); ++index) {
    const GemmSplit::Unit unit = split.unit(index);
    CHECK(unit.num_rows > 0 && unit.num_panels > 0);
    CHECK_EQ(unit.first_panel % shape.panel_multiple, 0u);
    for (uint32_t row = unit.first_row; row < unit.first_row + unit.num_rows; ++row) {
      for (uint32_t panel = unit.first_panel; panel < unit.first_panel + unit.num_panels; ++panel) {
        ++times[{unit.matrix, panel, row}];
      }
    }
  }
  CHECK_EQ(times.size(), shape.num_rows * (shape.num_panels[0] + shape.num_panels[1] + shape.num_panels[2]));
  for (const auto& [place, count] : times) CHECK_EQ(count, 1);
}

// How often every tile of a (chunk, row, head) is done, by tasks of the chunk or of its stack.
class AttendCover {
 public:
  AttendCover(const AttendShape& shape, const std::vector<ChunkExtent>& chunks, const AttendTasks& split)
      : chunks_(chunks), split_(split), num_parts_(split.wholes.size(), 0) {
    for (const AttendTask& task : split.tasks) {
      CHECK(task.num_rows > 0 && task.num_rows <= kMaxAttendRows);
      task.stack == kNoIndex ? Add(task) : AddStacked(task);
    }
    size_t num_rows = 0;
    for (const ChunkExtent& chunk : chunks) num_rows += chunk.num_rows;
    CHECK_EQ(times_.size(), num_rows * shape.kv_heads);
    for (const auto& [place, tiles] : times_) {
      for (const auto& [tile, times] : tiles) CHECK_EQ(times, 1);
    }
    for (size_t i = 0; i < num_parts_.size(); ++i) CheckWhole(shape, i);
  }

 private:
  void Add(const AttendTask& task) {
    uint32_t first = 0, end = 1;  // a whole task counts as one tile
    if (task.whole != kNoIndex) {
      const AttendWhole& whole = split_.wholes[static_cast<size_t>(task.whole)];
      ++num_parts_[static_cast<size_t>(task.whole)];
      first = task.first_tile, end = first + task.num_tiles;
      CHECK(first < end && first >= whole.first_tile && end <= whole.first_tile + whole.num_tiles);
      CHECK(whole.chunk == task.chunk && whole.first_row == task.first_row && whole.num_rows == task.num_rows);
      CHECK_EQ(whole.kv_head, task.kv_head);
    }
    for (uint32_t row = task.first_row; row < task.first_row + task.num_rows; ++row) {
      for (uint32_t tile = first; tile < end; ++tile) ++times_[{task.chunk, row, task.kv_head}][tile];
    }
  }

  void AddStacked(const AttendTask& task) {
    const AttendStack& stack = split_.stacks[static_cast<size_t>(task.stack)];
    CHECK(task.first_tile == 0 && task.num_tiles == stack.num_tiles && stack.num_tiles > 0);
    for (uint32_t at = task.first_row; at < task.first_row + task.num_rows;) {
      const uint32_t index = stack.whole_of_row[at] + task.kv_head;
      const AttendWhole& whole = split_.wholes[index];
      ++num_parts_[index];
      CHECK_EQ(whole.first_tile, stack.num_tiles);
      for (uint32_t row = whole.first_row; row < whole.first_row + whole.num_rows; ++row, ++at) {
        CHECK_EQ(stack.rows[at], chunks_[whole.chunk].first_row + row);
        for (uint32_t tile = 0; tile < stack.num_tiles; ++tile) ++times_[{whole.chunk, row, task.kv_head}][tile];
      }
    }
  }

  void CheckWhole(const AttendShape& shape, size_t index) {
    const AttendWhole& whole = split_.wholes[index];
    CHECK_EQ(num_parts_[index], whole.num_tasks);
    const uint64_t last_slot = chunks_[whole.chunk].start + whole.first_row + whole.num_rows - 1;
    CHECK_EQ(whole.first_tile + whole.num_tiles, static_cast<uint32_t>(last_slot / kKeyTile) + 1);
    const uint32_t first = whole.first_state == kNoState ? whole.first_tile : 0;
    CHECK_EQ((times_[{whole.chunk, whole.first_row, whole.kv_head}].size()),
             whole.first_tile - first + whole.num_tiles);
    const size_t per_tile = size_t{whole.num_rows} * shape.group * (2 + shape.head_dim_v);
    Reserve(whole.first_partial, whole.num_tiles * per_tile);
    if (whole.first_state != kNoState) Reserve(whole.first_state, per_tile);
  }

  // Nothing lies where something else does.
  void Reserve(size_t first, size_t count) {
    CHECK(first + count <= kMaxPartials);
    const auto next = reserved_.lower_bound(first);
    CHECK(next == reserved_.end() || next->first >= first + count);
    CHECK(next == reserved_.begin() || std::prev(next)->second <= first);
    reserved_[first] = first + count;
  }

  const std::vector<ChunkExtent>& chunks_;
  const AttendTasks& split_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::map<uint32_t, int>> times_;
  std::vector<uint32_t> num_parts_;
  std::map<size_t, size_t> reserved_;
};

void CheckAttendCovers(const AttendShape& shape, const std::vector<ChunkExtent>& chunks, const AttendTasks& split) {
  AttendCover(shape, chunks, split);
  CHECK_EQ(split.unit_begins.front(), 0u);
  CHECK_EQ(split.unit_begins.back(), split.tasks.size());
  for (uint32_t unit = 0; unit < split.num_units(); ++unit) {
    CHECK(split.unit_begins[unit] < split.unit_begins[unit + 1]);
  }
}

AttendShape Heads(uint32_t kv_heads, uint32_t group, uint32_t dim) {
  AttendShape shape;
  shape.kv_heads = kv_heads;
  shape.group = group;
  shape.head_dim_k = shape.head_dim_v = dim;
  shape.key_bytes = 4 * dim;
  shape.tokens_per_block = 64;
  return shape;
}

}  // namespace

TEST(GemmUnitsCoverEveryPanelAndRowOnce) {
  const std::vector<std::tuple<size_t, size_t, std::vector<size_t>>> shapes = {
      {1, 576, {36, 12, 12}}, {7, 64, {4}}, {193, 1536, {36}}, {200, 576, {24, 24}}, {64, 576, {113}}};
  for (const auto& [rows, depth, panels] : shapes) {
    for (const uint32_t multiple : {1u, 2u}) {
      const GemmShape shape = ShapeOf(rows, depth, panels, multiple);
      CheckGemmCovers(shape, SplitGemm(shape, {2}));
      for (uint64_t seed = 0; seed < 5; ++seed) {
        Draws draws(seed);
        CheckGemmCovers(shape, SplitGemm(shape, {2, &draws}));
      }
    }
  }
}

TEST(ALargeProductIsCutForEveryWorkerAndATinyOneNotAtAll) {
  CHECK_EQ(SplitGemm(ShapeOf(1, 64, {4}), {2}).num_units(), 1u);
  CHECK(SplitGemm(ShapeOf(1, 576, {3072}), {2}).num_units() >= 8);
  CHECK(SplitGemm(ShapeOf(512, 576, {96, 96}), {16}).num_units() >= 64);
  CHECK_EQ(SplitGemm(ShapeOf(0, 576, {96}), {2}).num_rows, 0u);
}

// The time of the worker who is busy longest, by the time that all would be if none waited.
double Imbalance(const GemmSplit& split, uint32_t num_workers) {
  std::vector<double> ends(num_workers, 0.0);
  double total = 0.0;
  for (uint32_t index = 0; index < split.num_units(); ++index) {
    const GemmSplit::Unit unit = split.unit(index);
    const double work = static_cast<double>(unit.num_rows) * unit.num_panels;
    *std::min_element(ends.begin(), ends.end()) += work;
    total += work;
  }
  return *std::max_element(ends.begin(), ends.end()) / (total / num_workers);
}

TEST(WorkersOfAProductEndTogether) {
  // A small model's: queries with keys and values, what attention gives, up and down.
  const std::vector<std::pair<size_t, std::vector<size_t>>> products = {
      {576, {36, 12, 12}}, {576, {36}}, {1152, {96}}, {1536, {36}}};
  for (const auto& [num_workers, is_wide] : {std::pair(2u, false), {2u, true}, {8u, false}, {8u, true}}) {
    double sum = 0.0;
    int count = 0;
    for (const auto& [depth, panels] : products) {
      for (const size_t rows : {8, 24, 56, 64, 130, 256, 448}) {
        GemmShape shape = ShapeOf(rows, depth, panels);
        shape.scheme = Scheme::kQ4_1;
        shape.panel_bytes = static_cast<double>(depth) * kPanelColumns * 0.6;
        SplitPolicy policy{num_workers};
        policy.is_wide = is_wide;
        const double imbalance = Imbalance(SplitGemm(shape, policy), num_workers);
        CHECK(imbalance < (num_workers == 2 ? 1.03 : 1.35));
        sum += imbalance, ++count;
      }
    }
    CHECK(sum / count < (num_workers == 2 ? 1.01 : 1.16));
  }
}

// Rows and panels of a block, as SplitGemm draws them.
uint64_t CellsOfBlock(uint64_t seed) {
  Draws draws(seed);
  const uint64_t rows = draws.Between(1, 4096);
  return rows * draws.Between(1, 16384);
}

TEST(MoreUnitsThanCanBeClaimedAreNeverMade) {
  // Blocks of 32 cells would be two million units: one seed of half a million draws such.
  uint64_t seed = 0;
  while (CellsOfBlock(seed) > 32) ++seed;
  Draws draws(seed);
  const GemmShape shape = ShapeOf(4096, 64, {16384});
  const GemmSplit split = SplitGemm(shape, {2, &draws});
  CHECK(split.num_units() <= kMaxUnits);
  CHECK(split.num_units() > kMaxUnits / 8);
  // Every eight rows of a head would be a unit of their own.
  const std::vector<ChunkExtent> longest = {{0, 1u << 20, 0, {}}};
  CHECK_EQ(SplitAttend(Heads(16, 1, 64), longest, {2}).num_units(), kMaxUnits);
}

TEST(RowUnitsCoverEveryRowOnce) {
  for (const size_t rows : {size_t{1}, size_t{2}, size_t{63}, size_t{512}}) {
    for (const double row_us : {0.01, 1.0, 500.0}) {
      const RowSplit split = SplitRows(rows, row_us, {2});
      uint32_t next = 0;
      for (uint32_t unit = 0; unit < split.num_units(); ++unit) {
        CHECK_EQ(split.first(unit), next);
        CHECK(split.count(unit) > 0);
        next += split.count(unit);
      }
      CHECK_EQ(next, rows);
    }
  }
  CHECK_EQ(SplitRows(64, 0.01, {2}).num_units(), 1u);
  CHECK_EQ(SplitRows(64, 500.0, {2}).num_units(), 64u);
  CHECK_EQ(SplitRows(0, 1.0, {2}).num_units(), 0u);
}

TEST(ALittleWorkOnRowsIsSharedEvenly) {
  CHECK_EQ(SplitRows(2, 0.5, {2}).num_units(), 1u);
  CHECK_EQ(SplitRows(16, 0.6, {2}).num_units(), 2u);
  CHECK_EQ(SplitRows(32, 0.8, {2}).num_units(), 4u);
  CHECK_EQ(SplitRows(16, 0.6, {1}).num_units(), 1u);
  // Many workers: no more of them than their coming pays for.
  CHECK_EQ(SplitRows(64, 0.1, {64}).num_units(), 4u);
}

TEST(RowsThatDecodeAreSharedEvenly) {
  const AttendShape shape = Heads(3, 3, 64);
  for (const uint32_t num_chunks : {2u, 4u, 8u, 16u, 32u, 64u}) {
    std::vector<ChunkExtent> chunks;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) chunks.push_back({chunk, 1, 75, {}});
    const AttendTasks split = SplitAttend(shape, chunks, {2});
    CHECK_EQ(split.num_units() % 2, 0u);
    uint32_t most = 0;
    uint32_t least = UINT32_MAX;
    for (uint32_t unit = 0; unit < split.num_units(); ++unit) {
      const uint32_t count = split.unit_begins[unit + 1] - split.unit_begins[unit];
      most = std::max(most, count), least = std::min(least, count);
    }
    CHECK(most - least <= 1);
  }
  // One row with few keys: a worker asks for the next head's keys while it is at one.
  const std::vector<ChunkExtent> alone = {{0, 1, 75, {}}};
  CHECK_EQ(SplitAttend(shape, alone, {2}).num_units(), 1u);
  const std::vector<ChunkExtent> longer = {{0, 1, 255, {}}};
  CHECK_EQ(SplitAttend(shape, longer, {2}).num_units(), 3u);
}

TEST(AttentionUnitsCoverEveryRowHeadAndTileOnce) {
  const std::vector<std::vector<ChunkExtent>> steps = {
      {{0, 1, 8191, {}}},
      {{0, 1, 0, {}}, {1, 1, 300, {}}, {2, 1, 4095, {}}},
      {{0, 512, 0, {}}},
      {{0, 200, 3000, {}}, {200, 1, 10, {}}, {201, 65, 511, {}}},
  };
  for (const std::vector<ChunkExtent>& chunks : steps) {
    for (AttendShape shape : {Heads(3, 3, 64), Heads(1, 4, 256), Heads(8, 1, 16)}) {
      for (const Reach reach : {Reach::kCausal, Reach::kWindow, Reach::kChunk}) {
        shape.reach = reach;
        shape.reach_size = reach == Reach::kCausal ? 0 : 512;
        CheckAttendCovers(shape, chunks, SplitAttend(shape, chunks, {2}));
        for (uint64_t seed = 0; seed < 5; ++seed) {
          Draws draws(seed);
          CheckAttendCovers(shape, chunks, SplitAttend(shape, chunks, {2, &draws}));
        }
      }
    }
  }
}

// Sequences of `num_rows` rows each, all of which begin with the same `num_shared` slots.
struct Family {
  Family(size_t count, uint64_t num_shared, uint32_t num_rows, uint64_t start) {
    const uint64_t num_blocks = (start + 2 * count + num_rows) / 64 + 1;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int32_t>& table = tables.emplace_back();
      for (uint64_t block = 0; block < num_blocks; ++block) {
        table.push_back(static_cast<int32_t>(block < num_shared / 64 ? block : 1000 * (i + 1) + block));
      }
    }
    for (uint32_t i = 0; i < count; ++i) chunks.push_back({i * num_rows, num_rows, start + 2 * i, tables[i]});
  }
  std::vector<std::vector<int32_t>> tables;
  std::vector<ChunkExtent> chunks;
};

TEST(StacksAndTheRestCoverEveryRowHeadAndTileOnce) {
  std::vector<Family> families;
  families.emplace_back(64, 768, 1, 800);
  families.emplace_back(5, 256, 7, 900);
  families.emplace_back(3, 512, 16, 520);
  families.emplace_back(300, 8192, 1, 8200);  // more than there is room for
  for (const Family& family : families) {
    for (AttendShape shape : {Heads(3, 3, 64), Heads(8, 8, 128)}) {
      const AttendTasks split = SplitAttend(shape, family.chunks, {2});
      CHECK_EQ(split.stacks.size(), 1u);
      CheckAttendCovers(shape, family.chunks, split);
      size_t num_stacks = 0;
      for (uint64_t seed = 0; seed < 8; ++seed) {
        Draws draws(seed);
        const AttendTasks drawn = SplitAttend(shape, family.chunks, {2, &draws});
        num_stacks += drawn.stacks.size();
        CheckAttendCovers(shape, family.chunks, drawn);
      }
      CHECK(num_stacks > 0);
    }
  }
}

TEST(WhatIsNotWorthItIsNotStacked) {
  const AttendShape shape = Heads(3, 3, 64);
  CHECK(SplitAttend(shape, Family(2, 256, 1, 300).chunks, {2}).stacks.empty());
  CHECK(SplitAttend(shape, Family(8, 128, 1, 300).chunks, {2}).stacks.empty());
  CHECK(SplitAttend(shape, Family(8, 768, 64, 800).chunks, {2}).stacks.empty());
  AttendShape window = shape;
  window.reach = Reach::kWindow, window.reach_size = 1024;
  CHECK(SplitAttend(window, Family(8, 768, 1, 800).chunks, {2}).stacks.empty());
}

TEST(OneLongSequenceIsSplitByTilesAndManyShortOnesAreGathered) {
  const AttendShape shape = Heads(3, 3, 64);
  const std::vector<ChunkExtent> alone = {{0, 1, 8191, {}}};
  const AttendTasks split = SplitAttend(shape, alone, {2});
  CHECK(split.wholes.size() == 3 && split.num_units() >= 6);
  std::vector<ChunkExtent> many;
  for (uint32_t chunk = 0; chunk < 64; ++chunk) many.push_back({chunk, 1, 50, {}});
  const AttendTasks gathered = SplitAttend(shape, many, {2});
  CHECK(gathered.wholes.empty() && gathered.num_units() < 64);
}

}  // namespace plait
