// Page toucher: takes pages of a large buffer from the system shortly before they are written for the first time.
//
// Owns a thread for one buffer of somebody else. A step that writes a page first pays for taking and clearing it, and
// in a virtual machine for what the host does then: a tenth to a fifth of a prompt's time. Memory follows use
// nevertheless: what is taken is never more than `ahead` bytes beyond what was expected. Invariant: no byte of the
// buffer changes; where the system cannot take pages ahead, nothing happens.

#ifndef PLAIT_CSRC_BASE_PAGE_TOUCHER_H_
#define PLAIT_CSRC_BASE_PAGE_TOUCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

namespace plait {

class PageToucher {
 public:
  // `data` must be mapped until the toucher is gone. Nothing is taken before something is expected.
  PageToucher(uint8_t* data, size_t size, size_t ahead);
  PageToucher(const PageToucher&) = delete;
  PageToucher& operator=(const PageToucher&) = delete;
  ~PageToucher();

  // Everything before `end` is written by now or soon. Any thread; does not wait for anything.
  void Expect(size_t end);

  // Bytes from the beginning that were taken.
  size_t touched() const { return touched_.load(std::memory_order_acquire); }
  // Nothing more will be taken, whatever is expected.
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  void Run();

  uint8_t* const data_;
  const size_t size_;
  const size_t ahead_;
  std::atomic<size_t> wanted_{0};
  std::atomic<size_t> touched_{0};
  std::atomic<bool> has_ended_{false};
  std::mutex mutex_;  // of is_closing_, and of waiting for wanted_
  std::condition_variable changed_;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace plait

#endif  // PLAIT_CSRC_BASE_PAGE_TOUCHER_H_
