#include "runtime/units.h"

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

void CheckAttendCovers(const AttendShape& shape, const std::vector<ChunkExtent>& chunks, const AttendTasks& split) {
  // Per (chunk, row, head): tiles that were done; whole tasks count as all of them.
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> done;
  std::vector<uint32_t> parts(split.wholes.size(), 0);
  for (const AttendTask& task : split.tasks) {
    CHECK(task.num_rows > 0 && task.num_rows <= kMaxAttendRows);
    for (uint32_t row = task.first_row; row < task.first_row + task.num_rows; ++row) {
      const bool is_whole = task.whole < 0;
      done[{task.chunk, row, task.kv_head}] +=
          is_whole ? 1000 : task.num_tiles * 1000 / split.wholes[static_cast<size_t>(task.whole)].num_tiles;
    }
    if (task.whole < 0) continue;
    const AttendWhole& whole = split.wholes[static_cast<size_t>(task.whole)];
    ++parts[static_cast<size_t>(task.whole)];
    CHECK(task.num_tiles > 0 && task.first_tile >= whole.first_tile);
    CHECK(task.first_tile + task.num_tiles <= whole.first_tile + whole.num_tiles);
    const uint64_t last_slot = chunks[task.chunk].start + task.first_row + task.num_rows - 1;
    CHECK_EQ(whole.first_tile + whole.num_tiles, static_cast<uint32_t>(last_slot / kKeyTile) + 1);
    const size_t floats = size_t{whole.num_tiles} * task.num_rows * shape.group * (2 + shape.head_dim_v);
    CHECK(whole.first_partial + floats <= kMaxPartials);
  }
  for (size_t i = 0; i < parts.size(); ++i) CHECK_EQ(parts[i], split.wholes[i].num_tasks);
  size_t num_rows = 0;
  for (const ChunkExtent& chunk : chunks) num_rows += chunk.num_rows;
  CHECK_EQ(done.size(), num_rows * shape.kv_heads);
  for (const auto& [place, thousandths] : done) CHECK(thousandths > 900 && thousandths <= 1000);
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
  const std::vector<ChunkExtent> longest = {{0, 1u << 20, 0}};
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

TEST(AttentionUnitsCoverEveryRowHeadAndTileOnce) {
  const std::vector<std::vector<ChunkExtent>> steps = {
      {{0, 1, 8191}},
      {{0, 1, 0}, {1, 1, 300}, {2, 1, 4095}},
      {{0, 512, 0}},
      {{0, 200, 3000}, {200, 1, 10}, {201, 65, 511}},
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

TEST(OneLongSequenceIsSplitByTilesAndManyShortOnesAreGathered) {
  const AttendShape shape = Heads(3, 3, 64);
  const std::vector<ChunkExtent> alone = {{0, 1, 8191}};
  const AttendTasks split = SplitAttend(shape, alone, {2});
  CHECK(split.wholes.size() == 3 && split.num_units() >= 6);
  std::vector<ChunkExtent> many;
  for (uint32_t chunk = 0; chunk < 64; ++chunk) many.push_back({chunk, 1, 50});
  const AttendTasks gathered = SplitAttend(shape, many, {2});
  CHECK(gathered.wholes.empty() && gathered.num_units() < 64);
}

}  // namespace plait
