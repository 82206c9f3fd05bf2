// Runs every test that was linked in.

#include "base/testing.h"

int main() { return plait::testing::RunAllTests(); }
