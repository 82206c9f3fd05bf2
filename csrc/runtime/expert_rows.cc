// Expert rows: the counting sort of rows by expert, and sizes of blocks from what all of them cost together.
//
// Experts have few rows each, so that a unit is one expert's rows and some of its panels; only where an expert has many
// rows are these cut as well.
// Invariant: no unit is empty, and an op has no more units than can be claimed.

#include "runtime/expert_rows.h"

#include <algorithm>

#include "ops/kernels.h"
#include "runtime/progress.h"

namespace plait {
namespace {

uint32_t DivideUp(uint32_t count, uint32_t by) { return (count + by - 1) / by; }

}  // namespace

void ExpertRows::Reserve(size_t max_rows, size_t max_top_k) {
  const size_t most = max_rows * max_top_k;
  if (most == 0) return;
  chosen_.assign(most, 0);
  places_.assign(most, kNoPlace);
  rows_.assign(most, 0);
  counts_.reserve(kMaxExperts + 1);
  const size_t most_segments = std::min(most, kMaxExperts);
  segments_.reserve(most_segments);
  unit_begins_.reserve(most_segments + 1);
}

void ExpertRows::LayOut(size_t num_rows, size_t top_k, size_t num_experts) {
  segments_.clear();
  unit_begins_.clear();
  for (size_t e = 0; e < num_experts; ++e) {
    const uint32_t first = counts_[e];
    const uint32_t count = counts_[e + 1];
    if (count > 0) segments_.push_back({static_cast<uint32_t>(e), first, count});
    counts_[e + 1] += first;
  }
  num_places_ = counts_[num_experts];
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t i = row * top_k; i < (row + 1) * top_k; ++i) {
      if (places_[i] == kNoPlace) continue;
      const uint32_t place = counts_[chosen_[i]]++;
      places_[i] = place;
      rows_[place] = static_cast<uint32_t>(row);
    }
  }
}

uint32_t ExpertRows::RowBlocks(const Segment& segment) const { return DivideUp(segment.count, rows_per_block_); }

void ExpertRows::Split(const GemmShape& shape, const SplitPolicy& policy) {
  unit_begins_.clear();
  if (segments_.empty()) return;
  num_panels_ = static_cast<uint32_t>(shape.num_panels[0]);
  uint32_t most_rows = 0;
  for (const Segment& segment : segments_) most_rows = std::max(most_rows, segment.count);
  if (policy.draws != nullptr) {
    rows_per_block_ = policy.draws->Between(1, most_rows);
    panels_per_block_ = policy.draws->Between(1, num_panels_);
  } else {
    // As if all rows went through one matrix with the panels of all experts that have any.
    GemmShape whole = shape;
    whole.num_rows = std::max<size_t>(1, num_places_ / segments_.size());
    whole.num_panels[0] = shape.num_panels[0] * segments_.size();
    const GemmSplit split = SplitGemm(whole, policy);
    rows_per_block_ = std::max(split.rows_per_block, kLeastExpertRows);
    panels_per_block_ = std::min(split.panels_per_block, num_panels_);
    // Blocks of an expert's panels are about equally large.
    panels_per_block_ = DivideUp(num_panels_, DivideUp(num_panels_, panels_per_block_));
  }
  panels_per_block_ = DivideUp(panels_per_block_, shape.panel_multiple) * shape.panel_multiple;
  for (;;) {
    uint64_t units = 0;
    for (const Segment& segment : segments_) {
      units += uint64_t{RowBlocks(segment)} * DivideUp(num_panels_, panels_per_block_);
    }
    if (units <= kMaxUnits) break;
    rows_per_block_ *= 2;
    panels_per_block_ *= 2;
  }
  uint32_t begin = 0;
  for (const Segment& segment : segments_) {
    unit_begins_.push_back(begin);
    begin += RowBlocks(segment) * DivideUp(num_panels_, panels_per_block_);
  }
  unit_begins_.push_back(begin);
}

ExpertUnit ExpertRows::unit(uint32_t index) const {
  const auto behind = std::upper_bound(unit_begins_.begin(), unit_begins_.end(), index);
  const auto at = static_cast<size_t>(behind - unit_begins_.begin()) - 1;
  const Segment& segment = segments_[at];
  const uint32_t row_blocks = RowBlocks(segment);
  const uint32_t in_segment = index - unit_begins_[at];
  ExpertUnit unit;
  unit.expert = segment.expert;
  unit.first_panel = in_segment / row_blocks * panels_per_block_;
  unit.num_panels = std::min(panels_per_block_, num_panels_ - unit.first_panel);
  const uint32_t first = in_segment % row_blocks * rows_per_block_;
  unit.first_place = segment.first + first;
  unit.num_places = std::min(rows_per_block_, segment.count - first);
  return unit;
}

}  // namespace plait
