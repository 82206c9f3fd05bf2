// Cutting recurrences: chunks are grouped until a group is as long as the longest chunk, then parts are cut until there
// are as many units as workers want.
//
// Invariant: no unit is empty, and an op has no more units than can be claimed.

#include "runtime/recurrence_split.h"

#include <algorithm>
#include <numeric>

#include "runtime/progress.h"

namespace plait {
namespace {

// Of one worker: numbers of a state that a token goes through, and multiply-adds of a convolution with its activation.
constexpr double kStatePerUs = 5'000.0;
constexpr double kConvPerUs = 2'000.0;

uint32_t DivideUp(uint32_t count, uint32_t by) { return (count + by - 1) / by; }

}  // namespace

uint32_t RecurrenceSplit::num_units() const {
  return begins.size() < 2 ? 0 : static_cast<uint32_t>(begins.size() - 1) * num_blocks();
}

RecurrenceSplit::Unit RecurrenceSplit::unit(uint32_t index) const {
  const uint32_t range = index / num_blocks();
  const uint32_t first = index % num_blocks() * parts_per_block;
  return {begins[range], begins[range + 1], first, std::min(parts_per_block, num_parts - first)};
}

uint32_t PartsOf(const OpSpec& op) {
  return op.kind == OpKind::kScan ? op.heads : DivideUp(op.in[0].width, kConvColumns);
}

double RecurrenceUs(const OpSpec& op) {
  if (op.kind == OpKind::kShift) return static_cast<double>(op.out[0].width) / kConvPerUs;
  if (op.kind == OpKind::kConv) return static_cast<double>(op.in[0].width) * op.taps / kConvPerUs;
  return static_cast<double>(op.heads) * op.head_dim_k * op.head_dim_v / kStatePerUs;
}

void SplitRecurrence(uint32_t num_parts, double row_us, std::span<const uint32_t> rows, const SplitPolicy& policy,
                     RecurrenceSplit* split) {
  split->num_parts = num_parts;
  split->parts_per_block = num_parts;
  split->begins.clear();
  if (rows.empty()) return;
  const uint32_t total = std::accumulate(rows.begin(), rows.end(), 0u);
  uint32_t wanted = 0;
  uint32_t rows_per_range = 0;
  if (policy.draws != nullptr) {
    rows_per_range = policy.draws->Between(1, total);
    wanted = policy.draws->Between(1, num_parts * static_cast<uint32_t>(rows.size()));
  } else {
    wanted = SharedUnits(row_us * total, kShareUs, policy);
    rows_per_range = std::max(*std::max_element(rows.begin(), rows.end()), DivideUp(total, wanted));
  }
  split->begins.push_back(0);
  uint32_t in_range = 0;
  for (uint32_t chunk = 0; chunk < rows.size(); ++chunk) {
    in_range += rows[chunk];
    const bool is_last = chunk + 1 == rows.size();
    if (!is_last && in_range < rows_per_range) continue;
    split->begins.push_back(chunk + 1);
    in_range = 0;
  }
  const auto num_ranges = static_cast<uint32_t>(split->begins.size() - 1);
  const uint32_t most_blocks = std::max(1u, std::min(num_parts, kMaxUnits / num_ranges));
  split->parts_per_block = DivideUp(num_parts, std::clamp(DivideUp(wanted, num_ranges), 1u, most_blocks));
}

}  // namespace plait
