// Speed of the matrix kernels beside what the machine can do, measured in turns in the same run.
//
// Owns the shapes and the table it prints: for every number of rows the share of the multiply rate, the share of the
// read bandwidth, and the share of the roofline that the two make. Weights are cold: layers are used in turn, more of
// them than caches hold. Invariant: a time is the shortest of many samples of less than a millisecond or of one call,
// because others on the machine can only lengthen it.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/cpu.h"
#include "formats/blocks.h"
#include "formats/half.h"
#include "formats/pack.h"
#include "limits/rates.h"
#include "ops/kernels.h"

namespace plait {
namespace {

using limits::Now;

struct Shape {
  size_t depth;
  size_t columns;
};

struct Options {
  std::string target = TargetName(BestTarget());
  std::vector<Scheme> schemes = {Scheme::kF32,  Scheme::kF16,  Scheme::kBf16,
                                 Scheme::kQ8_0, Scheme::kQ4_0, Scheme::kQ4_1};
  std::vector<Shape> shapes = {{576, 576}, {576, 192}, {576, 960}, {576, 1536}, {1536, 576}, {576, 49152}};
  std::vector<size_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  size_t cold_bytes = size_t{96} << 20;
  int threads = 1;
  double seconds = 0.05;  // of samples for each line
};

constexpr const char* kSchemeNames[kNumSchemes] = {"f32",  "f16",  "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1",
                                                   "q4_k", "q5_k", "q6_k", "int8", "q2_k", "q3_k", "iq4",  "q8_16"};
constexpr double kSampleSeconds = 0.0003;

const Kernels& KernelsOf(const std::string& target) {
#if defined(__x86_64__)
  if (target == "avx2") return avx2::kKernels;
  if (target == "avx512") return avx512::kKernels;
#endif
  return baseline::kKernels;
}

// As many copies of one matrix as caches do not hold.
struct Layers {
  AlignedBuffer memory;
  std::vector<WeightPanels> panels;
};

Layers MakeLayers(Scheme scheme, const Shape& shape, size_t cold_bytes) {
  WeightPanels one{scheme, shape.columns, shape.depth, BytesPerPanel(scheme, shape.depth), nullptr};
  std::vector<uint8_t> stored(shape.columns * BytesPerStoredRow(scheme, shape.depth));
  uint32_t state = 1;
  for (uint8_t& byte : stored) byte = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  const size_t step = BlockBytes(scheme);
  const bool has_floats = scheme == Scheme::kF32 || IsWide(scheme) || HasFloatScales(scheme);
  for (size_t at = IsInteger(scheme) ? FirstHalf(scheme) : 0; at < stored.size(); at += step) {
    // Numbers of ordinary size: nothing overflows and nothing is subnormal.
    const float value = 0.01f + static_cast<float>(stored[at]) / 2560.0f;
    uint32_t bits = __builtin_bit_cast(uint32_t, value);
    if (scheme == Scheme::kBf16) bits >>= 16;
    if (!has_floats && scheme != Scheme::kBf16) bits = FloatToHalf(value);
    const size_t size = has_floats ? 4 : 2;
    std::memcpy(&stored[at], &bits, size);
    if (HasMinima(scheme) || scheme == Scheme::kQ8_16) std::memcpy(&stored[at + size], &bits, size);
  }
  const size_t bytes = one.num_panels() * one.bytes_per_panel;
  const size_t count = std::max<size_t>(1, cold_bytes / bytes);
  Layers layers{AlignedBuffer(count * bytes), {}};
  PackPanels(scheme, stored.data(), shape.columns, shape.depth, 0, one.num_panels(), layers.memory.data());
  for (size_t i = 0; i < count; ++i) {
    one.bytes = layers.memory.data() + i * bytes;
    if (i > 0) std::memcpy(layers.memory.data() + i * bytes, layers.memory.data(), bytes);
    layers.panels.push_back(one);
  }
  return layers;
}

// Rows, quantised too, and outputs.
struct Operands {
  Operands(size_t rows, const Shape& shape)
      : x(rows * shape.depth), y(rows * shape.columns), groups(x.size() / kGroupSize) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 255) / 127.0f - 1.0f;
  }
  std::vector<float> x, y;
  std::vector<QuantizedGroup> groups;
};

// Threads that do the same piece of work at the same time; the caller is the first of them.
class Crew {
 public:
  explicit Crew(int count) : count_(count) {
    // Asked before this thread is pinned: the others inherit what it may use.
    const std::vector<int> cpus = UsableCpus();
    for (int index = 1; index < count; ++index) {
      threads_.emplace_back([this, index, cpu = cpus[static_cast<size_t>(index) % cpus.size()]] {
        PinThread(cpu);
        Serve(index);
      });
    }
    PinThread(cpus[0]);
  }
  ~Crew() {
    stopping_ = true;
    round_.fetch_add(1);
    for (std::thread& thread : threads_) thread.join();
  }
  // Seconds from the start to the last one's end.
  template <typename Work>
  double Time(const Work& work) {
    call_ = [](const void* bound, int index) { (*static_cast<const Work*>(bound))(index); };
    bound_ = &work;
    num_done_ = 0;
    const double began = Now();
    round_.fetch_add(1);
    work(0);
    while (num_done_.load() < count_ - 1) {
    }
    return Now() - began;
  }

 private:
  void Serve(int index) {
    for (int seen = 0;;) {
      while (round_.load() == seen) {
      }
      ++seen;
      if (stopping_) return;
      call_(bound_, index);
      num_done_.fetch_add(1);
    }
  }

  const int count_;
  std::vector<std::thread> threads_;
  std::atomic<int> round_ = 0;
  std::atomic<int> num_done_ = 0;
  std::atomic<bool> stopping_ = false;
  void (*call_)(const void*, int) = nullptr;
  const void* bound_ = nullptr;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), kernels_(KernelsOf(options.target)), crew_(options.threads) {}

  void Run() {
    MeasureRates();
    std::printf("%s, %d thread(s): f32 %.1f GFLOP/s, int8 %.1f GOP/s, read %.2f GB/s\n", options_.target.c_str(),
                options_.threads, f32_rate_ / 1e9, int8_rate_ / 1e9, read_rate_ / 1e9);
    std::printf("%-5s %5s %6s %4s %10s %9s %7s %7s %7s\n", "form", "K", "N", "M", "us", "Gop/s", "of mul", "of read",
                "of roof");
    for (const Scheme scheme : options_.schemes) {
      for (const Shape& shape : options_.shapes) {
        const Layers layers = MakeLayers(scheme, shape, options_.cold_bytes);
        ReadOnce(layers);
        for (const size_t rows : options_.rows) Line(layers, shape, rows);
      }
    }
  }

 private:
  // Shortest time of a whole product, in seconds. A sample is some calls for one layer after another, or, of large
  // products, one call for a part of the panels.
  double BestTime(const Layers& layers, const GemmCall& whole) {
    const size_t panels = whole.weights.num_panels();
    const double work = static_cast<double>(whole.num_rows * whole.weights.depth * kPanelColumns) * 2 / f32_rate_;
    const auto threads = static_cast<size_t>(options_.threads);
    const size_t fitting = std::max<size_t>(2, static_cast<size_t>(kSampleSeconds / work)) * threads;
    const size_t parts = std::max<size_t>(1, panels / fitting);
    size_t repeats = 1, part = 0, layer = 0;
    double best = 1e30;
    const double end = Now() + options_.seconds;
    for (size_t sample = 0; sample < 5 || Now() < end; ++sample) {
      const size_t first = panels * part / parts;
      const size_t count = panels * (part + 1) / parts - first;
      const double time = crew_.Time([&](int index) {
        GemmCall call = whole;
        call.first_panel = first + count * static_cast<size_t>(index) / threads;
        call.num_panels = first + count * (static_cast<size_t>(index) + 1) / threads - call.first_panel;
        for (size_t i = 0; i < repeats; ++i) {
          call.weights = layers.panels[(layer + i) % layers.panels.size()];
          kernels_.gemm(call);
        }
      });
      best = std::min(best, time / static_cast<double>(repeats * count) * static_cast<double>(panels));
      part = (part + 1) % parts;
      if (part == 0) layer = (layer + repeats) % layers.panels.size();
      if (parts == 1) repeats = static_cast<size_t>(std::max(1.0, kSampleSeconds / best));
    }
    return best;
  }

  // Making the layers left the last of them in caches.
  void ReadOnce(const Layers& layers) {
    uint64_t sum = 0;
    for (size_t at = 0; at < layers.memory.size(); at += 64) sum += layers.memory.data()[at];
    sink_.store(static_cast<double>(sum), std::memory_order_relaxed);
  }

  void Line(const Layers& layers, const Shape& shape, size_t rows) {
    Operands operands(rows, shape);
    GemmCall call;
    call.weights = layers.panels[0];
    call.num_rows = rows;
    call.x = operands.x.data();
    call.x_stride = shape.depth;
    call.quantized = {operands.groups.data(), shape.depth, RowGroupSize(call.weights.scheme)};
    call.y = operands.y.data();
    call.y_stride = shape.columns;
    if (IsInteger(call.weights.scheme)) kernels_.quantize(call.x, shape.depth, rows, call.quantized);
    const double time = BestTime(layers, call);
    const double operations = 2.0 * static_cast<double>(rows * shape.depth * shape.columns);
    const auto bytes = static_cast<double>(call.weights.num_panels() * call.weights.bytes_per_panel);
    const double compute = operations / time / (IsInteger(call.weights.scheme) ? int8_rate_ : f32_rate_);
    const double read = bytes / time / read_rate_;
    std::printf("%-5s %5zu %6zu %4zu %10.1f %9.1f %7.2f %7.2f %7.2f\n",
                kSchemeNames[static_cast<size_t>(call.weights.scheme)], shape.depth, shape.columns, rows, time * 1e6,
                operations / time / 1e9, compute, read, std::max(compute, read));
    std::fflush(stdout);
  }

  // Best of many short samples, as the kernels are measured.
  void MeasureRates() {
    for (const limits::ComputeLoop& loop : limits::AvailableComputeLoops()) {
      if (options_.target != loop.target) continue;
      double best = 0.0;
      for (int sample = 0; sample < 200; ++sample) {
        constexpr uint64_t kRounds = 20000;
        const double time = crew_.Time([&](int) { sink_.store(loop.run(kRounds), std::memory_order_relaxed); });
        best = std::max(best, static_cast<double>(kRounds * loop.operations_per_round) * options_.threads / time);
      }
      if (std::string(loop.kind) == "f32") f32_rate_ = best;
      if (std::string(loop.kind) == "int8") int8_rate_ = best;
    }
    const std::vector<double> rates = limits::ReadRates(size_t{256} << 20, options_.threads, 40, 0.003);
    for (const double rate : rates) read_rate_ = std::max(read_rate_, rate);
  }

  const Options options_;
  const Kernels& kernels_;
  Crew crew_;
  std::atomic<double> sink_ = 0.0;
  double f32_rate_ = 0.0;
  double int8_rate_ = 0.0;
  double read_rate_ = 0.0;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool Read(const std::string& name, const std::string& value, Options& options) {
  if (name == "--target") {
    for (const Target target : SupportedTargets()) {
      if (value == TargetName(target)) return options.target = value, true;
    }
    return false;
  }
  if (name == "--threads") return (options.threads = std::atoi(value.c_str())) > 0;
  if (name == "--seconds") return (options.seconds = std::atof(value.c_str())) > 0;
  if (name == "--cold-mib") return options.cold_bytes = std::strtoull(value.c_str(), nullptr, 10) << 20, true;
  if (name == "--schemes") {
    options.schemes.clear();
    for (const std::string& part : Split(value)) {
      size_t index = 0;
      while (index < kNumSchemes && part != kSchemeNames[index]) ++index;
      if (index == kNumSchemes) return false;
      options.schemes.push_back(static_cast<Scheme>(index));
    }
    return true;
  }
  if (name == "--shapes") {
    options.shapes.clear();
    for (const std::string& part : Split(value)) {
      Shape shape{};
      if (std::sscanf(part.c_str(), "%zux%zu", &shape.depth, &shape.columns) != 2) return false;
      if (shape.depth == 0 || shape.depth % kGroupSize != 0 || shape.columns == 0) return false;
      options.shapes.push_back(shape);
    }
    return true;
  }
  if (name != "--rows") return false;
  options.rows.clear();
  for (const std::string& part : Split(value)) options.rows.push_back(std::strtoull(part.c_str(), nullptr, 10));
  return std::find(options.rows.begin(), options.rows.end(), size_t{0}) == options.rows.end();
}

}  // namespace
}  // namespace plait

int main(int count, char** arguments) {
  plait::Options options;
  bool understood = count % 2 == 1;
  for (int index = 1; understood && index + 1 < count; index += 2) {
    understood = plait::Read(arguments[index], arguments[index + 1], options);
  }
  if (!understood) {
    std::fprintf(stderr,
                 "usage: gemm_bench [--target avx2] [--threads 1] [--schemes f32,q8_0] [--shapes 576x1536 (K x N)]\n"
                 "                  [--rows 1,8] [--seconds 0.05 (a line)] [--cold-mib 96 (0: weights in caches)]\n");
    return 2;
  }
  plait::Bench(options).Run();
  return 0;
}
