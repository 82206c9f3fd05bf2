// Scans: which function carries out which kind.
//
// Owns the choice only. Invariant: every kind of ops/recurrence.h has its function, in a file of its own.

#include "ops/recurrence.h"
#include "ops/targets/functions.h"

namespace plait::PLAIT_TARGET {

void Scan(const ScanCall& call) {
  switch (call.kind) {
    case ScanKind::kMamba2:
      return ScanMamba2(call);
    case ScanKind::kRwkv7:
      return ScanRwkv7(call);
  }
}

}  // namespace plait::PLAIT_TARGET
