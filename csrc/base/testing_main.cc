// plait_tests [--each] [FILTER]: runs the tests that were linked in.

#include <cstdio>
#include <string_view>

#include "base/testing.h"

int main(int count, char** arguments) {
  plait::testing::RunOptions options;
  for (int index = 1; index < count; ++index) {
    const std::string_view argument = arguments[index];
    if (argument == "--each") {
      options.print_each = true;
    } else if (argument.starts_with("-") || !options.filter.empty()) {
      std::fprintf(stderr, "usage: %s [--each] [FILTER]: tests whose file:name contains FILTER\n", arguments[0]);
      return 2;
    } else {
      options.filter = argument;
    }
  }
  return plait::testing::RunTests(options);
}
