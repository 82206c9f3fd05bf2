// Rates: how many operations and how many bytes several threads get through in a second.
//
// Owns the threads and the time of one measurement. What a thread does is compute_loops.h, or reading memory.
// Invariant: every thread works for the whole of the time that counts, on a processor of its own where there are
// enough.

#ifndef PLAIT_CSRC_LIMITS_RATES_H_
#define PLAIT_CSRC_LIMITS_RATES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "limits/compute_loops.h"

namespace plait::limits {

// Seconds on a clock that never goes back.
double Now();

// Reads memory, a multiple of 128 bytes, as fast as one thread can. The result must be used.
uint64_t XorOf(const char* begin, const char* end);

// Operations a second of `num_threads` threads together, `num_samples` times for `sample_s` seconds each. Seconds count
// while a thread runs: what other programs take of a core is not the core's limit.
std::vector<double> ComputeRates(const ComputeLoop& loop, int num_threads, int num_samples, double sample_s);

// Bytes a second of `num_threads` threads that read `num_bytes` of memory over and over, each its own part, which is a
// multiple of 256 KiB and at least that. Seconds are the clock's, because threads that only take turns would each seem
// to have all of the memory. An empty vector: there is not so much memory.
std::vector<double> ReadRates(size_t num_bytes, int num_threads, int num_samples, double sample_s);

}  // namespace plait::limits

#endif  // PLAIT_CSRC_LIMITS_RATES_H_
