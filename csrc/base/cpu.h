// The processor this program runs on: which instruction-set targets it can execute, which cores it may use.
//
// Owns the list of targets; CMakeLists.txt gives each its compiler flags, and csrc/ops dispatches on it. Measures
// nothing (csrc/limits does). Invariant: a supported target's instructions run here, the operating system included.

#ifndef PLAIT_CSRC_BASE_CPU_H_
#define PLAIT_CSRC_BASE_CPU_H_

#include <vector>

namespace plait {

// Every kernel exists once per target, in the namespace of the target's name. From the most modest to the best.
enum class Target {
  kBaseline,  // What every machine of the architecture has: SSE2 on x86-64.
  kAvx2,      // AVX2, FMA, F16C, BMI2: Haswell, Zen and newer.
  kAvx512,    // And AVX-512 F, BW, VL, DQ, VNNI: Cascade Lake, Zen 4 and newer.
};

// The name of a target and of its namespace: baseline, avx2 or avx512.
const char* TargetName(Target target);

// The targets that this program holds code for.
std::vector<Target> CompiledTargets();

// Those of them that this machine can run, in the order of the enumeration; never empty.
std::vector<Target> SupportedTargets();

// The last of SupportedTargets().
Target BestTarget();

// The logical processors that this process may run on, in ascending order; never empty. Containers and taskset narrow
// them. Two of them may share a core.
std::vector<int> UsableCpus();

// Binds the calling thread to one of UsableCpus(). False where the system refuses or has no such call.
bool PinThread(int cpu);

}  // namespace plait

#endif  // PLAIT_CSRC_BASE_CPU_H_
