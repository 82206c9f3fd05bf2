// The class NgramWindow of plait._native.
//
// Owns the reading of a sequence's tokens, of which only those that are new are looked at, and the checks of them.
// Invariant: no token below 0 or beyond 31 bits reaches an automaton; the interpreter is held, for microseconds.

#include "bindings/ngram_bindings.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/arguments.h"
#include "draft/ngram_window.h"

namespace nb = nanobind;

namespace plait {
namespace {

// Far beyond any window that pays: places in automata are 32 bits.
constexpr uint64_t kMaxTokens = uint64_t{1} << 24;
constexpr uint64_t kMaxGuess = uint64_t{1} << 16;

size_t CheckedEven(nb::handle value, const char* name) {
  const uint64_t number = CheckedUnsigned(value, name, kMaxTokens);
  if (number == 0 || number % 2 != 0) {
    ThrowValueError(std::string(name) + " is " + std::to_string(number) + " but must be even and above 0");
  }
  return number;
}

size_t CheckedAtOnce(nb::handle value, const char* name) {
  const uint64_t number = CheckedUnsigned(value, name, kMaxTokens);
  if (number < 2) {
    ThrowValueError(std::string(name) + " is " + std::to_string(number) + " but must be at least 2");
  }
  return number;
}

class BoundNgramWindow {
 public:
  BoundNgramWindow(nb::handle most_tokens, nb::handle most_at_once)
      : window_(CheckedEven(most_tokens, "most_tokens"), CheckedAtOnce(most_at_once, "most_at_once")) {}

  // (the tokens behind the earlier place, the length of the ending); None: there is none, or the text was too long to
  // be taken up at once.
  nb::object Find(nb::handle tokens, nb::handle most) {
    const size_t count = CheckedUnsigned(most, "most", kMaxGuess);
    if (!TakeUp(tokens) || window_.match_length() == 0) return nb::none();
    guessed_.resize(count);
    window_.Guess(count, guessed_.data());
    nb::object found = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    if (!found.is_valid()) throw nb::python_error();
    for (size_t at = 0; at < count; ++at) {
      PyTuple_SetItem(found.ptr(), static_cast<Py_ssize_t>(at), nb::int_(guessed_[at]).release().ptr());
    }
    return nb::make_tuple(found, window_.match_length());
  }

  size_t num_bytes() const { return window_.num_bytes() + guessed_.capacity() * sizeof(int32_t); }

 private:
  bool TakeUp(nb::handle tokens) {
    if (PyList_Check(tokens.ptr())) {
      return window_.TakeUp(static_cast<size_t>(PyList_Size(tokens.ptr())), [tokens](size_t place) {
        return CheckedIndex(PyList_GetItem(tokens.ptr(), static_cast<Py_ssize_t>(place)), "a token");
      });
    }
    const Py_ssize_t size = PySequence_Size(tokens.ptr());
    if (size < 0) throw nb::python_error();
    return window_.TakeUp(static_cast<size_t>(size), [tokens](size_t place) {
      const nb::object token = nb::steal(PySequence_GetItem(tokens.ptr(), static_cast<Py_ssize_t>(place)));
      if (!token.is_valid()) throw nb::python_error();
      return CheckedIndex(token, "a token");
    });
  }

  NgramWindow window_;
  std::vector<int32_t> guessed_;
};

}  // namespace

void BindNgrams(nb::module_& module) {
  nb::class_<BoundNgramWindow>(module, "NgramWindow",
                               "The newest tokens of one sequence, and what stood behind its ending before.")
      .def(nb::init<nb::handle, nb::handle>(), nb::arg("most_tokens"), nb::arg("most_at_once"))
      .def("find", &BoundNgramWindow::Find, nb::arg("tokens"), nb::arg("most"),
           "Return the `most` tokens that stood behind the longest ending of `tokens` that stood there before, and the "
           "length of that ending; None without one. `tokens` are those of the call before, and what has come since.")
      .def_prop_ro("num_bytes", &BoundNgramWindow::num_bytes, "Bytes of memory that it holds.");
}

}  // namespace plait
