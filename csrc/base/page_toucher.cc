#include "base/page_toucher.h"

#include <algorithm>
#include <system_error>

#include "base/aligned.h"

#if defined(__linux__)
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace plait {
namespace {

#if defined(__linux__)
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; libraries of before have no name for it
constexpr int kNicer = 5;

// Behind whatever computes, but not so far that pages come too late.
void BeModest() {
  pthread_setname_np(pthread_self(), "plait-pages");
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  static_cast<void>(setpriority(PRIO_PROCESS, thread, std::min(19, getpriority(PRIO_PROCESS, thread) + kNicer)));
}

bool Take(uint8_t* data, size_t bytes) { return madvise(data, bytes, kPopulateWrite) == 0; }
#else
void BeModest() {}
bool Take(uint8_t*, size_t) { return false; }
#endif

}  // namespace

PageToucher::PageToucher(uint8_t* data, size_t size, size_t ahead) : data_(data), size_(size), ahead_(ahead) {
  // Below that, a buffer does not begin with a page.
  if (size < 2 * kLargePage) {
    has_ended_ = true;
    return;
  }
  try {
    thread_ = std::thread(&PageToucher::Run, this);
  } catch (const std::system_error&) {
    has_ended_ = true;  // Whoever writes takes the pages.
  }
}

PageToucher::~PageToucher() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void PageToucher::Expect(size_t end) {
  if (end == 0) return;
  const size_t wanted = end < size_ - std::min(size_, ahead_) ? end + ahead_ : size_;
  if (wanted <= wanted_.load(std::memory_order_relaxed) || has_ended()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_ = std::max(wanted_.load(), wanted);
  }
  changed_.notify_one();
}

void PageToucher::Run() {
  BeModest();
  size_t done = 0;
  while (done < size_) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return is_closing_ || wanted_ > done; });
      if (is_closing_) break;
    }
    // One large page at a time, so that nobody waits long for what changes the process's memory map.
    const size_t bytes = std::min(kLargePage, size_ - done);
    if (!Take(data_ + done, bytes)) break;
    done += bytes;
    touched_.store(done, std::memory_order_release);
  }
  has_ended_.store(true, std::memory_order_release);
}

}  // namespace plait
