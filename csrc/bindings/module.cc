// plait._native: what Python may call.
//
// Owns the border to Python: the only place with Python headers, and the place where every argument is checked. Holds
// no arithmetic. Invariant: a wrong argument is a ValueError that names value and limit, never undefined behaviour.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/philox.h"
#include "limits/limits_bindings.h"

#if defined(__FAST_MATH__)
#error "Plait promises bit-identical answers: build without -ffast-math and -Ofast"
#endif

namespace nb = nanobind;

namespace plait {
namespace {

// 2^24 doubles are 128 MiB: far beyond what sampling draws for one token, and small enough never to hurt.
constexpr uint64_t kMaxDraws = uint64_t{1} << 24;

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

// The instruction set of code outside of run-time dispatch, as the compiler was told.
#if defined(__AVX512F__)
constexpr const char* kBaseline = "x86-64-v4";
#elif defined(__AVX2__)
constexpr const char* kBaseline = "x86-64-v3";
#elif defined(__x86_64__)
constexpr const char* kBaseline = "x86-64";
#elif defined(__aarch64__)
constexpr const char* kBaseline = "aarch64";
#else
constexpr const char* kBaseline = "generic";
#endif

// Python's integers have no limit; ours do. A wrapped seed would silently share another seed's numbers.
uint64_t CheckedUnsigned(const nb::int_& value, const char* name, uint64_t max) {
  int overflow = 0;
  const long long as_signed = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  uint64_t number = static_cast<uint64_t>(as_signed);
  bool fits = overflow == 0 && as_signed >= 0;
  if (overflow > 0) {
    number = PyLong_AsUnsignedLongLong(value.ptr());
    fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
  }
  if (!fits || number > max) {
    const std::string got = nb::str(value).c_str();
    throw nb::value_error(
        (std::string(name) + " is " + got + " but must be between 0 and " + std::to_string(max)).c_str());
  }
  return number;
}

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

nb::dict BuildInfo() {
  nb::dict info;
  info["version"] = PLAIT_VERSION;
  info["compiler"] = kCompiler;
  info["flags"] = PLAIT_COMPILE_FLAGS;
  info["targets"] = nb::make_tuple(kBaseline);
  return info;
}

}  // namespace
}  // namespace plait

NB_MODULE(_native, module) {
  module.doc() = "The native CPU runtime of Plait.";
  module.def("build_info", &plait::BuildInfo,
             "Say how this module was built: version, compiler, flags, and the instruction sets it holds code for.");
  module.def("philox_uniform", &plait::PhiloxUniforms, nb::arg("seed"), nb::arg("choice"), nb::arg("position"),
             nb::arg("draws"),
             "Return the first `draws` uniform numbers in [0, 1) of (seed, choice, position) as float64.");
  plait::BindLimits(module);
}
