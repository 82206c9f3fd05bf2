// Aligned memory: buffers that begin on a cache line, and on a large page where they are big enough to profit from one.
//
// Owns one allocation each. What lies in it, and in what order it is touched first, is its owner's business.
// Invariant: `data()` is a multiple of kCacheLine; memory is not initialised.

#ifndef PLAIT_CSRC_BASE_ALIGNED_H_
#define PLAIT_CSRC_BASE_ALIGNED_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace plait {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kLargePage = size_t{2} << 20;

constexpr size_t RoundUp(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws std::bad_alloc.
  explicit AlignedBuffer(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    const bool is_large = bytes >= 2 * kLargePage;
    const size_t alignment = is_large ? kLargePage : kCacheLine;
    if (bytes > SIZE_MAX - alignment) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(std::aligned_alloc(alignment, RoundUp(bytes, alignment)));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    // A wish; without it everything works, with more TLB misses.
    if (is_large) madvise(data_, RoundUp(bytes, alignment), MADV_HUGEPAGE);
#endif
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(data_); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace plait

#endif  // PLAIT_CSRC_BASE_ALIGNED_H_
