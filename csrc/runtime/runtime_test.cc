#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/testing.h"
#include "runtime/scene.h"
#include "runtime/tiny_model.h"

namespace plait {
namespace {

using testing::Interpreter;
using testing::KernelsHere;
using testing::Prompt;
using testing::Scene;
using testing::SceneOptions;
using testing::TinyKind;
using testing::TinyModel;

using Tokens = std::vector<int32_t>;

// What the model answers when nothing else is there.
Tokens Right(const TinyModel& model, const Tokens& prompt, size_t count = 1) {
  return Interpreter(model, KernelsHere()).Greedy(prompt, count);
}

std::vector<ChunkStatus> StatusesOf(const StepReport& report) {
  std::vector<ChunkStatus> statuses;
  for (const ChunkResult& chunk : report.chunks) statuses.push_back(chunk.status);
  return statuses;
}

constexpr ChunkStatus kOk = ChunkStatus::kOk;
constexpr ChunkStatus kCancelled = ChunkStatus::kCancelled;

struct Observed {
  std::vector<std::vector<float>> rows;

  static void Note(void* context, int64_t, size_t first_row, size_t num_rows, const float* logits, size_t stride,
                   size_t vocab_size) {
    auto& rows = static_cast<Observed*>(context)->rows;
    CHECK_EQ(first_row, rows.size() % 100);
    for (size_t row = 0; row < num_rows; ++row)
      rows.emplace_back(logits + row * stride, logits + row * stride + vocab_size);
  }
};

ChunkSpec Scored(ChunkSpec chunk) {
  OutputSpec all;
  all.kind = OutputKind::kLogprobs;
  all.num_rows = chunk.num_tokens;
  all.targets.assign(chunk.num_tokens, 1);
  all.top = 2;
  chunk.outputs = {all};
  return chunk;
}

}  // namespace

TEST(EveryLogitIsTheOneOfTheSequenceAloneWhateverTheBlocking) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model(kind);
    const Tokens prompt = Prompt(300, 5);
    const auto expected = Interpreter(model, KernelsHere()).Logits(prompt);
    for (uint64_t seed = 0; seed < 12; ++seed) {
      SceneOptions options;
      options.num_workers = 1 + seed % 3;
      options.blocking_seed = seed;
      options.output_tile_rows = 7 + seed;
      Scene scene(model, options);
      Observed observed;
      scene.runtime().ObserveLogits(&Observed::Note, &observed);
      const SeatRef seat = scene.Join();
      for (int64_t start = 0; start < 300; start += 100) {
        const Tokens part(prompt.begin() + start, prompt.begin() + start + 100);
        const int64_t step = scene.Submit({Scored(Scene::Chunk(seat, 1, start, part))}, {Scene::Grant(seat, 1)});
        CHECK(StatusesOf(scene.Wait(step)) == std::vector{kOk});
        CHECK_EQ(scene.Wait(step).chunks[0].scored.size(), 100u);
      }
      CHECK(observed.rows == expected);
    }
  }
}

TEST(ManySequencesInOneStepGiveWhatEachGivesAlone) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model(kind);
    Scene scene(model);
    std::vector<SeatRef> seats;
    std::vector<ChunkSpec> chunks;
    std::vector<GrantSpec> grants;
    for (int64_t seq = 0; seq < 5; ++seq) {
      seats.push_back(scene.Join());
      chunks.push_back(
          Scene::Chunk(seats.back(), seq, 0, Prompt(static_cast<size_t>(3 + 9 * seq), static_cast<uint64_t>(seq))));
      grants.push_back(Scene::Grant(seats.back(), seq));
    }
    const int64_t first = scene.Submit(chunks, grants);
    chunks.clear();
    for (int64_t seq = 0; seq < 5; ++seq)
      chunks.push_back(Scene::Next(seats[static_cast<size_t>(seq)], seq, 3 + 9 * seq));
    const int64_t second = scene.Submit(chunks);
    for (size_t seq = 0; seq < 5; ++seq) {
      const Tokens right = Right(model, Prompt(3 + 9 * seq, seq), 2);
      CHECK(scene.Wait(first).chunks[seq].tokens == Tokens{right[0]});
      CHECK(scene.Wait(second).chunks[seq].tokens == Tokens{right[1]});
    }
  }
}

// Seven sequences that share two key tiles and half a block count of their own: every step stacks their rows.
TEST(SequencesThatShareBlocksGiveWhatEachGivesAlone) {
  constexpr int64_t kShared = 512;
  constexpr int64_t kOthers = 7;
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model(kind);
    const Tokens beginning = Prompt(kShared, 5);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SceneOptions options;
      options.num_workers = 1 + seed % 3;
      options.blocking_seed = seed;
      Scene scene(model, options);
      const SeatRef first = scene.Join();
      for (int64_t at = 0; at < kShared; at += 128) {
        const Tokens part(beginning.begin() + at, beginning.begin() + at + 128);
        scene.Wait(scene.Submit({Scene::Chunk(first, 0, at, part)}, {Scene::Grant(first, 0)}));
      }
      std::vector<ChunkSpec> chunks;
      std::vector<GrantSpec> grants;
      std::vector<Tokens> own;
      for (int64_t seq = 1; seq <= kOthers; ++seq) {
        const SeatRef seat = scene.Join();
        GrantSpec grant = Scene::Grant(first, 0);
        grant.seat = seat;
        for (int32_t block = 0; block < 2; ++block) {
          grant.blocks.push_back(static_cast<int32_t>(testing::kBlocksEach) + 2 * static_cast<int32_t>(seq) + block);
        }
        grants.push_back(grant);
        own.push_back(Prompt(static_cast<size_t>(3 + seq), static_cast<uint64_t>(seq)));
        chunks.push_back(Scored(Scene::Chunk(seat, seq, kShared, own.back())));
      }
      const int64_t step = scene.Submit(chunks, grants);
      if (seed % 2 == 1) scene.runtime().Cancel(step, {3});
      const StepReport& report = scene.Wait(step);
      for (size_t i = 0; i < kOthers; ++i) {
        if (report.chunks[i].status == kCancelled) continue;
        Tokens whole = beginning;
        whole.insert(whole.end(), own[i].begin(), own[i].end());
        // Blocks of a sequence without company: nothing is stacked with it.
        Scene quiet(model, {.max_step_tokens = 528});
        const SeatRef alone = quiet.Join();
        GrantSpec grant = Scene::Grant(alone, 1);
        grant.blocks.push_back(0);
        const int64_t only = quiet.Submit({Scored(Scene::Chunk(alone, 1, 0, whole))}, {grant});
        const std::vector<TokenLogprobSpec>& expected = quiet.Wait(only).chunks[0].scored;
        CHECK_EQ(report.chunks[i].scored.size(), own[i].size());
        for (size_t row = 0; row < own[i].size(); ++row) {
          CHECK_EQ(report.chunks[i].scored[row].logprob, expected[kShared + row].logprob);
          CHECK(report.chunks[i].scored[row].top == expected[kShared + row].top);
        }
      }
    }
  }
}

TEST(StepsOfALaneEndInOrderAndSayWhen) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  const int64_t first = scene.Start(seat, 1, Prompt(10, 1));
  const int64_t second = scene.Submit({Scene::Next(seat, 1, 10)});
  const StepReport& later = scene.Wait(second);
  const StepReport& earlier = scene.Wait(first);
  CHECK(scene.order() == (std::vector<int64_t>{first, second}));
  CHECK(earlier.start_s <= earlier.end_s && earlier.end_s <= later.start_s && later.start_s <= later.end_s);
  CHECK(earlier.workers >= 1 && earlier.workers <= 2);
  CHECK(earlier.outcome == StepOutcome::kCompleted);
}

TEST(ALaneWithoutWorkersRestsUntilItGetsSome) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const int64_t starved = scene.Start(scene.Join(), 1, Prompt(10, 1), 1);
  const int64_t fed = scene.Start(scene.Join(), 2, Prompt(10, 2), 0);
  scene.Wait(fed);
  CHECK(!scene.Has(starved));
  scene.runtime().Assign({{}, {0, 1}});
  CHECK(scene.Wait(starved).chunks[0].tokens == Right(model, Prompt(10, 1)));
}

TEST(WorkersWhoseLaneHasNoStepGoOnWithOneThatBeganOnALaneWithoutWorkers) {
  const TinyModel model(TinyKind::kFloats);
  for (const size_t num_tokens : {2, 10, 60}) {
    Scene scene(model);
    scene.runtime().Assign({{}, {0, 1}});
    const std::vector<int32_t> prompt = Prompt(num_tokens, 1);
    const int64_t step = scene.Start(scene.Join(), 1, prompt, 1);
    while (scene.runtime().Counters().units == 0) std::this_thread::yield();
    scene.runtime().Assign({{0, 1}, {}}, true);
    // Their own lane's steps go first; on a lane that rests none is begun.
    const int64_t behind = scene.Start(scene.Join(), 2, prompt, 1);
    CHECK(scene.Wait(scene.Start(scene.Join(), 3, prompt, 0)).chunks[0].tokens == Right(model, prompt));
    CHECK(scene.Wait(step).chunks[0].tokens == Right(model, prompt));
    CHECK(!scene.Has(behind));
  }
}

uint64_t NumNoticed(Scene& scene) {
  uint64_t sum = 0;
  for (const uint64_t one : scene.runtime().ChangeDelays().counts) sum += one;
  return sum;
}

TEST(ASuspendedStepGoesOnWhereItWasAmongWorkersWhoMayHelp) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  scene.runtime().Assign({{}, {0, 1}});
  const int64_t step = scene.Start(scene.Join(), 1, Prompt(60, 1), 1);
  while (scene.runtime().Counters().units == 0) std::this_thread::yield();
  scene.runtime().Suspend(1);
  scene.runtime().Assign({{0}, {1}}, true);
  const int64_t other = scene.Start(scene.Join(), 2, Prompt(60, 2), 0);
  CHECK(scene.Wait(other).chunks[0].tokens == Right(model, Prompt(60, 2)));
  scene.runtime().Resume(1);
  CHECK(scene.Wait(step).chunks[0].tokens == Right(model, Prompt(60, 1)));
}

TEST(EveryWorkerThatWasMovedTellsOnceHowLongItTookToNotice) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const struct {
    std::vector<std::vector<uint32_t>> shares;
    uint64_t num_moved;
  } changes[] = {{{{0}, {1}}, 1}, {{{1}, {0}}, 2}, {{{1}, {0}}, 0}, {{{}, {}}, 2}, {{{0, 1}, {}}, 2}};
  uint64_t expected = 0;
  for (const auto& change : changes) {
    expected += change.num_moved;
    scene.runtime().Assign(change.shares);
    while (NumNoticed(scene) < expected) std::this_thread::yield();
    CHECK_EQ(NumNoticed(scene), expected);
  }
  CHECK(scene.runtime().ChangeDelays().total_ns > 0);
  uint64_t own = 0;
  for (const uint64_t one : scene.runtime().OwnChangeDelays().counts) own += one;
  CHECK_EQ(own, expected);
  // A worker does not run for longer than the time passes; the clocks differ a little.
  CHECK(scene.runtime().OwnChangeDelays().total_ns <= scene.runtime().ChangeDelays().total_ns + 1'000'000);
}

TEST(ASuspendedLaneRestsUntilItIsResumed) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  scene.runtime().Assign({{0}, {1}});
  scene.runtime().Suspend(1);
  const int64_t parked = scene.Start(scene.Join(), 1, Prompt(10, 1), 1);
  scene.Wait(scene.Start(scene.Join(), 2, Prompt(10, 2), 0));
  CHECK(!scene.Has(parked));
  scene.runtime().Resume(1);
  CHECK(scene.Wait(parked).chunks[0].tokens == Right(model, Prompt(10, 1)));
}

TEST(AStepGoesOnWithWhoeverIsLeftWhenTheWorkerThatWasWokenIsTakenAway) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  for (int round = 0; round < 100; ++round) {
    scene.runtime().Assign({{0, 1}, {}});
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // Both fall asleep.
    const int64_t step = scene.Start(seat, 1, Prompt(3, 1));
    scene.runtime().Assign({{1}, {0}});
    CHECK_EQ(scene.Wait(step).step, step);
    if (scene.Wait(step).step != step) return;
  }
}

TEST(AStepThatIsTooLargeIsRefusedAndChangesNothing) {
  const TinyModel model(TinyKind::kFloats);
  SceneOptions options;
  options.max_step_tokens = 20;
  Scene scene(model, options);
  const SeatRef seat = scene.Join();
  const int64_t first = scene.Start(seat, 1, Prompt(12, 1));
  const auto rest = [&](size_t count) {
    const Tokens tokens = Prompt(12 + count, 1);
    return Scene::Chunk(seat, 1, 12, Tokens(tokens.begin() + 12, tokens.end()));
  };
  bool is_refused = false;
  try {
    scene.Submit({rest(21)});
  } catch (const std::length_error& error) {
    is_refused = std::string(error.what()).find("has 21 tokens; a lane has room for 20") != std::string::npos;
  }
  CHECK(is_refused);
  CHECK(scene.Wait(first).chunks[0].tokens == Right(model, Prompt(12, 1)));
  CHECK(scene.Wait(scene.Submit({rest(20)})).chunks[0].tokens == Right(model, Prompt(32, 1)));
}

TEST(AStepWithoutChunksOnlyMoves) {
  const TinyModel model(TinyKind::kIntegers);
  Scene scene(model);
  const Tokens prompt = Prompt(40, 3);
  scene.Wait(scene.Start(scene.Join(), 1, prompt));
  const SeatRef behind = scene.Join();
  // 16 + 16 + 2 + 1 tokens out of the blocks of sequence 1 into those of 2.
  const auto each = static_cast<int32_t>(testing::kBlocksEach);
  const std::vector<MoveSpec> moves = {{0, each, 0, 2 * each, 0, 16},
                                       {0, each + 1, 0, 2 * each + 1, 0, 16},
                                       {0, each + 2, 0, 2 * each + 2, 0, 2},
                                       {0, each + 2, 2, 2 * each + 2, 2, 1}};
  const int64_t moved = scene.Submit({}, {}, 0, moves);
  CHECK(scene.Wait(moved).outcome == StepOutcome::kCompleted);
  const Tokens rest(prompt.begin() + 35, prompt.end());
  const int64_t step = scene.Submit({Scored(Scene::Chunk(behind, 2, 35, rest))}, {Scene::Grant(behind, 2)});
  // Every bit counts: one value that is another would hardly change a token.
  const SeatRef alone = scene.Join();
  const int64_t whole = scene.Submit({Scored(Scene::Chunk(alone, 3, 0, prompt))}, {Scene::Grant(alone, 3)});
  const std::vector<TokenLogprobSpec>& scored = scene.Wait(step).chunks[0].scored;
  const std::vector<TokenLogprobSpec>& expected = scene.Wait(whole).chunks[0].scored;
  for (size_t row = 0; row < rest.size(); ++row) CHECK_EQ(scored[row].logprob, expected[35 + row].logprob);
}

// Cancelling

TEST(ADeadStepEndsOnARestingLaneAndTakesWhatStandsBehindItAlong) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  scene.runtime().Suspend(0);
  const SeatRef seat = scene.Join();
  const int64_t first = scene.Start(seat, 1, Prompt(10, 1));
  const int64_t second = scene.Submit({Scene::Next(seat, 1, 10)});
  scene.runtime().Cancel(first, {7, 1});
  CHECK(scene.Wait(first).outcome == StepOutcome::kCancelled);
  CHECK(scene.Wait(second).outcome == StepOutcome::kCancelled);
  CHECK(StatusesOf(scene.Wait(second)) == std::vector{kCancelled});
  scene.runtime().Resume(0);
  const int64_t again = scene.Submit({Scene::Chunk(seat, 1, 0, Prompt(10, 1))});
  CHECK(scene.Wait(again).chunks[0].tokens == Right(model, Prompt(10, 1)));
}

TEST(OneCancelledChunkChangesNothingForTheOthers) {
  const TinyModel model(TinyKind::kIntegers);
  Scene scene(model);
  scene.runtime().Suspend(0);
  const SeatRef one = scene.Join();
  const SeatRef two = scene.Join();
  const int64_t first = scene.Submit({Scene::Chunk(one, 1, 0, Prompt(20, 1)), Scene::Chunk(two, 2, 0, Prompt(20, 2))},
                                     {Scene::Grant(one, 1), Scene::Grant(two, 2)});
  const int64_t second = scene.Submit({Scene::Next(one, 1, 20), Scene::Next(two, 2, 20)});
  scene.runtime().Cancel(first, {1});
  scene.runtime().Resume(0);
  CHECK(StatusesOf(scene.Wait(first)) == (std::vector{kCancelled, kOk}));
  CHECK(StatusesOf(scene.Wait(second)) == (std::vector{kCancelled, kOk}));
  CHECK(scene.Wait(first).outcome == StepOutcome::kCompleted);
  CHECK(scene.Wait(second).chunks[1].tokens == Tokens{Right(model, Prompt(20, 2), 2)[1]});
}

TEST(ACancelledChunkWithATileOfOutputsTakesNoOtherTileAlong) {
  const TinyModel model(TinyKind::kFloats);
  SceneOptions options;
  options.output_tile_rows = 8;
  Scene scene(model, options);
  scene.runtime().Suspend(0);
  const SeatRef one = scene.Join();
  const SeatRef two = scene.Join();
  const int64_t step =
      scene.Submit({Scored(Scene::Chunk(one, 1, 0, Prompt(8, 1))), Scene::Chunk(two, 2, 0, Prompt(20, 2))},
                   {Scene::Grant(one, 1), Scene::Grant(two, 2)});
  scene.runtime().Cancel(step, {1});
  scene.runtime().Resume(0);
  CHECK(scene.Wait(step).chunks[1].tokens == Right(model, Prompt(20, 2)));
}

TEST(WhatIsSubmittedBehindACancelledChunkBeforeThatWasCollectedIsCancelled) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  scene.runtime().Suspend(0);
  const SeatRef seat = scene.Join();
  const int64_t front = scene.Start(seat, 1, Prompt(8, 1));
  scene.runtime().Cancel(front, {1});
  CHECK(scene.runtime().WaitFinished(testing::kLongS));
  const int64_t behind = scene.Submit({Scene::Chunk(seat, 1, 8, Prompt(4, 2))});
  CHECK(StatusesOf(scene.Wait(behind)) == std::vector{kCancelled});
  scene.Wait(front);
  scene.runtime().Resume(0);
  CHECK(StatusesOf(scene.Wait(scene.Submit({Scene::Chunk(seat, 1, 0, Prompt(8, 1))}))) == std::vector{kOk});
}

TEST(MovesOfACancelledStepAreMade) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const Tokens prompt = Prompt(20, 3);
  scene.Wait(scene.Start(scene.Join(), 1, prompt));
  scene.runtime().Suspend(0);
  const SeatRef behind = scene.Join();
  const auto each = static_cast<int32_t>(testing::kBlocksEach);
  const Tokens rest(prompt.begin() + 16, prompt.end());
  const int64_t step =
      scene.Submit({Scene::Chunk(behind, 2, 16, rest)}, {Scene::Grant(behind, 2)}, 0, {{0, each, 0, 2 * each, 0, 16}});
  scene.runtime().Cancel(step, {2});
  CHECK(scene.Wait(step).outcome == StepOutcome::kCancelled);
  scene.runtime().Resume(0);
  const int64_t again = scene.Submit({Scene::Chunk(behind, 2, 16, rest)});
  CHECK(scene.Wait(again).chunks[0].tokens == Right(model, prompt));
}

TEST(CancellingWhatIsUnknownOrOverIsIgnored) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const int64_t step = scene.Start(scene.Join(), 1, Prompt(10, 1));
  scene.runtime().Cancel(99, {1});
  scene.runtime().Cancel(step, {77});
  CHECK(StatusesOf(scene.Wait(step)) == std::vector{kOk});
  scene.runtime().Cancel(step, {1});
  CHECK(scene.runtime().Collect().empty());
}

// Failures

TEST(ALogitThatIsNotANumberFailsItsSequenceOnlyAndWhatStandsBehindIt) {
  TinyModel model(TinyKind::kFloats);
  model.SpoilToken(49);
  Scene scene(model);
  const SeatRef bad = scene.Join();
  const SeatRef good = scene.Join();
  Tokens spoiled = Prompt(10, 1);
  spoiled.back() = 49;
  scene.runtime().Suspend(0);
  const int64_t first = scene.Submit({Scene::Chunk(bad, 1, 0, spoiled), Scene::Chunk(good, 2, 0, Prompt(10, 2))},
                                     {Scene::Grant(bad, 1), Scene::Grant(good, 2)});
  const int64_t second = scene.Submit({Scene::Next(bad, 1, 10), Scene::Next(good, 2, 10)});
  scene.runtime().Resume(0);
  CHECK(StatusesOf(scene.Wait(first)) == (std::vector{ChunkStatus::kNotANumber, kOk}));
  CHECK_EQ(scene.Wait(first).chunks[0].failed_row, 9);
  CHECK(StatusesOf(scene.Wait(second)) == (std::vector{kCancelled, kOk}));
  const int64_t again = scene.Submit({Scene::Chunk(bad, 1, 0, Prompt(10, 1))});
  CHECK(scene.Wait(again).chunks[0].tokens == Right(model, Prompt(10, 1)));
  const int64_t later = scene.Submit({Scene::Chunk(bad, 1, 10, {3, 49})});
  CHECK_EQ(scene.Wait(later).chunks[0].failed_row, 11);
}

TEST(ASequenceWithoutAnAllowedTokenFails) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  ChunkSpec chunk = Scene::Chunk(seat, 1, 0, Prompt(10, 1));
  chunk.masks.push_back({9, std::vector<uint8_t>(7, 0)});
  const int64_t step = scene.Submit({chunk}, {Scene::Grant(seat, 1)});
  CHECK(StatusesOf(scene.Wait(step)) == std::vector{ChunkStatus::kNoToken});
  chunk.masks[0].allowed[2] = 1 << 3;
  CHECK(scene.Wait(scene.Submit({chunk})).chunks[0].tokens == Tokens{19});
}

TEST(AMaskIsThatOfItsRowAndTheLastOfSeveralTokensGoesOn) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  Tokens text = Prompt(6, 2);
  ChunkSpec chunk = Scene::Chunk(seat, 1, 0, text);
  chunk.outputs[0].first = 4;
  chunk.outputs[0].num_rows = 2;
  chunk.masks.push_back({5, {0, 0, 1 << 3, 0, 0, 0, 0}});
  const int64_t first = scene.Submit({chunk}, {Scene::Grant(seat, 1)});
  const Tokens free = Right(model, {text.begin(), text.begin() + 5});
  CHECK(free != Tokens{19});
  CHECK(scene.Wait(first).chunks[0].tokens == (Tokens{free[0], 19}));
  text.push_back(19);
  CHECK(scene.Wait(scene.Submit({Scene::Next(seat, 1, 6)})).chunks[0].tokens == Right(model, text));
}

TEST(PenaltiesSeeWhatCameAndForgetWhatWasTakenBack) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  SamplingSpec sampling = Scene::Greedy();
  sampling.presence_penalty = 1000.0;
  const Tokens prompt = Prompt(6, 4);
  const SeatRef seat = scene.Join(sampling, 6);
  int64_t step = scene.Start(seat, 1, prompt);
  Tokens given;
  for (int64_t at = 6; at < 40; ++at) {
    given.push_back(scene.Wait(step).chunks[0].tokens[0]);
    step = scene.Submit({Scene::Next(seat, 1, at)});
  }
  std::vector<int> times(testing::kTinyVocab, 0);
  for (const int32_t token : given) CHECK_EQ(++times[static_cast<size_t>(token)], 1);
  scene.Wait(step);
  // Starting again from the prompt gives the same tokens: the history behind slot 6 is gone.
  CHECK_EQ(scene.Wait(scene.Submit({Scene::Chunk(seat, 1, 0, prompt)})).chunks[0].tokens[0], given[0]);
}

TEST(RowsThatSampleInsideAChunkSeeTheTokensBeforeThemOnly) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  SamplingSpec sampling = Scene::Greedy();
  sampling.repetition_penalty = 3.0;
  sampling.frequency_penalty = 2.0;
  const Tokens text = Prompt(12, 4);
  const SeatRef together = scene.Join(sampling, 2);
  ChunkSpec all = Scene::Chunk(together, 1, 0, text);
  all.outputs[0].first = 0;
  all.outputs[0].num_rows = 12;
  const Tokens given = scene.Wait(scene.Submit({all}, {Scene::Grant(together, 1)})).chunks[0].tokens;
  CHECK_EQ(given.size(), 12u);
  for (size_t length = 1; length <= given.size(); ++length) {
    const Tokens part(text.begin(), text.begin() + static_cast<int64_t>(length));
    const int64_t step = scene.Start(scene.Join(sampling, 2), 2, part);
    CHECK(scene.Wait(step).chunks[0].tokens == Tokens{given[length - 1]});
  }
}

TEST(DraftsAreAcceptedUpToTheFirstWrongOneAndTheNextTokenIsTheOneBehindThem) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model, {.output_tile_rows = 2});
  const SeatRef seat = scene.Join();
  Tokens text = Prompt(6, 2);
  int64_t step = scene.Start(seat, 1, text);
  for (uint32_t right = 0; right <= 3; ++right) {
    text.push_back(scene.Wait(step).chunks[0].tokens.back());
    Tokens said;
    for (Tokens known = text; said.size() < 4; known.push_back(said.back())) said.push_back(Right(model, known)[0]);
    ChunkSpec chunk = Scene::Next(seat, 1, static_cast<int64_t>(text.size()) - 1);
    chunk.tokens.assign(said.begin(), said.begin() + 3);
    if (right < 3) chunk.tokens[right] = (said[right] + 1) % testing::kTinyVocab;
    chunk.num_drafts = 3;
    chunk.num_tokens = 4;
    chunk.outputs[0].num_rows = 4;
    chunk.masks.push_back({3, std::vector<uint8_t>(7, 0)});  // nothing may come behind the last draft
    step = scene.Submit({chunk});
    said.resize(std::min<size_t>(right + 1, 3));
    CHECK(scene.Wait(step).chunks[0].tokens == said);
    text.insert(text.end(), said.begin(), said.end() - 1);
  }
  text.push_back(scene.Wait(step).chunks[0].tokens.back());
  step = scene.Submit({Scene::Next(seat, 1, static_cast<int64_t>(text.size()) - 1)});
  CHECK(scene.Wait(step).chunks[0].tokens == Right(model, text));
}

TEST(LogProbabilitiesComeWithTheTokensThatAskForThem) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  SamplingSpec asking = Scene::Greedy();
  asking.logprobs = 3;
  const SeatRef one = scene.Join(asking);
  const SeatRef other = scene.Join();
  const int64_t step = scene.Submit({Scene::Chunk(one, 1, 0, Prompt(9, 1)), Scene::Chunk(other, 2, 0, Prompt(9, 2))},
                                    {Scene::Grant(one, 1), Scene::Grant(other, 2)});
  const ChunkResult& asked = scene.Wait(step).chunks[0];
  CHECK_EQ(asked.logprobs.size(), 1u);
  CHECK_EQ(asked.logprobs[0].token, asked.tokens[0]);
  CHECK_EQ(asked.logprobs[0].top.size(), 3u);
  CHECK_EQ(asked.logprobs[0].top[0].first, asked.tokens[0]);
  CHECK_EQ(asked.logprobs[0].top[0].second, asked.logprobs[0].logprob);
  CHECK(asked.logprobs[0].logprob < 0.0 && asked.logprobs[0].top[1].second <= asked.logprobs[0].logprob);
  CHECK(scene.Wait(step).chunks[1].logprobs.empty());
}

TEST(EndTokensAreForbiddenUntilEnoughCame) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const Tokens right = Right(model, Prompt(9, 1));
  SamplingSpec sampling = Scene::Greedy();
  sampling.min_tokens = 1;
  sampling.end_tokens = right;
  const Tokens first = scene.Wait(scene.Start(scene.Join(sampling, 9), 1, Prompt(9, 1))).chunks[0].tokens;
  CHECK(first != right);
  const Tokens later = scene.Wait(scene.Start(scene.Join(sampling, 8), 2, Prompt(9, 1))).chunks[0].tokens;
  CHECK(later == right);
}

// Workers

TEST(AnIdleRuntimeSleeps) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  scene.Wait(scene.Start(scene.Join(), 1, Prompt(10, 1)));
  uint64_t parks = 0;
  for (int round = 0; round < 2000 && parks < 2; ++round) {  // both are on their way to sleep
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    parks = scene.runtime().Counters().parks;
  }
  CHECK(parks >= 2);
  const double before = scene.runtime().Counters().parked_s;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const RuntimeCounters after = scene.runtime().Counters();
  CHECK(after.parked_s > before);
  CHECK_EQ(after.steps, 1u);
  CHECK(after.units > 0 && after.kernel_s > 0.0);
}

TEST(ClosingAbandonsWhatIsInFlightAndDoesNotHang) {
  const TinyModel model(TinyKind::kIntegers);
  for (int round = 0; round < 20; ++round) {
    Scene scene(model);
    scene.Start(scene.Join(), 1, Prompt(100, 1));
    scene.Start(scene.Join(), 2, Prompt(100, 2));
    scene.Start(scene.Join(), 3, Prompt(100, 3), 1);
    scene.runtime().Close();
    scene.runtime().Close();
  }
}

}  // namespace plait
