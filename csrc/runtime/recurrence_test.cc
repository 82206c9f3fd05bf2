// Recurrences in the runtime: states that are gone on from, kept inside chunks and taken up by others, whatever else is
// in the steps and however work is cut.

#include "runtime/recurrence.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/testing.h"
#include "runtime/scene.h"
#include "runtime/tiny_model.h"

namespace plait {
namespace {

using testing::Interpreter;
using testing::kBlocksEach;
using testing::KernelsHere;
using testing::kTinyBlock;
using testing::Prompt;
using testing::Scene;
using testing::SceneOptions;
using testing::TinyKind;
using testing::TinyModel;

using Tokens = std::vector<int32_t>;

constexpr size_t kStates = 1;  // the group

TinyModel Recurrent(TinyKind kind) {
  TinyModel model(kind);
  model.AddRecurrence();
  return model;
}

int32_t StateBlock(const TinyModel& model, int64_t number) { return model.FirstState() + static_cast<int32_t>(number); }

// Keys and values, and state block `seq`.
std::vector<GrantSpec> Grants(const TinyModel& model, const SeatRef& seat, int64_t seq) {
  GrantSpec state;
  state.seat = seat, state.group = kStates, state.blocks = {StateBlock(model, seq)};
  return {Scene::Grant(seat, seq), state};
}

Tokens Part(const Tokens& tokens, size_t start, size_t end) {
  return {tokens.begin() + static_cast<int64_t>(start), tokens.begin() + static_cast<int64_t>(end)};
}

// What the model answers when nothing else is there.
int32_t Right(const TinyModel& model, const Tokens& prompt) {
  return Interpreter(model, KernelsHere()).Greedy(prompt, 1)[0];
}

}  // namespace

TEST(StatesAreGoneOnFromInAnyChunksAndCompany) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers}) {
    const TinyModel model = Recurrent(kind);
    for (const uint64_t seed : {0u, 1u, 2u, 3u, 4u}) {
      Scene scene(model, {.blocking_seed = seed});
      constexpr int64_t kSequences = 5;
      std::vector<SeatRef> seats;
      std::vector<Tokens> prompts;
      std::vector<GrantSpec> grants;
      for (int64_t seq = 0; seq < kSequences; ++seq) {
        seats.push_back(scene.Join());
        prompts.push_back(Prompt(20 + static_cast<size_t>(seq) * 9, static_cast<uint64_t>(seq) + 1));
        for (const GrantSpec& grant : Grants(model, seats.back(), seq)) grants.push_back(grant);
      }
      std::vector<size_t> done(kSequences, 0);
      std::vector<int32_t> last(kSequences, -1);
      for (size_t round = 0; std::ranges::any_of(last, [](int32_t token) { return token < 0; }); ++round) {
        std::vector<ChunkSpec> chunks;
        for (size_t seq = 0; seq < kSequences; ++seq) {
          const size_t end = std::min(prompts[seq].size(), done[seq] + 1 + (seq * 3 + round * 5) % 11);
          if (end == done[seq]) continue;
          chunks.push_back(Scene::Chunk(seats[seq], static_cast<int64_t>(seq), static_cast<int64_t>(done[seq]),
                                        Part(prompts[seq], done[seq], end)));
          done[seq] = end;
        }
        const StepReport& report = scene.Wait(scene.Submit(chunks, round == 0 ? grants : std::vector<GrantSpec>{}));
        for (const ChunkResult& chunk : report.chunks) {
          const auto seq = static_cast<size_t>(chunk.seq);
          if (done[seq] == prompts[seq].size()) last[seq] = chunk.tokens[0];
        }
      }
      for (size_t seq = 0; seq < kSequences; ++seq) CHECK_EQ(last[seq], Right(model, prompts[seq]));
    }
  }
}

TEST(AStateKeptInsideAChunkIsTakenUpByAnother) {
  const TinyModel model = Recurrent(TinyKind::kFloats);
  for (const uint64_t seed : {0u, 5u, 6u}) {
    Scene scene(model, {.blocking_seed = seed});
    const Tokens prompt = Prompt(50, 3);
    const SeatRef first = scene.Join();
    ChunkSpec whole = Scene::Chunk(first, 0, 0, prompt);
    whole.snapshots = {{kTinyBlock - 1, kStates, StateBlock(model, 40)}, {kTinyBlock, kStates, StateBlock(model, 41)}};
    // The second runs in the step behind, from the state and the first block of keys and values.
    const SeatRef second = scene.Join();
    std::vector<GrantSpec> grants = Grants(model, second, 1);
    grants[0].blocks[0] = 0;
    Tokens other = prompt;
    for (size_t i = kTinyBlock; i < other.size(); ++i) other[i] = (other[i] + 1) % 40;
    const int64_t before = scene.Submit({whole}, Grants(model, first, 0));
    const int64_t behind = scene.Submit({Scene::Chunk(second, 1, kTinyBlock, Part(other, kTinyBlock, other.size()))},
                                        grants, 0, {{kStates, StateBlock(model, 40), 0, StateBlock(model, 1), 0, 1}});
    CHECK_EQ(scene.Wait(before).chunks[0].tokens[0], Right(model, prompt));
    CHECK_EQ(scene.Wait(behind).chunks[0].tokens[0], Right(model, other));
  }
}

TEST(WhoIsGivenUpLeavesABlockThatOthersBeginIn) {
  const TinyModel model = Recurrent(TinyKind::kFloats);
  for (uint64_t round = 0; round < 20; ++round) {
    Scene scene(model, {.blocking_seed = round});
    const Tokens prompt = Prompt(90, round + 1);
    const SeatRef gone = scene.Join();
    const int64_t step = scene.Submit({Scene::Chunk(gone, 0, 0, Prompt(100, 9))}, Grants(model, gone, 0));
    scene.runtime().Cancel(step, {0});
    // The same state block; keys and values are its own.
    const SeatRef next = scene.Join();
    std::vector<GrantSpec> grants = Grants(model, next, 1);
    grants[1].blocks = {StateBlock(model, 0)};
    const int64_t behind = scene.Submit({Scene::Chunk(next, 1, 0, prompt)}, grants);
    CHECK_EQ(scene.Wait(behind).chunks[0].tokens[0], Right(model, prompt));
  }
}

TEST(LanesWithStatesRunBesideEachOther) {
  const TinyModel model = Recurrent(TinyKind::kIntegers);
  Scene scene(model, {.num_workers = 2});
  scene.runtime().Assign({{0}, {1}});
  std::vector<int64_t> steps;
  std::vector<Tokens> prompts;
  for (int64_t seq = 0; seq < 6; ++seq) {
    prompts.push_back(Prompt(60 + static_cast<size_t>(seq), static_cast<uint64_t>(seq) + 2));
    const SeatRef seat = scene.Join();
    steps.push_back(scene.Submit({Scene::Chunk(seat, seq, 0, prompts.back())}, Grants(model, seat, seq),
                                 static_cast<uint32_t>(seq % 2)));
    if (seq == 3) scene.runtime().Assign({{0, 1}, {}});
    if (seq == 4) scene.runtime().Assign({{0}, {1}});
  }
  for (size_t seq = 0; seq < steps.size(); ++seq) {
    CHECK_EQ(scene.Wait(steps[seq]).chunks[0].tokens[0], Right(model, prompts[seq]));
  }
}

}  // namespace plait
