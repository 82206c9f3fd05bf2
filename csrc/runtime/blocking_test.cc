#include "runtime/blocking.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/testing.h"
#include "runtime/scene.h"
#include "runtime/tiny_model.h"
#include "runtime/units.h"

namespace plait {
namespace {

using testing::Interpreter;
using testing::KernelsHere;
using testing::Prompt;
using testing::Scene;
using testing::SceneOptions;
using testing::TinyKind;
using testing::TinyModel;

constexpr size_t kTokens = 300;
constexpr size_t kSteps = 3;
constexpr size_t kOutputs = 2;  // of a step: its last rows

// Any numbers within the limits, small ones more often: these cut more.
Blocking DrawnBlocking(const Tape& tape, Draws& draws) {
  Blocking blocking;
  const auto any = [&](uint32_t most) { return draws.Between(1, draws.Between(1, most)); };
  blocking.sizes.smallest_us = any(1000) / 10.0;
  blocking.sizes.largest_us = any(10000) / 10.0;
  blocking.sizes.per_worker = any(200) / 10.0;
  blocking.sizes.largest_attend_us = any(10000) / 10.0;
  blocking.sizes.least_attend_rows = any(kMaxAttendRows);
  blocking.sizes.stack_tasks_per_worker = any(100);
  for (uint32_t op = 0; op < tape.ops.size(); ++op) {
    if (!IsProduct(tape.ops[op].kind)) continue;
    for (uint32_t bucket = 0; bucket < kNumRowBuckets; ++bucket) {
      if (draws.Between(0, 9) > 0) blocking.gemms.push_back({op, bucket, {any(200), any(12)}});
    }
  }
  return blocking;
}

// Logits of the last rows of each step, computed with the blocking.
std::vector<std::vector<float>> LogitsWith(const TinyModel& model, const Blocking& blocking, size_t num_workers) {
  SceneOptions options;
  options.num_workers = num_workers;
  Scene scene(model, options);
  scene.runtime().Retune(blocking);
  std::vector<std::vector<float>> rows;
  const auto note = [](void* context, int64_t, size_t, size_t num_rows, const float* logits, size_t stride,
                       size_t vocab_size) {
    auto& noted = *static_cast<std::vector<std::vector<float>>*>(context);
    for (size_t row = 0; row < num_rows; ++row) {
      noted.emplace_back(logits + row * stride, logits + row * stride + vocab_size);
    }
  };
  scene.runtime().ObserveLogits(note, &rows);
  const SeatRef seat = scene.Join();
  const std::vector<int32_t> prompt = Prompt(kTokens, 5);
  constexpr size_t kEach = kTokens / kSteps;
  for (size_t start = 0; start < kTokens; start += kEach) {
    const auto first = prompt.begin() + static_cast<int64_t>(start);
    ChunkSpec chunk = Scene::Chunk(seat, 1, static_cast<int64_t>(start), {first, first + kEach});
    chunk.outputs = {{kEach - kOutputs, kOutputs, OutputKind::kSample, {}, 0}};
    scene.Wait(scene.Submit({chunk}, {Scene::Grant(seat, 1)}));
  }
  return rows;
}

std::string RefusalOf(const TinyModel& model, const Blocking& blocking) {
  Scene scene(model);
  try {
    scene.runtime().Retune(blocking);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(RandomTablesChangeNoBit) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers}) {
    const TinyModel model(kind);
    const std::vector<std::vector<float>> all = Interpreter(model, KernelsHere()).Logits(Prompt(kTokens, 5));
    std::vector<std::vector<float>> expected;
    for (size_t end = kTokens / kSteps; end <= kTokens; end += kTokens / kSteps) {
      expected.insert(expected.end(), all.begin() + static_cast<int64_t>(end - kOutputs),
                      all.begin() + static_cast<int64_t>(end));
    }
    for (uint64_t seed = 0; seed < 25; ++seed) {
      Draws draws(seed);
      CHECK(LogitsWith(model, DrawnBlocking(model.tape(), draws), 1 + seed % 3) == expected);
    }
  }
}

TEST(AnEntryCutsProductsOfItsRowsEvenlyAndNoOthers) {
  GemmShape shape;
  shape.depth = 64, shape.num_panels[0] = 40, shape.panel_bytes = 4096;
  const auto split = [&](size_t num_rows, GemmBlocks blocks) {
    shape.num_rows = num_rows;
    SplitPolicy policy;
    policy.gemm = blocks;
    return SplitGemm(shape, policy);
  };
  // 49 rows are not 48 and 1.
  CHECK_EQ(split(49, {48, 8}).rows_per_block, 25u);
  CHECK_EQ(split(90, {48, 8}).rows_per_block, 48u);
  CHECK_EQ(split(49, {48, 8}).panels_per_block, 8u);
  CHECK_EQ(split(193, {100, 8}).rows_per_block, 97u);
  CHECK_EQ(split(7, {100, 99}).rows_per_block, 7u);
  CHECK_EQ(split(7, {100, 99}).panels_per_block, 40u);
  CHECK_EQ(split(5, {1, 1}).num_units(), 200u);

  Blocking blocking;
  blocking.gemms = {{1, RowBucket(64), {48, 8}}};
  const BlockingTable table(blocking, 3);
  CHECK(table.OfGemm(1, 33) && table.OfGemm(1, 64));
  CHECK(!table.OfGemm(1, 32) && !table.OfGemm(1, 65) && !table.OfGemm(0, 64) && !table.OfGemm(2, 64));
  CHECK(!BlockingTable().OfGemm(7, 64));
  CHECK(RowBucket(1) == 0 && RowBucket(2) == 1 && RowBucket(size_t{1} << 20) == 20 && RowBucket(SIZE_MAX) == 20);
}

TEST(NumbersOutOfTheirLimitsAreRefused) {
  const TinyModel model(TinyKind::kFloats);
  uint32_t product = 0;
  while (!IsProduct(model.tape().ops[product].kind)) ++product;
  Blocking blocking;
  CHECK_EQ(RefusalOf(model, blocking), std::string());
  blocking.gemms = {{product, 3, {0, 1}}};
  CHECK_EQ(RefusalOf(model, blocking), std::string("most_rows is 0 but must be between 1 and 1e+06"));
  blocking.gemms = {{product, 3, {1, 0}}};
  CHECK(RefusalOf(model, blocking).starts_with("panels_per_block is 0"));
  blocking.gemms = {{product, 21, {1, 1}}};
  CHECK(RefusalOf(model, blocking).starts_with("bucket is 21"));
  blocking.gemms = {{0, 3, {1, 1}}};
  CHECK(RefusalOf(model, blocking) == "op 0 is no product of the tape");
  blocking.gemms = {{1u << 30, 3, {1, 1}}};
  CHECK(RefusalOf(model, blocking).ends_with("is no product of the tape"));
  blocking.gemms.clear();
  for (double* size : {&blocking.sizes.smallest_us, &blocking.sizes.largest_us, &blocking.sizes.per_worker,
                       &blocking.sizes.largest_attend_us}) {
    const double kept = *size;
    for (const double wrong : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
      *size = wrong;
      CHECK(RefusalOf(model, blocking).find("must be between") != std::string::npos);
    }
    *size = kept;
  }
  blocking.sizes.least_attend_rows = kMaxAttendRows + 1;
  CHECK(RefusalOf(model, blocking).starts_with("least_attend_rows is 65"));
}

TEST(ABlockingChangesOnlyWhileNoStepIsUnderWay) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  scene.runtime().Suspend(0);
  const int64_t step = scene.Start(seat, 1, Prompt(5, 1));
  bool is_refused = false;
  try {
    scene.runtime().Retune({});
  } catch (const std::invalid_argument&) {
    is_refused = true;
  }
  CHECK(is_refused);
  scene.runtime().Resume(0);
  scene.Wait(step);
  scene.runtime().Retune({});
}

}  // namespace plait
