// Scene: a runtime with a tiny model in it, and plans for it in a line each, for the tests of runtime/.
//
// Owns the runtime, its pool, the blocks of sequences and the results collected so far. Sequence s has blocks
// [s * kBlocksEach, (s + 1) * kBlocksEach). Invariant: steps get ascending ids; a result is kept until it is asked for.

#ifndef PLAIT_CSRC_RUNTIME_SCENE_H_
#define PLAIT_CSRC_RUNTIME_SCENE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "runtime/runtime.h"
#include "runtime/tiny_model.h"

namespace plait::testing {

inline constexpr size_t kBlocksEach = 32;
inline constexpr double kLongS = 60.0;

struct SceneOptions {
  size_t num_workers = 2;
  size_t max_step_tokens = 128;
  size_t output_tile_rows = 16;
  uint64_t blocking_seed = 0;
  bool poison = true;
  size_t record_events = 0;
};

inline std::vector<int32_t> Prompt(size_t length, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<int32_t>((seed * 31 + i * i * 7 + i * seed * 3) % kTinyVocab));
  return tokens;
}

class Scene {
 public:
  explicit Scene(const TinyModel& model, const SceneOptions& options = {})
      : pool_(model.pool_bytes()),
        runtime_(ConfigOf(options), model.tape(), KernelsHere(), pool_.data(), pool_.size()) {}

  Runtime& runtime() { return runtime_; }

  SeatRef Join(SamplingSpec sampling = Greedy(), int64_t num_prompt = 0, std::vector<int32_t> history = {}) {
    JoinSpec join;
    join.sampling = std::move(sampling);
    join.num_prompt = num_prompt;
    join.history = std::move(history);
    return runtime_.Join(join);
  }
  static SamplingSpec Greedy() {
    SamplingSpec sampling;
    sampling.temperature = 0.0;
    return sampling;
  }

  static GrantSpec Grant(const SeatRef& seat, int64_t seq) {
    GrantSpec grant;
    grant.seat = seat;
    for (size_t i = 0; i < kBlocksEach; ++i)
      grant.blocks.push_back(static_cast<int32_t>(static_cast<size_t>(seq) * kBlocksEach + i));
    return grant;
  }
  // Tokens of `seq` from slot `start` on; the last row samples.
  static ChunkSpec Chunk(const SeatRef& seat, int64_t seq, int64_t start, std::vector<int32_t> tokens) {
    ChunkSpec chunk;
    chunk.seat = seat;
    chunk.seq = seq;
    chunk.start = start;
    chunk.num_tokens = static_cast<uint32_t>(tokens.size());
    chunk.tokens = std::move(tokens);
    chunk.outputs.push_back({chunk.num_tokens - 1, 1, OutputKind::kSample, {}, 0});
    return chunk;
  }
  // The token that was sampled last.
  static ChunkSpec Next(const SeatRef& seat, int64_t seq, int64_t start) {
    ChunkSpec chunk = Chunk(seat, seq, start, {0});
    chunk.tokens.clear();
    chunk.from_device = true;
    return chunk;
  }

  int64_t Submit(std::vector<ChunkSpec> chunks, std::vector<GrantSpec> grants = {}, uint32_t lane = 0,
                 std::vector<MoveSpec> moves = {}) {
    StepSpec step;
    step.step = next_step_++;
    step.lane = lane;
    step.grants = std::move(grants);
    step.chunks = std::move(chunks);
    step.moves = std::move(moves);
    const int64_t id = step.step;
    runtime_.Submit(std::move(step));
    return id;
  }
  // A sequence with its first chunk.
  int64_t Start(const SeatRef& seat, int64_t seq, std::vector<int32_t> tokens, uint32_t lane = 0) {
    return Submit({Chunk(seat, seq, 0, std::move(tokens))}, {Grant(seat, seq)}, lane);
  }

  void CollectAll() {
    for (StepReport& report : runtime_.Collect()) {
      const int64_t step = report.step;
      order_.push_back(step);
      reports_.insert_or_assign(step, std::move(report));
    }
  }
  bool Has(int64_t step) {
    CollectAll();
    return reports_.count(step) > 0;
  }
  // An empty report, of step -1, if it does not end.
  const StepReport& Wait(int64_t step) {
    while (reports_.count(step) == 0) {
      if (!runtime_.WaitFinished(kLongS)) {
        reports_[step].step = -1;
        break;
      }
      CollectAll();
    }
    return reports_[step];
  }
  const std::vector<int64_t>& order() const { return order_; }

 private:
  static RuntimeConfig ConfigOf(const SceneOptions& options) {
    RuntimeConfig config;
    config.cores.assign(options.num_workers, -1);
    config.max_step_tokens = options.max_step_tokens;
    config.output_tile_rows = options.output_tile_rows;
    config.blocking_seed = options.blocking_seed;
    config.poison = options.poison;
    config.record_events = options.record_events;
    config.nice = 0;
    return config;
  }

  AlignedBuffer pool_;
  Runtime runtime_;
  int64_t next_step_ = 0;
  std::map<int64_t, StepReport> reports_;
  std::vector<int64_t> order_;
};

}  // namespace plait::testing

#endif  // PLAIT_CSRC_RUNTIME_SCENE_H_
