// Blocking: limits of the numbers, and the table by op and number of rows.
//
// Owns the wording of refusals. Limits are far beyond what helps: they keep arithmetic with these numbers from
// overflowing, no more. Invariant: see blocking.h.

#include "runtime/blocking.h"

#include <cstdio>

namespace plait {
namespace {

constexpr uint32_t kMostBlock = 1'000'000;

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Not a number is in no range.
std::string RangeFault(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return "";
  return std::string(name) + " is " + Text(value) + " but must be between " + Text(least) + " and " + Text(most);
}

std::string SizesFault(const UnitSizes& sizes) {
  for (const std::string& fault :
       {RangeFault("smallest_us", sizes.smallest_us, 0.1, 1e5), RangeFault("largest_us", sizes.largest_us, 0.1, 1e6),
        RangeFault("per_worker", sizes.per_worker, 0.1, 1e3),
        RangeFault("largest_attend_us", sizes.largest_attend_us, 0.1, 1e6),
        RangeFault("least_attend_rows", sizes.least_attend_rows, 1, kMaxAttendRows),
        RangeFault("stack_tasks_per_worker", sizes.stack_tasks_per_worker, 1, 1e3)}) {
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace

std::string BlockingFault(const Blocking& blocking, const Tape& tape) {
  std::string fault = SizesFault(blocking.sizes);
  for (const GemmEntry& entry : blocking.gemms) {
    if (!fault.empty()) break;
    if (entry.op >= tape.ops.size() || !IsProduct(tape.ops[entry.op].kind)) {
      return "op " + std::to_string(entry.op) + " is no product of the tape";
    }
    fault = RangeFault("bucket", entry.bucket, 0, kNumRowBuckets - 1);
    if (fault.empty()) fault = RangeFault("most_rows", entry.blocks.most_rows, 1, kMostBlock);
    if (fault.empty()) fault = RangeFault("panels_per_block", entry.blocks.panels_per_block, 1, kMostBlock);
  }
  return fault;
}

BlockingTable::BlockingTable(const Blocking& blocking, size_t num_ops) : sizes_(blocking.sizes) {
  if (blocking.gemms.empty()) return;
  gemms_.resize(num_ops * kNumRowBuckets);
  for (const GemmEntry& entry : blocking.gemms) gemms_[entry.op * kNumRowBuckets + entry.bucket] = entry.blocks;
}

}  // namespace plait
