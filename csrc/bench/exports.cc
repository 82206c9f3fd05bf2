// What bench/kernels.py calls: plain functions on handles.
//
// Owns the C interface and the measuring of rates; what is measured is in the files beside this one. Times are seconds,
// rates are per second. Invariant: an argument that makes no sense gives null or a negative time, never a crash.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/cpu.h"
#include "bench/attention.h"
#include "bench/crew.h"
#include "bench/products.h"
#include "formats/pack.h"
#include "limits/compute_loops.h"
#include "limits/rates.h"
#include "ops/kernels.h"

#define PLAIT_EXPORT extern "C" __attribute__((visibility("default")))

namespace plait::bench {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;

const Kernels* KernelsOf(const std::string& target) {
  for (const Target one : SupportedTargets()) {
    if (target != TargetName(one)) continue;
#if defined(__x86_64__)
    if (one == Target::kAvx2) return &avx2::kKernels;
    if (one == Target::kAvx512) return &avx512::kKernels;
#endif
    return &baseline::kKernels;
  }
  return nullptr;
}

}  // namespace

// Threads, the kernels that they call, and a memory that they read to find out how fast that goes.
struct Machine {
  Machine(const Kernels& the_kernels, int num_threads, bool counts_processor_time, size_t read_bytes)
      : kernels(the_kernels), crew(num_threads, counts_processor_time), memory(RoundUp(read_bytes, kPieceBytes)) {
    crew.Time([&] {
      crew.Claim(static_cast<uint32_t>(memory.size() / kPieceBytes), [&](uint32_t piece, int) {
        std::fill_n(memory.data() + piece * kPieceBytes, kPieceBytes, static_cast<uint8_t>(piece));
      });
    });
  }
  const Kernels& kernels;
  Crew crew;
  AlignedBuffer memory;
  size_t next_piece = 0;
  std::atomic<uint64_t> sink = 0;
};

}  // namespace plait::bench

using plait::bench::Attention;
using plait::bench::Batch;
using plait::bench::Machine;
using plait::bench::Products;

// Null: no such target here, or not so much memory.
PLAIT_EXPORT Machine* plait_bench_machine(const char* target, int num_threads, int counts_processor_time,
                                          uint64_t read_bytes) try {
  const plait::Kernels* kernels = plait::bench::KernelsOf(target);
  if (kernels == nullptr || num_threads < 1) return nullptr;
  return new Machine(*kernels, num_threads, counts_processor_time != 0, std::max<uint64_t>(read_bytes, 1));
} catch (const std::bad_alloc&) {
  return nullptr;
}

PLAIT_EXPORT int plait_bench_has_target(const char* target) { return plait::bench::KernelsOf(target) != nullptr; }

PLAIT_EXPORT void plait_bench_close_machine(Machine* machine) { delete machine; }

// Operations a second of the loop of `kind` for the machine's target; 0: it has none.
PLAIT_EXPORT double plait_bench_compute_rate(Machine* machine, const char* kind, uint64_t rounds) {
  for (const plait::limits::ComputeLoop& loop : plait::limits::AvailableComputeLoops()) {
    if (std::string(loop.kind) != kind || std::string(loop.target) != machine->kernels.target) continue;
    const double seconds = machine->crew.Time([&] {
      machine->crew.Together(
          [&](int) { machine->sink.fetch_add(static_cast<uint64_t>(loop.run(rounds)), std::memory_order_relaxed); });
    });
    return static_cast<double>(rounds * loop.operations_per_round) * machine->crew.num_threads() / seconds;
  }
  return 0.0;
}

// Bytes a second out of the machine's memory, from where the last call stopped.
PLAIT_EXPORT double plait_bench_read_rate(Machine* machine, uint64_t bytes) {
  using plait::bench::kPieceBytes;
  const size_t num_pieces = machine->memory.size() / kPieceBytes;
  const auto count = static_cast<uint32_t>(std::max<uint64_t>(bytes / kPieceBytes, 1));
  const double seconds = machine->crew.Time([&] {
    machine->crew.Claim(count, [&](uint32_t unit, int) {
      const uint8_t* piece = machine->memory.data() + (machine->next_piece + unit) % num_pieces * kPieceBytes;
      const char* begin = reinterpret_cast<const char*>(piece);
      machine->sink.fetch_add(plait::limits::XorOf(begin, begin + kPieceBytes), std::memory_order_relaxed);
    });
  });
  machine->next_piece = (machine->next_piece + count) % num_pieces;
  return static_cast<double>(count * kPieceBytes) / seconds;
}

PLAIT_EXPORT int plait_bench_is_integer(int scheme) { return plait::IsInteger(static_cast<plait::Scheme>(scheme)); }

PLAIT_EXPORT uint64_t plait_bench_depth_multiple(int scheme) {
  return plait::DepthMultiple(static_cast<plait::Scheme>(scheme));
}

PLAIT_EXPORT Products* plait_bench_products(Machine* machine, int scheme, uint64_t depth, uint64_t columns,
                                            uint64_t cold_bytes, uint64_t max_rows) try {
  const auto chosen = static_cast<plait::Scheme>(scheme);
  if (scheme < 0 || static_cast<size_t>(scheme) >= plait::kNumSchemes || depth == 0 || columns == 0 ||
      depth % std::max(plait::DepthMultiple(chosen), plait::kGroupSize) != 0) {
    return nullptr;
  }
  return new Products(machine->kernels, chosen, depth, columns, cold_bytes, max_rows);
} catch (const std::bad_alloc&) {
  return nullptr;
}

PLAIT_EXPORT void plait_bench_close_products(Products* products) { delete products; }

PLAIT_EXPORT uint64_t plait_bench_products_bytes(const Products* products) { return products->bytes(); }

// `rule` is a RowRule. Seconds of all calls together.
PLAIT_EXPORT double plait_bench_multiply(Machine* machine, Products* products, uint64_t rows, int rule,
                                         uint64_t num_calls) {
  return machine->crew.Time(
      [&] { products->Multiply(machine->crew, rows, static_cast<plait::bench::RowRule>(rule), num_calls); });
}

PLAIT_EXPORT double plait_bench_quantize(Machine* machine, Products* products, uint64_t rows, uint64_t num_calls) {
  return machine->crew.Time([&] { products->Quantize(machine->crew, rows, num_calls); });
}

// `cache_type` is a CacheType.
PLAIT_EXPORT Attention* plait_bench_attention(Machine* machine, uint64_t heads, uint64_t kv_heads, uint64_t head_dim,
                                              int cache_type, uint64_t tokens_per_block, uint64_t num_layers,
                                              uint64_t num_blocks, uint64_t max_rows) try {
  if (kv_heads == 0 || heads % kv_heads != 0 || head_dim == 0 || head_dim % plait::kPanelColumns != 0) return nullptr;
  if (tokens_per_block == 0 || plait::kKeyTile % tokens_per_block != 0 || num_layers == 0) return nullptr;
  const plait::bench::Geometry geometry{
      heads, kv_heads, head_dim, static_cast<plait::CacheType>(cache_type), tokens_per_block, num_layers, num_blocks};
  return new Attention(machine->kernels, geometry, machine->crew.num_threads(), max_rows);
} catch (const std::bad_alloc&) {
  return nullptr;
}

PLAIT_EXPORT void plait_bench_close_attention(Attention* attention) { delete attention; }

// Stages are those of Stage. Null: the cache or the memory for rows is too small.
PLAIT_EXPORT Batch* plait_bench_batch(const Attention* attention, uint64_t count, const uint8_t* stages,
                                      const uint64_t* starts, const uint32_t* rows, uint64_t num_workers) {
  std::vector<plait::bench::Segment> segments;
  for (size_t i = 0; i < count; ++i) {
    if (stages[i] >= plait::bench::kNumStages || rows[i] == 0) return nullptr;
    segments.push_back({static_cast<plait::bench::Stage>(stages[i]), starts[i], rows[i]});
  }
  return attention->MakeBatch(segments, num_workers).release();
}

PLAIT_EXPORT void plait_bench_close_batch(Batch* batch) { delete batch; }

// `way` is a Way. Seconds of all layers together.
PLAIT_EXPORT double plait_bench_attend(Machine* machine, Attention* attention, Batch* batch, int way,
                                       uint64_t num_layers) {
  return machine->crew.Time(
      [&] { attention->Attend(machine->crew, *batch, static_cast<plait::bench::Way>(way), num_layers); });
}

PLAIT_EXPORT double plait_bench_plan(const Attention* attention, const Batch* batch, uint64_t num_workers) {
  return attention->PlanSeconds(*batch, num_workers);
}

// Seconds of the units of the one call, -1, those of the first separate launch, -1, and so on: the number of them all.
// At most `room` are written.
PLAIT_EXPORT uint64_t plait_bench_units(Machine* machine, Attention* attention, Batch* batch, double* seconds,
                                        uint64_t room) {
  uint64_t count = 0;
  for (const std::vector<double>& launch : attention->UnitSeconds(machine->crew, *batch)) {
    for (size_t i = 0; i <= launch.size(); ++i, ++count) {
      if (count < room) seconds[count] = i < launch.size() ? launch[i] : -1.0;
    }
  }
  return count;
}
