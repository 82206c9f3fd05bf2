// Expert rows: which rows of a step go through which expert, and how these products are cut into units.
//
// Owns the order of the rows: expert after expert, in an expert by row. It moves work and no arithmetic: a row's sums
// are the same wherever it stands. Knows neither weights nor threads.
// Invariant: every choice of a row that is wanted has one place; units cover all places and all panels exactly once.

#ifndef PLAIT_CSRC_RUNTIME_EXPERT_ROWS_H_
#define PLAIT_CSRC_RUNTIME_EXPERT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/units.h"

namespace plait {

// An expert's rows are not cut into blocks of fewer than this: its weights would be read once more for each.
inline constexpr uint32_t kLeastExpertRows = 48;

// A product of some rows of one expert with some panels of its matrix.
struct ExpertUnit {
  uint32_t expert = 0;
  uint32_t first_place = 0;
  uint32_t num_places = 0;
  uint32_t first_panel = 0;
  uint32_t num_panels = 0;
};

class ExpertRows {
 public:
  // For steps of up to `max_rows` rows, each with up to `max_top_k` experts; nothing is allocated afterwards.
  void Reserve(size_t max_rows, size_t max_top_k);

  // [row][top_k] of the layer under way: written when rows are routed. What a row chose that nobody routed means
  // nothing, so that `Group` is told which rows are wanted.
  uint32_t* chosen(size_t row, size_t top_k) { return chosen_.data() + row * top_k; }

  // Lays out the rows of a layer with so many experts. `wants(row)`: whether it is wanted.
  template <typename Wants>
  void Group(size_t num_rows, size_t top_k, size_t num_experts, const Wants& wants) {
    counts_.assign(num_experts + 1, 0);
    for (size_t row = 0; row < num_rows; ++row) {
      const bool is_wanted = wants(row);
      for (size_t i = row * top_k; i < (row + 1) * top_k; ++i) {
        places_[i] = is_wanted && chosen_[i] < num_experts ? 0 : kNoPlace;
        if (places_[i] == 0) ++counts_[chosen_[i] + 1];
      }
    }
    LayOut(num_rows, top_k, num_experts);
  }

  // Cuts a product of the rows that were laid out, whose shape is the same for every expert.
  void Split(const GemmShape& shape, const SplitPolicy& policy);

  uint32_t num_units() const { return unit_begins_.empty() ? 0 : unit_begins_.back(); }
  ExpertUnit unit(uint32_t index) const;

  uint32_t num_places() const { return static_cast<uint32_t>(num_places_); }
  std::span<const uint32_t> rows() const { return {rows_.data(), num_places_}; }  // of each place
  const uint32_t* places(size_t row, size_t top_k) const { return places_.data() + row * top_k; }

 private:
  struct Segment {
    uint32_t expert = 0;
    uint32_t first = 0;
    uint32_t count = 0;
  };

  void LayOut(size_t num_rows, size_t top_k, size_t num_experts);
  uint32_t RowBlocks(const Segment& segment) const;

  std::vector<uint32_t> chosen_;
  std::vector<uint32_t> places_;  // [row][top_k]
  std::vector<uint32_t> rows_;    // [place]
  std::vector<uint32_t> counts_;  // of each expert, then where it goes on
  std::vector<Segment> segments_;
  std::vector<uint32_t> unit_begins_;  // of each segment, and the end
  size_t num_places_ = 0;
  uint32_t num_panels_ = 0;
  uint32_t rows_per_block_ = 1;
  uint32_t panels_per_block_ = 1;
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_EXPERT_ROWS_H_
