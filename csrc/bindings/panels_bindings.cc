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

// `part`: some panels of a matrix, as if they were all.
void PackSideBySide(const WeightPanels& part, const uint8_t* rows, size_t num_threads, uint8_t* panels) {
  const auto pack = [&](size_t first, size_t count) {
    PackPanels(part.scheme, rows, part.columns, part.depth, first, count, panels);
  };
  const size_t share = (part.num_panels() + num_threads - 1) / num_threads;
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  size_t first = 0;
  try {
    for (; first + share < part.num_panels(); first += share) threads.emplace_back(pack, first, share);
  } catch (const std::system_error&) {
    // The system gives no more threads: this one does the rest.
  }
  pack(first, part.num_panels() - first);
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
  packed_rows_.resize(matrices_.size());
  memory_ = AlignedBuffer(num_bytes);
  size_t offset = 0;
  for (WeightPanels& matrix : matrices_) {
    matrix.bytes = memory_.data() + offset;
    offset += matrix.num_panels() * matrix.bytes_per_panel;
  }
}

void Panels::Pack(size_t index, const Stored& stored, size_t first_row, size_t num_threads) {
  if (index >= matrices_.size()) {
    ThrowValueError("matrix " + std::to_string(index) + " of " + std::to_string(matrices_.size()));
  }
  if (num_threads < 1 || num_threads > kMaxThreads) {
    ThrowValueError("num_threads is " + std::to_string(num_threads) + " but must be between 1 and " +
                    std::to_string(kMaxThreads));
  }
  WeightPanels part = matrices_[index];
  if (first_row != packed_rows_[index]) {
    ThrowValueError("matrix " + std::to_string(index) + " goes on at row " + std::to_string(packed_rows_[index]) +
                    ", not " + std::to_string(first_row));
  }
  const size_t left = part.columns - first_row;
  const size_t row_bytes = BytesPerStoredRow(part.scheme, part.depth);
  part.columns = row_bytes == 0 ? left : std::min(left, stored.size() / row_bytes);
  if (stored.size() != part.columns * row_bytes || (part.columns == 0 && left > 0) ||
      (part.columns != left && part.columns % kPanelColumns != 0)) {
    ThrowValueError("matrix " + std::to_string(index) + " is given " + std::to_string(stored.size()) +
                    " bytes but has " + std::to_string(left * row_bytes) + " left, in panels of " +
                    std::to_string(kPanelColumns * row_bytes));
  }
  uint8_t* const panels = memory_.data() + (part.panel(first_row / kPanelColumns) - memory_.data());
  const uint8_t* const rows = stored.data();
  {
    nb::gil_scoped_release without_gil;
    PackSideBySide(part, rows, num_threads, panels);
  }
  packed_rows_[index] += part.columns;
}

std::vector<WeightPanels> Panels::Packed() const {
  for (size_t index = 0; index < matrices_.size(); ++index) {
    if (packed_rows_[index] != matrices_[index].columns) {
      ThrowValueError("matrix " + std::to_string(index) + " has not been packed");
    }
  }
  return matrices_;
}

void BindPanels(nb::module_& module) {
  nb::class_<Panels>(module, "Panels", "The packed matrices of one model.")
      .def(nb::init<nb::sequence>(), nb::arg("shapes"), "Take memory for matrices of (scheme, columns, depth).")
      .def("pack", &Panels::Pack, nb::arg("index"), nb::arg("stored"), nb::arg("first_row"), nb::arg("num_threads"),
           "Pack the next rows of a matrix as a file of its scheme holds them: whole panels, or all that are left.")
      .def_prop_ro("num_bytes", &Panels::num_bytes, "Bytes of all matrices together.");
}

}  // namespace plait
