// A test runner in one header: TEST(Name) registers a function, CHECK_* record failures and go on.
//
// Owns the list of tests and the closing line "N passed, N failed". Knows nothing about what is tested.
// Invariant: a failed check prints file, line and both values; a run without any test fails.

#ifndef PLAIT_CSRC_BASE_TESTING_H_
#define PLAIT_CSRC_BASE_TESTING_H_

#include <cstdio>
#include <iostream>
#include <vector>

namespace plait::testing {

struct Test {
  const char* name;
  void (*body)();
};

// Function-local, because registrations in other files run before main in an unknown order.
inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline int& FailedChecks() {
  static int failed_checks = 0;
  return failed_checks;
}

struct Registration {
  Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }
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

inline int RunAllTests() {
  int passed = 0;
  int failed = 0;
  for (const Test& test : Tests()) {
    const int before = FailedChecks();
    test.body();
    const bool ok = FailedChecks() == before;
    (ok ? passed : failed) += 1;
    if (!ok) std::printf("FAILED %s\n", test.name);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace plait::testing

#define TEST(name)                                                              \
  static void name();                                                           \
  static const ::plait::testing::Registration name##_registration(#name, name); \
  static void name()
#define CHECK(condition) ::plait::testing::CheckTrue((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(left, right) ::plait::testing::CheckEqual((left), (right), #left " == " #right, __FILE__, __LINE__)

#endif  // PLAIT_CSRC_BASE_TESTING_H_
