// Wake probe: how long it takes from a worker's notice until a waiting thread runs, with the cores busy or idle.
//
// Owns the workers and the notices. Who waits, and what it must still do before it counts as awake, is the caller's.
// Invariant: a notice is sent only after somebody asked for it and had `gap_s` to fall asleep.

#ifndef PLAIT_CSRC_LIMITS_WAKE_PROBE_H_
#define PLAIT_CSRC_LIMITS_WAKE_PROBE_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace plait::limits {

class WakeProbe {
 public:
  // `num_workers` threads compute without a pause, `niceness` less important than the caller (where the system has
  // such a thing), and the first of them sends the notices between two pieces of work, as the end of a step would be
  // told. With no workers, a thread that sleeps in between sends them.
  WakeProbe(int num_workers, int niceness, double gap_s);
  ~WakeProbe();
  WakeProbe(const WakeProbe&) = delete;
  WakeProbe& operator=(const WakeProbe&) = delete;

  // Sleeps until the next notice; returns when that was sent, by Now().
  double Wait();

 private:
  void Stop();
  void Work(int niceness, bool notifies);
  void NotifyAsleep();
  void NotifyIfDue(double* next);

  const double gap_s_;
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> num_asked_{0};
  std::atomic<uint32_t> num_sent_{0};  // What Wait sleeps on.
  std::atomic<double> sent_at_{0.0};
  std::vector<std::thread> threads_;
};

}  // namespace plait::limits

#endif  // PLAIT_CSRC_LIMITS_WAKE_PROBE_H_
