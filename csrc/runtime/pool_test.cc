// Pooling: the mean of rows, whatever steps they were cut into and whoever else was in them.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/testing.h"
#include "runtime/runtime.h"
#include "runtime/scene.h"
#include "runtime/seat.h"
#include "runtime/tiny_model.h"

namespace plait {
namespace {

using testing::Prompt;
using testing::Scene;
using testing::SceneOptions;
using testing::TinyKind;
using testing::TinyModel;

using Tokens = std::vector<int32_t>;
using Vector = std::vector<float>;

TinyModel Pooling(TinyKind kind) {
  TinyModel model(kind);
  model.AddPool();
  return model;
}

ChunkSpec Pooled(ChunkSpec chunk, uint32_t first, uint32_t num_rows) {
  chunk.outputs = {{first, num_rows, OutputKind::kPool, {}, 0}};
  return chunk;
}

ChunkSpec AllPooled(ChunkSpec chunk) {
  const uint32_t num_rows = chunk.num_tokens;
  return Pooled(std::move(chunk), 0, num_rows);
}

Tokens Part(const Tokens& tokens, size_t start, size_t end) {
  return {tokens.begin() + static_cast<int64_t>(start), tokens.begin() + static_cast<int64_t>(end)};
}

// The prompt in chunks of at most `most` tokens, alone.
Vector MeanOf(const TinyModel& model, const Tokens& prompt, size_t most, const SceneOptions& options) {
  Scene scene(model, options);
  const SeatRef seat = scene.Join();
  Vector pooled;
  for (size_t start = 0; start < prompt.size(); start += most) {
    const Tokens part = Part(prompt, start, std::min(start + most, prompt.size()));
    const int64_t step =
        scene.Submit({AllPooled(Scene::Chunk(seat, 1, static_cast<int64_t>(start), part))}, {Scene::Grant(seat, 1)});
    pooled = scene.Wait(step).chunks[0].pooled;
  }
  return pooled;
}

}  // namespace

TEST(AMeanIsTheSameHoweverItsRowsAreCut) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model = Pooling(kind);
    const Tokens prompt = Prompt(90, 3);
    const Vector whole = MeanOf(model, prompt, 90, {});
    CHECK_EQ(whole.size(), size_t{64});
    for (const size_t most : {1, 7, 16, 89}) {
      SceneOptions options;
      options.blocking_seed = most;
      options.output_tile_rows = 5 + most;
      CHECK(MeanOf(model, prompt, most, options) == whole);
    }
  }
}

TEST(AMeanIsThatOfItsRowsAndTheMeanOfOneRowIsThatRow) {
  const TinyModel model = Pooling(TinyKind::kFloats);
  const Tokens prompt = Prompt(12, 4);
  RowPool expected;
  for (uint32_t row = 0; row < 12; ++row) {
    Scene scene(model);
    const SeatRef seat = scene.Join();
    const int64_t step = scene.Submit({Pooled(Scene::Chunk(seat, 1, 0, prompt), row, 1)}, {Scene::Grant(seat, 1)});
    const Vector one = scene.Wait(step).chunks[0].pooled;
    RowPool alone;
    alone.Add(one);
    CHECK(alone.Mean() == one);
    expected.Add(one);
  }
  CHECK(MeanOf(model, prompt, 12, {}) == expected.Mean());
}

TEST(WhoPoolsAndWhoSamplesShareAStep) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers}) {
    const TinyModel model = Pooling(kind);
    const Tokens one = Prompt(30, 5), other = Prompt(41, 6), third = Prompt(23, 7);
    const Vector mean = MeanOf(model, one, 30, {});
    Scene alone(model);
    const SeatRef lonely = alone.Join();
    const Tokens sampled = alone.Wait(alone.Start(lonely, 2, other)).chunks[0].tokens;
    SceneOptions options;
    options.output_tile_rows = 11;  // tiles of pooled rows, of others, and of both
    Scene scene(model, options);
    const SeatRef a = scene.Join(), b = scene.Join(), c = scene.Join();
    const int64_t step = scene.Submit({AllPooled(Scene::Chunk(a, 1, 0, one)), Scene::Chunk(b, 2, 0, other),
                                       Pooled(Scene::Chunk(c, 3, 0, third), 22, 1)},
                                      {Scene::Grant(a, 1), Scene::Grant(b, 2), Scene::Grant(c, 3)});
    const StepReport& report = scene.Wait(step);
    CHECK(report.chunks[0].pooled == mean);
    CHECK(report.chunks[0].tokens.empty());
    CHECK(report.chunks[1].tokens == sampled);
    CHECK(report.chunks[1].pooled.empty());
    Scene last(model);
    const SeatRef seat = last.Join();
    const int64_t only = last.Submit({Pooled(Scene::Chunk(seat, 1, 0, third), 22, 1)}, {Scene::Grant(seat, 1)});
    CHECK(report.chunks[2].pooled == last.Wait(only).chunks[0].pooled);
  }
}

TEST(WhatWasCancelledIsNotInTheMean) {
  const TinyModel model = Pooling(TinyKind::kFloats);
  const Tokens prompt = Prompt(40, 8);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  scene.Wait(scene.Submit({AllPooled(Scene::Chunk(seat, 1, 0, Part(prompt, 0, 20)))}, {Scene::Grant(seat, 1)}));
  scene.runtime().Suspend(0);
  const int64_t lost = scene.Submit({AllPooled(Scene::Chunk(seat, 1, 20, Part(prompt, 20, 40)))});
  scene.runtime().Cancel(lost, {1});
  CHECK(scene.Wait(lost).chunks[0].status == ChunkStatus::kCancelled);
  scene.runtime().Resume(0);
  const int64_t again = scene.Submit({AllPooled(Scene::Chunk(seat, 1, 20, Part(prompt, 20, 40)))});
  CHECK(scene.Wait(again).chunks[0].pooled == MeanOf(model, prompt, 40, {}));
}

TEST(ARowThatIsNotANumberFailsItsSequenceAlone) {
  TinyModel model(TinyKind::kFloats);
  model.AddPool();
  model.SpoilToken(9);
  Scene scene(model);
  const SeatRef bad = scene.Join(), good = scene.Join();
  const int64_t step =
      scene.Submit({AllPooled(Scene::Chunk(bad, 1, 0, {3, 9, 4})), AllPooled(Scene::Chunk(good, 2, 0, {3, 5, 4}))},
                   {Scene::Grant(bad, 1), Scene::Grant(good, 2)});
  const StepReport& report = scene.Wait(step);
  CHECK(report.chunks[0].status == ChunkStatus::kPoolNotANumber);
  CHECK_EQ(report.chunks[0].failed_row, int64_t{2});
  CHECK(report.chunks[0].pooled.empty());
  CHECK(report.chunks[1].status == ChunkStatus::kOk);
}

}  // namespace plait
