// limits_loops, limits_compute, limits_read and limits_wake of plait._native.
//
// Owns the checks of their arguments and the release of the interpreter while they measure.
// Invariant: a wrong argument is a ValueError that names value and limit; no call lasts longer than its arguments say.

#include "limits/limits_bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "limits/compute_loops.h"
#include "limits/rates.h"
#include "limits/wake_probe.h"

namespace nb = nanobind;

namespace plait {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxSamples = 1000;
constexpr double kMaxSampleSeconds = 10.0;
constexpr int64_t kMaxReadBytes = int64_t{1} << 40;
constexpr int kMaxWakes = 100000;
constexpr int kMaxNiceness = 19;
constexpr double kMaxGapSeconds = 1.0;

template <typename Number>
void CheckBetween(const char* name, Number value, Number least, Number most) {
  if (value >= least && value <= most) return;
  throw nb::value_error((std::string(name) + " is " + std::to_string(value) + " but must be between " +
                         std::to_string(least) + " and " + std::to_string(most))
                            .c_str());
}

void CheckSampling(int num_threads, int num_samples, double sample_s) {
  CheckBetween("num_threads", num_threads, 1, kMaxThreads);
  CheckBetween("num_samples", num_samples, 1, kMaxSamples);
  CheckBetween("sample_s", sample_s, 0.0, kMaxSampleSeconds);
}

nb::tuple LoopNames() {
  nb::list names;
  for (const limits::ComputeLoop& loop : limits::AvailableComputeLoops()) {
    names.append(nb::make_tuple(loop.kind, loop.target));
  }
  return nb::tuple(names);
}

std::vector<double> Compute(const std::string& kind, const std::string& target, int num_threads, int num_samples,
                            double sample_s) {
  CheckSampling(num_threads, num_samples, sample_s);
  for (const limits::ComputeLoop& loop : limits::AvailableComputeLoops()) {
    if (kind != loop.kind || target != loop.target) continue;
    nb::gil_scoped_release without_gil;
    return limits::ComputeRates(loop, num_threads, num_samples, sample_s);
  }
  throw nb::value_error(
      ("this machine has no loop for " + kind + " on " + target + "; limits_loops() lists them").c_str());
}

std::vector<double> Read(int64_t num_bytes, int num_threads, int num_samples, double sample_s) {
  CheckBetween("num_bytes", num_bytes, int64_t{1}, kMaxReadBytes);
  CheckSampling(num_threads, num_samples, sample_s);
  nb::gil_scoped_release without_gil;
  return limits::ReadRates(static_cast<size_t>(num_bytes), num_threads, num_samples, sample_s);
}

// The time ends when the waiting thread holds the interpreter again, because only then can it do anything in Python.
std::vector<double> Wake(int num_wakes, int num_workers, int niceness, double gap_s) {
  CheckBetween("num_wakes", num_wakes, 1, kMaxWakes);
  CheckBetween("num_workers", num_workers, 0, kMaxThreads);
  CheckBetween("niceness", niceness, 0, kMaxNiceness);
  CheckBetween("gap_s", gap_s, 0.0, kMaxGapSeconds);
  limits::WakeProbe probe(num_workers, niceness, gap_s);
  std::vector<double> latencies;
  for (int wake = 0; wake < num_wakes; ++wake) {
    double sent_at = 0.0;
    {
      nb::gil_scoped_release without_gil;
      sent_at = probe.Wait();
    }
    latencies.push_back(limits::Now() - sent_at);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return latencies;
}

}  // namespace

void BindLimits(nb::module_& module) {
  module.def("limits_loops", &LoopNames, "Return the pairs (kind of number, target) that limits_compute knows here.");
  module.def("limits_compute", &Compute, nb::arg("kind"), nb::arg("target"), nb::arg("num_threads"),
             nb::arg("num_samples"), nb::arg("sample_s"),
             "Return operations a second of all threads together, one number for each sample.");
  module.def("limits_read", &Read, nb::arg("num_bytes"), nb::arg("num_threads"), nb::arg("num_samples"),
             nb::arg("sample_s"),
             "Return bytes a second of all threads together, each reading its part of `num_bytes` over and over; one "
             "number for each sample, none if there is not so much memory.");
  module.def("limits_wake", &Wake, nb::arg("num_wakes"), nb::arg("num_workers"), nb::arg("niceness"), nb::arg("gap_s"),
             "Return the seconds from each notice of a worker until the calling thread runs Python again.");
}

}  // namespace plait
