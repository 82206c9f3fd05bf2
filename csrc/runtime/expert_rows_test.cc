// Rows by expert: every wanted choice has one place, and units cover all of them once, however they are cut.

#include "runtime/expert_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "ops/kernels.h"
#include "runtime/progress.h"

namespace plait {
namespace {

GemmShape ShapeOf(size_t panels, size_t depth, uint32_t multiple = 1) {
  GemmShape shape;
  shape.depth = depth;
  shape.num_panels[0] = panels;
  shape.panel_bytes = static_cast<double>(depth) * kPanelColumns * 4;
  shape.panel_multiple = multiple;
  return shape;
}

// Rows that choose at random; those that are a multiple of `unwanted` are not wanted.
struct Routed {
  ExpertRows rows;
  std::vector<std::vector<uint32_t>> chosen;

  Routed(size_t num_rows, size_t top_k, size_t experts, size_t unwanted, uint64_t seed) {
    Draws draws(seed);
    rows.Reserve(num_rows, top_k + 1);
    for (size_t row = 0; row < num_rows; ++row) {
      std::vector<uint32_t> own;
      while (own.size() < top_k) {
        // Some experts are chosen by many rows.
        const uint32_t expert = draws.Between(0, draws.Between(0, static_cast<uint32_t>(experts) - 1));
        if (std::find(own.begin(), own.end(), expert) == own.end()) own.push_back(expert);
      }
      std::copy(own.begin(), own.end(), rows.chosen(row, top_k));
      chosen.push_back(own);
    }
    rows.Group(num_rows, top_k, experts, [&](size_t row) { return unwanted == 0 || row % unwanted != 0; });
    Check(top_k, unwanted);
  }

  void Check(size_t top_k, size_t unwanted) {
    std::set<uint32_t> places;
    for (size_t row = 0; row < chosen.size(); ++row) {
      for (size_t i = 0; i < top_k; ++i) {
        const uint32_t place = rows.places(row, top_k)[i];
        if (unwanted != 0 && row % unwanted == 0) {
          CHECK_EQ(place, kNoPlace);
          continue;
        }
        CHECK(place < rows.num_places() && places.insert(place).second);
        CHECK_EQ(rows.rows()[place], row);
      }
    }
    CHECK_EQ(places.size(), rows.num_places());
  }

  void CheckCovers(const GemmShape& shape, size_t top_k) {
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> expert_of;
    for (uint32_t index = 0; index < rows.num_units(); ++index) {
      const ExpertUnit unit = rows.unit(index);
      CHECK(unit.num_places > 0 && unit.num_panels > 0);
      CHECK_EQ(unit.first_panel % shape.panel_multiple, 0u);
      for (uint32_t place = unit.first_place; place < unit.first_place + unit.num_places; ++place) {
        for (uint32_t panel = unit.first_panel; panel < unit.first_panel + unit.num_panels; ++panel) {
          CHECK(expert_of.emplace(std::pair(place, panel), unit.expert).second);
        }
      }
    }
    CHECK_EQ(expert_of.size(), rows.num_places() * shape.num_panels[0]);
    for (const auto& [where, expert] : expert_of) {
      const std::vector<uint32_t>& own = chosen[rows.rows()[where.first]];
      CHECK(std::find(own.begin(), own.end(), expert) != own.end());
    }
    for (size_t row = 0; row < chosen.size(); ++row) {
      for (size_t i = 0; i < top_k; ++i) {
        const uint32_t place = rows.places(row, top_k)[i];
        if (place != kNoPlace) CHECK_EQ(expert_of.at({place, 0}), chosen[row][i]);
      }
    }
  }
};

}  // namespace

TEST(UnitsOfExpertsCoverEveryWantedRowOnce) {
  uint64_t seed = 1;
  for (const size_t num_rows : {1u, 2u, 5u, 64u, 300u}) {
    for (const size_t experts : {4u, 32u}) {
      for (const size_t unwanted : {0u, 3u}) {
        for (const uint32_t multiple : {1u, 2u, 8u}) {
          Routed routed(num_rows, 3, experts, unwanted, ++seed);
          SplitPolicy policy;
          policy.num_workers = 2;
          routed.rows.Split(ShapeOf(13, 64, multiple), policy);
          routed.CheckCovers(ShapeOf(13, 64, multiple), 3);
          Draws draws(seed);
          policy.draws = &draws;
          routed.rows.Split(ShapeOf(13, 64, multiple), policy);
          routed.CheckCovers(ShapeOf(13, 64, multiple), 3);
        }
      }
    }
  }
}

TEST(WithoutWantedRowsThereAreNoUnits) {
  Routed routed(7, 2, 4, 1, 3);
  routed.rows.Split(ShapeOf(5, 64), {});
  CHECK_EQ(routed.rows.num_units(), 0u);
}

TEST(LargeMixturesAreCutIntoUnitsOfAWorkersSize) {
  Routed routed(256, 8, 128, 0, 9);
  SplitPolicy policy;
  policy.num_workers = 8;
  routed.rows.Split(ShapeOf(96, 4096), policy);
  CHECK(routed.rows.num_units() >= 32);
  CHECK(routed.rows.num_units() <= kMaxUnits);
  // One row after another: an expert for each, so that there is enough for every worker.
  Routed single(1, 8, 128, 0, 9);
  single.rows.Split(ShapeOf(96, 4096), policy);
  CHECK(single.rows.num_units() >= 8);
}

}  // namespace plait
