// plait._native: what Python may call.
//
// Owns the border to Python: the only place with Python headers, and the place where every argument is checked. Holds
// no arithmetic. Invariant: a wrong argument is a ValueError that names value and limit, never undefined behaviour.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/philox.h"
#include "bindings/arguments.h"
#include "bindings/ngram_bindings.h"
#include "bindings/panels_bindings.h"
#include "bindings/runtime_bindings.h"
#include "bindings/sampler_bindings.h"
#include "bindings/tape_reading.h"
#include "limits/limits_bindings.h"

#if defined(__FAST_MATH__)
#error "Plait promises bit-identical answers: build without -ffast-math and -Ofast"
#endif

namespace nb = nanobind;

namespace plait {
namespace {

// 2^24 doubles are 128 MiB: far beyond what sampling draws for one token, and small enough never to hurt.
constexpr uint64_t kMaxDraws = uint64_t{1} << 24;

// Revision of everything below and of what the bindings read, the same number as in exec/native/presence.py.
constexpr int kInterface = 18;

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

nb::ndarray<nb::numpy, double, nb::ndim<1>> PhiloxUniforms(const nb::int_& seed, const nb::int_& choice,
                                                           const nb::int_& position, const nb::int_& draws) {
  constexpr uint64_t kMax32 = std::numeric_limits<uint32_t>::max();
  constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
  const uint64_t seed_bits = CheckedUnsigned(seed, "seed", kMax64);
  const auto choice_index = static_cast<uint32_t>(CheckedUnsigned(choice, "choice", kMax32));
  const uint64_t position_index = CheckedUnsigned(position, "position", kMax64);
  const auto num_draws = static_cast<size_t>(CheckedUnsigned(draws, "draws", kMaxDraws));

  auto numbers = std::make_unique<double[]>(num_draws);
  {
    nb::gil_scoped_release without_gil;
    for (size_t draw = 0; draw < num_draws; ++draw) {
      numbers[draw] = PhiloxUniform(seed_bits, choice_index, position_index, static_cast<uint32_t>(draw));
    }
  }
  double* const first = numbers.get();
  nb::capsule owner(first, [](void* memory) noexcept { delete[] static_cast<double*>(memory); });
  static_cast<void>(numbers.release());  // The capsule has it now.
  return nb::ndarray<nb::numpy, double, nb::ndim<1>>(first, {num_draws}, owner);
}

nb::tuple NamesOf(const std::vector<Target>& targets) {
  nb::list names;
  for (const Target target : targets) names.append(TargetName(target));
  return nb::tuple(names);
}

nb::dict BuildInfo() {
  nb::dict info;
  info["version"] = PLAIT_VERSION;
  info["interface"] = kInterface;
  info["compiler"] = kCompiler;
  info["flags"] = PLAIT_COMPILE_FLAGS;
  info["targets"] = NamesOf(CompiledTargets());
  return info;
}

// A part of an argument that cannot be converted, such as an attribute of a plan; nanobind's own is a RuntimeError.
void TranslateCastErrors(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const nb::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "an argument holds something of another type than is needed there");
  }
}

}  // namespace
}  // namespace plait

NB_MODULE(_native, module) {
  // Whoever interrupts the interrupt ends a process whose runtime is in use; that is no leak, and nothing to print.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(&plait::TranslateCastErrors);
  module.doc() = "The native CPU runtime of Plait.";
  module.def(
      "build_info", &plait::BuildInfo,
      "Say how this module was built: version, revision of the interface, compiler, flags, and the instruction sets "
      "it holds code for.");
  module.def(
      "targets", [] { return plait::NamesOf(plait::SupportedTargets()); },
      "Return those of the instruction sets that this machine runs, from the most modest to the best.");
  module.def("usable_cpus", &plait::UsableCpus, "Return the logical processors that this process may run on.");
  module.def("tape_enumerations", &plait::TapeEnumerations,
             "Return the enumerations of a tape, each as its members in order of their values.");
  module.def("unit_sizes", &plait::UnitSizeDefaults, "Return the built-in sizes of units.");
  plait::BindPanels(module);
  plait::BindRuntime(module);
  plait::BindSampler(module);
  plait::BindNgrams(module);
  plait::BindLimits(module);
  module.def("philox_uniform", &plait::PhiloxUniforms, nb::arg("seed"), nb::arg("choice"), nb::arg("position"),
             nb::arg("draws"),
             "Return the first `draws` uniform numbers in [0, 1) of (seed, choice, position) as float64.");
}
