// Units: block sizes from rough costs.
//
// Rates are those of one worker of a small server core; they need to be right within a factor of two, because they only
// decide how large a unit is. Invariant: no unit is empty, and an op has no more units than can be claimed.

#include "runtime/units.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/aligned.h"
#include "runtime/progress.h"
#include "runtime/stacks.h"
#include "runtime/task_table.h"

namespace plait {
namespace {

// Of one worker, from memory and from caches.
constexpr double kBytesPerUs = 10'000.0;
constexpr double kAttendPerUs = 30'000.0;  // multiply-adds

// Rows whose activations stay in a core's own cache beside the panels that pass through it.
constexpr double kRowBlockBytes = 256 * 1024.0;
constexpr uint32_t kLeastRowBlock = 48;
constexpr uint32_t kMostRowBlock = 192;
constexpr uint32_t kRowMultiple = 24;  // of every kernel's tile of rows

// Numbers of panels that are looked at around what the cost says.
constexpr uint32_t kMostSteps = 16;
// Kernels multiply two panels at a time where registers allow it; one that is left over takes longer than half of two.
constexpr double kSinglePanelCost = 0.3;
// What a unit takes beside its work: a claim, and weights that nobody has fetched yet.
constexpr double kClaimUs = 1.5;
// Other sizes than the cost says are taken for a gain of one per cent.
constexpr double kWorthAnotherSize = 0.99;

// A chunk of more rows fills the kernel's tiles by itself.
constexpr uint32_t kMostStackedRows = 16;
// Tiles that a stack must save to be worth its merging.
constexpr uint32_t kLeastSavedTiles = 2;
constexpr double kMergeUs = 0.5;
// What taking part in attention costs each worker: its first keys, which a worker that had the KV head before would
// have asked for in time.
constexpr double kAttendShareUs = 2.4;
// For sums that are not quite what they were cut to be.
constexpr double kFullUnit = 0.99;

uint32_t DivideUp(uint32_t count, uint32_t by) { return (count + by - 1) / by; }

// Rows of a block, so that there are as few blocks as possible, about equally large, and of whole tiles where that
// leaves them within the most, and the last one no remainder.
uint32_t EvenBlock(uint32_t num_rows, uint32_t most_rows) {
  const uint32_t even = DivideUp(num_rows, DivideUp(num_rows, most_rows));
  const uint32_t tiles = DivideUp(even, kRowMultiple) * kRowMultiple;
  const bool is_even = (num_rows - 1) % tiles + 1 >= tiles / 2;
  return std::min(num_rows, tiles <= most_rows && is_even ? tiles : even);
}

// Of a unit, in panels; `claim`: what it costs to begin one.
double UnitCost(uint32_t panels, double claim) { return claim + panels + (panels % 2 == 1 ? kSinglePanelCost : 0.0); }

// How long the worker who is busy longest is, in panels times rows of a block, if units of so many panels are claimed
// by workers who are equally fast. Many units are taken to be equal.
double LongestClaims(const GemmSplit& split, uint32_t panels, double claim, uint32_t num_workers) {
  constexpr uint32_t kMostWorkers = 16;
  const uint32_t row_blocks = DivideUp(split.num_rows, split.rows_per_block);
  uint32_t num_blocks = 0;
  for (const uint32_t of : split.num_panels) num_blocks += DivideUp(of, panels);
  const uint32_t num_units = num_blocks * row_blocks;
  if (num_units > 4 * num_workers || num_workers > kMostWorkers) {
    return DivideUp(num_units, num_workers) * UnitCost(panels, claim);
  }
  double ends[kMostWorkers] = {};
  for (const uint32_t of : split.num_panels) {
    for (uint32_t first = 0; first < of; first += panels) {
      const double cost = UnitCost(std::min(panels, of - first), claim);
      for (uint32_t block = 0; block < row_blocks; ++block) *std::min_element(ends, ends + num_workers) += cost;
    }
  }
  return *std::max_element(ends, ends + num_workers);
}

// Panels of a block, about so many and at most `most`, so that all workers end together: nine blocks keep one of two
// waiting for a tenth of the time, six or twelve nobody.
uint32_t EvenPanels(const GemmSplit& split, uint32_t about, uint32_t most, uint32_t multiple, double claim,
                    uint32_t num_workers) {
  about = DivideUp(about, multiple) * multiple;
  const uint32_t step = DivideUp(std::max(1u, about / kMostSteps), multiple) * multiple;
  uint32_t best = about;
  double least = std::numeric_limits<double>::max();
  const auto look_at = [&](uint32_t panels) {
    const double longest = LongestClaims(split, panels, claim, num_workers);
    if (longest < least * kWorthAnotherSize) best = panels, least = longest;
  };
  for (uint32_t panels = about; panels >= DivideUp(about, 3) && panels >= multiple; panels -= step) look_at(panels);
  for (uint32_t panels = about + step; panels <= most; panels += step) look_at(panels);
  return best;
}

double MultiplyAddsPerUs(Scheme scheme, bool is_wide) {
  if (is_wide) return IsInteger(scheme) ? 300'000.0 : 100'000.0;
  switch (scheme) {
    case Scheme::kQ8_0:
    case Scheme::kQ5_0:
    case Scheme::kQ5_1:
    case Scheme::kQ5_K:
    case Scheme::kQ6_K:
    case Scheme::kInt8:
    case Scheme::kQ2_K:
    case Scheme::kQ3_K:
    case Scheme::kIQ4:
    case Scheme::kQ8_16:
      return 50'000.0;
    case Scheme::kQ4_0:
    case Scheme::kQ4_1:
    case Scheme::kQ4_K:
      return 60'000.0;
    default:
      return 40'000.0;
  }
}

uint64_t FirstSeen(const AttendShape& shape, uint64_t slot) {
  switch (shape.reach) {
    case Reach::kWindow:
      return slot + 1 > shape.reach_size ? slot + 1 - shape.reach_size : 0;
    case Reach::kChunk:
      return slot - slot % shape.reach_size;
    default:
      return 0;
  }
}

struct TileRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// Tiles that hold a key which one of the rows sees.
TileRange TilesOf(const AttendShape& shape, uint64_t slot, uint32_t num_rows) {
  const auto first = static_cast<uint32_t>(FirstSeen(shape, slot) / kKeyTile);
  return {first, static_cast<uint32_t>((slot + num_rows - 1) / kKeyTile) + 1 - first};
}

double AttendUs(const AttendShape& shape, uint32_t num_rows, double num_keys) {
  const double per_key = shape.head_dim_k + shape.head_dim_v;
  return std::max(num_rows * shape.group * num_keys * per_key / kAttendPerUs, num_keys * shape.key_bytes / kBytesPerUs);
}

// Rows [first_row, first_row + num_rows) of a chunk, every KV head alike.
struct Piece {
  uint32_t chunk = 0;
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  TileRange tiles;
  double cost_us = 0.0;            // of one KV head
  int32_t first_whole = kNoIndex;  // in a stack: of KV head 0
};

class AttendPlanner {
 public:
  AttendPlanner(const AttendShape& shape, std::span<const ChunkExtent> chunks, const SplitPolicy& policy)
      : shape_(shape), chunks_(chunks), policy_(policy) {}

  AttendTasks Plan() {
    CutRows();
    if (shape_.reach == Reach::kCausal) StackPieces();
    std::vector<double> costs_us;
    for (const Piece& piece : pieces_) costs_us.push_back(piece.cost_us);
    double total_us = std::accumulate(costs_us.begin(), costs_us.end(), 0.0) * shape_.kv_heads;
    for (const AttendStack& stack : result_.stacks) total_us += StackUs(stack, stack.rows.size()) * shape_.kv_heads;
    unit_us_ = total_us / SharedUnits(total_us, kAttendShareUs, policy_);
    result_.unit_begins.push_back(0);
    for (size_t stack = 0; stack < result_.stacks.size(); ++stack) {
      for (uint32_t head = 0; head < shape_.kv_heads; ++head) AddStack(static_cast<int32_t>(stack), head);
    }
    for (const uint32_t piece : HeaviestFirst(costs_us)) {
      for (uint32_t head = 0; head < shape_.kv_heads; ++head) Add(pieces_[piece], head);
    }
    if (result_.unit_begins.back() != result_.tasks.size()) EndUnit();
    return std::move(result_);
  }

 private:
  void CutRows() {
    for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      uint32_t row = 0;
      while (row < chunks_[chunk].num_rows) {
        const uint32_t count = std::min(RowsFrom(chunk, row), chunks_[chunk].num_rows - row);
        const uint64_t slot = chunks_[chunk].start + row;
        const auto keys = static_cast<double>(slot + count - FirstSeen(shape_, slot));
        pieces_.push_back({chunk, row, count, TilesOf(shape_, slot, count), AttendUs(shape_, count, keys)});
        row += count;
      }
    }
  }

  // As many rows as fit a unit, so that keys are read for many rows at once and no unit takes too long.
  uint32_t RowsFrom(uint32_t chunk, uint32_t row) {
    if (policy_.draws != nullptr) return policy_.draws->Between(1, kMaxAttendRows);
    const uint64_t slot = chunks_[chunk].start + row;
    uint32_t rows = kMaxAttendRows;
    while (rows > policy_.sizes.least_attend_rows) {
      const auto keys = static_cast<double>(slot + rows - FirstSeen(shape_, slot));
      if (AttendUs(shape_, rows, keys) <= policy_.sizes.largest_attend_us) break;
      rows /= 2;
    }
    return rows;
  }

  size_t FloatsPerRow() const { return size_t{shape_.group} * (2 + shape_.head_dim_v); }

  size_t PartialsOf(const Piece& piece, uint32_t num_tiles) const {
    return RoundUp(piece.num_rows * FloatsPerRow() * num_tiles, kCacheLine / sizeof(float));
  }

  double StackUs(const AttendStack& stack, size_t num_rows) const {
    return AttendUs(shape_, static_cast<uint32_t>(num_rows), stack.num_tiles * static_cast<double>(kKeyTile));
  }

  // Pieces whose first tiles are the same blocks leave these to a stack.
  void StackPieces() {
    std::vector<uint32_t> piece_of;
    std::vector<StackCandidate> candidates;
    for (uint32_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const ChunkExtent& chunk = chunks_[piece.chunk];
      const auto own_tile = static_cast<uint32_t>((chunk.start + piece.first_row) / kKeyTile);
      if (chunk.num_rows > kMostStackedRows || own_tile == 0) continue;
      piece_of.push_back(i);
      candidates.push_back({chunk.table, own_tile});
    }
    for (const Stack& found : FindStacks(candidates, kKeyTile / shape_.tokens_per_block)) {
      uint32_t num_tiles = found.num_tiles;
      if (policy_.draws != nullptr) num_tiles = policy_.draws->Between(0, num_tiles);
      if (num_tiles * (found.members.size() - 1) < (policy_.draws != nullptr ? 1 : kLeastSavedTiles)) continue;
      std::vector<uint32_t> members;
      for (const uint32_t member : found.members) members.push_back(piece_of[member]);
      MakeStack(members, num_tiles);
    }
  }

  // Of as many of the pieces as there is room for.
  void MakeStack(const std::vector<uint32_t>& members, uint32_t num_tiles) {
    AttendStack stack;
    stack.num_tiles = num_tiles;
    size_t num_floats = 0;
    size_t num_members = 0;
    size_t num_rows = 0;
    for (; num_members < members.size(); ++num_members) {
      const Piece& piece = pieces_[members[num_members]];
      num_floats += shape_.kv_heads * PartialsOf(piece, piece.tiles.count - num_tiles);
      num_rows += piece.num_rows;
      const size_t per_head = RoundUp(num_rows * FloatsPerRow(), kCacheLine / sizeof(float));
      if (num_partials_ + num_floats + per_head * shape_.kv_heads > kMaxPartials) break;
      stack.floats_per_head = per_head;
    }
    if (num_members < 2) return;
    stack.first_state = num_partials_;
    num_partials_ += stack.floats_per_head * shape_.kv_heads;
    for (size_t i = 0; i < num_members; ++i) Join(&stack, &pieces_[members[i]]);
    result_.stacks.push_back(std::move(stack));
  }

  void Join(AttendStack* stack, Piece* piece) {
    const ChunkExtent& chunk = chunks_[piece->chunk];
    piece->first_whole = static_cast<int32_t>(result_.wholes.size());
    piece->tiles = {stack->num_tiles, piece->tiles.count - stack->num_tiles};
    const uint64_t end = chunk.start + piece->first_row + piece->num_rows;
    piece->cost_us =
        kMergeUs + AttendUs(shape_, piece->num_rows, static_cast<double>(end - stack->num_tiles * kKeyTile));
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
      const size_t state = stack->first_state + head * stack->floats_per_head + stack->rows.size() * FloatsPerRow();
      result_.wholes.push_back({piece->chunk, piece->first_row, piece->num_rows, head, piece->tiles.first,
                                piece->tiles.count, 1, num_partials_, state});
      num_partials_ += PartialsOf(*piece, piece->tiles.count);
    }
    for (uint32_t row = 0; row < piece->num_rows; ++row) {
      stack->rows.push_back(chunk.first_row + piece->first_row + row);
      stack->whole_of_row.push_back(static_cast<uint32_t>(piece->first_whole));
    }
  }

  // In tasks of whole pieces.
  void AddStack(int32_t index, uint32_t head) {
    const AttendStack& stack = result_.stacks[static_cast<size_t>(index)];
    const auto num_rows = static_cast<uint32_t>(stack.rows.size());
    const uint32_t wanted = DivideUp(policy_.sizes.stack_tasks_per_worker * policy_.num_workers, shape_.kv_heads);
    const uint32_t num_tasks = std::clamp(wanted, DivideUp(num_rows, static_cast<uint32_t>(kMaxAttendRows)),
                                          DivideUp(num_rows, policy_.sizes.least_attend_rows));
    for (uint32_t first = 0, next; first < num_rows; first = next) {
      const uint32_t most = policy_.draws != nullptr
                                ? policy_.draws->Between(1, kMaxAttendRows)
                                : std::min<uint32_t>(DivideUp(num_rows, num_tasks), kMaxAttendRows);
      next = first;
      for (uint32_t end = first; end < num_rows && (next == first || end - first < most);) {
        while (end < num_rows && stack.whole_of_row[end] == stack.whole_of_row[next]) ++end;
        if (next > first && end - first > most) break;
        next = end;
      }
      const uint32_t chunk = result_.wholes[stack.whole_of_row[first]].chunk;
      AddTask({chunk, first, next - first, head, 0, stack.num_tiles, kNoIndex, index}, StackUs(stack, next - first));
    }
  }

  void Add(const Piece& piece, uint32_t head) {
    int32_t whole = piece.first_whole == kNoIndex ? kNoIndex : piece.first_whole + static_cast<int32_t>(head);
    uint32_t parts = PartsOf(piece);
    if (whole == kNoIndex) {
      const size_t num_floats = PartialsOf(piece, piece.tiles.count);
      if (parts == 1 || num_partials_ + num_floats > kMaxPartials) {
        return AddTask({piece.chunk, piece.first_row, piece.num_rows, head}, piece.cost_us);
      }
      whole = static_cast<int32_t>(result_.wholes.size());
      result_.wholes.push_back(
          {piece.chunk, piece.first_row, piece.num_rows, head, piece.tiles.first, piece.tiles.count, 0, num_partials_});
      num_partials_ += num_floats;
    }
    const uint32_t tiles = DivideUp(piece.tiles.count, parts);
    for (uint32_t at = 0; at < piece.tiles.count; at += tiles) {
      const uint32_t count = std::min(tiles, piece.tiles.count - at);
      ++result_.wholes[static_cast<size_t>(whole)].num_tasks;
      AddTask({piece.chunk, piece.first_row, piece.num_rows, head, piece.tiles.first + at, count, whole},
              piece.cost_us * count / piece.tiles.count);
    }
  }

  uint32_t PartsOf(const Piece& piece) {
    if (policy_.draws != nullptr) return policy_.draws->Between(1, piece.tiles.count);
    if (piece.cost_us < 2 * policy_.sizes.smallest_us || piece.cost_us < 1.5 * unit_us_) return 1;
    return std::min<uint32_t>(piece.tiles.count, static_cast<uint32_t>(std::ceil(piece.cost_us / unit_us_)));
  }

  void AddTask(const AttendTask& task, double cost_us) {
    result_.tasks.push_back(task);
    in_unit_us_ += cost_us;
    // Ends where it is nearest to the size: equal tasks make equal units, and parts that were cut to be a unit each,
    // none of which is below two thirds of one, stay one.
    const double size_us = kFullUnit * std::min(unit_us_, policy_.sizes.largest_us);
    const bool is_full =
        policy_.draws != nullptr ? policy_.draws->Between(0, 2) == 0 : in_unit_us_ + 0.5 * cost_us >= size_us;
    if (is_full && result_.unit_begins.size() < kMaxUnits) EndUnit();
  }

  void EndUnit() {
    result_.unit_begins.push_back(static_cast<uint32_t>(result_.tasks.size()));
    in_unit_us_ = 0.0;
  }

  const AttendShape& shape_;
  const std::span<const ChunkExtent> chunks_;
  const SplitPolicy& policy_;
  std::vector<Piece> pieces_;
  AttendTasks result_;
  double unit_us_ = 0.0;
  double in_unit_us_ = 0.0;
  size_t num_partials_ = 0;
};

}  // namespace

uint32_t WantedUnits(double cost_us, const SplitPolicy& policy) {
  const double most = cost_us / policy.sizes.smallest_us;
  const double wanted = std::max(policy.sizes.per_worker * policy.num_workers, cost_us / policy.sizes.largest_us);
  return static_cast<uint32_t>(std::clamp(std::min(most, wanted), 1.0, 65536.0));
}

uint32_t SharedUnits(double cost_us, double share_us, const SplitPolicy& policy) {
  // n workers take cost / n + n * share.
  const auto sharing = static_cast<uint32_t>(std::min<double>(std::sqrt(cost_us / share_us), policy.num_workers));
  const uint32_t units = std::max({WantedUnits(cost_us, policy), sharing, 1u});
  return units <= policy.num_workers ? units : DivideUp(units, policy.num_workers) * policy.num_workers;
}

uint64_t Draws::Next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return mixed ^ (mixed >> 31);
}

uint32_t Draws::Between(uint32_t low, uint32_t high) {
  return low + static_cast<uint32_t>(Next() % (uint64_t{high} - low + 1));
}

uint32_t RowSplit::count(uint32_t unit) const { return std::min(rows_per_block, num_rows - first(unit)); }

RowSplit SplitRows(size_t num_rows, double row_us, const SplitPolicy& policy) {
  RowSplit split;
  split.num_rows = static_cast<uint32_t>(num_rows);
  if (num_rows == 0) return split;
  if (policy.draws != nullptr) {
    split.rows_per_block = policy.draws->Between(1, split.num_rows);
  } else {
    const uint32_t units = SharedUnits(row_us * static_cast<double>(num_rows), kShareUs, policy);
    split.rows_per_block = DivideUp(split.num_rows, std::min(units, split.num_rows));
  }
  return split;
}

uint32_t GemmSplit::num_units() const { return num_row_blocks() * (num_blocks(0) + num_blocks(1) + num_blocks(2)); }

GemmSplit::Unit GemmSplit::unit(uint32_t index) const {
  uint32_t block = index / num_row_blocks();
  Unit unit;
  while (block >= num_blocks(static_cast<int>(unit.matrix))) block -= num_blocks(static_cast<int>(unit.matrix++));
  unit.first_panel = block * panels_per_block;
  unit.num_panels = std::min(panels_per_block, num_panels[unit.matrix] - unit.first_panel);
  unit.first_row = index % num_row_blocks() * rows_per_block;
  unit.num_rows = std::min(rows_per_block, num_rows - unit.first_row);
  return unit;
}

GemmSplit SplitGemm(const GemmShape& shape, const SplitPolicy& policy) {
  GemmSplit split;
  uint32_t num_panels = 0;
  for (int i = 0; i < 3; ++i) num_panels += split.num_panels[i] = static_cast<uint32_t>(shape.num_panels[i]);
  split.num_rows = static_cast<uint32_t>(shape.num_rows);
  if (split.num_rows == 0) return split;
  if (policy.draws != nullptr) {
    split.rows_per_block = policy.draws->Between(1, split.num_rows);
    split.panels_per_block = policy.draws->Between(1, num_panels);
  } else if (policy.gemm) {
    split.rows_per_block = EvenBlock(split.num_rows, policy.gemm.most_rows);
    split.panels_per_block = std::min(policy.gemm.panels_per_block, num_panels);
  } else {
    const double columns = static_cast<double>(num_panels) * kPanelColumns;
    const double multiplying_us = static_cast<double>(shape.num_rows) * columns * static_cast<double>(shape.depth) /
                                  MultiplyAddsPerUs(shape.scheme, policy.is_wide);
    const double cost_us = std::max(multiplying_us, num_panels * shape.panel_bytes / kBytesPerUs);
    const uint32_t units = WantedUnits(cost_us, policy);
    const double number_bytes = IsInteger(shape.scheme) ? double{sizeof(QuantizedGroup)} / kGroupSize : sizeof(float);
    const double row_bytes = static_cast<double>(shape.depth) * number_bytes;
    const uint32_t most_rows =
        static_cast<uint32_t>(std::clamp<double>(kRowBlockBytes / row_bytes, kLeastRowBlock, kMostRowBlock));
    split.rows_per_block = EvenBlock(split.num_rows, most_rows / kRowMultiple * kRowMultiple);
    const uint32_t row_blocks = DivideUp(split.num_rows, split.rows_per_block);
    const uint32_t about = DivideUp(num_panels, std::clamp<uint32_t>(DivideUp(units, row_blocks), 1, num_panels));
    const double panel_us = std::max(cost_us, kClaimUs) / num_panels / row_blocks;
    const auto most = static_cast<uint32_t>(std::min(3.0 * about, policy.sizes.largest_us / panel_us));
    split.panels_per_block = units == 1 ? num_panels
                                        : EvenPanels(split, about, std::min(most, num_panels), shape.panel_multiple,
                                                     kClaimUs / panel_us, policy.num_workers);
  }
  split.panels_per_block = DivideUp(split.panels_per_block, shape.panel_multiple) * shape.panel_multiple;
  while (split.num_units() > kMaxUnits) {
    split.rows_per_block *= 2;
    split.panels_per_block *= 2;
  }
  return split;
}

AttendShape AttendShapeOf(const Tape& tape, const OpSpec& op) {
  const GroupSpec& group = tape.groups[static_cast<size_t>(op.group)];
  const size_t token_bytes = VectorBytes(group.type, op.head_dim_k) + VectorBytes(group.type, op.head_dim_v);
  return {op.reach,
          op.reach_size,
          op.kv_heads,
          op.heads / op.kv_heads,
          op.head_dim_k,
          op.head_dim_v,
          static_cast<uint32_t>(token_bytes),
          static_cast<uint32_t>(op.group),
          static_cast<uint32_t>(group.tokens_per_block)};
}

AttendTasks SplitAttend(const AttendShape& shape, std::span<const ChunkExtent> chunks, const SplitPolicy& policy) {
  return AttendPlanner(shape, chunks, policy).Plan();
}

}  // namespace plait
