// Panels of plait._native.
//
// Owns the checks of shapes and sizes, and the threads that pack side by side.
// Invariant: no byte outside the stored rows is read, none outside the matrix's panels written.

#include "bindings/panels_bindings.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "bindings/arguments.h"
#include "formats/pack.h"

namespace nb = nanobind;

namespace plait {
namespace {

constexpr size_t kMaxThreads = 1024;
constexpr uint64_t kMaxSide = uint64_t{1} << 31;
// Beyond any machine's memory, and far from where sums of sizes overflow.
constexpr size_t kMaxBytes = size_t{1} << 48;

WeightPanels MatrixOf(nb::handle shape) {
  const nb::tuple parts = nb::cast<nb::tuple>(shape);
  if (parts.size() != 3) ThrowValueError("a matrix is (scheme, columns, depth)");
  WeightPanels matrix;
  matrix.scheme = static_cast<Scheme>(CheckedUnsigned(parts[0], "scheme", kNumSchemes - 1));
  matrix.columns = CheckedUnsigned(parts[1], "columns", kMaxSide);
  matrix.depth = CheckedUnsigned(parts[2], "depth", kMaxSide);
  const size_t multiple = DepthMultiple(matrix.scheme);
  if (matrix.depth % multiple != 0) {
    ThrowValueError("depth is " + std::to_string(matrix.depth) + " but must be a multiple of " +
                    std::to_string(multiple) + " in its scheme");
  }
  matrix.bytes_per_panel = BytesPerPanel(matrix.scheme, matrix.depth);
  return matrix;
}

void PackSideBySide(const WeightPanels& matrix, const uint8_t* rows, size_t num_threads, uint8_t* panels) {
  const auto pack = [&](size_t first, size_t count) {
    PackPanels(matrix.scheme, rows, matrix.columns, matrix.depth, first, count, panels);
  };
  const size_t share = (matrix.num_panels() + num_threads - 1) / num_threads;
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  size_t first = 0;
  try {
    for (; first + share < matrix.num_panels(); first += share) threads.emplace_back(pack, first, share);
  } catch (const std::system_error&) {
    // The system gives no more threads: this one does the rest.
  }
  pack(first, matrix.num_panels() - first);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Panels::Panels(nb::sequence shapes) {
  size_t num_bytes = 0;
  for (nb::handle shape : shapes) {
    const WeightPanels matrix = MatrixOf(shape);
    const size_t left = kMaxBytes - num_bytes;
    if (matrix.bytes_per_panel != 0 && matrix.num_panels() > left / matrix.bytes_per_panel) {
      ThrowValueError("the matrices take more than " + std::to_string(kMaxBytes) + " bytes");
    }
    num_bytes += matrix.num_panels() * matrix.bytes_per_panel;
    matrices_.push_back(matrix);
  }
  is_packed_.resize(matrices_.size());
  memory_ = AlignedBuffer(num_bytes);
  size_t offset = 0;
  for (WeightPanels& matrix : matrices_) {
    matrix.bytes = memory_.data() + offset;
    offset += matrix.num_panels() * matrix.bytes_per_panel;
  }
}

void Panels::Pack(size_t index, const Stored& stored, size_t num_threads) {
  if (index >= matrices_.size()) {
    ThrowValueError("matrix " + std::to_string(index) + " of " + std::to_string(matrices_.size()));
  }
  if (num_threads < 1 || num_threads > kMaxThreads) {
    ThrowValueError("num_threads is " + std::to_string(num_threads) + " but must be between 1 and " +
                    std::to_string(kMaxThreads));
  }
  const WeightPanels& matrix = matrices_[index];
  const size_t expected = matrix.columns * BytesPerStoredRow(matrix.scheme, matrix.depth);
  if (stored.size() != expected) {
    ThrowValueError("matrix " + std::to_string(index) + " is given " + std::to_string(stored.size()) +
                    " bytes but has " + std::to_string(expected));
  }
  uint8_t* const panels = memory_.data() + (matrix.bytes - memory_.data());
  const uint8_t* const rows = stored.data();
  {
    nb::gil_scoped_release without_gil;
    PackSideBySide(matrix, rows, num_threads, panels);
  }
  is_packed_[index] = true;
}

std::vector<WeightPanels> Panels::Packed() const {
  const auto missing = std::find(is_packed_.begin(), is_packed_.end(), false);
  if (missing != is_packed_.end()) {
    ThrowValueError("matrix " + std::to_string(missing - is_packed_.begin()) + " has not been packed");
  }
  return matrices_;
}

void BindPanels(nb::module_& module) {
  nb::class_<Panels>(module, "Panels", "The packed matrices of one model.")
      .def(nb::init<nb::sequence>(), nb::arg("shapes"), "Take memory for matrices of (scheme, columns, depth).")
      .def("pack", &Panels::Pack, nb::arg("index"), nb::arg("stored"), nb::arg("num_threads"),
           "Pack a matrix from its rows as a file of its scheme holds them.")
      .def_prop_ro("num_bytes", &Panels::num_bytes, "Bytes of all matrices together.");
}

}  // namespace plait
