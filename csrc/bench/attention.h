// Attention: steps of a made-up cache, attended to in one call as the runtime does, and in the ways that others do.
//
// Owns the cache, queries and results of one geometry, and batches: chunks of rows, each with its own blocks of the
// cache, planned as the runtime plans them. Invariant: all ways compute every row of a batch from the same keys.

#ifndef PLAIT_CSRC_BENCH_ATTENTION_H_
#define PLAIT_CSRC_BENCH_ATTENTION_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "bench/crew.h"
#include "ops/kernels.h"
#include "runtime/units.h"

namespace plait::bench {

struct Geometry {
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_dim = 0;
  CacheType type = CacheType::kF16;
  size_t tokens_per_block = 32;
  size_t num_layers = 1;
  size_t num_blocks = 0;
};

enum class Stage : uint8_t { kPrefill, kDecode, kVerify };
inline constexpr size_t kNumStages = 3;

struct Segment {
  Stage stage = Stage::kPrefill;
  uint64_t start = 0;  // tokens in front of its rows
  uint32_t num_rows = 0;
};

enum class Way : uint8_t {
  kOneCall,   // keys and values as they lie in the cache, all chunks at once
  kSeparate,  // the same kernel, launched once for each stage
  kGathered,  // and before that keys and values of prefill and verify copied into contiguous memory, and rows of a
              // stage into a batch of their own; results copied back
  kPadded,    // and those of decode too, and rows of prefill padded to 64, of verify to 16, as tiles of one size want
  kRepacked,  // one call, but all keys and values are copied into contiguous memory first
  kWidened,   // the same, and turned into f32 on the way
  kMasked,    // one call, and of every query head a number of a dense mask read and added for every row and key
  kTiled,     // the same with rows of verify padded to 64, as a kernel for prompts has them; keys stay where they are
  kSingly,    // one call, but rows and query heads one by one, so that nobody shares the keys that he reads
};

// Chunks that are computed together, with what the runtime plans before the first layer.
struct Launch {
  std::vector<std::vector<int32_t>> tables;
  std::vector<ChunkExtent> extents;  // which look into the tables
  AttendTasks tasks;
  std::unique_ptr<std::atomic<uint32_t>[]> left;  // tasks of each whole that are not done
  size_t num_rows = 0;
  bool is_gathered = false;             // keys lie in the contiguous memory
  std::vector<uint32_t> rows_in_batch;  // where each row comes from; empty: it stays where it is
};

struct Batch {
  std::vector<std::vector<int32_t>> tables;          // blocks of each segment in the cache
  std::vector<std::vector<int32_t>> contiguous;      // and in the contiguous memory
  std::vector<std::array<int32_t, 2>> copies;        // block of the cache, block of the contiguous memory
  std::vector<std::array<int32_t, 2>> stage_copies;  // those of prefill and verify alone
  Launch whole, repacked;
  std::vector<Launch> stages, gathered, padded, tiled;
};

class Attention {
 public:
  Attention(const Kernels& kernels, const Geometry& geometry, int num_threads, size_t max_rows);

  // Null: the cache has too few blocks, or the memory for rows is too small.
  std::unique_ptr<Batch> MakeBatch(std::span<const Segment> segments, size_t num_workers) const;
  // Inside Crew::Time: one layer after another.
  void Attend(Crew& crew, Batch& batch, Way way, size_t num_layers);
  // [rows of the batch][heads * head_dim], as the last call left it.
  const float* results() const { return reinterpret_cast<const float*>(y_.data()); }
  size_t row_width() const { return geometry_.heads * geometry_.head_dim; }
  // Seconds that planning takes, which happens once for all layers.
  double PlanSeconds(const Batch& batch, size_t num_workers) const;
  // Seconds of each unit of the batch's one call, and of each launch of the separate ones, on one thread.
  std::vector<std::vector<double>> UnitSeconds(Crew& crew, Batch& batch);

 private:
  AttendShape Shape(CacheType type) const;
  Launch MakeLaunch(std::vector<std::vector<int32_t>> tables, std::vector<ChunkExtent> extents, size_t num_workers,
                    bool is_gathered) const;
  Launch MakeStage(const Batch& batch, std::span<const Segment> segments, Stage stage, size_t num_workers) const;
  // Where they are, rows of verify padded.
  Launch MakeTiled(const Batch& batch, std::span<const Segment> segments, Stage stage, size_t num_workers) const;
  Launch MakeGathered(const Batch& batch, std::span<const Segment> segments, Stage stage, size_t num_workers,
                      bool is_padded) const;
  void CopyBlocks(Crew& crew, std::span<const std::array<int32_t, 2>> blocks, bool widens);
  void Run(Crew& crew, Launch& launch);
  void CarryOut(Launch& launch, uint32_t unit, int thread);
  void AttendTaskOf(Launch& launch, const AttendTask& task, int thread);
  // Row after row and head after head of what `call` is for; `whole`: its partials, or null.
  void AttendSingly(const AttendCall& call, const AttendWhole* whole, int thread);
  void AddMask(Crew& crew, const Launch& launch);
  void MergeWhole(const Launch& launch, const AttendWhole& whole);
  float* PartialsOf(const AttendWhole& whole, uint32_t tile) const;
  void MoveRows(Crew& crew, const Launch& launch, bool back);

  const Kernels& kernels_;
  const Geometry geometry_;
  const size_t max_rows_;
  CachePlace place_, contiguous_place_, widened_place_;
  CachePlace gathered_place_;  // which of the two is in use
  size_t next_layer_ = 0;
  bool is_singly_ = false;
  AlignedBuffer mask_;  // as long as the longest row of a batch that was masked
  std::atomic<float> sink_ = 0.0f;
  AlignedBuffer cache_, contiguous_, widened_, q_, y_, stage_q_, stage_y_, partials_;
  std::vector<AlignedBuffer> scratch_;  // of threads
};

}  // namespace plait::bench

#endif  // PLAIT_CSRC_BENCH_ATTENTION_H_
