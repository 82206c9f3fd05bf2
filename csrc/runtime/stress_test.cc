#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "base/testing.h"
#include "runtime/runtime.h"
#include "runtime/scene.h"
#include "runtime/tiny_model.h"
#include "runtime/units.h"

// Control verbs at random moments: whatever happens between, a chunk that ends OK gave the token that it gives alone.

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

constexpr int64_t kSequences = 6;  // as many as have blocks
constexpr size_t kTokensEach = 12;
constexpr size_t kDepth = 2;
constexpr size_t kMostStepTokens = 256;  // the sequences of a lane with all that they have

size_t PromptSize(int64_t seq) { return 5 + 17 * static_cast<size_t>(seq); }

// One sequence: what it must give, and how far it has come. Control knows what was submitted; only results tell what
// was computed.
struct Client {
  int64_t seq = 0;
  uint32_t lane = 0;
  SeatRef seat;
  std::vector<int32_t> prompt;
  std::vector<int32_t> right;  // by slot: the token that is sampled behind it, in the prompt too
  size_t num_computed = 0;     // slots
  size_t num_submitted = 0;    // slots, those in flight included
  size_t num_in_flight = 0;
  bool is_granted = false;
};

struct InFlight {
  Client* client = nullptr;
  size_t end = 0;
};

class Storm {
 public:
  Storm(const TinyModel& model, size_t num_workers, uint64_t seed)
      : draws_(seed), num_workers_(num_workers), scene_(model, OptionsOf(num_workers, seed)) {
    for (int64_t seq = 0; seq < kSequences; ++seq) {
      Client client;
      client.seq = seq;
      client.lane = static_cast<uint32_t>(seq % 2);
      client.prompt = Prompt(PromptSize(seq), static_cast<uint64_t>(seq));
      client.right = RightOf(model, client.prompt);
      client.seat = scene_.Join();
      clients_.push_back(client);
    }
  }

  // Until every sequence gave all its tokens.
  void Rage() {
    Assign();
    for (size_t round = 0; round < 20000 && !(IsOver(0) && IsOver(1)); ++round) {
      const uint32_t verb = draws_.Between(0, 11);
      if (verb < 5) SubmitOn(draws_.Between(0, 1));
      if (verb == 5) Assign();
      if (verb == 6) SuspendOrResume(draws_.Between(0, 1));
      if (verb == 7) Cancel();
      if (verb > 7) Collect();
      if (draws_.Between(0, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draws_.Between(0, 200)));
    }
    CalmDown();
    for (const Client& client : clients_) CHECK_EQ(client.num_computed, client.prompt.size() + kTokensEach - 1);
  }

  size_t num_cancelled() const { return num_cancelled_; }
  size_t num_ok() const { return num_ok_; }

 private:
  static SceneOptions OptionsOf(size_t num_workers, uint64_t seed) {
    SceneOptions options;
    options.num_workers = num_workers;
    options.max_step_tokens = kMostStepTokens;
    options.blocking_seed = seed % 2 == 0 ? seed : 0;
    options.record_events = seed % 3 == 0 ? 256 : 0;  // few, so that some find no room
    return options;
  }

  static std::vector<int32_t> RightOf(const TinyModel& model, std::vector<int32_t> tokens) {
    const Interpreter alone(model, KernelsHere());
    const std::vector<int32_t> answer = alone.Greedy(tokens, kTokensEach);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    std::vector<int32_t> right;
    for (const std::vector<float>& logits : alone.Logits(tokens)) {
      right.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    return right;
  }

  bool IsOver(uint32_t lane) const {
    for (const Client& client : clients_) {
      if (client.lane == lane && client.num_computed < client.prompt.size() + kTokensEach - 1) return false;
    }
    return true;
  }

  // A chunk of the client's text, or of its own last token; nothing when it is at its end.
  bool AddChunk(Client& client, std::vector<ChunkSpec>* chunks) {
    const size_t at = client.num_submitted;
    if (at >= client.prompt.size() + kTokensEach - 1) return false;
    if (at >= client.prompt.size()) {
      chunks->push_back(Scene::Next(client.seat, client.seq, static_cast<int64_t>(at)));
      ++client.num_submitted;
    } else {
      const size_t left = client.prompt.size() - at;
      const size_t count = draws_.Between(1, static_cast<uint32_t>(left));
      chunks->push_back(Scene::Chunk(client.seat, client.seq, static_cast<int64_t>(at),
                                     {client.prompt.begin() + static_cast<int64_t>(at),
                                      client.prompt.begin() + static_cast<int64_t>(at + count)}));
      client.num_submitted += count;
    }
    ++client.num_in_flight;
    return true;
  }

  void SubmitOn(uint32_t lane) {
    if (num_in_flight_[lane] >= kDepth) return;
    std::vector<ChunkSpec> chunks;
    std::vector<GrantSpec> grants;
    std::vector<InFlight> in_flight;
    for (Client& client : clients_) {
      if (client.lane != lane || draws_.Between(0, 2) == 0 || client.num_in_flight >= kDepth) continue;
      if (!AddChunk(client, &chunks)) continue;
      if (!client.is_granted) grants.push_back(Scene::Grant(client.seat, client.seq));
      client.is_granted = true;
      in_flight.push_back({&client, client.num_submitted});
    }
    if (chunks.empty() && draws_.Between(0, 9) > 0) return;
    steps_[scene_.Submit(std::move(chunks), std::move(grants), lane)] = std::move(in_flight);
    ++num_in_flight_[lane];
  }

  void Assign() {
    std::vector<std::vector<uint32_t>> shares(2);
    for (uint32_t worker = 0; worker < num_workers_; ++worker) {
      const uint32_t lane = draws_.Between(0, 4);
      if (lane < 4) shares[lane % 2].push_back(worker);
    }
    scene_.runtime().Assign(shares, draws_.Between(0, 1) == 1);
  }

  void SuspendOrResume(uint32_t lane) {
    if (suspended_[lane]) scene_.runtime().Resume(lane);
    if (!suspended_[lane]) scene_.runtime().Suspend(lane);
    suspended_[lane] = !suspended_[lane];
  }

  void Cancel() {
    if (steps_.empty() || draws_.Between(0, 2) > 0) return;
    auto step = steps_.begin();
    std::advance(step, draws_.Between(0, static_cast<uint32_t>(steps_.size()) - 1));
    std::vector<int64_t> seqs;
    for (const InFlight& one : step->second) {
      if (draws_.Between(0, 3) > 0) seqs.push_back(one.client->seq);
    }
    scene_.runtime().Cancel(step->first, seqs);
  }

  void Collect() {
    for (const StepReport& report : scene_.runtime().Collect()) {
      const std::vector<InFlight> in_flight = steps_.at(report.step);
      CHECK_EQ(report.chunks.size(), in_flight.size());
      --num_in_flight_[report.lane];
      steps_.erase(report.step);
      for (size_t i = 0; i < in_flight.size(); ++i) Settle(*in_flight[i].client, in_flight[i].end, report.chunks[i]);
    }
  }

  void Settle(Client& client, size_t end, const ChunkResult& result) {
    CHECK_EQ(result.seq, client.seq);
    if (result.status == ChunkStatus::kOk) {
      client.num_computed = end;
      ++num_ok_;
      CHECK_EQ(result.tokens[0], client.right[end - 1]);
    } else {
      CHECK(result.status == ChunkStatus::kCancelled);
      ++num_cancelled_;
    }
    if (--client.num_in_flight == 0) client.num_submitted = client.num_computed;
  }

  // Everything that is left, lane after lane, without disturbance: whoever sleeps then through its work is found out.
  void CalmDown() {
    for (uint32_t lane = 0; lane < 2; ++lane) {
      if (suspended_[lane]) SuspendOrResume(lane);
    }
    for (uint32_t lane = 0; lane < 2; ++lane) {
      std::vector<std::vector<uint32_t>> shares(2);
      for (uint32_t worker = 0; worker < num_workers_; ++worker) shares[lane].push_back(worker);
      scene_.runtime().Assign(shares);
      for (int round = 0; round < 10000 && !(IsOver(lane) && num_in_flight_[lane] == 0); ++round) {
        SubmitOn(lane);
        scene_.runtime().WaitFinished(0.01);
        Collect();
      }
    }
  }

  Draws draws_;
  const size_t num_workers_;
  Scene scene_;
  std::vector<Client> clients_;
  std::map<int64_t, std::vector<InFlight>> steps_;
  size_t num_in_flight_[2] = {0, 0};
  bool suspended_[2] = {false, false};
  size_t num_cancelled_ = 0;
  size_t num_ok_ = 0;
};

}  // namespace

TEST(VerbsAtRandomMomentsChangeNoToken) {
  size_t num_cancelled = 0;
  size_t num_ok = 0;
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model(kind);
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      Storm storm(model, 1 + seed % 3, seed);
      storm.Rage();
      num_cancelled += storm.num_cancelled();
      num_ok += storm.num_ok();
    }
  }
  CHECK(num_cancelled > 50);
  CHECK(num_ok > 500);
}

// Six sequences with one beginning, some of which are cancelled at any moment of a step that stacks them.
TEST(CancelsAtRandomMomentsTakeNobodyElseOutOfAStack) {
  constexpr int64_t kOthers = 6;
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers, TinyKind::kOwn}) {
    const TinyModel model(kind);
    SceneOptions options;
    options.num_workers = 3;
    Scene scene(model, options);
    Draws draws(11);
    const Tokens beginning = Prompt(kKeyTile, 5);
    const SeatRef first = scene.Join();
    for (size_t at = 0; at < kKeyTile; at += 64) {
      const auto from = beginning.begin() + static_cast<int64_t>(at);
      scene.Wait(scene.Submit({Scene::Chunk(first, 0, static_cast<int64_t>(at), {from, from + 64})},
                              {Scene::Grant(first, 0)}));
    }
    std::vector<ChunkSpec> chunks;
    std::vector<GrantSpec> grants;
    Tokens right;
    for (int64_t seq = 1; seq <= kOthers; ++seq) {
      const SeatRef seat = scene.Join();
      grants.push_back(Scene::Grant(first, 0));
      grants.back().seat = seat;
      grants.back().blocks.resize(kKeyTile / testing::kTinyBlock);
      grants.back().blocks.push_back(static_cast<int32_t>(testing::kBlocksEach * 2 + static_cast<size_t>(seq)));
      const Tokens own = Prompt(static_cast<size_t>(seq), static_cast<uint64_t>(seq));
      chunks.push_back(Scene::Chunk(seat, seq, kKeyTile, own));
      Tokens whole = beginning;
      whole.insert(whole.end(), own.begin(), own.end());
      right.push_back(Interpreter(model, KernelsHere()).Greedy(whole, 1)[0]);
    }
    size_t num_ok = 0;
    size_t num_cancelled = 0;
    for (int round = 0; round < 200; ++round) {
      const int64_t step = scene.Submit(chunks, grants);
      std::vector<int64_t> gone;
      for (int64_t seq = 1; seq <= kOthers; ++seq) {
        if (draws.Between(0, 2) == 0) gone.push_back(seq);
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(draws.Between(0, 400));
      while (std::chrono::steady_clock::now() < until) {
      }
      scene.runtime().Cancel(step, gone);
      const StepReport& report = scene.Wait(step);
      for (size_t i = 0; i < report.chunks.size(); ++i) {
        const bool is_ok = report.chunks[i].status == ChunkStatus::kOk;
        if (is_ok) CHECK_EQ(report.chunks[i].tokens[0], right[i]);
        is_ok ? ++num_ok : ++num_cancelled;
      }
    }
    CHECK(num_ok > 200);
    CHECK(num_cancelled > 20);
  }
}

// The moment in question is between two ops, when there is nothing to be taken away from the workers.
TEST(ACancelThatMeetsTheEndOfAnOpEndsTheStepOnARestingLane) {
  const TinyModel model(TinyKind::kFloats);
  SceneOptions options;
  options.num_workers = 1;
  Scene scene(model, options);
  Draws draws(7);
  const SeatRef seat = scene.Join();
  size_t num_cancelled = 0;
  for (int round = 0; round < 3000; ++round) {
    const int64_t step = scene.Start(seat, 1, Prompt(6, 1));
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(draws.Between(0, 120));
    while (std::chrono::steady_clock::now() < until) {
    }
    scene.runtime().Suspend(0);
    scene.runtime().Cancel(step, {1});
    const StepReport& report = scene.Wait(step);
    CHECK_EQ(report.step, step);
    if (report.step != step) return;
    if (report.outcome == StepOutcome::kCancelled) ++num_cancelled;
    scene.runtime().Resume(0);
  }
  CHECK(num_cancelled > 0);
}

TEST(TenThousandShortStepsAllEndInOrder) {
  const TinyModel model(TinyKind::kFloats);
  Scene scene(model);
  const SeatRef seat = scene.Join();
  scene.Wait(scene.Start(seat, 1, Prompt(3, 1)));
  int64_t last = 0;
  for (int step = 0; step < 5000; ++step) {
    // One that computes and one that does not; the queue never runs dry.
    scene.Submit({Scene::Chunk(seat, 1, 3, {static_cast<int32_t>(step % 7)})});
    last = scene.Submit({});
    if (step % 2 == 1) scene.Wait(last);
  }
  scene.Wait(last);
  CHECK_EQ(scene.order().size(), 10001u);
  for (size_t i = 0; i < scene.order().size(); ++i) CHECK_EQ(scene.order()[i], static_cast<int64_t>(i));
}

}  // namespace plait
