// A test runner in one header: TEST(Name) registers a function, CHECK_* record failures and go on, from any thread.
//
// Owns the list of tests and the closing line "N passed, N failed". Knows nothing about what is tested.
// Invariant: a failed check prints file, line and both values; a run without any test fails.

#ifndef PLAIT_CSRC_BASE_TESTING_H_
#define PLAIT_CSRC_BASE_TESTING_H_

#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace plait::testing {

struct Test {
  const char* file;
  const char* name;
  void (*body)();
};

// Function-local, because registrations in other files run before main in an unknown order.
inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline std::atomic<int>& FailedChecks() {
  static std::atomic<int> failed_checks = 0;
  return failed_checks;
}

struct Registration {
  Registration(const char* file, const char* name, void (*body)()) { Tests().push_back({file, name, body}); }
};

template <typename Left, typename Right>
void CheckEqual(const Left& left, const Right& right, const char* text, const char* file, int line) {
  if (left == right) return;
  ++FailedChecks();
  std::cout.precision(17);
  std::cout << file << ":" << line << ": " << text << ": " << left << " != " << right << std::endl;
}

inline void CheckTrue(bool holds, const char* text, const char* file, int line) {
  if (holds) return;
  ++FailedChecks();
  std::cout << file << ":" << line << ": does not hold: " << text << std::endl;
}

struct RunOptions {
  std::string filter;       // Runs the tests whose "file:name" contains it; empty: all of them.
  bool print_each = false;  // Names each test before it runs, and says how long it took.
};

inline bool Matches(const Test& test, std::string_view filter) {
  return (std::string(test.file) + ":" + test.name).find(filter) != std::string::npos;
}

inline bool RunTest(const Test& test, bool print_each) {
  if (print_each) std::cout << test.name << " ... " << std::flush;
  const int before = FailedChecks();
  const auto start = std::chrono::steady_clock::now();
  test.body();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (print_each) std::printf("%.1f ms\n", took.count());
  const bool passed = FailedChecks() == before;
  if (!passed) std::printf("FAILED %s\n", test.name);
  std::fflush(stdout);
  return passed;
}

// The exit status of the program: 0 when at least one test ran and none failed.
inline int RunTests(const RunOptions& options) {
  int passed = 0;
  int failed = 0;
  for (const Test& test : Tests()) {
    if (Matches(test, options.filter)) (RunTest(test, options.print_each) ? passed : failed) += 1;
  }
  if (passed + failed == 0) std::printf("no test's file:name contains \"%s\"\n", options.filter.c_str());
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace plait::testing

#define TEST(name)                                                                        \
  static void name();                                                                     \
  static const ::plait::testing::Registration name##_registration(__FILE__, #name, name); \
  static void name()
#define CHECK(condition) ::plait::testing::CheckTrue((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(left, right) ::plait::testing::CheckEqual((left), (right), #left " == " #right, __FILE__, __LINE__)

#endif  // PLAIT_CSRC_BASE_TESTING_H_
