// Seat: what a joined sequence keeps between its steps.
//
// Owns block tables, the token sampled last, and the history that penalties see. Python's roster checked whatever comes
// here. Invariant: `tables` changes when a step is submitted, `num_in_flight` and `broken` under the runtime's lock;
// the rest belongs to the sequence's running step, and a sequence has one running step at most.

#ifndef PLAIT_CSRC_RUNTIME_SEAT_H_
#define PLAIT_CSRC_RUNTIME_SEAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampler_counts.h"
#include "runtime/runtime.h"

namespace plait {

inline constexpr int32_t kNoBlock = -1;

// Rows added one by one, in token order and double precision, so that it does not matter how they were cut into chunks.
struct RowPool {
  std::vector<double> sum;
  uint64_t num_rows = 0;

  void Add(std::span<const float> row) {
    sum.resize(row.size(), 0.0);
    for (size_t i = 0; i < row.size(); ++i) sum[i] += static_cast<double>(row[i]);
    ++num_rows;
  }
  std::vector<float> Mean() const {
    std::vector<float> mean(sum.size());
    for (size_t i = 0; i < sum.size(); ++i) mean[i] = static_cast<float>(sum[i] / static_cast<double>(num_rows));
    return mean;
  }
};

class Seat {
 public:
  Seat(const JoinSpec& join, size_t num_groups) : join(join), tables(num_groups), history(join.history) {
    has_penalties = join.sampling.repetition_penalty != 1.0 || join.sampling.frequency_penalty != 0.0 ||
                    join.sampling.presence_penalty != 0.0;
    if (has_penalties) counts.Rebuild(history, static_cast<size_t>(join.num_prompt));
  }

  void Grant(const GrantSpec& grant) {
    std::vector<int32_t>& table = tables[grant.group];
    if (table.size() < grant.first + grant.blocks.size()) table.resize(grant.first + grant.blocks.size(), kNoBlock);
    for (size_t i = 0; i < grant.blocks.size(); ++i) table[grant.first + i] = grant.blocks[i];
  }

  // From slot `start` on the sequence reads `tokens`: whatever an earlier attempt had there is taken back.
  void Remember(size_t start, std::span<const int32_t> tokens) {
    if (!has_penalties) return;
    while (history.size() > start) {
      counts.Remove(history.back(), IsOutput(history.size() - 1));
      history.pop_back();
    }
    for (const int32_t token : tokens) {
      counts.Add(token, IsOutput(history.size()));
      history.push_back(token);
    }
  }

  const JoinSpec join;
  bool has_penalties = false;
  std::vector<std::vector<int32_t>> tables;  // per group; kNoBlock behind the window of a sequence that joined late
  int32_t last_sampled = 0;
  std::vector<int32_t> history;  // by slot, with penalties only
  PenaltyCounts counts;          // of the whole history
  RowPool pool;                  // of the chunks that ended well
  uint32_t num_in_flight = 0;    // chunks submitted and not collected
  bool broken = false;           // one of them was cancelled or failed

 private:
  bool IsOutput(size_t slot) const { return slot >= static_cast<size_t>(join.num_prompt); }
};

}  // namespace plait

#endif  // PLAIT_CSRC_RUNTIME_SEAT_H_
