#include "runtime/work_record.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "runtime/scene.h"

namespace plait {
namespace {

using testing::Prompt;
using testing::Scene;
using testing::SceneOptions;
using testing::TinyKind;
using testing::TinyModel;

constexpr size_t kPlenty = size_t{1} << 16;

WorkEvent Numbered(int64_t number) { return {number, number + 1, number, 0, 0, WorkKind::kUnit, 0}; }

int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

TEST(EventsComeOutInOrderAndOnce) {
  WorkRecord record(4);
  CHECK(record.Take().empty());
  for (int64_t turn = 0; turn < 5; ++turn) {
    for (int64_t i = 0; i < 3; ++i) record.Add(Numbered(10 * turn + i));
    const std::vector<WorkEvent> taken = record.Take();
    CHECK_EQ(taken.size(), 3u);
    for (int64_t i = 0; i < 3; ++i) CHECK(taken[static_cast<size_t>(i)] == Numbered(10 * turn + i));
    CHECK(record.Take().empty());
  }
  CHECK_EQ(record.num_lost(), 0u);
}

TEST(AFullRingKeepsWhatItHasAndCountsWhatItLoses) {
  WorkRecord record(3);  // room for 4
  CHECK_EQ(record.num_bytes(), 4 * sizeof(WorkEvent));
  for (int64_t i = 0; i < 7; ++i) record.Add(Numbered(i));
  CHECK_EQ(record.num_lost(), 3u);
  const std::vector<WorkEvent> taken = record.Take();
  CHECK_EQ(taken.size(), 4u);
  for (size_t i = 0; i < taken.size(); ++i) CHECK(taken[i] == Numbered(static_cast<int64_t>(i)));
  record.Add(Numbered(7));
  CHECK(record.Take() == std::vector{Numbered(7)});
  CHECK_EQ(record.num_lost(), 3u);
}

TEST(AReaderBesideTheWriterSeesEveryEventThatWasNotLostInOrder) {
  constexpr int64_t kEvents = 200000;
  WorkRecord record(64);
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (int64_t i = 0; i < kEvents; ++i) record.Add(Numbered(i));
    is_over = true;
  });
  uint64_t num_seen = 0;
  int64_t last = -1;
  bool is_ordered = true;
  for (bool is_last = false; !is_last;) {
    is_last = is_over;
    for (const WorkEvent& event : record.Take()) {
      is_ordered = is_ordered && event == Numbered(event.step) && event.step > last;
      last = event.step;
      ++num_seen;
    }
  }
  writer.join();
  CHECK(is_ordered);
  CHECK_EQ(num_seen + record.num_lost(), static_cast<uint64_t>(kEvents));
}

TEST(WithoutRecordEventsThereIsNothingToTake) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  scene.Wait(scene.Start(scene.Join(), 1, Prompt(20, 1)));
  CHECK(scene.runtime().TakeWork().empty());
}

TEST(EveryUnitOfACollectedStepIsThereInsideOfTheStep) {
  const TinyModel model(TinyKind::kIntegers);
  SceneOptions options;
  options.num_workers = 3;
  options.record_events = kPlenty;
  Scene scene(model, options);
  const SeatRef seat = scene.Join();
  const int64_t first = scene.Start(seat, 1, Prompt(40, 1));
  std::vector<StepReport> reports = {scene.Wait(first)};
  for (int64_t start = 40; start < 44; ++start) {
    reports.push_back(scene.Wait(scene.Submit({Scene::Next(seat, 1, start)})));
  }
  const uint64_t num_units = scene.runtime().Counters().units;
  const std::vector<WorkTaken> taken = scene.runtime().TakeWork();
  CHECK_EQ(taken.size(), 3u);
  uint64_t num_seen = 0;
  std::map<std::pair<int64_t, uint32_t>, int64_t> last_end;  // of an op's units
  for (const WorkTaken& worker : taken) {
    CHECK_EQ(worker.num_lost, 0u);
    int64_t before = 0;
    for (const WorkEvent& event : worker.events) {
      CHECK(before <= event.begin_ns && event.begin_ns <= event.end_ns);
      before = event.end_ns;
      if (event.kind != WorkKind::kUnit) continue;
      ++num_seen;
      const StepReport& report = reports[static_cast<size_t>(event.step - first)];
      CHECK(event.begin_ns >= Nanoseconds(report.start_s) - 1 && event.end_ns <= Nanoseconds(report.end_s) + 1);
      int64_t& end = last_end[{event.step, event.op}];
      end = std::max(end, event.end_ns);
    }
  }
  CHECK_EQ(num_seen, num_units);
  CHECK_EQ(last_end.size(), reports.size() * model.tape().ops.size());
  // An op is published when the one before is complete, so by whoever saw all of its units end.
  for (const WorkTaken& worker : taken) {
    for (const WorkEvent& event : worker.events) {
      if (event.kind != WorkKind::kAdvance || event.op == 0) continue;
      const int64_t end = last_end[{event.step, event.op - 1}];
      CHECK(end <= event.begin_ns);
    }
  }
}

TEST(WhatFindsNoRoomIsCountedAndTheStepIsRight) {
  const TinyModel model(TinyKind::kFloats);
  SceneOptions options;
  options.num_workers = 1;
  options.record_events = 8;
  Scene scene(model, options);
  const SeatRef seat = scene.Join();
  CHECK_EQ(scene.Wait(scene.Start(seat, 1, Prompt(30, 1))).chunks[0].tokens.size(), 1u);
  const std::vector<WorkTaken> taken = scene.runtime().TakeWork();
  CHECK_EQ(taken[0].events.size(), 8u);
  CHECK(taken[0].num_lost > 0);
}

TEST(WhatAWorkerDidBeforeTheRuntimeWasClosedCanStillBeTaken) {
  const TinyModel model(TinyKind::kFloats);
  SceneOptions options;
  options.record_events = kPlenty;
  Scene scene(model, options);
  scene.Wait(scene.Start(scene.Join(), 1, Prompt(30, 1)));
  scene.runtime().Close();
  int num_ends = 0;  // noted when the step could be collected already
  for (const WorkTaken& worker : scene.runtime().TakeWork()) {
    for (const WorkEvent& event : worker.events) num_ends += event.kind == WorkKind::kEnd;
  }
  CHECK_EQ(num_ends, 1);
}

}  // namespace plait
