// Workers that compute and send notices.
//
// Owns the order of events: asked, gap, stamp, notice. std::atomic::wait is a futex on Linux.
// Invariant: the stamp is written before the notice and read after it.

#include "limits/wake_probe.h"

#include <chrono>
#include <system_error>

#include "limits/compute_loops.h"
#include "limits/rates.h"

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace plait::limits {
namespace {

constexpr uint64_t kRoundsPerPiece =
    512;  // Some microseconds: a notice is late by at most that, and it does not count.

// Linux has a niceness for each thread; elsewhere it would be the whole process's.
void MakeNice(int niceness) {
#if defined(__linux__)
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), niceness);
#else
  static_cast<void>(niceness);
#endif
}

}  // namespace

WakeProbe::WakeProbe(int num_workers, int niceness, double gap_s) : gap_s_(gap_s) {
  try {
    for (int index = 0; index < num_workers; ++index) {
      threads_.emplace_back([this, niceness, index] { Work(niceness, index == 0); });
    }
    if (num_workers == 0) threads_.emplace_back([this] { NotifyAsleep(); });
  } catch (const std::system_error&) {
    Stop();
    throw;
  }
}

WakeProbe::~WakeProbe() { Stop(); }

void WakeProbe::Stop() {
  stop_.store(true);
  for (std::thread& thread : threads_) thread.join();
}

double WakeProbe::Wait() {
  const uint32_t num_seen = num_sent_.load();
  num_asked_.store(num_seen + 1);
  num_sent_.wait(num_seen);
  return sent_at_.load();
}

void WakeProbe::Work(int niceness, bool notifies) {
  MakeNice(niceness);
  const ComputeLoop loop = AvailableComputeLoops().front();
  std::atomic<double> sink{0.0};
  double next = Now() + gap_s_;
  while (!stop_.load(std::memory_order_relaxed)) {
    sink.store(loop.run(kRoundsPerPiece), std::memory_order_relaxed);
    if (notifies) NotifyIfDue(&next);
  }
}

void WakeProbe::NotifyAsleep() {
  double next = Now() + gap_s_;
  while (!stop_.load()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(gap_s_));
    NotifyIfDue(&next);
  }
}

void WakeProbe::NotifyIfDue(double* next) {
  const double now = Now();
  if (now < *next || num_asked_.load() == num_sent_.load()) return;
  *next = now + gap_s_;
  sent_at_.store(Now());
  num_sent_.fetch_add(1);
  num_sent_.notify_one();
}

}  // namespace plait::limits
