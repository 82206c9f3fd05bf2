// Worker: what differs between processors and systems, in one place.
//
// Owns clocks, pinning, priorities and floating-point modes. Invariant: nothing here fails; a system that refuses a
// wish runs slower, not wrongly.

#include "runtime/worker.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include "base/cpu.h"

namespace plait {

uint64_t Ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t ProcessorNanoseconds([[maybe_unused]] int clock) {
#if defined(__linux__)
  timespec time{};
  if (clock == kNoClock || clock_gettime(clock, &time) != 0) return 0;
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
#else
  return 0;
#endif
}

int ThreadClock() {
#if defined(__linux__)
  clockid_t clock = 0;
  if (pthread_getcpuclockid(pthread_self(), &clock) == 0) return clock;
#endif
  return kNoClock;
}

double Stopwatch::SecondsPerTick() const {
  const uint64_t ticks = Ticks() - start_ticks_;
  return ticks == 0 ? 0.0 : (NowSeconds() - start_s_) / static_cast<double>(ticks);
}

void Relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

void PrepareWorkerThread(int core, [[maybe_unused]] int nice) {
#if defined(__x86_64__)
  constexpr unsigned kDefaultModes = 0x1F80;  // every exception masked, round to nearest, denormals kept
  _mm_setcsr(kDefaultModes);
#endif
  if (core >= 0) PinThread(core);
#if defined(__linux__)
  pthread_setname_np(pthread_self(), "plait-worker");
  // Linux keeps niceness per thread, contrary to POSIX. Relative to the thread that made this one, because the whole
  // process may run nicer: an absolute one could raise the workers above the threads that must preempt them.
  const auto self = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + nice);
#endif
}

}  // namespace plait
