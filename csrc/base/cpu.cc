// What the processor and the operating system say about themselves.
//
// Owns the queries behind cpu.h. Keeps no state: callers ask once, when they are built.
// Invariant: a question that the system does not answer gets the modest answer.

#include "base/cpu.h"

#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <cstddef>
#endif

namespace plait {
namespace {

#if defined(__x86_64__)
// Asked of the processor itself: __builtin_cpu_supports is the compiler's library's word, and not every such library
// knows each of these names or answers for all of them.
struct CpuBits {
  unsigned int leaf1_ecx = 0;
  unsigned int leaf7_ebx = 0;
  unsigned int leaf7_ecx = 0;
  unsigned int saved = 0;  // XCR0: the registers that the operating system saves when it switches threads.
};

CpuBits ReadCpuBits() {
  CpuBits bits;
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return bits;
  bits.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    bits.leaf7_ebx = ebx;
    bits.leaf7_ecx = ecx;
  }
  // Without OSXSAVE the instruction does not exist. Written out, since the intrinsic needs -mxsave.
  if ((bits.leaf1_ecx & bit_OSXSAVE) != 0) __asm__ volatile("xgetbv" : "=a"(bits.saved), "=d"(edx) : "c"(0));
  return bits;
}

constexpr bool HasAll(unsigned int bits, unsigned int wanted) { return (bits & wanted) == wanted; }

constexpr unsigned int kSavedYmm = 0x6;               // XMM and the upper halves of YMM.
constexpr unsigned int kSavedZmm = kSavedYmm | 0xe0;  // And masks, upper halves of ZMM, ZMM16 to 31.

bool RunsHere(Target target) {
  const CpuBits bits = ReadCpuBits();
  switch (target) {
    case Target::kBaseline:
      return true;
    case Target::kAvx2:
      return HasAll(bits.saved, kSavedYmm) && HasAll(bits.leaf1_ecx, bit_AVX | bit_FMA | bit_F16C) &&
             HasAll(bits.leaf7_ebx, bit_AVX2 | bit_BMI2);
    case Target::kAvx512:
      return RunsHere(Target::kAvx2) && HasAll(bits.saved, kSavedZmm) &&
             HasAll(bits.leaf7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) &&
             HasAll(bits.leaf7_ecx, bit_AVX512VNNI);
  }
  return false;
}
#else
bool RunsHere(Target target) { return target == Target::kBaseline; }
#endif

#if defined(__linux__)
// A set of processors of any size: a cpu_set_t holds 1024, and machines with more exist.
class CpuSet {
 public:
  explicit CpuSet(int num_cpus) : size_(CPU_ALLOC_SIZE(num_cpus)), bits_(CPU_ALLOC(num_cpus)) {
    if (bits_ != nullptr) CPU_ZERO_S(size_, bits_);
  }
  ~CpuSet() {
    if (bits_ != nullptr) CPU_FREE(bits_);
  }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  bool valid() const { return bits_ != nullptr; }
  size_t size() const { return size_; }
  cpu_set_t* bits() { return bits_; }
  void Add(int cpu) { CPU_SET_S(cpu, size_, bits_); }
  bool Contains(int cpu) const { return CPU_ISSET_S(cpu, size_, bits_); }

 private:
  size_t size_;
  cpu_set_t* bits_;
};

// The kernel refuses a set smaller than its own with EINVAL; this bound is beyond any kernel's limit.
constexpr int kMaxCpus = 1 << 16;

std::vector<int> CpusOfAffinity() {
  for (int num_cpus = CPU_SETSIZE; num_cpus <= kMaxCpus; num_cpus *= 2) {
    CpuSet set(num_cpus);
    if (!set.valid()) break;
    if (sched_getaffinity(0, set.size(), set.bits()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < num_cpus; ++cpu) {
      if (set.Contains(cpu)) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}
#else
std::vector<int> CpusOfAffinity() { return {}; }
#endif

}  // namespace

const char* TargetName(Target target) {
  switch (target) {
    case Target::kBaseline:
      return "baseline";
    case Target::kAvx2:
      return "avx2";
    case Target::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<Target> CompiledTargets() {
#if defined(__x86_64__)
  return {Target::kBaseline, Target::kAvx2, Target::kAvx512};
#else
  return {Target::kBaseline};
#endif
}

std::vector<Target> SupportedTargets() {
  std::vector<Target> supported;
  for (const Target target : CompiledTargets()) {
    if (RunsHere(target)) supported.push_back(target);
  }
  return supported;
}

Target BestTarget() { return SupportedTargets().back(); }

std::vector<int> UsableCpus() {
  std::vector<int> cpus = CpusOfAffinity();
  if (!cpus.empty()) return cpus;
  const unsigned int count = std::thread::hardware_concurrency();
  for (unsigned int cpu = 0; cpu < (count > 0 ? count : 1); ++cpu) cpus.push_back(static_cast<int>(cpu));
  return cpus;
}

bool PinThread(int cpu) {
#if defined(__linux__)
  if (cpu < 0 || cpu >= kMaxCpus) return false;
  CpuSet set(cpu + 1);
  if (!set.valid()) return false;
  set.Add(cpu);
  return pthread_setaffinity_np(pthread_self(), set.size(), set.bits()) == 0;
#else
  static_cast<void>(cpu);
  return false;
#endif
}

}  // namespace plait
