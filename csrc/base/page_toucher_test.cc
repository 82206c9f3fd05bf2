// Pages ahead of use: as far as was said and no farther, by what the kernel says is there; contents stay.

#include "base/page_toucher.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "base/aligned.h"
#include "base/testing.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace plait {
namespace {

constexpr size_t kBytes = 6 * kLargePage;

// Whether it came to that; false where the system cannot take pages ahead.
bool Reaches(const PageToucher& toucher, size_t bytes) {
  while (toucher.touched() < bytes && !toucher.has_ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return toucher.touched() >= bytes;
}

#if defined(__linux__)
bool IsThere(uint8_t* at) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  unsigned char found = 0;
  return mincore(at, page, &found) == 0 && (found & 1) != 0;
}

TEST(PagesAreTakenAsFarAsWasSaidAndNoFarther) {
  // Fresh from the system, unlike what the allocator may have kept.
  void* const mapped = mmap(nullptr, kBytes + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  uint8_t* const data = static_cast<uint8_t*>(mapped) + (kLargePage - reinterpret_cast<uintptr_t>(mapped) % kLargePage);
  {
    PageToucher toucher(data, kBytes, kLargePage);
    toucher.Expect(0);
    CHECK(!IsThere(data));
    toucher.Expect(1);  // and a large page ahead: the second begins
    if (Reaches(toucher, 2 * kLargePage)) {
      CHECK(IsThere(data));
      CHECK(IsThere(data + 2 * kLargePage - static_cast<size_t>(sysconf(_SC_PAGESIZE))));
      CHECK(!IsThere(data + 2 * kLargePage));
      CHECK_EQ(toucher.touched(), 2 * kLargePage);
      toucher.Expect(2 * kLargePage);
      CHECK(Reaches(toucher, 3 * kLargePage));
      CHECK(!IsThere(data + 4 * kLargePage));
    }
  }
  CHECK_EQ(munmap(mapped, kBytes + kLargePage), 0);
}
#endif

TEST(WhatWasWrittenBeforeIsLeftAsItIs) {
  AlignedBuffer buffer(kBytes);
  std::memset(buffer.data(), 0x5a, kBytes);
  PageToucher toucher(buffer.data(), kBytes, kLargePage);
  toucher.Expect(kBytes);
  static_cast<void>(Reaches(toucher, kBytes));
  for (size_t at = 0; at < kBytes; at += 1021) CHECK_EQ(static_cast<int>(buffer.data()[at]), 0x5a);
}

TEST(MoreThanThereIsMayBeExpected) {
  AlignedBuffer buffer(kBytes);
  PageToucher toucher(buffer.data(), kBytes, SIZE_MAX);
  toucher.Expect(SIZE_MAX);
  if (Reaches(toucher, kBytes)) CHECK_EQ(toucher.touched(), kBytes);
}

TEST(OneThatIsClosedAtOnceEnds) {
  AlignedBuffer buffer(kBytes);
  for (int turn = 0; turn < 20; ++turn) {
    PageToucher toucher(buffer.data(), kBytes, kLargePage);
    toucher.Expect(kBytes);
  }
}

TEST(SmallBuffersAreLeftToWhoWrites) {
  AlignedBuffer buffer(4096);
  PageToucher toucher(buffer.data(), 4096, 4096);
  CHECK(toucher.has_ended());
  toucher.Expect(4096);
  CHECK_EQ(toucher.touched(), size_t{0});
}

}  // namespace
}  // namespace plait
