// Threads that compute or read for a given time, all at once.
//
// Owns the measuring: a start line, a deadline, a rate for each thread. A thread looks at the clock after every piece
// of some tens of microseconds. Invariant: results of the work are used, so the compiler leaves none of it out.

#include "limits/rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cpu.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace plait::limits {
namespace {

constexpr uint64_t kRoundsPerPiece = 4096;
constexpr size_t kPieceBytes = size_t{1} << 18;
constexpr size_t kPageBytes = size_t{1} << 21;  // A huge page, so that the kernel may use them.

// One piece of a thread's work: returns how much it was.
using Piece = std::function<double()>;

// Where results end up. Written once a thread, so it costs nothing.
std::atomic<double> sink{0.0};

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// How much all of `pieces` get done together, one thread each, called again and again for `sample_s` seconds: in a
// second of `Seconds`, which may stand still while a thread does not run.
template <double (*Seconds)()>
double RateOf(const std::vector<Piece>& pieces, double sample_s) {
  const std::vector<int> cpus = UsableCpus();
  std::atomic<size_t> num_ready{0};
  std::vector<double> rates(pieces.size());
  std::atomic<bool> is_off{false};
  std::vector<std::thread> threads;
  const auto work = [&](size_t index) {
    PinThread(cpus[index % cpus.size()]);
    num_ready.fetch_add(1);
    while (num_ready.load() < pieces.size()) {
      if (is_off.load()) return;
      std::this_thread::yield();
    }
    const double began = Seconds(), until = Now() + sample_s;
    double done = 0.0;
    do {
      done += pieces[index]();
    } while (Now() < until);
    rates[index] = done / (Seconds() - began);
  };
  try {
    for (size_t index = 0; index < pieces.size(); ++index) threads.emplace_back(work, index);
  } catch (const std::system_error&) {
    is_off.store(true);
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  double sum = 0.0;
  for (size_t index = 0; index < threads.size(); ++index) {
    threads[index].join();
    sum += rates[index];
  }
  return sum;
}

// Bytes from a load to what is fetched for later ones: a core by itself does not look so far ahead. What lies behind
// the end may be fetched, too; that is allowed.
constexpr size_t kReadAhead = 8192;

// Eight loads of eight bytes a step, which every compiler turns into the widest loads it may use; the rest of the
// machine, not the core, is what limits them.
typedef uint64_t EightWords __attribute__((vector_size(64)));

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

}  // namespace

uint64_t XorOf(const char* begin, const char* end) {
  EightWords first{}, second{};
  for (const char* at = begin; at < end; at += 2 * sizeof(EightWords)) {
    __builtin_prefetch(at + kReadAhead);
    __builtin_prefetch(at + kReadAhead + sizeof(EightWords));
    first ^= *reinterpret_cast<const EightWords*>(at);
    second ^= *reinterpret_cast<const EightWords*>(at + sizeof(EightWords));
  }
  first ^= second;
  return first[0] ^ first[7];
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<double> ComputeRates(const ComputeLoop& loop, int num_threads, int num_samples, double sample_s) {
  const Piece piece = [&loop] {
    sink.store(loop.run(kRoundsPerPiece), std::memory_order_relaxed);
    return static_cast<double>(kRoundsPerPiece * loop.operations_per_round);
  };
  const std::vector<Piece> pieces(static_cast<size_t>(num_threads), piece);
  std::vector<double> rates;
  for (int sample = 0; sample < num_samples; ++sample) rates.push_back(RateOf<ThreadSeconds>(pieces, sample_s));
  return rates;
}

std::vector<double> ReadRates(size_t num_bytes, int num_threads, int num_samples, double sample_s) {
  const size_t num_parts = static_cast<size_t>(num_threads);
  const size_t pieces_per_part = std::max(num_bytes / num_parts / kPieceBytes, size_t{1});
  const size_t part_bytes = pieces_per_part * kPieceBytes;
  const size_t total_bytes = (part_bytes * num_parts + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(kPageBytes, total_bytes)));
  if (memory == nullptr) return {};
#if defined(__linux__)
  madvise(memory.get(), total_bytes, MADV_HUGEPAGE);
#endif
  std::vector<size_t> places(num_parts, 0);
  std::vector<Piece> fills, reads;
  for (size_t part = 0; part < num_parts; ++part) {
    char* const begin = memory.get() + part * part_bytes;
    // Whoever reads a page writes it first: that puts it into memory near its core.
    fills.push_back([begin, part_bytes] {
      for (size_t at = 0; at < part_bytes; ++at) begin[at] = static_cast<char>(at * 31);
      return static_cast<double>(part_bytes);
    });
    reads.push_back([begin, part_bytes, place = &places[part]] {
      sink.store(static_cast<double>(XorOf(begin + *place, begin + *place + kPieceBytes)), std::memory_order_relaxed);
      *place = *place + kPieceBytes == part_bytes ? 0 : *place + kPieceBytes;
      return static_cast<double>(kPieceBytes);
    });
  }
  RateOf<Now>(fills, 0.0);
  std::vector<double> rates;
  for (int sample = 0; sample < num_samples; ++sample) rates.push_back(RateOf<Now>(reads, sample_s));
  return rates;
}

}  // namespace plait::limits
