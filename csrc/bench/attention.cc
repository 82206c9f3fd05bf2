// Units of attention, carried out as runtime/carry_out.cc does, and the copies that other ways need.
//
// The contiguous memory has blocks of one layer that follow one another, so that the same kernel reads it and only
// the copying differs. Invariant: work around the kernel is shared by all threads, as the kernel's units are.

#include "bench/attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "bench/numbers.h"
#include "formats/half.h"
#include "limits/rates.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace plait::bench {
namespace {

constexpr uint32_t kBlocksPerCopy = 4;
constexpr uint32_t kRowsPerCopy = 32;
constexpr size_t kPrefillMultiple = 64;
// Rows of a segment are padded to multiples of these, by stage. A single row's heads fill a tile by themselves.
constexpr size_t kRowMultiples[kNumStages] = {kPrefillMultiple, 1, 16};

CachePlace MakePlace(const Geometry& geometry, CacheType type, size_t num_layers, uint8_t* pool) {
  CachePlace place;
  place.pool = pool;
  place.head_bytes = 2 * geometry.tokens_per_block * VectorBytes(type, geometry.head_dim);
  place.block_bytes = place.head_bytes * geometry.kv_heads * num_layers;
  place.tokens_per_block = geometry.tokens_per_block;
  place.kv_heads = geometry.kv_heads;
  place.head_dim_k = place.head_dim_v = geometry.head_dim;
  place.type = type;
  return place;
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void WidenFast(const uint16_t* halves, size_t count, float* floats) {
  for (size_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(floats + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i))));
  }
}
#endif

// What a mask costs a kernel that has its scores in registers: a number of it loaded and added for each.
#if defined(__x86_64__)
__attribute__((target("avx"))) float SumFast(const float* numbers, size_t count) {
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (size_t i = 0; i + 32 <= count; i += 32) {
    for (size_t k = 0; k < 4; ++k) sums[k] = _mm256_add_ps(sums[k], _mm256_loadu_ps(numbers + i + 8 * k));
  }
  const __m256 all = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
  return _mm256_cvtss_f32(all);
}
#endif

float Sum(const float* numbers, size_t count) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) return SumFast(numbers, count);
#endif
  float sum = 0.0f;
  for (size_t i = 0; i < count; ++i) sum += numbers[i];
  return sum;
}

void Widen(const uint16_t* halves, size_t count, float* floats) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("f16c")) return WidenFast(halves, count, floats);
#endif
  for (size_t i = 0; i < count; ++i) floats[i] = HalfToFloat(halves[i]);
}

// As the runtime's.
SplitPolicy PolicyFor(size_t num_workers) {
  SplitPolicy policy;
  policy.num_workers = static_cast<uint32_t>(num_workers);
  return policy;
}

// A generator of its own, so that blocks lie in the same disorder in every run.
std::vector<int32_t> Shuffled(size_t count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 0);
  uint32_t state = 7;
  for (size_t left = count; left > 1; --left) {
    state = state * 1664525u + 1013904223u;
    std::swap(blocks[left - 1], blocks[(state >> 8) % left]);
  }
  return blocks;
}

}  // namespace

Attention::Attention(const Kernels& kernels, const Geometry& geometry, int num_threads, size_t max_rows)
    : kernels_(kernels), geometry_(geometry), max_rows_(max_rows) {
  place_ = MakePlace(geometry, geometry.type, geometry.num_layers, nullptr);
  cache_ = AlignedBuffer(place_.block_bytes * geometry.num_blocks);
  FillWithNumbers(cache_.data(), cache_.size());
  place_.pool = cache_.data();
  contiguous_place_ = MakePlace(geometry, geometry.type, 1, nullptr);
  contiguous_ = AlignedBuffer(contiguous_place_.block_bytes * geometry.num_blocks);
  contiguous_place_.pool = contiguous_.data();
  widened_place_ = MakePlace(geometry, CacheType::kF32, 1, nullptr);
  widened_ = AlignedBuffer(widened_place_.block_bytes * geometry.num_blocks);
  widened_place_.pool = widened_.data();
  FillWithNumbers(contiguous_.data(), contiguous_.size());
  FillWithNumbers(widened_.data(), widened_.size());
  const size_t row_bytes = geometry.heads * geometry.head_dim * sizeof(float);
  for (AlignedBuffer* rows : {&q_, &y_, &stage_q_, &stage_y_}) {
    *rows = AlignedBuffer(max_rows_ * row_bytes);
    auto* floats = reinterpret_cast<float*>(rows->data());
    for (size_t i = 0; i < rows->size() / sizeof(float); ++i) {
      floats[i] = static_cast<float>(i * 7919 % 255) / 127.0f - 1.0f;
    }
  }
  partials_ = AlignedBuffer(kMaxPartials * sizeof(float));
  std::memset(partials_.data(), 0, partials_.size());
  const size_t scratch =
      kernels.attend_scratch_bytes(geometry.heads / geometry.kv_heads, geometry.head_dim, geometry.head_dim);
  for (int thread = 0; thread < num_threads; ++thread) scratch_.emplace_back(RoundUp(scratch, kCacheLine));
}

AttendShape Attention::Shape(CacheType type) const {
  AttendShape shape;
  shape.kv_heads = static_cast<uint32_t>(geometry_.kv_heads);
  shape.group = static_cast<uint32_t>(geometry_.heads / geometry_.kv_heads);
  shape.head_dim_k = shape.head_dim_v = static_cast<uint32_t>(geometry_.head_dim);
  shape.key_bytes = static_cast<uint32_t>(2 * VectorBytes(type, geometry_.head_dim));
  shape.tokens_per_block = static_cast<uint32_t>(geometry_.tokens_per_block);
  return shape;
}

std::unique_ptr<Batch> Attention::MakeBatch(std::span<const Segment> segments, size_t num_workers) const {
  auto batch = std::make_unique<Batch>();
  const std::vector<int32_t> shuffled = Shuffled(geometry_.num_blocks);
  const size_t block = geometry_.tokens_per_block;
  size_t next = 0;
  std::vector<ChunkExtent> extents;
  uint32_t num_rows = 0;
  for (const Segment& segment : segments) {
    // Rows of padding see keys too.
    const size_t count = (segment.start + RoundUp(segment.num_rows, kPrefillMultiple) + block - 1) / block;
    const size_t used = (segment.start + segment.num_rows + block - 1) / block;
    if (next + count > geometry_.num_blocks) return nullptr;
    std::vector<int32_t>& table = batch->tables.emplace_back();
    std::vector<int32_t>& contiguous = batch->contiguous.emplace_back();
    for (size_t i = 0; i < count; ++i, ++next) {
      table.push_back(shuffled[next]);
      contiguous.push_back(static_cast<int32_t>(next));
      if (i >= used) continue;
      batch->copies.push_back({table.back(), contiguous.back()});
      if (segment.stage != Stage::kDecode) batch->stage_copies.push_back(batch->copies.back());
    }
    extents.push_back({num_rows, segment.num_rows, segment.start, {}});
    num_rows += segment.num_rows;
  }
  batch->whole = MakeLaunch(batch->tables, extents, num_workers, false);
  batch->repacked = MakeLaunch(batch->contiguous, extents, num_workers, true);
  for (const Stage stage : {Stage::kPrefill, Stage::kDecode, Stage::kVerify}) {
    const bool is_there = std::any_of(segments.begin(), segments.end(), [&](auto& one) { return one.stage == stage; });
    if (!is_there) continue;
    batch->stages.push_back(MakeStage(*batch, segments, stage, num_workers));
    batch->gathered.push_back(MakeGathered(*batch, segments, stage, num_workers, false));
    batch->padded.push_back(MakeGathered(*batch, segments, stage, num_workers, true));
    batch->tiled.push_back(MakeTiled(*batch, segments, stage, num_workers));
    if (batch->padded.back().num_rows > max_rows_ || batch->tiled.back().num_rows > max_rows_) return nullptr;
  }
  return num_rows > max_rows_ ? nullptr : std::move(batch);
}

// Its rows stay where they are: the kernel takes chunks wherever their rows stand.
Launch Attention::MakeStage(const Batch& batch, std::span<const Segment> segments, Stage stage,
                            size_t num_workers) const {
  std::vector<std::vector<int32_t>> tables;
  std::vector<ChunkExtent> extents;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].stage != stage) continue;
    tables.push_back(batch.tables[i]);
    extents.push_back(batch.whole.extents[i]);
  }
  return MakeLaunch(std::move(tables), std::move(extents), num_workers, false);
}

Launch Attention::MakeTiled(const Batch& batch, std::span<const Segment> segments, Stage stage,
                            size_t num_workers) const {
  if (stage != Stage::kVerify) return MakeStage(batch, segments, stage, num_workers);
  std::vector<std::vector<int32_t>> tables;
  std::vector<ChunkExtent> extents;
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].stage != stage) continue;
    const auto num_rows = static_cast<uint32_t>(RoundUp(segments[i].num_rows, kPrefillMultiple));
    tables.push_back(batch.tables[i]);
    extents.push_back({static_cast<uint32_t>(rows.size()), num_rows, segments[i].start, {}});
    for (uint32_t row = 0; row < num_rows; ++row) {
      rows.push_back(batch.whole.extents[i].first_row + std::min(row, segments[i].num_rows - 1));
    }
  }
  Launch launch = MakeLaunch(std::move(tables), std::move(extents), num_workers, false);
  launch.rows_in_batch = std::move(rows);
  return launch;
}

Launch Attention::MakeGathered(const Batch& batch, std::span<const Segment> segments, Stage stage, size_t num_workers,
                               bool is_padded) const {
  const bool gathers = is_padded || stage != Stage::kDecode;
  const size_t row_multiple = is_padded ? kRowMultiples[static_cast<size_t>(stage)] : 1;
  std::vector<std::vector<int32_t>> tables;
  std::vector<ChunkExtent> extents;
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].stage != stage) continue;
    const auto num_rows = static_cast<uint32_t>(RoundUp(segments[i].num_rows, row_multiple));
    tables.push_back(gathers ? batch.contiguous[i] : batch.tables[i]);
    extents.push_back({static_cast<uint32_t>(rows.size()), num_rows, segments[i].start, {}});
    // Rows of padding are the last one again.
    for (uint32_t row = 0; row < num_rows; ++row) {
      rows.push_back(batch.whole.extents[i].first_row + std::min(row, segments[i].num_rows - 1));
    }
  }
  Launch launch = MakeLaunch(std::move(tables), std::move(extents), num_workers, gathers);
  launch.rows_in_batch = std::move(rows);
  return launch;
}

Launch Attention::MakeLaunch(std::vector<std::vector<int32_t>> tables, std::vector<ChunkExtent> extents,
                             size_t num_workers, bool is_gathered) const {
  Launch launch;
  launch.tables = std::move(tables);
  launch.extents = std::move(extents);
  launch.is_gathered = is_gathered;
  for (size_t i = 0; i < launch.extents.size(); ++i) {
    launch.extents[i].table = launch.tables[i];
    launch.num_rows += launch.extents[i].num_rows;
  }
  launch.tasks = SplitAttend(Shape(geometry_.type), launch.extents, PolicyFor(num_workers));
  launch.left = std::make_unique<std::atomic<uint32_t>[]>(launch.tasks.wholes.size());
  return launch;
}

double Attention::PlanSeconds(const Batch& batch, size_t num_workers) const {
  const double began = limits::Now();
  const AttendTasks tasks = SplitAttend(Shape(geometry_.type), batch.whole.extents, PolicyFor(num_workers));
  return tasks.tasks.empty() ? 0.0 : limits::Now() - began;
}

void Attention::Attend(Crew& crew, Batch& batch, Way way, size_t num_layers) {
  for (size_t layer = 0; layer < num_layers; ++layer) {
    place_.layer_offset = next_layer_ * place_.head_bytes * place_.kv_heads;
    next_layer_ = (next_layer_ + 1) % geometry_.num_layers;
    gathered_place_ = way == Way::kWidened ? widened_place_ : contiguous_place_;
    switch (way) {
      case Way::kOneCall:
        Run(crew, batch.whole);
        break;
      case Way::kSeparate:
        for (Launch& launch : batch.stages) Run(crew, launch);
        break;
      case Way::kGathered:
      case Way::kPadded:
        CopyBlocks(crew, way == Way::kPadded ? batch.copies : batch.stage_copies, false);
        for (Launch& launch : way == Way::kGathered ? batch.gathered : batch.padded) {
          MoveRows(crew, launch, false);
          Run(crew, launch);
          MoveRows(crew, launch, true);
        }
        break;
      case Way::kRepacked:
      case Way::kWidened:
        CopyBlocks(crew, batch.copies, way == Way::kWidened);
        Run(crew, batch.repacked);
        break;
      case Way::kMasked:
        AddMask(crew, batch.whole);
        Run(crew, batch.whole);
        break;
      case Way::kTiled:
        for (Launch& launch : batch.tiled) {
          MoveRows(crew, launch, false);
          AddMask(crew, launch);
          Run(crew, launch);
          MoveRows(crew, launch, true);
        }
        break;
      case Way::kSingly:
        is_singly_ = true;
        Run(crew, batch.whole);
        is_singly_ = false;
        break;
    }
  }
}

void Attention::CopyBlocks(Crew& crew, std::span<const std::array<int32_t, 2>> blocks, bool widens) {
  const size_t bytes = place_.head_bytes * place_.kv_heads;
  const auto count = static_cast<uint32_t>(blocks.size());
  crew.Claim((count + kBlocksPerCopy - 1) / kBlocksPerCopy, [&](uint32_t unit, int) {
    for (uint32_t i = unit * kBlocksPerCopy; i < std::min(count, (unit + 1) * kBlocksPerCopy); ++i) {
      const auto [from, to] = blocks[i];
      const uint8_t* source = place_.pool + static_cast<size_t>(from) * place_.block_bytes + place_.layer_offset;
      uint8_t* target = gathered_place_.pool + static_cast<size_t>(to) * gathered_place_.block_bytes;
      if (widens && geometry_.type == CacheType::kF16) {
        Widen(reinterpret_cast<const uint16_t*>(source), bytes / 2, reinterpret_cast<float*>(target));
      } else {
        std::memcpy(target, source, bytes);
      }
    }
  });
}

void Attention::AddMask(Crew& crew, const Launch& launch) {
  size_t longest = 0;
  for (const ChunkExtent& extent : launch.extents) {
    longest = std::max<size_t>(longest, extent.num_rows * (extent.start + extent.num_rows));
  }
  if (mask_.size() < longest * sizeof(float)) {
    mask_ = AlignedBuffer(RoundUp(longest * sizeof(float), kCacheLine));
    std::memset(mask_.data(), 0, mask_.size());
  }
  const auto* mask = reinterpret_cast<const float*>(mask_.data());
  const auto heads = static_cast<uint32_t>(geometry_.heads);
  crew.Claim(static_cast<uint32_t>(launch.extents.size()) * heads, [&](uint32_t unit, int) {
    const ChunkExtent& extent = launch.extents[unit / heads];
    sink_.store(Sum(mask, extent.num_rows * (extent.start + extent.num_rows)), std::memory_order_relaxed);
  });
}

void Attention::MoveRows(Crew& crew, const Launch& launch, bool back) {
  const std::vector<uint32_t>& rows = launch.rows_in_batch;
  const size_t width = geometry_.heads * geometry_.head_dim;
  const auto count = static_cast<uint32_t>(rows.size());
  if (count == 0) return;
  crew.Claim((count + kRowsPerCopy - 1) / kRowsPerCopy, [&](uint32_t unit, int) {
    for (uint32_t i = unit * kRowsPerCopy; i < std::min(count, (unit + 1) * kRowsPerCopy); ++i) {
      auto* stage = reinterpret_cast<float*>(back ? stage_y_.data() : stage_q_.data()) + i * width;
      auto* batch = reinterpret_cast<float*>(back ? y_.data() : q_.data()) + rows[i] * width;
      if (!back) {
        std::memcpy(stage, batch, width * sizeof(float));
      } else if (i == 0 || rows[i - 1] != rows[i]) {
        std::memcpy(batch, stage, width * sizeof(float));
      }
    }
  });
}

void Attention::Run(Crew& crew, Launch& launch) {
  for (size_t i = 0; i < launch.tasks.wholes.size(); ++i) {
    launch.left[i].store(launch.tasks.wholes[i].num_tasks, std::memory_order_relaxed);
  }
  crew.Claim(launch.tasks.num_units(), [&](uint32_t unit, int thread) { CarryOut(launch, unit, thread); });
}

std::vector<std::vector<double>> Attention::UnitSeconds(Crew& crew, Batch& batch) {
  std::vector<std::vector<double>> seconds;
  gathered_place_ = contiguous_place_;
  std::vector<Launch*> launches = {&batch.whole};
  for (Launch& launch : batch.stages) launches.push_back(&launch);
  for (Launch* launch : launches) {
    std::vector<double>& units = seconds.emplace_back();
    for (size_t i = 0; i < launch->tasks.wholes.size(); ++i) launch->left[i].store(launch->tasks.wholes[i].num_tasks);
    for (uint32_t unit = 0; unit < launch->tasks.num_units(); ++unit) {
      units.push_back(crew.Time([&] { CarryOut(*launch, unit, 0); }));
    }
  }
  return seconds;
}

void Attention::CarryOut(Launch& launch, uint32_t unit, int thread) {
  const AttendTasks& tasks = launch.tasks;
  for (uint32_t i = tasks.unit_begins[unit]; i < tasks.unit_begins[unit + 1]; ++i) {
    const AttendTask& task = tasks.tasks[i];
    AttendTaskOf(launch, task, thread);
    if (task.whole == kNoIndex) continue;
    const auto whole = static_cast<size_t>(task.whole);
    if (launch.left[whole].fetch_sub(1, std::memory_order_acq_rel) == 1) MergeWhole(launch, tasks.wholes[whole]);
  }
}

float* Attention::PartialsOf(const AttendWhole& whole, uint32_t tile) const {
  const size_t floats_per_row = geometry_.heads / geometry_.kv_heads * (2 + geometry_.head_dim);
  return reinterpret_cast<float*>(partials_.data()) + whole.first_partial +
         (tile - whole.first_tile) * whole.num_rows * floats_per_row;
}

void Attention::AttendTaskOf(Launch& launch, const AttendTask& task, int thread) {
  const ChunkExtent& chunk = launch.extents[task.chunk];
  const bool is_staged = !launch.rows_in_batch.empty();
  const size_t width = geometry_.heads * geometry_.head_dim;
  const size_t first_row = chunk.first_row + task.first_row;
  AttendCall call;
  call.place = launch.is_gathered ? gathered_place_ : place_;
  call.table = chunk.table.data();
  call.kv_head = task.kv_head;
  call.group = geometry_.heads / geometry_.kv_heads;
  call.q = reinterpret_cast<const float*>(is_staged ? stage_q_.data() : q_.data()) + first_row * width;
  call.y = reinterpret_cast<float*>(is_staged ? stage_y_.data() : y_.data()) + first_row * width;
  call.q_stride = call.y_stride = width;
  call.start = chunk.start + task.first_row;
  call.num_rows = task.num_rows;
  call.scale = 0.125f;
  if (task.whole != kNoIndex) {
    call.partials = PartialsOf(launch.tasks.wholes[static_cast<size_t>(task.whole)], task.first_tile);
    call.first_tile = task.first_tile;
    call.num_tiles = task.num_tiles;
  }
  if (is_singly_) {
    const bool is_whole = task.whole == kNoIndex;
    return AttendSingly(call, is_whole ? nullptr : &launch.tasks.wholes[static_cast<size_t>(task.whole)], thread);
  }
  kernels_.attend(call, scratch_[static_cast<size_t>(thread)].data());
}

void Attention::AttendSingly(const AttendCall& call, const AttendWhole* whole, int thread) {
  const size_t floats = 2 + geometry_.head_dim;
  uint8_t* scratch = scratch_[static_cast<size_t>(thread)].data();
  for (size_t row = 0; row < call.num_rows; ++row) {
    for (size_t head = 0; head < call.group; ++head) {
      AttendCall one = call;
      // A group of one head is found at the KV head's number.
      const size_t skipped = (call.kv_head * (call.group - 1) + head) * geometry_.head_dim;
      one.group = 1, one.num_rows = 1, one.start = call.start + row;
      one.q += row * call.q_stride + skipped;
      one.y += row * call.y_stride + skipped;
      if (whole == nullptr) {
        kernels_.attend(one, scratch);
        continue;
      }
      one.num_tiles = 1;
      for (size_t tile = 0; tile < call.num_tiles; ++tile) {
        one.first_tile = call.first_tile + tile;
        one.partials = call.partials + ((tile * whole->num_rows + row) * call.group + head) * floats;
        kernels_.attend(one, scratch);
      }
    }
  }
}

void Attention::MergeWhole(const Launch& launch, const AttendWhole& whole) {
  const size_t width = geometry_.heads * geometry_.head_dim;
  const size_t first_row = launch.extents[whole.chunk].first_row + whole.first_row;
  float* y = reinterpret_cast<float*>(launch.rows_in_batch.empty() ? y_.data() : stage_y_.data());
  MergeCall call;
  call.partials = PartialsOf(whole, whole.first_tile);
  call.num_tiles = whole.num_tiles;
  call.num_rows = whole.num_rows;
  call.group = geometry_.heads / geometry_.kv_heads;
  call.head_dim_v = geometry_.head_dim;
  call.kv_head = whole.kv_head;
  call.y = y + first_row * width;
  call.y_stride = width;
  kernels_.merge(call);
}

}  // namespace plait::bench
