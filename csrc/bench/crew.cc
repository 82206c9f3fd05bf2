// Rounds of work: a counter that goes up, another that goes down.
//
// Followers spin for a while, because the next round of a measurement comes within microseconds, and then sleep.
// Invariant: the clock starts when every thread is awake.

#include "bench/crew.h"

#include <ctime>

#include "base/cpu.h"
#include "limits/rates.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace plait::bench {
namespace {

constexpr int kSpins = 20'000;  // about half a millisecond

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Until `word` is not `seen` any more.
void WaitForChange(std::atomic<uint32_t>& word, uint32_t seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (word.load(std::memory_order_acquire) != seen) return;
    Pause();
  }
  word.wait(seen, std::memory_order_acquire);
}

}  // namespace

Crew::Crew(int num_threads, bool counts_processor_time)
    : num_threads_(num_threads), seconds_now_(counts_processor_time && num_threads == 1 ? ThreadSeconds : limits::Now) {
  const std::vector<int> cpus = UsableCpus();
  for (int index = 0; index < num_threads; ++index) {
    threads_.emplace_back([this, index, cpu = cpus[static_cast<size_t>(index) % cpus.size()]] {
      PinThread(cpu);
      index == 0 ? Lead() : Follow(index);
    });
  }
}

Crew::~Crew() {
  is_stopping_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

double Crew::Time(const std::function<void()>& work) {
  job_work_ = &work;
  const uint32_t job = job_.fetch_add(1, std::memory_order_release) + 1;
  job_.notify_all();
  for (uint32_t done; (done = jobs_done_.load(std::memory_order_acquire)) != job;) jobs_done_.wait(done);
  return seconds_;
}

void Crew::Lead() {
  for (uint32_t seen = 0;; ++seen) {
    job_.wait(seen, std::memory_order_acquire);
    if (is_stopping_.load()) return;
    Together([](int) {});
    const double began = seconds_now_();
    (*job_work_)();
    seconds_ = seconds_now_() - began;
    jobs_done_.fetch_add(1, std::memory_order_release);
    jobs_done_.notify_all();
  }
}

void Crew::Together(const std::function<void(int)>& work) {
  if (num_threads_ > 1) {
    round_work_ = &work;
    num_busy_.store(num_threads_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  work(0);
  while (num_busy_.load(std::memory_order_acquire) != 0) Pause();
}

void Crew::Claim(uint32_t num_units, const std::function<void(uint32_t, int)>& work) {
  next_unit_.store(0, std::memory_order_relaxed);
  Together([&](int thread) {
    for (;;) {
      const uint32_t unit = next_unit_.fetch_add(1, std::memory_order_relaxed);
      if (unit >= num_units) return;
      work(unit, thread);
    }
  });
}

void Crew::Follow(int index) {
  for (uint32_t seen = 0;; ++seen) {
    WaitForChange(round_, seen);
    if (is_stopping_.load()) return;
    (*round_work_)(index);
    num_busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace plait::bench
