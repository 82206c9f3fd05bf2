// Crew: pinned threads that carry out one piece of work together, as the runtime's workers do.
//
// Owns the threads and the rounds. Whoever asks for a time sleeps meanwhile, so that its own core is free for them.
// Invariant: outside Time all threads sleep, or soon will: another library's threads are not disturbed.

#ifndef PLAIT_CSRC_BENCH_CREW_H_
#define PLAIT_CSRC_BENCH_CREW_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace plait::bench {

class Crew {
 public:
  // `counts_processor_time`: of a single thread, seconds in which it runs, whatever else the machine does.
  explicit Crew(int num_threads, bool counts_processor_time = false);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int num_threads() const { return num_threads_; }

  // Seconds that `work` takes on the first thread, while the others wait for it to call the functions below.
  double Time(const std::function<void()>& work);

  // Inside Time: every thread does work(thread); returns when all have.
  void Together(const std::function<void(int)>& work);
  // Inside Time: work(unit, thread) for each of `num_units`, claimed one after another by whoever is free.
  void Claim(uint32_t num_units, const std::function<void(uint32_t, int)>& work);

 private:
  void Lead();
  void Follow(int index);

  const int num_threads_;
  double (*const seconds_now_)();
  std::atomic<uint32_t> job_ = 0;  // counts calls of Time
  std::atomic<uint32_t> jobs_done_ = 0;
  std::atomic<uint32_t> round_ = 0;  // counts calls of Together
  std::atomic<int> num_busy_ = 0;    // followers in this round
  std::atomic<uint32_t> next_unit_ = 0;
  std::atomic<bool> is_stopping_ = false;
  const std::function<void()>* job_work_ = nullptr;
  const std::function<void(int)>* round_work_ = nullptr;
  double seconds_ = 0.0;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace plait::bench

#endif  // PLAIT_CSRC_BENCH_CREW_H_
