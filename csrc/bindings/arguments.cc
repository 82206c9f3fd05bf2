// Arguments: conversion of Python's integers.
//
// Owns the texts of the errors. The fast path makes no object.
// Invariant: no Python error is pending when a check has thrown or returned.

#include "bindings/arguments.h"

#include <string>

namespace nb = nanobind;

namespace plait {
namespace {

[[noreturn]] void ThrowOutOfRange(nb::handle value, const char* name, const std::string& min, const std::string& max) {
  const std::string got = nb::str(value).c_str();
  ThrowValueError(std::string(name) + " is " + got + " but must be between " + min + " and " + max);
}

void CheckIsInteger(nb::handle value, const char* name) {
  if (!PyLong_Check(value.ptr())) throw nb::type_error((std::string(name) + " is not an integer").c_str());
}

}  // namespace

void ThrowValueError(const std::string& text) { throw nb::value_error(text.c_str()); }

uint64_t CheckedUnsigned(nb::handle value, const char* name, uint64_t max) {
  CheckIsInteger(value, name);
  int overflow = 0;
  const long long as_signed = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  uint64_t number = static_cast<uint64_t>(as_signed);
  bool fits = overflow == 0 && as_signed >= 0;
  if (overflow > 0) {
    number = PyLong_AsUnsignedLongLong(value.ptr());
    fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
  }
  if (!fits || number > max) ThrowOutOfRange(value, name, "0", std::to_string(max));
  return number;
}

int64_t CheckedSigned(nb::handle value, const char* name, int64_t min, int64_t max) {
  CheckIsInteger(value, name);
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || number < min || number > max) {
    ThrowOutOfRange(value, name, std::to_string(min), std::to_string(max));
  }
  return number;
}

}  // namespace plait
